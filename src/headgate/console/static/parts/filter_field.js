/** The filter in a form: what the catalogue knows of the names in it, and the last events that it takes. */
import { EVENTING, objectPath, OWN } from "../api.js";
import { filterOf, withFilter } from "../filters.js";
import { plain } from "../format.js";
import { KINDS } from "../kinds.js";
import { html, useData, useRested, useState } from "../ui.js";
import { Matches } from "./matches.js";

const CEL = KINDS.Trigger.spec.filter.expression;
const TYPES_SHOWN = 8;

/** Shows the filter and the transform of a spec; `onSpec` gets a function from the old spec to the new one. */
export function FilterField({ spec, broker, onSpec }) {
  const dialects = (useData(`${OWN}/filters/dialects`).data?.dialects ?? []).filter((one) => !one.fault);
  const [{ dialect, text }, setTyped] = useState(() => filterOf(spec)); // as it is typed: JSON that is read is another text
  const names = [...new Set(["cel", ...dialects.map((one) => one.name), dialect])];
  const change = (name, typed) => {
    setTyped({ dialect: name, text: typed });
    onSpec((old) => withFilter(old, name, typed, dialects));
  };
  const choose = (name) => {
    const example = dialects.find((one) => one.name === name)?.example;
    change(name, name === "cel" ? CEL : typeof example === "string" ? example : JSON.stringify(example ?? "", null, 2));
  };
  const onTransform = ({ target }) => onSpec((old) => ({ ...old, transform: target.value.trim() ? target.value : undefined }));
  return html`<label>Dialect <select value=${dialect} onChange=${({ target }) => choose(target.value)}>${names.map((one) => html`<option key=${one} value=${one} selected=${one === dialect}>${one === "cel" ? "CEL" : one}</option>`)}</select></label>
    <textarea class="code filter-text" aria-label="Filter" spellcheck="false" autocomplete="off" rows=${Math.max(3, text.split("\n").length + 1)} placeholder="Every event of the broker" value=${text} onInput=${({ target }) => change(dialect, target.value)}></textarea>
    <${Meant} broker=${broker} text=${text} dialect=${dialect} onText=${(meant) => change(dialect, meant)} />
    <details open=${Boolean(spec.transform)}><summary>Transform: what is sent of each event</summary><textarea class="code filter-text" aria-label="Transform" spellcheck="false" autocomplete="off" rows="3" value=${spec.transform ?? ""} onInput=${onTransform}></textarea></details>`;
}

/** Only what rests is tried: a broker that is being typed is asked for nothing. */
export function Tried({ broker, spec }) {
  const rested = useRested(JSON.stringify({ broker, filter: spec.filter, filters: spec.filters }), 300);
  const { broker: where, filter, filters } = JSON.parse(rested);
  return html`<${Matches} key=${where} broker=${where} filter=${filter} filters=${filters} />`;
}

/** How many letters differ between two texts. */
function distance(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
    row = next;
  }
  return row[b.length];
}

const LITERALS = /"((?:[^"\\]|\\.){3,80})"|'((?:[^'\\]|\\.){3,80})'/g;

/** Names in a filter that no event has had, with the one that was probably meant. */
function misspelt(text, known) {
  const literals = [...text.matchAll(LITERALS)].map(([, double, single]) => double ?? single);
  return [...new Set(literals)].filter((one) => !known.includes(one)).flatMap((one) => {
    const near = known.map((name) => ({ one, name, far: distance(one, name) })).sort((a, b) => a.far - b.far)[0];
    return near && near.far <= Math.max(2, Math.floor(one.length / 4)) ? [near] : [];
  });
}

/** What the catalogue knows of the broker's events: did the filter mean another name? */
function Meant({ broker, text, dialect, onText }) {
  const rested = useRested(broker, 300);
  const [space, short] = rested.split("/");
  const { data } = useData(short ? `${objectPath(EVENTING, space, "brokers", short)}/catalogue` : null);
  const items = data?.items ?? [];
  const types = [...new Set(items.map((one) => one.type))];
  const wrong = misspelt(text, [...types, ...new Set(items.map((one) => one.source))]);
  if (!text.trim() && dialect === "cel" && types.length) {
    return html`<p class="chips"><span class="muted">Types of the broker:</span> ${types.slice(0, TYPES_SHOWN).map((one) => html`<button type="button" key=${one} onClick=${() => onText(`ce.type == ${JSON.stringify(one)}`)}>${plain(one)}</button>`)}</p>`;
  }
  return wrong.map(({ one, name }) => html`<p class="warning" key=${one}>No event has had <code>${plain(one)}</code>. Did you mean <button type="button" class="link" onClick=${() => onText(text.replaceAll(one, name))}>${plain(name)}</button>?</p>`);
}
