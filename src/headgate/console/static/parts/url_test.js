/** Sends the newest event of a broker to a URL, as a replay of one event does: does the subscriber take it? */
import { get, OWN, post, within } from "../api.js";
import { plain } from "../format.js";
import { html, useEffect, useState } from "../ui.js";
import { Status } from "./basics.js";
import { lastEvents } from "./broker_field.js";

const TEST = { rounds: 12, everyMs: 800 };

export function UrlTest({ broker, namespace, url }) {
  const [result, setResult] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const path = within(OWN, namespace, "replays");
  useEffect(() => setResult(null), [broker, url]);
  async function test() {
    setBusy(true);
    setResult(null);
    try {
      const [event] = await lastEvents(broker, 1);
      if (!event) throw new Error("the broker has no event yet that could be sent");
      const cel = `ce.id == ${JSON.stringify(event.id)} && ce.source == ${JSON.stringify(event.source)}`;
      const { id } = await post(path, { broker: broker.split("/")[1], url: url.trim(), from: new Date(Date.now() - 864e5).toISOString(), filter: cel, rate: 10 });
      let seen = {};
      for (let round = 0; round < TEST.rounds && !seen.delivered && !seen.failed && !seen.deadLettered && !seen.problem; round++) {
        await new Promise((done) => setTimeout(done, TEST.everyMs));
        seen = await get(`${path}/${encodeURIComponent(id)}`);
        if (seen.state !== "running") break;
      }
      if (seen.state === "running") await post(`${path}/${encodeURIComponent(id)}/cancel`, {});
      setResult(seen.delivered ? { tone: "good", words: `The URL took the event ${event.id}` } : { tone: "bad", words: seen.problem || (seen.failed || seen.deadLettered ? "The URL refused the event" : seen.matched ? "No answer yet" : "The newest event is older than a day") });
    } catch (error) {
      setResult({ tone: "bad", words: error.message });
    }
    setBusy(false);
  }
  return html`<p class="url-test"><button type="button" disabled=${isBusy || !/^https?:/.test(url)} onClick=${test}>${isBusy ? "Sending…" : "Test: send the newest event"}</button>
    <span role="status">${result && html`<${Status} tone=${result.tone}>${plain(result.words)}<//>`}</span></p>`;
}
