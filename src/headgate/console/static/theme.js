/** Light or dark: as the system says, or as its user does. The colours are in console.css. */
import { set } from "./store.js";

const SYSTEM = matchMedia("(prefers-color-scheme: dark)");
const KEY = "headgate-theme";
const THEMES = ["system", "light", "dark"];

export function rememberedTheme() {
  let theme = "";
  try {
    theme = localStorage.getItem(KEY);
  } catch {
    // a browser that keeps nothing
  }
  return apply(THEMES.includes(theme) ? theme : "system");
}

/** The theme after this one. */
export const nextTheme = (theme) => THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];

export function chooseTheme(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // it holds until the page is left
  }
  set({ theme: apply(theme) });
}

function apply(theme) {
  document.documentElement.dataset.theme = theme;
  tell();
  return theme;
}

/** Charts are drawn anew when the colours change, whoever changed them. */
function tell() {
  const { theme } = document.documentElement.dataset;
  set({ isDark: theme === "system" ? SYSTEM.matches : theme === "dark" });
}
SYSTEM.addEventListener("change", tell);

/** The colour of a name in console.css as it is now: canvases know no names. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
