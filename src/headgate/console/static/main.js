/** The console: starts here. Who is it, which page is it, and the frame around the page. */
import { get } from "./api.js";
import { listen } from "./keyboard.js";
import { follow } from "./router.js";
import { Shell } from "./shell.js";
import { comesFromProvider, learnUser, returnFromProvider } from "./sign_in.js";
import { notify, set } from "./store.js";
import { rememberedTheme } from "./theme.js";
import { html, render } from "./ui.js";

async function start() {
  set({ theme: rememberedTheme(), signIn: await get("sign-in.json") });
  try {
    if (comesFromProvider()) await returnFromProvider();
    else await learnUser();
  } catch (error) {
    if (error.status !== 401) notify(error.message);
  }
  follow();
  addEventListener("hashchange", follow);
  listen();
  render(html`<${Shell} />`, document.getElementById("console"));
}

start();
