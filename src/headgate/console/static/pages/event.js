/** One event's life: stored, matched, each attempt; and for every trigger that did not get it, why not. */
import { EVENTING, objectPath } from "../api.js";
import { plain } from "../format.js";
import { toPlayground } from "../handover.js";
import { Clock, Empty, PageHead, Panel, Problem, Status } from "../parts/basics.js";
import { EventCard } from "../parts/code.js";
import { FilterTrace } from "../parts/filter_trace.js";
import { link } from "../router.js";
import { html, useData, useEffect, useState, useTitle } from "../ui.js";

const EVERY_MS = 2000;
/** How a delivery ended, by its result. */
const ENDS = {
  delivered: ["good", "Delivered"],
  filtered: ["idle", "Filter is false"],
  error: ["warn", "Filter is an error"],
  dead_lettered: ["bad", "Given up, a dead letter"],
  failed: ["bad", "Given up and dropped"],
  expired: ["bad", "Too old, dropped"],
  lost: ["bad", "The log had lost it"],
  gone: ["idle", "The trigger was gone"],
  foreign: ["idle", "Of another broker"],
};
const FATES = {
  ended: ["idle", "ended"],
  undelivered: ["busy", "under way"],
  "dead-letter": ["bad", "dead letter"],
  "filter-false": ["idle", "filter is false"],
  "filter-error": ["warn", "filter is an error"],
  "changed-since": ["warn", "filter changed since"],
  "created-later": ["idle", "made later"],
  "not-ready": ["warn", "was not Ready"],
  "not-matched-yet": ["busy", "not matched yet"],
};
const EVALUATED = new Set(["filter-false", "filter-error", "changed-since"]);
const isGood = (status) => status >= 200 && status < 300;

/** The tone of a line of the timeline. */
function toneOf({ what, status, origin, result, verdict }) {
  if (what === "attempt") return !isGood(status) ? "bad" : origin === "dead-letter" ? "warn" : "good";
  if (what === "dead-letter") return "bad";
  if (what === "ended") return ENDS[result]?.[0] ?? "idle";
  if (what === "matched") return verdict === "error" ? "warn" : "busy";
  return "idle";
}

const VERDICTS = { candidate: "Candidate", error: "Filter is an error" };
/** What happened, in a word: what the matcher leaves open is not matched yet, and a no of the filter is no end. */
const wordOf = ({ what, result, verdict }) => (what === "ended" && ENDS[result]?.[1]) || (what === "matched" && VERDICTS[verdict]) || NAMES[what] || what;

const NAMES = { stored: "Stored", matched: "Matched", attempt: "Attempt", ended: "Ended", "dead-letter": "Dead letter", related: "Related" };

export function EventPage({ route }) {
  const [namespace, broker, id] = route.segments;
  const { source, next } = route.query;
  const path = objectPath(EVENTING, namespace, "brokers", broker);
  const [after, setAfter] = useState("");
  const [isSearched, setSearched] = useState(false);
  const { data, error } = useData(`${path}/timeline`, { id, source, next, after }, { everyMs: isSearched ? 0 : EVERY_MS });
  useEffect(() => setSearched(Boolean(data?.next)), [data]); // a search of the log is not made again and again
  useTitle(`Event ${id}`);
  const event = data?.trace?.event?.event;
  const above = html`<a href=${link(["events"], { broker: `${namespace}/${broker}`, namespace: route.query.namespace })}>Events</a><span aria-hidden="true">/</span><a href=${link(["brokers", namespace, broker])}>${namespace}/${broker}</a>`;
  return html`<${PageHead} title=${plain(id)} above=${above}>
      ${event && html`<button type="button" onClick=${() => toPlayground({ filter: { cel: "true" } }, [event])}>Open in the playground</button>`}
    <//>
    <${Problem} error=${error} />
    ${data && !event && html`<${Missing} data=${data} route=${route} />`}
    ${event && html`<div class="columns wide-left">
      <div>
        <${Panel} title="What happened"><${Timeline} lines=${data.timeline} path=${[namespace, broker]} /><//>
        <${Panel} title="Every trigger of the broker"><${Fates} namespace=${namespace} id=${id} source=${event.source} triggers=${data.triggers ?? []} />
          ${data.after && html`<button type="button" onClick=${() => setAfter(data.after)}>The next triggers</button>`}
        <//>
      </div>
      <${Panel} title="The event" aside=${`partition ${data.trace.event.partition}, offset ${data.trace.event.offset}`}><${EventCard} event=${event} /><//>
    </div>`}`;
}

const Missing = ({ data, route }) =>
  data.next
    ? html`<${Empty} icon="search" title="Not found yet">
        <p>The log was searched back to ${data.searchedTo}.</p>
        <a class="button" href=${link(["events", ...route.segments], { ...route.query, next: data.next })}>Search on</a>
      <//>`
    : html`<${Empty} icon="search" title="This event is not in the log">It was never accepted, or retention has taken it.<//>`;

const Timeline = ({ lines, path }) =>
  html`<ol class="timeline">
    ${lines.map(
      (one, index) => html`<li key=${index} class=${toneOf(one)}>
        <${Clock} time=${one.time} />
        <div>
          <p class="what"><${Status} tone=${toneOf(one)}>${wordOf(one)}${one.attempt ? ` ${one.attempt}` : ""}<//>
            ${one.name && html` <a href=${link([one.kind === "Subscription" ? "subscriptions" : "triggers", ...one.name.split("/")])}>${one.name}</a>`}
            ${one.event && html` <a href=${link(["events", ...path, one.event.id], { source: one.event.source })}>${plain(one.event.type)} ${plain(one.event.id)}</a>`}
            ${one.deadLetter > 0 && html` <a href=${link(["dead-letters"], { namespace: one.name.split("/")[0], letter: one.deadLetter })}>look at it</a>`}
          </p>
          <p class="muted">${one.says.replace(/^(?:stored|attempt \d+|matched for [^:]*): /, "")}</p>
        </div>
      </li>`,
    )}
  </ol>`;

function Fates({ namespace, id, source, triggers }) {
  const [opened, setOpened] = useState("");
  if (!triggers.length) return html`<p class="muted">The broker has no triggers.</p>`;
  return html`<ul class="fates">
    ${triggers.map((one) => {
      const [tone, word] = ENDS[one.result] ?? FATES[one.fate] ?? ["idle", one.fate];
      const canExplain = EVALUATED.has(one.fate);
      const head = html`<${Status} tone=${tone}>${word}<//> <span class="name">${one.trigger}</span> <span class="muted">${one.message}</span>`;
      return html`<li key=${one.trigger}>
        ${canExplain
          ? html`<button type="button" class="fate" aria-expanded=${opened === one.trigger ? "true" : "false"} onClick=${() => setOpened(opened === one.trigger ? "" : one.trigger)}>${head}</button>`
          : html`<div class="fate">${head}</div>`}
        ${opened === one.trigger && html`<${WhyNot} namespace=${namespace} trigger=${one.trigger.split("/").pop()} id=${id} source=${source} />`}
      </li>`;
    })}
  </ul>`;
}

/** The filter of one trigger on the event, part by part. */
function WhyNot({ namespace, trigger, id, source }) {
  const { data, error } = useData(`${objectPath(EVENTING, namespace, "triggers", trigger)}/why`, { id, source });
  return html`<${Problem} error=${error} />${data?.trace && html`<${FilterTrace} text=${data.trace.cel} trace=${data.trace} />`}
    <p><a href=${link(["triggers", namespace, trigger])}>To the trigger</a></p>`;
}
