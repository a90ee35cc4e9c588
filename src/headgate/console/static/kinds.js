/** The kinds of objects that have pages: where the API has them, and what a new one begins with. */
import { EVENTING, OWN } from "./api.js";

const FILTER = { expression: 'ce.type == "order.paid"' };

/** By kind; the path of its pages is `plural`, its name in a sentence the kind in small letters. */
export const KINDS = {
  Broker: { root: EVENTING, group: "eventing.knative.dev", plural: "brokers", spec: {} },
  Trigger: { root: EVENTING, group: "eventing.knative.dev", plural: "triggers", spec: { broker: "default", filter: FILTER, subscriber: { uri: "http://127.0.0.1:9000/" } } },
  Subscription: { root: OWN, group: "headgate.dev", plural: "subscriptions", spec: { broker: "default", filter: FILTER } },
};

export const nounOf = (kind) => kind.toLowerCase();

/** A new object of a kind, as its form begins. */
export const fresh = (kind) => ({ apiVersion: KINDS[kind].root.replace("/apis/", ""), kind, metadata: { name: `my-${nounOf(kind)}` }, spec: KINDS[kind].spec });
