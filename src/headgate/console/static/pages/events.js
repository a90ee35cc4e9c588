/** Events: the live tail of a broker, with a filter in CEL. The open event is in the address. */
import { EVENTING, objectPath } from "../api.js";
import { clock, count, plain, rate } from "../format.js";
import { toPlayground } from "../handover.js";
import { brokerIn, BrokerOfPage, useEventAt } from "../parts/broker_field.js";
import { Copy, Empty, Icon, PageHead, Problem } from "../parts/basics.js";
import { Command, curlOf } from "../parts/command.js";
import { EventCard } from "../parts/code.js";
import { Views } from "../parts/views.js";
import { link, refine } from "../router.js";
import { useRights } from "../rights.js";
import { current, useStore } from "../store.js";
import { follow } from "../tail.js";
import { html, useData, useEffect, useMemo, useRef, useState, useTitle, useTyped } from "../ui.js";

const SHOWN_MAX = 100;
const START = "last:50";
const FROM = [[START, "the last ones"], ["next", "now on"], ["earliest", "the first kept"], ["other", "a time or place…"]];
const NOTHING = { events: [], matched: 0, scanned: 0, skipped: 0, isAtEnd: false, position: "", error: null };

/** Events of the tail while it runs; while it is paused, what was there then. */
function useTail(wanted, isPaused) {
  const [seen, setSeen] = useState(NOTHING);
  const [held, setHeld] = useState(null);
  const key = JSON.stringify(wanted);
  const mustSignIn = useStore((state) => state.mustSignIn);
  useEffect(() => {
    setSeen(NOTHING);
    if (!wanted.broker.includes("/") || mustSignIn) return undefined;
    const stop = new AbortController();
    follow(wanted, setSeen, stop.signal);
    return () => stop.abort();
  }, [key, mustSignIn]);
  useEffect(() => setHeld(isPaused ? seen : null), [isPaused, key]);
  return { shown: held ?? seen, waiting: held ? seen.matched - held.matched : 0 };
}

/** Narrows the filter by one more condition. */
function addCondition(condition) {
  const { filter = "" } = current().route.query;
  refine({ filter: filter.trim() ? `${filter} && ${condition}` : condition });
}

/** How many events came in the last seconds, per second. */
function useRate(matched, isAtEnd) {
  const samples = useRef([]);
  const hasCaughtUp = useRef(false);
  hasCaughtUp.current = matched > 0 ? hasCaughtUp.current || isAtEnd : isAtEnd;
  if (!hasCaughtUp.current) return 0; // what was stored before says nothing of how many come
  const now = performance.now();
  samples.current = [...samples.current.filter(([at, many]) => now - at < 5000 && many <= matched), [now, matched]];
  const [[first, before]] = samples.current;
  return now - first > 500 ? (1000 * (matched - before)) / (now - first) : 0;
}

export function Events({ route }) {
  const { namespace, filter = "", from = START, value = "", open = "" } = route.query;
  const full = brokerIn(route.query);
  const [isPaused, setPaused] = useState(false);
  const { shown, waiting } = useTail({ broker: full, from, filter, filterValue: value }, isPaused);
  const listed = shown.events.slice(0, SHOWN_MAX);
  const isElsewhere = open && shown.isAtEnd && !listed.some((one) => one.place === open);
  const linked = useEventAt(full, isElsewhere ? open : "", shown.position);
  const onOpen = (place) => refine({ open: place === current().route.query.open ? "" : place });
  useTitle("Events");
  const rows = linked ? [{ place: open, event: linked }, ...listed] : listed;
  return html`<${PageHead} title="Events">
      <${Views} route=${route} />
      <button type="button" aria-pressed=${isPaused ? "true" : "false"} onClick=${() => setPaused(!isPaused)}><${Icon} name=${isPaused ? "play" : "pause"} />${isPaused ? "Go on" : "Pause"}</button>
      <button type="button" disabled=${!shown.events.length} onClick=${() => toPlayground({ filter: { cel: filter || "true" } }, shown.events.slice(0, 50).map((one) => one.event))}>Open in the playground</button>
    <//>
    <${Query} full=${full} namespace=${namespace} filter=${filter} from=${from} value=${value} shown=${shown} />
    <${Problem} error=${shown.error} />
    <${Counters} shown=${shown} isPaused=${isPaused} waiting=${waiting} />
    ${rows.length
      ? html`<div class="tail">
          <div class="tail-head tail-names" aria-hidden="true"><span>Time</span><span>Id</span><span>Type</span><span>Source</span><span>Subject</span></div>
          <ol aria-label="Events, the newest first">${rows.map((one) => html`<${Line} key=${one.place} one=${one} broker=${full} isOpen=${one.place === open} onOpen=${onOpen} />`)}</ol>
        </div>`
      : !shown.error && html`<${Nothing} full=${full} filter=${filter} />`}`;
}

function Query({ full, namespace, filter, from, value, shown }) {
  const [text, setText] = useTyped(filter);
  const known = FROM.some(([key]) => key === from && key !== "other");
  const isWrong = isOfFilter(shown.error);
  const mayAnywhere = useRights(null);
  const send = (event) => {
    event.preventDefault();
    refine({ filter: text });
  };
  return html`<form class="toolbar query" onSubmit=${send}>
    <${BrokerOfPage} broker=${full} namespace=${namespace} alsoGone=${{ open: "" }} />
    <label class="cel-box"><span class="unseen">Filter in CEL</span>
      <input class=${`mono ${isWrong ? "wrong" : ""}`} aria-invalid=${isWrong ? "true" : undefined} data-search spellcheck="false" autocomplete="off" placeholder='Filter in CEL: ce.type == "order.paid" && data.total > 100' value=${text} onInput=${(event) => setText(event.target.value)} />
    </label>
    <button type="submit" class="primary">Filter</button>
    ${filter && html`<button type="button" onClick=${() => refine({ filter: "" })}>Clear</button>`}
    <label><span>From</span>
      <select value=${known ? from : "other"} onChange=${(event) => refine({ from: event.target.value === "other" ? new Date(Date.now() - 36e5).toISOString().slice(0, 19) + "Z" : event.target.value })}>
        ${FROM.map(([key, says]) => html`<option key=${key} value=${key} selected=${key === (known ? from : "other")}>${says}</option>`)}
      </select>
    </label>
    ${!known && html`<label><span class="unseen">Time or position</span><input class="mono" value=${from} onChange=${(event) => refine({ from: event.target.value })} /></label>`}
    <details class="more" open=${Boolean(value)}><summary>More</summary><div>
      <label><span>Filter value</span><input class="mono narrow" placeholder="any" value=${value} onChange=${(event) => refine({ value: event.target.value })} /></label>
      <span class="muted"><b>${count(shown.scanned)}</b> scanned, <b>${count(shown.skipped)}</b> chunks skipped</span>
      ${mayAnywhere("list", "chunks") && html`<a href=${link(["chunks"], { broker: full, filter })}>Chunks of the log</a>`}
    </div></details>
  </form>`;
}

/** Whether an answer is about the filter that was asked. */
const isOfFilter = (error) => Boolean(error && (error.position !== undefined || error.caret || /filter|CEL/i.test(error.message)) && !error.isGone);

function stateOf({ error }, isPaused, waiting) {
  if (isOfFilter(error)) return ["bad", "Filter error"];
  if (error?.status === 404) return ["bad", "No such broker"];
  if (error?.status === 403) return ["bad", "Not allowed"];
  if (error && !error.isGone && (error.status >= 400 || error.isFinal)) return ["bad", "Stopped"];
  if (error) return ["bad", "Not connected"];
  return isPaused ? ["warn", `Paused, ${count(waiting)} more`] : ["good", "Live"];
}

function Counters({ shown, isPaused, waiting }) {
  const speed = useRate(shown.matched, shown.isAtEnd);
  const [tone, word] = stateOf(shown, isPaused, waiting);
  return html`<p class="counters">
    <span class=${tone}>${word}</span>
    <span><b>${count(shown.matched)}</b> matched</span>
    <span><b>${rate(speed)}</b>/s</span>
  </p>`;
}

/** One event. It is the same object as long as it is shown, so it is drawn once. */
function Line({ one, broker, isOpen, onOpen }) {
  const { event, place } = one;
  const [namespace, name] = broker.split("/");
  const page = link(["events", namespace, name, event.id], { source: event.source });
  // The whole line opens it; its button is there for the keyboard.
  const onClick = ({ target }) => !target.closest("a") && onOpen(place);
  return useMemo(
    () => html`<li class="tail-line ${isOpen ? "open" : ""}">
      <div class="tail-head" onClick=${onClick}>
        <button type="button" aria-expanded=${isOpen ? "true" : "false"} aria-label=${`Show ${plain(event.id)}`} title=${`stored at ${place}`}><${Icon} name="down" /><span class="mono">${event.time ? clock(event.time) : place}</span></button>
        <a class="name tail-id" href=${page}>${plain(event.id)}</a>
        <span class="tail-type">${plain(event.type)}</span>
        <span class="muted tail-source">${plain(event.source)}</span>
        <span class="muted">${plain(event.subject)}</span>
      </div>
      ${isOpen && html`<div class="tail-body">
        <p class="tail-links"><a href=${page}>What became of it</a><span class="muted">stored at ${place} · click a value to filter by it</span><${Copy} text=${event.id} what="the id" /></p>
        <${EventCard} event=${event} onFilter=${addCondition} />
      </div>`}
    </li>`,
    [one, isOpen, broker],
  );
}

function Nothing({ full, filter }) {
  const [namespace, name] = full.split("/");
  const may = useRights(namespace);
  const { data } = useData(name ? objectPath(EVENTING, namespace, "brokers", name) : null);
  if (!full) return html`<${Empty} icon="brokers" title="Choose a broker">Its events are shown as they come.<//>`;
  if (filter) return html`<${Empty} icon="search" title="No event matches yet">The server scans every event that comes; those that match are shown here.<//>`;
  return html`<${Empty} icon="events" title="No events yet">
    <p>Events are shown here as soon as somebody sends one.</p>
    ${may("create", "brokers/events", "eventing.knative.dev") && data && html`<${Command} text=${curlOf(data.status?.address?.url)} what="the command that sends an event" />`}
  <//>`;
}
