/** A filter on one event, part by part: each with its value, and the one that decided. */
import { plain } from "../format.js";
import { html } from "../ui.js";

/** @typedef {{start: number, end: number, depth: number, kind: string, value: string, element: string, decided: boolean}} Part */

const toneOf = ({ kind, value }) => (kind === "error" ? "warn" : value === "true" ? "good" : value === "false" ? "bad" : "");
const GLYPH = { good: "✓", bad: "✕", warn: "!" };

/** The whole text with the part that decided underlined. */
function Whole({ letters, decided }) {
  if (!decided) return html`<code class="whole">${plain(letters.join(""))}</code>`;
  const { start, end } = decided;
  const cut = (from, to) => plain(letters.slice(from, to).join(""));
  return html`<code class="whole">${cut(0, start)}<mark class=${toneOf(decided)}>${cut(start, end)}</mark>${cut(end)}</code>`;
}

/**
 * @param {{text: string, trace: {parts: Part[], leftOut?: boolean}}} given Offsets of parts in the text are code points.
 */
export function FilterTrace({ text, trace }) {
  const letters = Array.from(text);
  const { parts } = trace;
  return html`<div class="filter-trace">
    <${Whole} letters=${letters} decided=${parts.find((one) => one.decided)} />
    <table>
      <thead class="unseen"><tr><th scope="col">Part</th><th scope="col">Value</th></tr></thead>
      <tbody>
        ${parts.map(
          (part, index) => html`<tr key=${index} class=${part.decided ? "decided" : ""}>
            <td>
              <code data-depth=${Math.min(part.depth, 12)}>${plain(letters.slice(part.start, part.end).join(""))}</code>
              ${part.element && html`<span class="element">${part.element}</span>`}
            </td>
            <td>
              <span class="value ${toneOf(part)}">${GLYPH[toneOf(part)] && html`<span class="glyph" aria-hidden="true">${GLYPH[toneOf(part)]}</span>`}${part.value}</span>
              ${part.decided && html`<span class="decided-word">decided</span>`}
            </td>
          </tr>`,
        )}
      </tbody>
    </table>
    ${trace.leftOut && html`<p class="muted">There are more parts than are shown.</p>`}
  </div>`;
}
