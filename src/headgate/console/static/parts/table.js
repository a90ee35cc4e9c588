/** Tables of what the server lists: searched and paged there, a page at a time. */
import { count } from "../format.js";
import { html, useEffect, useRef, useRested, useState } from "../ui.js";
import { Icon } from "./basics.js";

/**
 * @typedef {Object} Column
 * @property {string} name
 * @property {(row: any) => any} show
 * @property {"number"|"fill"|""} [kind]
 * @property {any} [head] In place of its name.
 */

/**
 * @param {{columns: Column[], rows: any[], keyOf: (row: any) => string, label: string, isOld?: boolean,
 *   onRow?: (row: any) => void, detail?: (row: any) => any}} given `onRow` hears of a click that meets nothing else in a
 *   row, and `detail` is what is shown below one.
 */
export const Table = ({ columns, rows, keyOf, label, isOld, onRow, detail }) =>
  html`<div class="table ${isOld ? "old" : ""}" tabindex="0" role="group" aria-label=${label}>
    <table>
      <thead>
        <tr>
          ${columns.map((one) => html`<th key=${one.name} scope="col" class=${one.kind ?? ""}>${one.head ?? (one.name || html`<span class="unseen">Selection</span>`)}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          (row) => html`<tr key=${keyOf(row)} class=${onRow ? "opens" : ""} onClick=${onRow && (({ target }) => !target.closest("a, button, input") && onRow(row))}>${columns.map((one) => html`<td key=${one.name} class=${one.kind ?? ""} data-name=${one.name}>${one.show(row)}</td>`)}</tr>${detail?.(row) && html`<tr key=${`${keyOf(row)} detail`} class="detail"><td class="whole" colspan=${columns.length}>${detail(row)}</td></tr>`}`,
        )}
      </tbody>
    </table>
  </div>`;

/** A box that searches while one types; `/` leads to it. */
export function SearchBox({ value, onSearch, label }) {
  const [text, setText] = useState(value ?? "");
  const rested = useRested(text, 250);
  const sent = useRef(value ?? "");
  useEffect(() => {
    if (rested !== sent.current) onSearch((sent.current = rested));
  }, [rested]);
  useEffect(() => {
    if ((value ?? "") !== sent.current) setText((sent.current = value ?? ""));
  }, [value]);
  return html`<div class="search">
    <${Icon} name="search" />
    <input type="search" data-search aria-label=${label} placeholder=${label} value=${text} autocomplete="off" spellcheck="false" onInput=${(event) => setText(event.target.value)} />
    <kbd aria-hidden="true">/</kbd>
  </div>`;
}

/** Where the next page of a list begins, and the ways back: the server gives a text with each page. */
export function usePages(key) {
  const [pages, setPages] = useState({ key, starts: [""] });
  const starts = pages.key === key ? pages.starts : [""];
  return {
    start: starts[starts.length - 1],
    number: starts.length,
    next: (start) => setPages({ key, starts: [...starts, start] }),
    back: () => setPages({ key, starts: starts.slice(0, -1) }),
  };
}

export function Pager({ pages, size, shown, total, next, noun }) {
  const first = (pages.number - 1) * size;
  const range = shown ? `${count(first + 1)}–${count(first + shown)}` : "0";
  return html`<div class="pager" role="group" aria-label="Pages of the list">
    <span>${range}${total === undefined ? "" : ` of ${count(total)}`} ${noun}</span>
    <button type="button" aria-label="Previous page" disabled=${pages.number === 1} onClick=${pages.back}><${Icon} name="back" /></button>
    <button type="button" aria-label="Next page" disabled=${!next} onClick=${() => pages.next(next)}><${Icon} name="next" /></button>
  </div>`;
}
