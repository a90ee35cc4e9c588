/** Light or dark: as the system says, or as its user does. The colours are in console.css. */
import { keep, recall } from "./kept.js";
import { set } from "./store.js";

const SYSTEM = matchMedia("(prefers-color-scheme: dark)");
const KEY = "headgate-theme";
const THEMES = ["system", "light", "dark"];

export function rememberedTheme() {
  const theme = recall(KEY);
  return apply(THEMES.includes(theme) ? theme : "system");
}

/** The theme after this one. */
export const nextTheme = (theme) => THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];

export function chooseTheme(theme) {
  keep(KEY, theme);
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
