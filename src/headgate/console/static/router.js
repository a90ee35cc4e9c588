/** The address: everything that a page shows is in the fragment, `#/page/segment?name=value`, so that a link shows it. */
import { set, useStore } from "./store.js";

/** @typedef {{page: string, segments: string[], query: Object<string, string>}} Route */

/** @returns {Route} */
export function parse(fragment) {
  const [path, search = ""] = fragment.replace(/^#/, "").split(/\?(.*)/s);
  const [page = "", ...segments] = path.split("/").filter(Boolean).map(decoded);
  return { page: page || "overview", segments, query: Object.fromEntries(new URLSearchParams(search)) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** `?name=value&...` of what is not empty. */
export function searchOf(query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** The path of segments, each encoded. */
export const pathOf = (...segments) => segments.map((one) => `/${encodeURIComponent(one)}`).join("");

/** A link to a page: `link(["triggers", namespace, name], query)`. */
export const link = (segments, query = {}) => `#${pathOf(...segments)}${searchOf(query)}`;

export function go(segments, query = {}) {
  location.hash = link(segments, query);
}

/** Changes the query of the page at hand; no step back leads to what was typed in between. */
export function refine(changes) {
  const { page, segments, query } = parse(location.hash);
  history.replaceState(null, "", link([page, ...segments], { ...query, ...changes }));
  follow();
}

export function follow() {
  set({ route: parse(location.hash) });
}

export const useRoute = () => useStore((state) => state.route);
