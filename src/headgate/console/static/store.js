/** The one store: what more than one page needs to know. A change makes a new state, and tells those who look at it. */
import { useEffect, useState } from "./vendor/preact-htm.js";

/**
 * @typedef {Object} State
 * @property {import("./router.js").Route} route
 * @property {"system"|"light"|"dark"} theme
 * @property {boolean} isDark What that amounts to now.
 * @property {{available: boolean, issuer: string, clientId: string}} signIn How people sign in here.
 * @property {string} user Name of the user; empty when nobody has signed in.
 * @property {boolean} mustSignIn Whether a request was refused for want of a user.
 * @property {{all: boolean, namespaces: string[]}|null} namespaces Those that the user may see.
 * @property {Object<string, Array>} rights What the user may do, by namespace.
 * @property {boolean} isHelpOpen
 * @property {{text: string}|null} notice
 * @property {number} silentSince When the server answered no more (Unix milliseconds); 0 while it does.
 * @property {Object<string, {object: any, text: string|null}>} drafts New objects by kind: as the form has one, and as the YAML that was written since.
 */

/** @type {State} */
let state = {
  route: { page: "overview", segments: [], query: {} },
  theme: "system",
  isDark: false,
  signIn: { available: false, issuer: "", clientId: "" },
  user: "",
  mustSignIn: false,
  namespaces: null,
  rights: {},
  isHelpOpen: false,
  notice: null,
  silentSince: 0,
  drafts: {},
};
const listeners = new Set();

export const current = () => state;

/** @param {Partial<State>} changes */
export function set(changes) {
  state = { ...state, ...changes };
  for (const listener of [...listeners]) listener();
}

/** What a component looks at; it is drawn again when that changes. */
export function useStore(select) {
  const [, redraw] = useState(0);
  const value = select(state);
  useEffect(() => {
    let seen = value;
    const listener = () => {
      const next = select(state);
      if (next !== seen) {
        seen = next;
        redraw((number) => number + 1);
      }
    };
    listeners.add(listener);
    listener();
    return () => listeners.delete(listener);
  }, []);
  return value;
}

/** Says something for some seconds. */
export function notify(text) {
  const notice = { text };
  set({ notice });
  setTimeout(() => state.notice === notice && set({ notice: null }), 5000);
}
