/** The filter in a form: what the catalogue knows of the names in it, and the last events that it takes. */
import { EVENTING, objectPath, OWN } from "../api.js";
import { filterOf, withFilter } from "../filters.js";
import { plain } from "../format.js";
import { KINDS } from "../kinds.js";
import { html, useData, useRested, useState } from "../ui.js";
import { Matches } from "./matches.js";
import { Meant } from "./meant.js";

const CEL = KINDS.Trigger.spec.filter.expression;
const TYPES_SHOWN = 8;

/** Shows the filter and the transform of a spec; `meant` is of `useMeant`, `onSpec` gets a function from the old spec to the new one. */
export function FilterField({ spec, broker, meant, onSpec }) {
  const dialects = (useData(`${OWN}/filters/dialects`).data?.dialects ?? []).filter((one) => !one.fault);
  const [{ dialect, text }, setTyped] = useState(() => filterOf(spec)); // as it is typed: JSON that is read is another text
  const names = [...new Set(["cel", ...dialects.map((one) => one.name), dialect])];
  const change = (name, typed) => {
    setTyped({ dialect: name, text: typed });
    onSpec((old) => withFilter(old, name, typed, dialects));
  };
  const choose = (name) => {
    const example = dialects.find((one) => one.name === name)?.example;
    change(name, name === "cel" ? CEL : typeof example === "string" ? example : JSON.stringify(example ?? "", null, 2));
  };
  const onTransform = ({ target }) => onSpec((old) => ({ ...old, transform: target.value.trim() ? target.value : undefined }));
  return html`<label>Dialect <select value=${dialect} onChange=${({ target }) => choose(target.value)}>${names.map((one) => html`<option key=${one} value=${one} selected=${one === dialect}>${one === "cel" ? "CEL" : one}</option>`)}</select></label>
    <textarea class="code filter-text" aria-label="Filter" spellcheck="false" autocomplete="off" rows=${Math.max(3, text.split("\n").length + 1)} placeholder="Every event of the broker" value=${text} onInput=${({ target }) => change(dialect, target.value)}></textarea>
    ${!text.trim() && dialect === "cel" && html`<${Types} broker=${broker} onText=${(typed) => change(dialect, typed)} />`}
    <${Meant} names=${meant} text=${text} onText=${(typed) => change(dialect, typed)} />
    <details open=${Boolean(spec.transform)}><summary>Transform: what is sent of each event</summary><textarea class="code filter-text" aria-label="Transform" spellcheck="false" autocomplete="off" rows="3" value=${spec.transform ?? ""} onInput=${onTransform}></textarea></details>`;
}

/** Only what rests is tried: a broker that is being typed is asked for nothing. */
export function Tried({ broker, spec }) {
  const rested = useRested(JSON.stringify({ broker, filter: spec.filter, filters: spec.filters }), 300);
  const { broker: where, filter, filters } = JSON.parse(rested);
  return html`<${Matches} key=${where} broker=${where} filter=${filter} filters=${filters} />`;
}

/** Types of the broker's events, for who has not written a filter yet. */
function Types({ broker, onText }) {
  const [space, short] = useRested(broker, 300).split("/");
  const { data } = useData(short ? `${objectPath(EVENTING, space, "brokers", short)}/catalogue` : null);
  const types = [...new Set((data?.items ?? []).map((one) => one.type))];
  return types.length > 0 && html`<p class="chips"><span class="muted">Types of the broker:</span> ${types.slice(0, TYPES_SHOWN).map((one) => html`<button type="button" key=${one} onClick=${() => onText(`ce.type == ${JSON.stringify(one)}`)}>${plain(one)}</button>`)}</p>`;
}
