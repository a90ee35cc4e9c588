/** What pages hand to one another: a filter and events to the playground, fields to the form of a new trigger. */
import { EVENTS } from "./examples.js";
import { yaml } from "./format.js";
import { packed } from "./link_state.js";
import { go } from "./router.js";

/** Opens the filter of a trigger in the playground. */
export async function toPlayground({ filter, filters, transform = "" }, events = EVENTS) {
  const [dialect, value] = filters?.length ? ["filters", filters] : (Object.entries(filter ?? {})[0] ?? ["cel", "true"]);
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  go(["playground"], { s: await packed({ dialect: dialect === "expression" ? "cel" : dialect, text, transform, events }) });
}

/** `filter` or `filters` of a spec for a text in a dialect, in the words of the documentation: CEL is an `expression`. */
export function filterSpec(dialect, text, dialects = []) {
  if (dialect === "cel") return { filter: { expression: text } };
  let value = text;
  try {
    value = JSON.parse(text);
  } catch {
    // a dialect of text, or one that the server will refuse
  }
  if (dialect === "filters") return { filters: value };
  const isInList = dialects.find((one) => one.name === dialect)?.in.includes("filter") === false;
  return isInList ? { filters: [{ [dialect]: value }] } : { filter: { [dialect]: value } };
}

/** A trigger as the API takes it. */
export const jsonOf = ({ metadata, spec }) => ({ apiVersion: "eventing.knative.dev/v1", kind: "Trigger", metadata, spec });

/** The same as YAML. */
export const draftOf = (given) => yaml(jsonOf(given));
