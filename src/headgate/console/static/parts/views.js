/** The button of a list for its saved views, and the window in which they are opened, saved and removed. */
import { plain } from "../format.js";
import { link } from "../router.js";
import { html, useState } from "../ui.js";
import { NAME_CHARACTERS_MAX, removeView, saveView, viewOf, viewsOf } from "../views.js";
import { Dialog, Problem } from "./basics.js";

export function Views({ route }) {
  const [isOpen, setOpen] = useState(false);
  return html`<button type="button" onClick=${() => setOpen(true)}>Views…</button>
    ${isOpen && html`<${ViewsWindow} page=${route.page} query=${route.query} onClose=${() => setOpen(false)} />`}`;
}

const wordsOf = (query) => Object.entries(viewOf(query)).map(([name, value]) => `${name}: ${value}`).join(", ") || "everything";

function ViewsWindow({ page, query, onClose }) {
  const [{ found, shown }, setViews] = useState(() => viewsOf(page, query));
  const [name, setName] = useState(shown?.name ?? "");
  const [error, setError] = useState(null);
  function save(event) {
    event.preventDefault();
    setError(null);
    try {
      saveView(page, name, query);
    } catch (failed) {
      setError(failed);
    }
    setViews(viewsOf(page, query));
  }
  const remove = (view) => (removeView(view), setViews(viewsOf(page, query)));
  return html`<${Dialog} title="Saved views" onClose=${onClose}>
    ${found.length
      ? html`<ul class="views">${found.map((one) => html`<li key=${one.name}>
          <span><a class="name" href=${link([page], one.query)} aria-current=${one === shown ? "true" : undefined} onClick=${onClose}>${plain(one.name)}</a> <span class="muted">${plain(wordsOf(one.query))}</span></span>
          <button type="button" aria-label=${`Remove ${plain(one.name)}`} onClick=${() => remove(one)}>Remove</button>
        </li>`)}</ul>`
      : html`<p class="muted">None yet. A view keeps what a list shows: its namespace, search and filter.</p>`}
    <form class="save-view" onSubmit=${save}>
      <label>Name of what is shown now <input required maxlength=${NAME_CHARACTERS_MAX} autocomplete="off" value=${name} onInput=${({ target }) => setName(target.value)} /></label>
      <button type="submit" class="primary" disabled=${!name.trim()}>${shown && shown.name !== name.trim() ? "Rename" : "Save"}</button>
    </form>
    <p class="muted">${plain(wordsOf(query))}. This browser alone keeps views.</p>
    <${Problem} error=${error} />
    <div class="dialog-actions"><button type="button" onClick=${onClose}>Close</button></div>
  <//>`;
}
