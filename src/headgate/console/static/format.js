/** Times, numbers and objects as people read them. */

const SECOND = 1000;
const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "m"],
  [1, "s"],
];

/** How long ago a time is: `3m`. */
export function ago(time, now = Date.now()) {
  const seconds = Math.max(0, (now - Date.parse(time)) / SECOND);
  const [size, unit] = UNITS.find(([one]) => seconds >= one) ?? [1, "s"];
  return Number.isFinite(seconds) ? `${Math.floor(seconds / size)}${unit}` : "";
}

/** `12:31:05.123` of a time, in the zone of the reader. */
export function clock(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "";
  return `${date.toLocaleTimeString("en-GB")}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export const count = (number) => (number ?? 0).toLocaleString("en-US");

/** `1 broker`, `1,203 brokers`. */
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** `640 B`, `12.3 kB`, `1.2 MB`. */
export function bytes(number) {
  const [size, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([one]) => number >= one) ?? [1, "B"];
  return `${size === 1 ? number : (number / size).toFixed(1)} ${unit}`;
}

/** Events a second: `1,203`, `12.3`, `0.04`. */
export function rate(number) {
  if (!number) return "0";
  return number >= 100 ? count(Math.round(number)) : number >= 10 && Number.isInteger(number) ? String(number) : number >= 1 ? number.toFixed(1) : number.toFixed(2);
}

/** Seconds as `3.1 ms` or `1.20 s`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const ms = 1000 * seconds;
  return seconds >= 1 ? `${seconds.toFixed(2)} s` : `${ms >= 100 ? Math.round(ms) : ms.toFixed(1)} ms`;
}

/** A time between two things: `76 ms`, `1.2 s`, `3 min`, `2 h`, `4 d`. */
export function span(ms) {
  const [size, unit] = [[864e5, "d"], [36e5, "h"], [6e4, "min"], [1e3, "s"]].find(([one]) => ms >= one) ?? [1, "ms"];
  const number = ms / size;
  return `${unit === "s" && number < 10 ? number.toFixed(1).replace(".0", "") : Math.round(number)} ${unit}`;
}

/** Members of a list by a key, in the order in which the keys come first. */
export function groupedBy(list, keyOf) {
  const groups = new Map();
  for (const one of list) groups.set(keyOf(one), [...(groups.get(keyOf(one)) ?? []), one]);
  return groups;
}

/** `namespace/name` of what is named in a namespace, where other namespaces' names are written in full. */
export const fullName = (namespace, name) => (name.includes("/") ? name : `${namespace}/${name}`);

/** The other way round: a name as it is written in a namespace. */
export const shortName = (namespace, path) => (path.startsWith(`${namespace}/`) ? path.slice(namespace.length + 1) : path);

/** `namespace/name` of the broker of a trigger or subscription. */
export function brokerOf({ metadata: { namespace }, spec: { broker, brokerRef } }) {
  return brokerRef ? `${brokerRef.namespace ?? namespace}/${brokerRef.name}` : `${namespace}/${broker ?? "default"}`;
}

/** The filter of a trigger or subscription in one line. */
export function filterText({ filter, filters }) {
  if (filters?.length) return JSON.stringify(filters.length === 1 ? filters[0] : filters);
  if (!filter || !Object.keys(filter).length) return "";
  const [[dialect, text]] = Object.entries(filter);
  return typeof text === "string" ? (["cel", "expression"].includes(dialect) ? text : `${dialect}: ${text}`) : JSON.stringify(filter);
}

const SERVERS = new Set(["headgate.dev/filter", "headgate.dev/filters", "eventing.knative.dev/creator", "eventing.knative.dev/lastModifier", "eventing.knative.dev/broker", "headgate.dev/subscriber"]);
const CLASS = "eventing.knative.dev/broker.class";

/** Labels or annotations that are not the server's, and none that are its defaults; undefined for none. */
function ownOf(named = {}) {
  const own = Object.entries(named).filter(([name, value]) => !SERVERS.has(name) && (name !== CLASS || value !== "Headgate"));
  return own.length ? Object.fromEntries(own) : undefined;
}

/** What is set by the server, and no part of what a person writes. */
export function written(object) {
  const { status, metadata, ...rest } = object;
  const { managedFields, uid, generation, creationTimestamp, labels, annotations, ...kept } = metadata;
  return { apiVersion: rest.apiVersion, kind: rest.kind, metadata: { ...kept, labels: ownOf(labels), annotations: ownOf(annotations) }, ...rest };
}

/** The same without the version, which is another one after every write. */
export function unversioned(object) {
  const { metadata: { resourceVersion, ...metadata }, ...rest } = written(object);
  return { ...rest, metadata };
}

const PLAIN = /^[A-Za-z_/](?:[\w./@+=()-]|:(?=\S)| (?=[\w(]))*$/;
const PRINTABLE = /^[\x20-\x7e]+$/;
// JSON leaves them as they are; YAML takes some for the end of a line, and refuses others.
const UNSAFE = /[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]/g;
const escaped = (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;

// They turn the text around them, or are seen nowhere: a text could look like another one.
const TURNING = /[\x7f-\x9f\u061c\u2028\u2029\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** A text of somebody else as it is read, letter by letter. */
export const plain = (text) => String(text ?? "").replace(TURNING, escaped);

const SPECIAL = /^(?:true|false|null|yes|no|on|off|y|n|~)$/i;

/** A JSON value as YAML. What could be read as anything else is quoted as in JSON, which is YAML, too. */
export function yaml(value, indent = "") {
  if (Array.isArray(value)) {
    return value.length ? value.map((one) => `${indent}- ${below(one, `${indent}  `)}`).join("\n") : `${indent}[]`;
  }
  if (value && typeof value === "object") {
    const lines = Object.entries(value).filter(([, one]) => one !== undefined);
    return lines.length ? lines.map(([key, one]) => `${indent}${scalar(key)}:${after(one, indent)}`).join("\n") : `${indent}{}`;
  }
  return `${indent}${scalar(value)}`;
}

const isTree = (value) => value && typeof value === "object" && Object.keys(value).length > 0;
const below = (value, indent) => (isTree(value) ? yaml(value, indent).trimStart() : yaml(value));
const after = (value, indent) =>
  isTree(value) ? `\n${yaml(value, Array.isArray(value) ? indent : `${indent}  `)}` : ` ${yaml(value)}`;

function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  if (PLAIN.test(value) && !SPECIAL.test(value)) return value;
  return PRINTABLE.test(value) && value.includes('"') ? `'${value.replaceAll("'", "''")}'` : JSON.stringify(value).replace(UNSAFE, escaped);
}

/**
 * The lines of two texts: what stays, goes and comes.
 * @returns {{kind: " "|"-"|"+", text: string}[]}
 */
export function difference(before, now) {
  const [a, b] = [before.split("\n"), now.split("\n")];
  if (a.length * b.length > 1e6) return [...a.map((text) => ({ kind: "-", text })), ...b.map((text) => ({ kind: "+", text }))];
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const found = [];
  for (let i = 0, j = 0; i < a.length || j < b.length; ) {
    if (i < a.length && j < b.length && a[i] === b[j]) found.push({ kind: " ", text: (i++, b[j++]) });
    else if (j >= b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1])) found.push({ kind: "-", text: a[i++] });
    else found.push({ kind: "+", text: b[j++] });
  }
  return found;
}
