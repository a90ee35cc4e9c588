/** Sends one event to a broker, as a producer does: begun from the last one that came. */
import { post } from "../api.js";
import { link, pathOf } from "../router.js";
import { html, useEffect, useState } from "../ui.js";
import { Dialog, Problem } from "./basics.js";
import { lastEvents } from "./broker_field.js";

const FIRST = { source: "/console", type: "order.paid", data: { total: 120 } };
const CHARACTERS_MAX = 20_000;
const freshId = () => `test-${Math.random().toString(36).slice(2, 8)}`;

export function SendEvent({ broker, onClose }) {
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const [sent, setSent] = useState(null);
  useEffect(() => {
    const begin = ({ id, time, specversion, ...event }) => setText((old) => old || JSON.stringify({ specversion: "1.0", id: freshId(), ...event }, null, 2));
    lastEvents(broker, 1).then(([newest]) => begin(newest && JSON.stringify(newest).length < CHARACTERS_MAX ? newest : FIRST), () => begin(FIRST));
  }, [broker]);
  async function send() {
    setError(null);
    setSent(null);
    try {
      const event = JSON.parse(text);
      await post(pathOf(...broker.split("/")), text, { type: "application/cloudevents+json" });
      setSent(event);
      setText(JSON.stringify({ ...event, id: freshId() }, null, 2));
    } catch (failed) {
      setError(failed instanceof SyntaxError ? new Error(`This is no JSON: ${failed.message}`) : failed);
    }
  }
  return html`<${Dialog} title=${`Send an event to ${broker}`} onClose=${onClose}>
    <p class="muted">It is stored like any other event, and every trigger whose filter is true gets it.</p>
    <textarea class="code" aria-label="The event as JSON" rows=${Math.min(22, text.split("\n").length + 1)} cols="72" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    <${Problem} error=${error} />
    ${sent && html`<p role="status">Stored. <a href=${link(["events", ...broker.split("/"), sent.id], { source: sent.source })}>See what becomes of it</a></p>`}
    <div class="dialog-actions"><button type="button" onClick=${onClose}>Close</button><button type="button" class="primary" disabled=${!text.trim()} onClick=${send}>Send</button></div>
  <//>`;
}
