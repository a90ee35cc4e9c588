/** A filter as a dialect and a text, as people write it, and as a spec has it. */

/** `filter` or `filters` of a spec for a text in a dialect, in the words of the documentation: CEL is an `expression`. */
function filterSpec(dialect, text, dialects) {
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

/** The field of an object that says which filter it is, not how it is read. */
const saying = (object) => Object.entries(object).filter(([name]) => name !== "celVersion");

/**
 * What a spec filters by; `filters` is what counts, as in Knative.
 * @returns {{dialect: string, text: string, place: string}} `text` is empty without a filter, `place` is the field that was read.
 */
export function filterOf({ filter, filters }) {
  const isList = Boolean(filters?.length);
  const only = isList ? (Array.isArray(filters) && filters.length === 1 ? filters[0] : {}) : filter;
  const fields = saying(only ?? {});
  const [dialect, value] = isList && fields.length !== 1 ? ["filters", filters] : (fields[0] ?? ["cel", ""]);
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return { dialect: dialect === "expression" ? "cel" : dialect, text, place: isList ? "spec.filters" : `spec.filter.${dialect}` };
}

/** A spec with another filter; what else there was beside the old one stays. */
export function withFilter(spec, dialect, text, dialects = []) {
  const { filter, filters } = text.trim() ? filterSpec(dialect, text, dialects) : {};
  if (filters) return { ...spec, filters, filter: spec.filters && spec.filter };
  const celVersion = dialect === "cel" ? spec.filter?.celVersion : undefined;
  return { ...spec, filters: undefined, filter: filter && { ...filter, ...(celVersion && { celVersion }) } };
}
