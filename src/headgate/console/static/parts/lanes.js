/** What became of one event: a lane for each trigger, filter to attempts to end, all on one axis of time. */
import { fullName, plain, shortName, span } from "../format.js";
import { link } from "../router.js";
import { html, useState } from "../ui.js";
import { Clock, Icon, Status } from "./basics.js";

const AXIS_MS_MIN = 10;
const TICKS_MS = [0, 1, 10, 100, 1e3, 1e4, 6e4, 6e5, 36e5, 36e6, 864e5];
const TICKS_APART = 11; // percent of the axis
const SAID_MAX = 3; // attempts that a lane names; the others are in its list

/** How a delivery has ended, by its result. */
const ENDS = {
  delivered: ["good", "Delivered"],
  filtered: ["no", "Not matched"],
  error: ["warn", "Filter error"],
  dead_lettered: ["warn", "Dead letter at the sink"],
  failed: ["bad", "Given up and dropped"],
  expired: ["bad", "Too late, dropped"],
  lost: ["bad", "Lost from the log"],
  gone: ["idle", "The trigger was gone"],
  cancelled: ["idle", "Cancelled"],
  foreign: ["idle", "Of another broker"],
};
/** What became of the event where no delivery has ended, by its fate. */
const FATES = {
  ended: ["idle", "Ended"],
  undelivered: ["busy", "Under way"],
  pending: ["idle", "Waits for its time"],
  "dead-letter": ["bad", "Dead letter, kept"],
  "filter-false": ["no", "Not matched"],
  "filter-error": ["warn", "Filter error"],
  "changed-since": ["warn", "Filter changed since"],
  "created-later": ["idle", "Made later"],
  "not-ready": ["warn", "Was not Ready"],
  "not-matched-yet": ["busy", "Not matched yet"],
};

/** @returns {[string, string]} Tone and words of what became of the event for a trigger. */
export const endOf = ({ fate, result }) => ENDS[result] ?? FATES[fate] ?? ["idle", fate ?? "Matched"];

const isGood = ({ status, reason }) => status >= 200 && status < 300 && !reason;
const toneOf = (line) => (line.what === "dead-letter" ? "bad" : line.what !== "attempt" ? "busy" : !isGood(line) ? "bad" : line.origin === "dead-letter" ? "warn" : "good");

/** What the lines of a lane say of its end, where the server's word on the trigger is on another page. */
function endOfLines({ lines, subscription }) {
  if (subscription) return ["idle", subscription.state];
  const last = lines.at(-1);
  if (last.what === "dead-letter" || lines.some((one) => one.what === "dead-letter")) return FATES["dead-letter"];
  if (last.what === "pending") return FATES.pending;
  const ended = lines.findLast((one) => one.result);
  return ended ? endOf(ended) : FATES.undelivered;
}

/**
 * @typedef {Object} Lane
 * @property {string} name Of a trigger or subscription, with its namespace; empty for a replay to a URL.
 * @property {string} kind
 * @property {any[]} lines Of the timeline, the oldest first.
 * @property {[string, string]} end
 * @property {string} why
 */

/** Lanes of what the event was matched for, and what became of it for other triggers. */
export function lanesOf({ broker, timeline, triggers = [], trace }) {
  const [namespace] = broker.split("/");
  const fates = new Map(triggers.map((one) => [fullName(namespace, one.trigger), one]));
  const pulled = new Map((trace.matches ?? []).filter((one) => one.subscription).map((one) => [one.name, one.subscription]));
  const found = new Map();
  for (const line of timeline.filter((one) => one.what !== "stored" && one.what !== "related")) {
    const key = `${line.kind ?? ""}/${line.name ?? ""}`;
    if (!found.has(key)) found.set(key, { kind: line.kind ?? "", name: line.name ?? "", lines: [], subscription: pulled.get(line.name) });
    found.get(key).lines.push(line);
  }
  const lanes = [...found.values()].map((lane) => {
    const fate = lane.kind === "Trigger" ? fates.get(lane.name) : undefined;
    if (fate) fates.delete(lane.name);
    return { ...lane, end: fate ? endOf(fate) : endOfLines(lane), why: fate?.message ?? "", deadLetter: lane.lines.find((one) => one.deadLetter)?.deadLetter };
  });
  // A no that the matcher left to the dispatcher is a no like any other one.
  const isNo = (lane) => lane.end[0] === "no";
  const others = [...fates.values(), ...lanes.filter(isNo).map((lane) => ({ trigger: shortName(namespace, lane.name), fate: "filter-false", message: lane.why }))];
  return { lanes: lanes.filter((lane) => !isNo(lane)), others };
}

/** The place of a time on the axis, in percent of its width: a millisecond and an hour are both to be seen. */
const scaleTo = (longestMs) => {
  const end = Math.log1p(longestMs);
  return (ms) => 1 + (96 * Math.log1p(Math.min(Math.max(0, ms), longestMs))) / end;
};

export function Lanes({ lanes, storedAt }) {
  const since = (line) => Math.max(0, Date.parse(line.time) - storedAt);
  const longest = Math.max(AXIS_MS_MIN, ...lanes.flatMap((lane) => lane.lines.map(since)));
  const place = scaleTo(longest);
  const ticks = TICKS_MS.filter((one) => one <= longest).reduce((kept, one) => (kept.length && place(one) - place(kept.at(-1)) < TICKS_APART ? kept : [...kept, one]), []);
  return html`<div class="lanes">
    <div class="lane axis" aria-hidden="true">
      <span>Trigger</span>
      <svg class="course">${ticks.map((one) => html`<text key=${one} x=${`${place(one)}%`} y="12" text-anchor=${one ? "middle" : "start"}>${one ? span(one) : "0"}</text>`)}</svg>
      <span>Final result</span>
    </div>
    ${lanes.map((lane) => html`<${LaneRow} key=${`${lane.kind}/${lane.name}`} lane=${lane} since=${since} place=${place} ticks=${ticks} />`)}
  </div>`;
}

/** `attempt 2: 503 Service Unavailable after 1.2 s`. */
function said(line, since) {
  const at = span(since(line));
  if (line.what === "matched") return `${line.verdict === "error" ? "filter error" : "matched"} after ${at}`;
  return `${line.says.replace(/, failed: .*$/, "")} after ${at}`;
}

function LaneRow({ lane, since, place, ticks }) {
  const [isOpen, setOpen] = useState(false);
  const { kind, name, lines, end } = lane;
  const [tone, words] = end;
  const attempts = lines.filter((one) => one.what === "attempt");
  const hidden = Math.max(0, attempts.length - SAID_MAX);
  const told = [...lines.filter((one) => one.what === "matched").slice(0, 1), ...attempts.slice(hidden)];
  const [namespace, short] = name.split("/");
  const last = tone === "busy" ? 100 : place(since(lines.at(-1)));
  return html`<div class="lane">
      <div class="lane-name">${name ? html`<a class="name" href=${link([kind === "Subscription" ? "subscriptions" : "triggers", namespace, short])}>${short}</a>${kind === "Subscription" && html` <span class="muted">subscription</span>`}` : "Replay to a URL"}</div>
      <div class="lane-course">
        <svg class="course" aria-hidden="true">
          ${ticks.map((one) => html`<line key=${one} class="grid" x1=${`${place(one)}%`} x2=${`${place(one)}%`} y1="0" y2="100%" />`)}
          <line class=${`bar ${tone}`} x1=${`${place(since(lines[0]))}%`} x2=${`${last}%`} y1="50%" y2="50%" />
          ${lines.map((one, index) => (one.what === "matched" ? html`<line key=${index} class="mark busy" x1=${`${place(since(one))}%`} x2=${`${place(since(one))}%`} y1="25%" y2="75%" />` : one.what === "ended" ? null : html`<circle key=${index} class=${`mark ${toneOf(one)}`} cx=${`${place(since(one))}%`} cy="50%" r="4" />`))}
        </svg>
        <p class="muted">${told.map((one, index) => html`${index > 0 && " · "}${index === 1 && hidden > 0 && `${hidden} earlier · `}<span key=${index} class=${one.what === "attempt" ? toneOf(one) : ""}>${said(one, since)}</span>`)}</p>
      </div>
      <div class="lane-end">
        <${Status} tone=${tone}>${words}<//>
        <button type="button" class="bare" aria-label=${`Everything about ${short ?? "the replay"}`} title="Everything about it" aria-expanded=${isOpen ? "true" : "false"} onClick=${() => setOpen(!isOpen)}><${Icon} name="down" /></button>
        ${lane.deadLetter > 0 && html`<a href=${link(["dead-letters"], { namespace, letter: lane.deadLetter })}>Look at the dead letter</a>`}
      </div>
      ${isOpen && html`<ol class="lane-lines">
        ${lines.map((one, index) => html`<li key=${index}><${Clock} time=${one.time} /> ${plain(one.says)}</li>`)}
        ${lane.why && html`<li><span></span> ${plain(lane.why)}</li>`}
      </ol>`}
    </div>`;
}
