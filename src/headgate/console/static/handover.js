/** What pages hand to one another: a filter and events to the playground, its filter to the form of a new trigger. */
import { EVENTS } from "./examples.js";
import { filterOf, withFilter } from "./filters.js";
import { fresh } from "./kinds.js";
import { packed } from "./link_state.js";
import { go } from "./router.js";
import { current, set } from "./store.js";

/** Opens the filter of a trigger in the playground. */
export async function toPlayground(spec, events = EVENTS) {
  const { dialect, text } = filterOf(spec);
  go(["playground"], { s: await packed({ dialect, text: text || "true", transform: spec.transform ?? "", events }) });
}

/** Opens the form of a new trigger with a filter; `dialects` are those that the server has. */
export function toNewTrigger({ dialect, text, transform }, dialects, namespace) {
  const begun = fresh("Trigger");
  const spec = { ...withFilter(begun.spec, dialect, text, dialects), transform: transform.trim() ? transform : undefined };
  set({ drafts: { ...current().drafts, Trigger: { object: { ...begun, spec }, text: null } } });
  go(["new-trigger"], { namespace });
}
