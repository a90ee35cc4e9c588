/** What the user may do: buttons without a right are not shown. The server decides all the same. */
import { post } from "./api.js";
import { current, set, useStore } from "./store.js";
import { useEffect } from "./vendor/preact-htm.js";

const REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
const asked = new Set();

/** Forgets what another user could do. */
export function forgetRights() {
  asked.clear();
  set({ rights: {}, namespaces: null });
}

async function learn(namespace) {
  asked.add(namespace);
  try {
    const review = await post(REVIEW, {
      apiVersion: "authorization.k8s.io/v1",
      kind: "SelfSubjectRulesReview",
      spec: { namespace },
    });
    set({ rights: { ...current().rights, [namespace]: review.status.resourceRules } });
  } catch {
    asked.delete(namespace); // nothing is shown until the server answers
  }
}

/**
 * Whether the user may, in a namespace: `may("create", "triggers", "eventing.knative.dev")`; of null: on all of the server.
 * @returns {(verb: string, resource: string, group?: string) => boolean}
 */
export function useRights(namespace) {
  const place = namespace === null ? "" : namespace || "default";
  const rules = useStore((state) => state.rights)[place];
  useEffect(() => {
    if (!asked.has(place)) learn(place);
  }, [place, rules]);
  const holds = (list, wanted) => list?.some((one) => one === "*" || one === wanted);
  return (verb, resource, group = "headgate.dev") =>
    (rules ?? []).some(
      (rule) =>
        holds(rule.verbs, verb) &&
        holds(rule.apiGroups, group) &&
        (holds(rule.resources, resource) || holds(rule.resources, `*/${resource.split("/")[1]}`)) &&
        !rule.resourceNames?.length,
    );
}
