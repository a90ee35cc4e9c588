/** Keys: one for the search, one for the help, and `g` with a letter for each page. */
import { go } from "./router.js";
import { current, set } from "./store.js";

/** The pages, in the order of the navigation: their key behind `g`, their path and their name. */
export const PAGES = [
  ["o", "overview", "Overview"],
  ["p", "playground", "Playground"],
  ["e", "events", "Events"],
  ["t", "triggers", "Triggers"],
  ["b", "brokers", "Brokers"],
  ["s", "subscriptions", "Subscriptions"],
  ["d", "dead-letters", "Dead letters"],
  ["c", "catalogue", "Catalogue"],
];
const LEADER_MS = 1500;
const isText = (target) => target.matches?.("input, textarea, select, [contenteditable]");

export function listen() {
  let ledAt = -Infinity;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (isText(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const isLed = event.timeStamp - ledAt < LEADER_MS;
    ledAt = -Infinity;
    const page = isLed && PAGES.find(([key]) => key === event.key);
    const box = event.key === "/" && document.querySelector("[data-search]");
    if (page) {
      const { namespace } = current().route.query;
      go([page[1]], { namespace });
    } else if (box) {
      box.focus();
      box.select?.();
    } else if (event.key === "?") set({ isHelpOpen: true });
    else if (event.key === "g") ledAt = event.timeStamp;
    else return;
    event.preventDefault();
  });
}
