/** Saved views: what the address of a list shows, under a name. The browser keeps them; no server knows of them. */
import { keep, recall } from "./kept.js";
import { searchOf } from "./router.js";

const KEY = "headgate-views";
const VIEWS_MAX = 50;
export const NAME_CHARACTERS_MAX = 60;
const VIEW_CHARACTERS_MAX = 4000;
/** What is open in a list is no part of what it shows. */
const PASSING = new Set(["open", "letter"]);

/** @typedef {{page: string, name: string, query: Object<string, string>}} View */

const isText = (value) => typeof value === "string";
const isView = (one) => isText(one?.page) && isText(one.name) && one.query && typeof one.query === "object" && Object.values(one.query).every(isText);

/** @returns {View[]} Those of all pages; none where somebody else has written there. */
function views() {
  try {
    const found = JSON.parse(recall(KEY) || "[]");
    return Array.isArray(found) ? found.filter(isView).slice(0, VIEWS_MAX) : [];
  } catch {
    return [];
  }
}

/** What a view keeps of a query, in one order: equal ones are equal texts. */
export const viewOf = (query) => Object.fromEntries(Object.entries(query).filter(([name, value]) => value && !PASSING.has(name)).sort(([a], [b]) => (a < b ? -1 : 1)));

const isSame = (one, query) => searchOf(viewOf(one.query)) === searchOf(viewOf(query));

/** The views of a page by their names, and the one that is shown. */
export function viewsOf(page, query) {
  const found = views().filter((one) => one.page === page).sort((a, b) => (a.name < b.name ? -1 : 1));
  return { found, shown: found.find((one) => isSame(one, query)) };
}

/** Saves what a page shows; a view of that name becomes this one, a view of the same gets this name. An Error says why not. */
export function saveView(page, name, query) {
  const view = { page, name: name.trim(), query: viewOf(query) };
  const others = views().filter((one) => one.page !== page || (one.name !== view.name && !isSame(one, query)));
  if (!view.name || view.name.length > NAME_CHARACTERS_MAX) throw new Error(`a name has 1 to ${NAME_CHARACTERS_MAX} characters`);
  if (JSON.stringify(view).length > VIEW_CHARACTERS_MAX) throw new Error(`a view has at most ${VIEW_CHARACTERS_MAX} characters: copy the address instead`);
  if (others.length >= VIEWS_MAX) throw new Error(`the browser keeps ${VIEWS_MAX} views: remove one first`);
  if (!keep(KEY, JSON.stringify([...others, view]))) throw new Error("this browser keeps nothing: the view is there until you leave the console");
}

export function removeView({ page, name }) {
  keep(KEY, JSON.stringify(views().filter((one) => one.page !== page || one.name !== name)));
}
