/** A filter on the last events of its broker, as they come. */
import { clock, plain } from "../format.js";
import { link } from "../router.js";
import { html } from "../ui.js";
import { useLastEvents } from "./broker_field.js";
import { Problem, Status } from "./basics.js";
import { Counts, useVerdicts, VERDICTS } from "./verdicts.js";

const LAST = 20;
const EVERY_MS = 10_000;

/** @param {{broker: string, filter?: any, filters?: any[]}} given The broker is `namespace/name`. */
export function Matches({ broker, filter, filters }) {
  const last = useLastEvents(broker, LAST, EVERY_MS);
  const isAll = !filters?.length && (!filter || !Object.keys(filter).length);
  const events = last.events;
  const { data, error } = useVerdicts(events?.length && !isAll ? { filter, filters, events, trace: false } : null);
  if (last.error?.status === 403) return null;
  if (last.error?.status === 404) return html`<p class="muted">There is no such broker.</p>`;
  if (error) return html`<${Problem} error=${error} />`;
  if (!events) return html`<p class="muted">…</p>`;
  if (!events.length) return html`<p class="muted">The broker has no events yet to try it on.</p>`;
  const results = isAll ? events.map(() => ({ outcome: "true" })) : data?.results;
  const counts = isAll ? { true: events.length } : data?.counts;
  return html`<div class="matches">
    <p class="counts" role="status"><span class="muted">The last ${events.length} events:</span> ${counts && html`<${Counts} counts=${counts} />`}</p>
    <div class="match-list" tabindex="0" role="group" aria-label="The last events"><ul>${events.map((event, index) => {
      const [tone, word] = VERDICTS[results?.[index]?.outcome] ?? ["busy", "…"];
      return html`<li key=${index}><${Status} tone=${tone}>${word}<//> <a class="name" href=${link(["events", ...broker.split("/"), event.id], { source: event.source })}>${plain(event.type)}</a> <span class="muted">${plain(event.id)}${event.time ? ` · ${clock(event.time)}` : ""}</span></li>`;
    })}</ul></div>
  </div>`;
}
