/** What the playground begins with: events of a shop, and filters in each dialect. */

const event = (id, type, source, data, more = {}) => ({ specversion: "1.0", id, source, type, ...more, data });

export const EVENTS = [
  event("1", "order.paid", "/shop/berlin", { total: 240, tier: "gold", items: [{ sku: "A-1", count: 2 }] }, { subject: "orders/8841" }),
  event("2", "order.paid", "/shop/berlin", { total: 12.5, tier: "basic", items: [{ sku: "B-7", count: 1 }] }, { subject: "orders/8842" }),
  event("3", "order.cancelled", "/shop/paris", { total: 99, tier: "gold", reason: "late" }, { subject: "orders/8843" }),
  event("4", "user.created", "/accounts", { email: "ada@example.com", country: "DE" }),
  event("5", "order.paid", "/shop/paris", { tier: "gold" }, { subject: "orders/8844" }),
];

/** By dialect: a name, and a text as the playground takes it. */
export const EXAMPLES = {
  cel: [
    ["Large orders of good customers", 'ce.type == "order.paid" && data.tier == "gold" && data.total > 100.0'],
    ["A field that may be missing", 'ce.type == "order.paid" && has(data.total) && data.total > 100.0'],
    ["Any item of a list", 'data.items.exists(item, item.sku.startsWith("A-"))'],
    ["One of several types", 'ce.type in ["order.paid", "order.cancelled"]'],
  ],
  cesql: [["CloudEvents SQL", "type LIKE 'order.%' AND source = '/shop/berlin'"], ["A list of values", "type IN ('order.paid', 'user.created')"]],
  attributes: [["Knative's attributes", '{"type": "order.paid", "source": "/shop/berlin"}']],
  exact: [["Exactly", '{"type": "order.paid"}']],
  prefix: [["Begins with", '{"type": "order."}']],
  suffix: [["Ends with", '{"source": "/paris"}']],
  any: [["One of these", '[{"exact": {"type": "user.created"}}, {"prefix": {"source": "/shop/"}}]']],
  all: [["All of these", '[{"prefix": {"type": "order."}}, {"suffix": {"source": "/paris"}}]']],
  not: [["Not this", '{"prefix": {"type": "order."}}']],
  jms: [["A JMS selector", "type = 'order.paid' AND subject LIKE 'orders/%'"]],
  eventPattern: [["EventBridge's pattern", '{"type": ["order.paid"], "data": {"tier": ["gold"], "total": [{"numeric": [">", 100]}]}}']],
  sourceAndType: [["Source and type", '{"type": "order.paid", "source": "/shop/berlin"}']],
};

export const START = { dialect: "cel", text: EXAMPLES.cel[0][1], events: EVENTS };
