/** The frame around every page: navigation, namespace, user, colours, help. */
import { PAGES } from "./keyboard.js";
import { Ago, Dialog, Empty, Icon, PageHead, Problem } from "./parts/basics.js";
import { SignIn } from "./pages/sign_in.js";
import { go, link, parse, refine, useRoute } from "./router.js";
import { signOut } from "./sign_in.js";
import { set, useStore } from "./store.js";
import { chooseTheme, nextTheme } from "./theme.js";
import { html, useEffect, useRef, useState } from "./ui.js";

/** By the first segment of a path and the number of further ones: a page's module, and its name there. */
const PLACES = {
  "overview/0": ["overview", "Overview"],
  "playground/0": ["playground", "Playground"],
  "events/0": ["events", "Events"],
  "events/3": ["event", "EventPage"],
  "triggers/0": ["triggers", "Triggers"],
  "triggers/2": ["trigger", "TriggerPage"],
  "new-trigger/0": ["new_object", "NewTrigger"],
  "brokers/0": ["brokers", "Brokers"],
  "brokers/2": ["brokers", "BrokerPage"],
  "new-broker/0": ["new_object", "NewBroker"],
  "subscriptions/0": ["subscriptions", "Subscriptions"],
  "subscriptions/2": ["subscriptions", "SubscriptionPage"],
  "new-subscription/0": ["new_object", "NewSubscription"],
  "dead-letters/0": ["dead_letters", "DeadLetters"],
  "catalogue/0": ["catalogue", "Catalogue"],
  "chunks/0": ["chunks", "Chunks"],
};
/** Modules of pages that have been shown. */
const MODULES = new Map();
const WIDE = { "new-broker": "brokers", "new-subscription": "subscriptions", "new-trigger": "triggers", chunks: "events" };

export function Shell() {
  const mustSignIn = useStore((state) => state.mustSignIn);
  const user = useStore((state) => state.user);
  const isHelpOpen = useStore((state) => state.isHelpOpen);
  const notice = useStore((state) => state.notice);
  const silentSince = useStore((state) => state.silentSince);
  const route = useRoute();
  const main = useRef(null);
  const place = [route.page, ...route.segments].join("/");
  useEffect(() => {
    scrollTo(0, 0);
    if (document.activeElement === document.body) main.current?.focus({ preventScroll: true });
  }, [place]);
  if (mustSignIn && !user) return html`<${SignIn} />`;
  // Where a token has expired, the page waits behind: what its user has written is not lost. Another user gets his own.
  return html`${mustSignIn && html`<${SignIn} />`}
    <div class="shell" key=${user} hidden=${mustSignIn}>
      <${Navigation} main=${main} page=${WIDE[route.page] ?? route.page} namespace=${route.query.namespace ?? ""} />
      <main ref=${main} tabindex="-1" class=${`page-${route.page} ${silentSince ? "stale" : ""}`}>${silentSince > 0 && html`<${Silence} since=${silentSince} />`}<${View} key=${place} route=${route} /></main>
    </div>
    <div class="notice" role="status">${notice?.text}</div>
    ${isHelpOpen && html`<${Help} />`}`;
}

/** The page of a route. Its module comes when it is shown for the first time. */
function View({ route }) {
  const [file, name] = PLACES[`${route.page}/${route.segments.length}`] ?? [];
  const [module, setModule] = useState(MODULES.get(file));
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    if (!file || module) return;
    const take = (come) => (MODULES.set(file, come), setModule(come));
    import(`./pages/${file}.js`).then(take, () => setFailed(true));
  }, []);
  if (!file) return html`<${NotFound} />`;
  if (failed) {
    const error = { message: "the server does not answer: this page has not come", hint: "is it running?" };
    return html`<${Problem} error=${error}><button type="button" onClick=${() => location.reload()}>Load the page again</button><//>`;
  }
  return module && html`<${module[name]} route=${route} />`;
}

const Silence = ({ since }) =>
  html`<p class="silence" role="alert">The server has not answered since ${new Date(since).toLocaleTimeString("en-GB")} (<${Ago} time=${new Date(since).toISOString()} />). What is shown is from before; the page asks again.</p>`;

const NotFound = () => html`<${PageHead} title="Not found" /><${Empty} title="There is no such page"><a href=${link(["overview"])}>To the overview</a><//>`;

function Navigation({ page, namespace, main }) {
  return html`<aside class="side">
    <a class="skip" href="#" onClick=${(event) => (event.preventDefault(), main.current.focus())}>Skip to the content</a>
    <a class="brand" href=${link(["overview"], { namespace })}><img src="mark.svg" alt="" width="22" height="22" /> Headgate</a>
    <${Namespace} namespace=${namespace} />
    <nav aria-label="Pages">
      ${PAGES.map(
        ([key, path, name]) => html`<a key=${path} href=${link([path], { namespace })} aria-current=${path === page ? "page" : undefined}>
          <${Icon} name=${path} /><span>${name}</span><kbd aria-hidden="true">g ${key}</kbd>
        </a>`,
      )}
    </nav>
    <${Corner} />
  </aside>`;
}

/** Which namespace the lists are about; none means all of them. */
function Namespace({ namespace }) {
  const route = useRoute();
  const seen = useStore((state) => state.namespaces);
  const names = [...new Set([...(seen?.namespaces ?? []), ...(namespace ? [namespace] : [])])].sort();
  const onChange = (event) => {
    const { search, state, filter, s } = route.query; // what belongs to the other namespace stays behind
    go([route.page], { search, state, filter, s, namespace: event.target.value });
  };
  useEffect(() => {
    // Who may not see all of them begins in his first one. The address may be newer than what is drawn.
    const { segments, query } = parse(location.hash);
    if (seen && !seen.all && seen.namespaces.length && !query.namespace && !segments.length) {
      refine({ namespace: seen.namespaces[0] });
    }
  }, [seen, namespace, route.page]);
  return html`<label class="namespace"><span class="unseen">Namespace</span>
    <select value=${namespace} onChange=${onChange}>
      ${(!seen || seen.all) && html`<option value="">All namespaces</option>`}
      ${names.map((one) => html`<option key=${one} value=${one} selected=${one === namespace}>${one}</option>`)}
    </select>
  </label>`;
}

function Corner() {
  const user = useStore((state) => state.user);
  const theme = useStore((state) => state.theme);
  const { available } = useStore((state) => state.signIn);
  const isSomebody = user && user !== "system:anonymous";
  const icons = { system: "system", light: "sun", dark: "moon" };
  return html`<div class="corner">
    ${isSomebody && html`<p class="user" title=${user}>${user}</p>`}
    <button type="button" class="bare" title="Colours: ${theme}" aria-label=${`Colours: ${theme}. Change`} onClick=${() => chooseTheme(nextTheme(theme))}><${Icon} name=${icons[theme]} /></button>
    <button type="button" class="bare" title="Keys and help (?)" aria-label="Keys and help" onClick=${() => set({ isHelpOpen: true })}><${Icon} name="help" /></button>
    ${available && !isSomebody && html`<button type="button" onClick=${() => set({ mustSignIn: true })}>Sign in</button>`}
    ${isSomebody && html`<button type="button" class="bare" title="Sign out" aria-label="Sign out" onClick=${signOut}><${Icon} name="out" /></button>`}
  </div>`;
}

function Help() {
  const close = () => set({ isHelpOpen: false });
  const keys = [["/", "Search, or write a filter"], ...PAGES.map(([key, , name]) => [`g ${key}`, name]), ["?", "This help"], ["Esc", "Leave a field, close a window"]];
  return html`<${Dialog} title="Keys" onClose=${close}>
    <dl class="keys">${keys.map(([key, what]) => html`<div key=${key}><dt>${key.split(" ").map((one) => html`<kbd key=${one}>${one}</kbd> `)}</dt><dd>${what}</dd></div>`)}</dl>
    <p class="muted">Every address can be shared: it holds what the page shows.</p>
    <div class="dialog-actions"><button type="button" onClick=${close}>Close</button></div>
  <//>`;
}
