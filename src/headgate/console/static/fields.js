/** Fields of an object by their places (`spec.delivery.retry`): what a form reads and changes, and what it does not show. */

const isTree = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isNothing = (value) => value === undefined || value === "" || (isTree(value) && !Object.keys(value).length);

export const valueAt = (object, place) => place.split(".").reduce((value, key) => value?.[key], object);

/** The object with another value at a place; where that is nothing, what holds nothing else goes with it. */
export function withValue(object, place, value) {
  const [key, ...rest] = place.split(".");
  const next = rest.length ? withValue(object[key] ?? {}, rest.join("."), value) : value;
  if (!isNothing(next)) return { ...object, [key]: next };
  const { [key]: gone, ...others } = object;
  return others;
}

/** Places of an object with a value, beside those that are shown; of a tree that is not shown at all, the tree. */
export function besides(object, shown, above = "") {
  return Object.entries(object).flatMap(([key, value]) => {
    const place = above + key;
    if (value === undefined || shown.includes(place)) return [];
    return isTree(value) && shown.some((one) => one.startsWith(`${place}.`)) ? besides(value, shown, `${place}.`) : [place];
  });
}
