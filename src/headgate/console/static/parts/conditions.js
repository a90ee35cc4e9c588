/** Conditions of an object in words. */
import { counted } from "../format.js";
import { html } from "../ui.js";
import { Ago, Status } from "./basics.js";

const WORDS = {
  Addressable: ["It has an address for events", "It has no address for events", ""],
  CredentialsResolved: ["Its credentials are there", "Its credentials cannot be used", ""],
  Ready: ["It is ready", "It does not work yet", "It is about to work"],
  BrokerReady: ["Its broker takes events", "Its broker does not take events", "Its broker is not known yet"],
  DependencyReady: ["It depends on nothing else", "What it depends on is not there", "What it depends on is not known yet"],
  SubscriberResolved: ["The subscriber has an address", "The subscriber has no address", "The subscriber's address is not known yet"],
  DeadLetterSinkResolved: ["The dead-letter sink has an address", "The dead-letter sink has no address", "The dead-letter sink is not known yet"],
  Subscribed: ["Every event from now on is matched by its filter", "Its filter is not in force", "Its filter is about to be in force"],
  FilterHealthy: ["No error of the filter is known", "The filter is an error for some events, or has stopped matching", "No event was matched yet"],
  FilterAdvisable: ["The filter says what it seems to say", "The filter may not do what you want", ""],
  SubscriberHealthy: ["No trouble with the subscriber is known", "The subscriber does not take events", "The subscriber was not asked yet"],
  Delivering: ["", "It is paused: its events wait", ""],
  BacklogKept: ["Its backlog is well within the bounds", "Its oldest events are about to be given up", ""],
  EventsKept: ["No event was lost to it", "Events were given up and are kept nowhere", ""],
  WithinCeiling: ["All that the filter wants is within its writer's right", "Its writer's right gives a part of what the filter wants", "Its writer's right may give a part of what the filter wants"],
  Ordered: ["Its events come in order", "", ""],
  Deduplicated: ["An event is stored once", "An event may be stored again", ""],
  EventPoliciesReady: ["Event policies are in force", "Event policies are not in force", ""],
};
/** What a reason says better than its condition does. */
const REASONS = {
  "False FilterErrors": "The filter is an error for some events",
  "False StoppedMatching": "The filter has stopped matching",
  "False AttemptsFail": "The subscriber does not answer",
  "False EventsRefused": "The subscriber refuses events for good",
  "False CircuitOpen": "The subscriber does not answer, so attempts are rare",
  "False UrlRefused": "The subscriber's address is not allowed",
  "False EventsDropped": "Events were given up and are kept nowhere",
  "False BrokerDoesNotExist": "Its broker does not exist",
  "False RefNotResolvable": "What its subscriber refers to has no address",
  "False FilterInvalid": "The filter is not valid",
  "True AuthenticationDisabled": "Anybody may send: this server asks nobody who he is",
  "True ByPartitionKey": "Events with the same partitionkey come in order, those without one in any order",
  "True DefaultAuthorizationMode": "No event policy applies to it",
  "True DeadLetterSinkNotConfigured": "It has no dead-letter sink",
};
/** What is wrong comes first, then what is about to be right. */
const sorted = (of) => [...of].sort((a, b) => STATES.indexOf(b.status) % 2 - STATES.indexOf(a.status) % 2 || (b.status === "Unknown") - (a.status === "Unknown"));

const STATES = ["True", "False", "Unknown"];

/** Of a condition that is False although its object is Ready; an Info is what somebody wants. */
export const toneOf = (severity) => ({ Warning: "warn", Info: "idle" })[severity];

const tone = ({ status, severity }) =>
  status === "True" ? "good" : status === "Unknown" ? "busy" : (toneOf(severity) ?? "bad");

/** The sentence of a condition; its type where none is known. */
export const inWords = ({ type, status, reason }) => REASONS[`${status} ${reason}`] || WORDS[type]?.[STATES.indexOf(status)] || `${type} is ${status}`;

/** What `Ready` shows, of the conditions of an object. */
export function readiness({ status }) {
  const conditions = status?.conditions ?? [];
  const ready = conditions.find((one) => one.type === "Ready");
  const troubles = conditions.filter((one) => one.status === "False" && one.type !== "Ready");
  return { ready: ready?.status ?? "Unknown", reason: ready?.reason, message: ready?.message, troubles };
}

/** Those that hold are one line, behind which they are. */
export function Conditions({ of = [] }) {
  const all = sorted(of);
  const held = all.filter((one) => one.status === "True");
  const others = all.filter((one) => one.status !== "True");
  return html`${others.length > 0 && html`<${Lines} of=${others} />`}
    ${held.length > 0 && html`<details class="held"><summary><${Status} tone="good">${others.length ? counted(held.length, "other condition") : counted(held.length, "condition")} ${held.length === 1 ? "holds" : "hold"}<//></summary><${Lines} of=${held} /></details>`}`;
}

const Lines = ({ of }) =>
  html`<ul class="conditions">
    ${of.map(
      (one) => html`<li key=${one.type}>
        <${Status} tone=${tone(one)} title=${one.type}>${inWords(one)}<//>
        <span class="when"><${Ago} time=${one.lastTransitionTime} /></span>
        ${one.status !== "True" && (one.message || one.reason) && html`<p class="why">${one.reason && html`<code>${one.reason}</code> `}${one.message}</p>`}
      </li>`,
    )}
  </ul>`;
