/** What pages hand to one another: a filter and events to the playground, a draft to the page of a new trigger. */
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

/** A trigger to begin with, as YAML. */
export const draftOf = ({ namespace = "default", broker = "default", filter = { cel: 'ce.type == "order.paid"' }, filters, transform }) =>
  yaml({
    apiVersion: "eventing.knative.dev/v1",
    kind: "Trigger",
    metadata: { name: "my-trigger", namespace: namespace || "default" },
    spec: { broker, ...(filters ? { filters } : { filter }), ...(transform ? { transform } : {}), subscriber: { uri: "http://127.0.0.1:9000/" } },
  });
