/** One event's life: stored, matched, each attempt, and how that ended, for every trigger; or why a trigger did not get it. */
import { EVENTING, objectPath } from "../api.js";
import { counted, fullName, groupedBy, plain } from "../format.js";
import { toPlayground } from "../handover.js";
import { Clock, Copy, Empty, Fold, PageHead, Panel, Problem, Status } from "../parts/basics.js";
import { EventCard } from "../parts/code.js";
import { FilterTrace } from "../parts/filter_trace.js";
import { endOf, Lanes, lanesOf } from "../parts/lanes.js";
import { link } from "../router.js";
import { html, useData, useEffect, useState, useTitle } from "../ui.js";

const EVERY_MS = 2000;
const NEW_MS = 60_000; // so long attempts of an event may still come, and it is found without a search
const EVALUATED = new Set(["filter-false", "filter-error", "changed-since"]);

export function EventPage({ route }) {
  const [namespace, broker, id] = route.segments;
  const { source, next } = route.query;
  const path = objectPath(EVENTING, namespace, "brokers", broker);
  const [after, setAfter] = useState("");
  const [isSearched, setSearched] = useState(false);
  const { data, error } = useData(`${path}/timeline`, { id, source, next, after }, { everyMs: isSearched ? 0 : EVERY_MS });
  useEffect(() => {
    const isNew = Date.now() - Date.parse(data?.trace?.event?.stored) < NEW_MS;
    setSearched(Boolean(data?.next) && !isNew); // a search of the log is not made again and again
  }, [data]);
  useTitle(`Event ${id}`);
  const event = data?.trace?.event?.event;
  const above = html`<a href=${link(["events"], { broker: `${namespace}/${broker}`, namespace: route.query.namespace })}>Events</a><span aria-hidden="true">/</span><a href=${link(["brokers", namespace, broker])}>${namespace}/${broker}</a>`;
  return html`<${PageHead} title=${plain(id)} above=${above} status=${html`<${Copy} text=${id} what="the id" />`}>
      ${event && html`<button type="button" onClick=${() => toPlayground({ filter: { cel: "true" } }, [event])}>Open in the playground</button>`}
    <//>
    <${Problem} error=${error} />
    ${data && !event && html`<${Missing} data=${data} route=${route} />`}
    ${event && html`<${Life} data=${data} namespace=${namespace} broker=${broker} onAfter=${setAfter} />`}`;
}

const Missing = ({ data, route }) =>
  data.next
    ? html`<${Empty} icon="search" title="Not found yet">
        <p>The log was searched back to ${data.searchedTo}.</p>
        <a class="button" href=${link(["events", ...route.segments], { ...route.query, next: data.next })}>Search on</a>
      <//>`
    : html`<${Empty} icon="search" title="This event is not in the log">It was never stored, or it is older than the retention.<//>`;

function Life({ data, namespace, broker, onAfter }) {
  const { event, partition, offset } = data.trace.event;
  const stored = data.timeline.find((one) => one.what === "stored");
  const related = data.timeline.filter((one) => one.what === "related");
  const { lanes, others } = lanesOf(data);
  return html`<${Panel} title="What became of it" aside=${html`stored <${Clock} time=${stored.time} />`}>
      ${lanes.length ? html`<${Lanes} lanes=${lanes} storedAt=${Date.parse(stored.time)} />` : html`<p class="muted">No trigger and no subscription had a delivery of it.</p>`}
      <${Others} namespace=${namespace} id=${event.id} source=${event.source} triggers=${others} />
      ${data.after && html`<p><button type="button" onClick=${() => onAfter(data.after)}>Further triggers of the broker</button></p>`}
    <//>
    ${related.length > 0 && html`<${Panel} title="Events of the same tree"><ul class="plain-list">${related.map((one) => html`<li key=${one.event.id + one.event.source}><${Clock} time=${one.time} /> <a href=${link(["events", namespace, broker, one.event.id], { source: one.event.source })}>${plain(one.event.type)} ${plain(one.event.id)}</a> <span class="muted">${plain(one.says.split(": ").pop())}</span></li>`)}</ul><//>`}
    <${Panel} title="The event" aside=${`partition ${partition}, offset ${offset}`}><${EventCard} event=${event} /><//>`;
}

/** Triggers without a delivery of it: a line for each reason, and behind it which they are. */
function Others({ namespace, id, source, triggers }) {
  const groups = [...groupedBy(triggers, (one) => endOf(one)[1])].map(([words, members]) => ({ tone: endOf(members[0])[0], words, members }));
  return html`<ul>
    ${groups.map(({ tone, words, members }) => html`<${Fold} key=${words} head=${html`<${Status} tone=${tone}>${words}<//> <span class="muted">${members.length === 1 ? members[0].trigger : counted(members.length, "trigger")}</span>`}>
      <ul>${members.map((one) => html`<${Member} key=${one.trigger} one=${one} namespace=${namespace} id=${id} source=${source} isAlone=${members.length === 1} />`)}</ul>
    <//>`)}
  </ul>`;
}

function Member({ one, namespace, id, source, isAlone }) {
  const [isOpen, setOpen] = useState(isAlone);
  const { trigger } = one;
  const path = fullName(namespace, trigger).split("/");
  return html`<li>
    <a class="name" href=${link(["triggers", ...path])}>${trigger}</a> <span class="muted">${plain(one.message)}</span>
    ${EVALUATED.has(one.fate) && !isAlone && html` <button type="button" class="link" aria-expanded=${isOpen ? "true" : "false"} aria-label=${`Why, for ${trigger}`} onClick=${() => setOpen(!isOpen)}>Why?</button>`}
    ${EVALUATED.has(one.fate) && isOpen && html`<${Why} path=${path} id=${id} source=${source} />`}
  </li>`;
}

/** The filter of one trigger on the event, part by part. */
function Why({ path: [namespace, name], id, source }) {
  const { data, error } = useData(`${objectPath(EVENTING, namespace, "triggers", name)}/why`, { id, source });
  return html`<${Problem} error=${error} />${data?.trace && html`<${FilterTrace} text=${data.trace.cel} trace=${data.trace} />`}`;
}
