/** What a transform changes of an event: its JSON line by line, what goes and what comes. */
import { counted, plain } from "../format.js";
import { html } from "../ui.js";

const LINES_MAX = 400;

/** JSON with the members of every object in the order of their names: only values are compared. */
function lines(value) {
  const inOrder = (_, one) => (one && typeof one === "object" && !Array.isArray(one) ? Object.fromEntries(Object.entries(one).sort(([a], [b]) => (a < b ? -1 : 1))) : one);
  return JSON.stringify(value, inOrder, 2).split("\n");
}

/** Lines of both with the sign of who has them: a space for both; the longest common lines stay. */
export function compared(before, after) {
  const [one, other] = [lines(before), lines(after)];
  if (one.length > LINES_MAX || other.length > LINES_MAX) return null;
  const common = Array.from({ length: one.length + 1 }, () => new Uint16Array(other.length + 1));
  for (let i = one.length - 1; i >= 0; i -= 1)
    for (let j = other.length - 1; j >= 0; j -= 1) common[i][j] = one[i] === other[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const found = [];
  let [i, j] = [0, 0];
  while (i < one.length || j < other.length) {
    if (i < one.length && j < other.length && one[i] === other[j]) found.push([" ", one[i++]]), (j += 1);
    else if (j >= other.length || (i < one.length && common[i + 1][j] >= common[i][j + 1])) found.push(["-", one[i++]]);
    else found.push(["+", other[j++]]);
  }
  return found;
}

const NAMES = { "-": "goes", "+": "comes" };

export function EventDiff({ before, after }) {
  const found = compared(before, after);
  if (!found) return html`<p class="muted">The event has more than ${counted(LINES_MAX, "line")}: what changes is not shown.</p>`;
  return html`<div class="json mono diff" tabindex="0" role="region" aria-label="What the transform changes">
    ${found.map(([sign, text], index) => html`<div key=${index} class=${`line ${NAMES[sign] ?? ""}`}><span class="sign">${sign}</span>${plain(text)}</div>`)}
  </div>`;
}
