/** A field for a broker, `namespace/name`, which knows the server's; and the last events of one. */
import { EVENTING, get, within } from "../api.js";
import { pathOf, searchOf } from "../router.js";
import { html, useData, useRested } from "../ui.js";

const SHOWN_MAX = 50;

export function BrokerField({ value, namespace, onChange }) {
  const search = useRested(value.split("/").pop(), 250);
  const { data } = useData(within(EVENTING, namespace, "brokers"), { limit: SHOWN_MAX, search }, { keep: true });
  const names = (data?.items ?? []).map(({ metadata }) => `${metadata.namespace}/${metadata.name}`);
  return html`<label class="broker-field"><span class="unseen">Broker</span>
    <input list="brokers" placeholder="namespace/broker" spellcheck="false" autocomplete="off" value=${value} onInput=${(event) => onChange(event.target.value)} />
    <datalist id="brokers">${names.map((one) => html`<option key=${one} value=${one} />`)}</datalist>
  </label>`;
}

/** Where a broker's events are. */
export const eventsPath = (broker) => `${pathOf(...broker.split("/"))}/events`;

/** The place of an event, as numbers. */
const placeOf = ({ hgposition }) => String(hgposition).split(":").map(Number);

/** The last events of a broker, the newest first. */
export async function lastEvents(broker, number) {
  const found = await get(eventsPath(broker) + searchOf({ last: number }), { accept: "application/cloudevents-batch+json" });
  const newestFirst = found.sort((a, b) => placeOf(b)[1] - placeOf(a)[1]);
  return newestFirst.slice(0, number).map(({ hgposition, ...event }) => event);
}
