/** Names in a filter that no event of its broker has had, with what was probably meant: the server knows both. */
import { EVENTING, objectPath, post } from "../api.js";
import { plain } from "../format.js";
import { html, useEffect, useRested, useState } from "../ui.js";

/**
 * Asked whenever the question rests; nothing is known where the user may not read the broker's catalogue.
 * @param {string} broker `namespace/name`, or what is being typed.
 * @param {any|null} asked A filter as the API takes it; null: nothing is asked.
 * @returns {{message: string, written: string, meant: string}[]}
 */
export function useMeant(broker, asked) {
  const rested = useRested(JSON.stringify({ broker, asked }), 400);
  const [found, setFound] = useState([]);
  useEffect(() => {
    const { broker: where, asked: filter } = JSON.parse(rested);
    const [namespace, name] = where.split("/");
    setFound([]);
    if (!name || !filter) return undefined;
    const stop = new AbortController();
    post(`${objectPath(EVENTING, namespace, "brokers", name)}/catalogue`, filter, { signal: stop.signal }).then(({ items }) => setFound(items), () => {});
    return () => stop.abort();
  }, [rested]);
  return found;
}

/** The text with a name in the place of another one, where that stands by itself. */
function replaced(text, written, meant) {
  const quoted = written.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
  return text.replace(new RegExp(`(?<![\\w.])${quoted}(?!\\w)|(?<=\\bce\\.)${quoted}(?!\\w)`, "g"), () => meant);
}

export const Meant = ({ names, text, onText }) =>
  names.map((one) => html`<p class="warning" key=${one.message}>${plain(one.message)} <button type="button" class="link" onClick=${() => onText(replaced(text, one.written, one.meant))}>Write ${plain(one.meant)}</button></p>`);
