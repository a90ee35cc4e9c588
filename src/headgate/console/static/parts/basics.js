/** Small things that every page is made of. */
import { ago, clock } from "../format.js";
import { copy } from "../clipboard.js";
import { html, useEffect, useRef, useState } from "../ui.js";

const ICONS = {
  overview: "M3 13h4l2-8 4 14 2-6h6",
  playground: "M9 3h6M10 3v6L4.5 18.5A1.7 1.7 0 0 0 6 21h12a1.7 1.7 0 0 0 1.5-2.5L14 9V3M7 15h10",
  events: "M4 6h10M4 12h16M4 18h7",
  triggers: "M4 5h16l-6.5 8v6l-3-2v-4z",
  brokers: "M4 7h16v4H4zM4 13h16v4H4zM7 9h.01M7 15h.01",
  subscriptions: "M12 4v11M7 11l5 5 5-5M4 20h16",
  "dead-letters": "M3 6h18v12H3zM3 7l9 6 9-6M15 21l5-5",
  catalogue: "M5 4h11a3 3 0 0 1 3 3v13H8a3 3 0 0 1-3-3zM5 17a3 3 0 0 1 3-3h11",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4 12H2M22 12h-2M5 5l1.4 1.4M17.6 17.6 19 19M19 5l-1.4 1.4M6.4 17.6 5 19",
  moon: "M20 14.5A8 8 0 1 1 9.5 4a6.5 6.5 0 0 0 10.5 10.5z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  help: "M9 9a3 3 0 1 1 4.2 2.8c-.8.4-1.2 1-1.2 2.2M12 17.5h.01",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l4.5 4.5",
  pause: "M8 5v14M16 5v14",
  play: "M7 5l12 7-12 7z",
  out: "M10 4H5v16h5M14 8l4 4-4 4M18 12H9",
  next: "M9 5l7 7-7 7",
  back: "M15 5l-7 7 7 7",
  down: "M5 9l7 7 7-7",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  send: "M4 12h15M13 6l6 6-6 6",
};

export const Icon = ({ name }) =>
  html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d=${ICONS[name]} /></svg>`;

/** Glyph and word, so that the colour is never alone: good, bad, no (as it should be), warn, busy or idle. */
const GLYPHS = { good: "✓", bad: "✕", no: "✕", warn: "!", busy: "…", idle: "–" };
export const Status = ({ tone, children, title }) =>
  html`<span class="status ${tone}" title=${title}><span class="glyph" aria-hidden="true">${GLYPHS[tone]}</span>${children}</span>`;

/** What the condition Ready of an object amounts to; `troubles` are those that are False. */
export function Ready({ ready, reason, message, troubles = [] }) {
  if (ready === "False") return html`<${Status} tone="bad" title=${message}>${reason || "Not ready"}<//>`;
  if (ready !== "True") return html`<${Status} tone="busy" title=${message}>${reason || "Starting"}<//>`;
  if (troubles[0]?.severity === "Info") return html`<${Status} tone="idle" title=${troubles[0].message}>${troubles[0].reason}<//>`;
  if (troubles.length) return html`<${Status} tone="warn" title=${troubles[0].message}>${troubles[0].reason}<//>`;
  return html`<${Status} tone="good">Ready<//>`;
}

/** A button that copies a text; `what` it is, for who does not see the text. */
export const Copy = ({ text, what }) =>
  html`<button type="button" class="bare copy" title=${`Copy ${what}`} aria-label=${`Copy ${what}`} onClick=${() => copy(text)}><${Icon} name="copy" /></button>`;

/** One line of a list, behind which more is. */
export function Fold({ head, children, label }) {
  const [isOpen, setOpen] = useState(false);
  return html`<li class="fold">
    <button type="button" aria-label=${label} aria-expanded=${isOpen ? "true" : "false"} onClick=${() => setOpen(!isOpen)}>${head}<${Icon} name="down" /></button>
    ${isOpen && html`<div class="folded">${children}</div>`}
  </li>`;
}

/** A time: how long ago, and exactly when one points at it. */
export function Ago({ time }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((number) => number + 1), 5000);
    return () => clearInterval(timer);
  }, []);
  return time ? html`<time dateTime=${time} title=${new Date(time).toLocaleString()}>${ago(time)} ago</time>` : "–";
}

export const Clock = ({ time }) =>
  html`<time class="mono" dateTime=${time} title=${new Date(time).toLocaleString()}>${clock(time)}</time>`;

/** An error with its hint. */
export const Problem = ({ error, children }) =>
  error &&
  html`<div class=${`problem ${error.isGone ? "gone" : ""}`} role="alert">
    <p class="said">${error.message}</p>
    ${error.caret && html`<pre class="caret">${error.caret}</pre>`}
    ${error.hint && html`<p class="hint">${error.hint}</p>`}
    ${children}
  </div>`;

/** In the place of counters: that they are not for this user is one calm sentence, another error as it is. */
export const NoCounters = ({ error, isOthers }) =>
  error?.status === 403
    ? html`<p class="muted">${isOthers ? "It gets events that your right does not give: its counters are not shown to you." : "You may not see its counters."}</p>`
    : html`<${Problem} error=${error} />`;

/** A page or list that has nothing to show, and what leads out of that. */
export const Empty = ({ title, icon, children }) =>
  html`<div class="empty">
    ${icon && html`<${Icon} name=${icon} />`}
    <p class="title">${title}</p>
    <div class="text">${children}</div>
  </div>`;

export const PageHead = ({ title, above, children, status }) =>
  html`<header class="page-head">
    <div>
      ${above && html`<nav class="above" aria-label="Breadcrumb">${above}</nav>`}
      <h1>${title} ${status}</h1>
    </div>
    <div class="actions">${children}</div>
  </header>`;

export const Panel = ({ title, children, aside, wide, quiet }) =>
  html`<section class="panel ${wide ? "wide" : ""} ${quiet ? "quiet" : ""}" aria-label=${title}>
    ${title && html`<div class="panel-head"><h2>${title}</h2><div class="aside">${aside}</div></div>`}
    ${children}
  </section>`;

export const Tile = ({ label, value, unit, note, tone }) =>
  html`<div class="tile ${tone ?? ""}">
    <dt>${label}</dt>
    <dd><span class="value">${value}</span>${unit && html` <span class="unit">${unit}</span>`}</dd>
    ${note && html`<dd class="note">${note}</dd>`}
  </div>`;

/** Some choices, of which one holds. */
export const Choice = ({ label, value, options, onChoice }) =>
  html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(
      ([key, text]) =>
        html`<button type="button" key=${key} aria-pressed=${key === value ? "true" : "false"} onClick=${() => onChoice(key)}>${text}</button>`,
    )}
  </div>`;

/** Name and value, one below the other. */
export const Facts = ({ of }) =>
  html`<dl class="facts">
    ${of.filter(([, value]) => value !== undefined && value !== "" && value !== null).map(
      ([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`,
    )}
  </dl>`;

/** A window above the page, which the keyboard cannot leave but by Escape. */
export function Dialog({ title, onClose, children }) {
  const at = useRef(null);
  useEffect(() => at.current.showModal(), []);
  // A click that began inside, such as one that marks text, does not close it.
  const onDown = (event) => event.target === at.current && onClose();
  return html`<dialog ref=${at} aria-labelledby="dialog-title" onClose=${onClose} onMouseDown=${onDown}>
    <div class="dialog-body">
      <h2 id="dialog-title">${title}</h2>
      ${children}
    </div>
  </dialog>`;
}

/**
 * Asks once more before something that cannot be taken back. `onConfirm` gets a signal: the window was closed. Where it
 * gives true, it closes the window itself.
 */
export function Confirm({ title, verb, isWaiting, onConfirm, onClose, children }) {
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const stop = useRef(new AbortController());
  useEffect(() => () => stop.current.abort(), []);
  async function confirm() {
    setBusy(true);
    setError(null);
    try {
      const staysOpen = await onConfirm(stop.current.signal);
      if (!stop.current.signal.aborted && !staysOpen) onClose();
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  }
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <div class="text">${children}</div>
    <${Problem} error=${error} />
    <div class="dialog-actions">
      <button type="button" onClick=${onClose}>${isBusy ? "Stop" : "Cancel"}</button>
      <button type="button" class="danger" disabled=${isBusy || isWaiting} onClick=${confirm}>${verb}</button>
    </div>
  <//>`;
}
