/** Code and data as coloured text. Everything is a text node: what an event holds is never read as anything else. */
import { count, difference, plain } from "../format.js";
import { html } from "../ui.js";

const TOKENS = /("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\b(true|false|null|in|AND|OR|NOT|LIKE|IN|IS|BETWEEN|EXISTS)\b|\b(\d+(?:\.\d+)?)\b|(&&|\|\||[=!<>]=?|[?:+*/%-])/g;
const KINDS = ["", "string", "word", "number", "sign"];

/** CEL or another dialect in a line. */
export function Cel({ text }) {
  const found = [];
  let at = 0;
  for (const match of text.matchAll(TOKENS)) {
    if (match.index > at) found.push(plain(text.slice(at, match.index)));
    const kind = match.findIndex((group, number) => number > 0 && group !== undefined);
    found.push(html`<span class=${KINDS[kind]}>${plain(match[0])}</span>`);
    at = match.index + match[0].length;
  }
  return html`<code class="cel">${found}${plain(text.slice(at))}</code>`;
}

const LINES_MAX = 1000;
const ENTRIES_MAX = 200;
const CHARACTERS_MAX = 2000;
const DEPTH_MAX = 16;

/** A text as far as it is shown. */
const shortened = (text) =>
  text.length > CHARACTERS_MAX ? `${text.slice(0, CHARACTERS_MAX)}… ${count(text.length - CHARACTERS_MAX)} more characters` : text;

const plainName = /^[A-Za-z_]\w*$/;
const literal = (value) => plain(JSON.stringify(value));

/** The CEL of a place in an event: `data.items[0].sku`. */
export const step = (path, key) =>
  typeof key === "number" ? `${path}[${key}]` : plainName.test(key) ? `${path}.${key}` : `${path}[${literal(key)}]`;

function Value({ path, value, onFilter }) {
  const kind = value === null ? "word" : typeof value === "string" ? "string" : typeof value === "number" ? "number" : "word";
  const text = literal(value);
  const shown = html`<span class=${kind}>${shortened(text)}</span>`;
  if (!onFilter || text.length > CHARACTERS_MAX) return shown;
  const condition = `${path} == ${text}`;
  return html`<button type="button" class="value" title=${`Filter by ${condition}`} onClick=${() => onFilter(condition)}>${shown}</button>`;
}

/**
 * JSON as a tree of lines; a value can be clicked where `onFilter` takes a condition of CEL.
 * Data of an event may be a megabyte: `room` counts the lines that may still be drawn.
 */
export function Json({ value, path = "data", onFilter }) {
  const room = { lines: LINES_MAX };
  const drawn = tree({ value, path, onFilter, depth: 0, room });
  return html`${drawn}${room.lines <= 0 && html`<div class="line muted">… and more than is shown</div>`}`;
}

function tree({ value, path, onFilter, depth, name, room }) {
  room.lines -= 1;
  const label = name === undefined ? "" : html`<span class="key">${typeof name === "number" ? "" : `${shortened(plain(name))}: `}</span>`;
  const pad = html`<span>${"  ".repeat(depth)}</span>`;
  if (value === null || typeof value !== "object") {
    return html`<div class="line">${pad}${label}<${Value} path=${path} value=${value} onFilter=${onFilter} /></div>`;
  }
  const entries = Array.isArray(value) ? value.map((one, index) => [index, one]) : Object.entries(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!entries.length || depth > DEPTH_MAX) return html`<div class="line">${pad}${label}${open}${entries.length ? "…" : ""}${close}</div>`;
  return html`<div class="line">${pad}${label}${open}</div>
    ${entries.slice(0, ENTRIES_MAX).map(([key, one]) => room.lines > 0 && tree({ value: one, path: step(path, key), onFilter, depth: depth + 1, name: key, room }))}
    ${entries.length > ENTRIES_MAX && html`<div class="line muted">${pad}  … ${count(entries.length - ENTRIES_MAX)} more</div>`}
    <div class="line">${pad}${close}</div>`;
}

const SET_BY_SERVER = new Set(["data", "data_base64", "specversion", "hgposition"]);

/** An event: its attributes, then its data. */
export function EventCard({ event, onFilter }) {
  const attributes = Object.entries(event).filter(([name]) => !SET_BY_SERVER.has(name));
  const data = event.data ?? event.data_base64;
  return html`<div class="event-card">
    <dl class="attributes">
      ${attributes.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd class="mono"><${Value} path=${step("ce", name)} value=${value} onFilter=${onFilter} /></dd></div>`)}
    </dl>
    ${data === undefined
      ? html`<p class="muted">No data</p>`
      : html`<div class="json mono" tabindex="0" role="region" aria-label="Data"><${Json} value=${data} onFilter=${event.data === undefined ? undefined : onFilter} /></div>`}
  </div>`;
}

/** What changes between two texts, with the lines around it. */
export function Difference({ before, now, label }) {
  const all = difference(before, now);
  const near = all.map((_, index) => all.slice(Math.max(0, index - 2), index + 3).some((one) => one.kind !== " "));
  return html`<pre class="difference" aria-label=${label} role=${label && "region"} tabindex=${label && "0"}>${all.map((one, index) =>
    near[index] ? html`<span key=${index} class=${one.kind === "+" ? "added" : one.kind === "-" ? "removed" : ""}>${plain(`${one.kind} ${one.text}\n`)}</span>` : null,
  )}</pre>`;
}

/** JSON with the members of every object in the order of their names: events that are equal are equal texts. */
export const inOrder = (value) =>
  JSON.stringify(value, (_, one) => (one && typeof one === "object" && !Array.isArray(one) ? Object.fromEntries(Object.entries(one).sort(([a], [b]) => (a < b ? -1 : 1))) : one), 2);
