/** A field for a broker, `namespace/name`, which knows the server's; a link to one; and the last events of one. */
import { EVENTING, get, lines, within } from "../api.js";
import { brokerOf, shortName } from "../format.js";
import { link, pathOf, refine, searchOf } from "../router.js";
import { useStore } from "../store.js";
import { html, useData, useEffect, useRested, useState, useTyped } from "../ui.js";

const SHOWN_MAX = 50;
const RESTS_MS = 400;
const CHARACTERS_MAX = 60_000; // of events that are only tried on

export function BrokerField({ value, namespace, onChange }) {
  const search = useRested(value.split("/").pop(), 250);
  const { data } = useData(within(EVENTING, namespace, "brokers"), { limit: SHOWN_MAX, search }, { keep: true });
  const names = (data?.items ?? []).map(({ metadata }) => `${metadata.namespace}/${metadata.name}`);
  return html`<label class="broker-field"><span class="unseen">Broker</span>
    <input list="brokers" placeholder="namespace/broker" spellcheck="false" autocomplete="off" value=${value} onInput=${(event) => onChange(event.target.value)} />
    <datalist id="brokers">${names.map((one) => html`<option key=${one} value=${one} />`)}</datalist>
  </label>`;
}

/** The broker in a page's address, `namespace/name`; empty when there is none. */
export const brokerIn = ({ namespace, broker = "" }) => (broker.includes("/") || !broker ? broker : `${namespace || "default"}/${broker}`);

/**
 * The field for it. A name that is typed goes there when it rests; while there is none, the server's first broker does.
 * @param {Object<string, string>} alsoGone what the address says of the broker before, with empty values.
 */
export function BrokerOfPage({ broker, namespace, alsoGone }) {
  const [typed, setTyped] = useTyped(broker);
  const rested = useRested(typed, RESTS_MS);
  const { data } = useData(broker ? null : within(EVENTING, namespace, "brokers"), { limit: 1 });
  useEffect(() => {
    if (rested !== broker && rested.includes("/")) refine({ broker: rested, ...alsoGone });
  }, [rested]);
  useEffect(() => {
    const first = data?.items?.[0]?.metadata;
    if (first && !typed) refine({ broker: `${first.namespace}/${first.name}` });
  }, [data]);
  return html`<${BrokerField} value=${typed} namespace=${namespace} onChange=${setTyped} />`;
}

/** The broker of a trigger or subscription. */
export const BrokerLink = ({ of }) =>
  html`<a class="plain" href=${link(["brokers", ...brokerOf(of).split("/")])}>${shortName(of.metadata.namespace, brokerOf(of))}</a>`;

/** Where a broker's events are. */
export const eventsPath = (broker) => `${pathOf(...broker.split("/"))}/events`;

const BATCH = "application/cloudevents-batch+json";

/** The place of an event, as numbers. */
const placeOf = ({ hgposition }) => String(hgposition).split(":").map(Number);
const newestOf = (found, number) => [...found].sort((a, b) => placeOf(b)[1] - placeOf(a)[1]).slice(0, number).map(({ hgposition, ...event }) => event);

/** The last events of a broker, the newest first. */
export const lastEvents = async (broker, number) => newestOf(await get(eventsPath(broker) + searchOf({ last: number }), { accept: BATCH }), number);

/** The same, as they come; null until they are known. Of events with much data there are fewer. */
export function useLastEvents(broker, number, everyMs) {
  const [answer, setAnswer] = useState({ broker: "", events: null, error: null });
  const mustSignIn = useStore((state) => state.mustSignIn);
  useEffect(() => {
    if (!broker.includes("/") || mustSignIn) return undefined;
    const stop = new AbortController();
    let timer = 0;
    async function load() {
      try {
        const found = await someEvents(`${eventsPath(broker)}${searchOf({ last: number })}`, stop.signal);
        setAnswer({ broker, events: newestOf(found, number), error: null });
      } catch (error) {
        if (stop.signal.aborted) return;
        setAnswer((old) => ({ broker, events: old.broker === broker ? old.events : null, error }));
      }
      if (!stop.signal.aborted) timer = setTimeout(load, document.hidden ? 10 * everyMs : everyMs);
    }
    load();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [broker, number, mustSignIn]);
  return answer.broker === broker ? answer : { events: null, error: null };
}

/** Events of an answer, as far as it is worth to be loaded. */
async function someEvents(path, signal) {
  const found = [];
  let characters = 0;
  for await (const values of lines(path, signal)) {
    found.push(...values.filter((one) => one.specversion));
    characters = JSON.stringify(found).length;
    if (characters > CHARACTERS_MAX) break;
  }
  return found;
}

/**
 * The event at a place of a broker's log (`partition:offset`), such as one that an address names; null until it is known.
 * `end` is where the log ends, in all partitions: what is read begins there in the others.
 */
export function useEventAt(broker, place, end) {
  const [partition] = place.split(":");
  const [from] = useState(() => ({}));
  if (place && end) from[place] ??= end.split(",").map((one) => (one.split(":")[0] === partition ? place : one)).join(",");
  const { data } = useData(place && end && broker.includes("/") ? eventsPath(broker) : null, { from: from[place], limit: 10 }, { accept: BATCH });
  const found = data?.find((one) => one.hgposition === place);
  if (!found) return null;
  const { hgposition, ...event } = found;
  return event;
}
