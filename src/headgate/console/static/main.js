/** The console: starts here. Who is it, which page is it, and the frame around the page. */
import { get } from "./api.js";
import { listen } from "./keyboard.js";
import { Problem } from "./parts/basics.js";
import { follow } from "./router.js";
import { Shell } from "./shell.js";
import { comesFromProvider, returnFromProvider, signInAgain } from "./sign_in.js";
import { notify, set } from "./store.js";
import { rememberedTheme } from "./theme.js";
import { html, render } from "./ui.js";

async function start() {
  set({ theme: rememberedTheme() });
  const root = document.getElementById("console");
  try {
    set({ signIn: await get("sign-in.json") });
  } catch (error) {
    const again = () => (render(null, root), start());
    render(html`<main class="sign-in"><${Problem} error=${error} /><button type="button" onClick=${again}>Try again</button></main>`, root);
    return;
  }
  try {
    if (comesFromProvider()) await returnFromProvider();
    else await signInAgain();
  } catch (error) {
    if (error.status !== 401) notify(error.message);
  }
  follow();
  addEventListener("hashchange", follow);
  listen();
  render(html`<${Shell} />`, root);
}

start();
