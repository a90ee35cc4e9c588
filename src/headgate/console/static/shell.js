/** The frame around every page: navigation, namespace, user, colours, help. */
import { PAGES } from "./keyboard.js";
import { Ago, Dialog, Empty, Icon, PageHead } from "./parts/basics.js";
import { Brokers, BrokerPage } from "./pages/brokers.js";
import { Catalogue } from "./pages/catalogue.js";
import { Chunks } from "./pages/chunks.js";
import { DeadLetters } from "./pages/dead_letters.js";
import { EventPage } from "./pages/event.js";
import { Events } from "./pages/events.js";
import { NewBroker, NewSubscription, NewTrigger } from "./pages/new_object.js";
import { Overview } from "./pages/overview.js";
import { Playground } from "./pages/playground.js";
import { SignIn } from "./pages/sign_in.js";
import { Subscriptions, SubscriptionPage } from "./pages/subscriptions.js";
import { TriggerPage } from "./pages/trigger.js";
import { Triggers } from "./pages/triggers.js";
import { go, link, parse, refine, useRoute } from "./router.js";
import { signOut } from "./sign_in.js";
import { set, useStore } from "./store.js";
import { chooseTheme, nextTheme } from "./theme.js";
import { html, useEffect, useRef } from "./ui.js";

/** Which page is shown for a path: by its first segment and the number of further ones. */
const VIEWS = {
  "overview/0": Overview,
  "playground/0": Playground,
  "events/0": Events,
  "events/3": EventPage,
  "triggers/0": Triggers,
  "triggers/2": TriggerPage,
  "new-trigger/0": NewTrigger,
  "brokers/0": Brokers,
  "brokers/2": BrokerPage,
  "new-broker/0": NewBroker,
  "subscriptions/0": Subscriptions,
  "subscriptions/2": SubscriptionPage,
  "new-subscription/0": NewSubscription,
  "dead-letters/0": DeadLetters,
  "catalogue/0": Catalogue,
  "chunks/0": Chunks,
};
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
  const View = VIEWS[`${route.page}/${route.segments.length}`] ?? NotFound;
  // Where a token has expired, the page waits behind: what its user has written is not lost. Another user gets his own.
  return html`${mustSignIn && html`<${SignIn} />`}
    <div class="shell" key=${user} hidden=${mustSignIn}>
      <${Navigation} main=${main} page=${WIDE[route.page] ?? route.page} namespace=${route.query.namespace ?? ""} />
      <main ref=${main} tabindex="-1" class=${`page-${route.page} ${silentSince ? "stale" : ""}`}>${silentSince > 0 && html`<${Silence} since=${silentSince} />`}<${View} key=${place} route=${route} /></main>
    </div>
    <div class="notice" role="status">${notice?.text}</div>
    ${isHelpOpen && html`<${Help} />`}`;
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
