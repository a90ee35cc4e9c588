/** Copies a text, also where the page came over plain HTTP and the browser offers no clipboard. */
import { notify } from "./store.js";

export async function copy(text, said = "Copied") {
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else byHand(text);
    notify(said);
  } catch {
    notify("The browser did not let the page copy");
  }
}

function byHand(text) {
  const box = document.createElement("textarea");
  box.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(box);
  box.select();
  const isCopied = document.execCommand("copy");
  box.remove();
  if (!isCopied) throw new Error("not copied");
}
