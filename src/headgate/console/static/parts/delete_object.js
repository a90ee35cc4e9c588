/** Deletes an object: says what depends on it, deletes that first where its user wants that, and tells how each ended. */
import { call, get, objectPath, within } from "../api.js";
import { brokerOf, count, counted } from "../format.js";
import { KINDS, nounOf } from "../kinds.js";
import { go, link, searchOf } from "../router.js";
import { useRights } from "../rights.js";
import { current, notify } from "../store.js";
import { html, useEffect, useState } from "../ui.js";
import { Confirm, Dialog, Problem, Status } from "./basics.js";

const PAGE = 1000;
const LOOKED_AT_MAX = 10_000; // objects of a kind
const SHOWN_MAX = 20;
const ENDED_SHOWN_MAX = 200;
const WORDS = {
  Broker: "It takes no more events, and nobody sees those that it has. A new broker of this name is another one.",
  Trigger: "Its subscriber gets no more events.",
  Subscription: "Its consumers get no more events, and its backlog is gone.",
};
/** How objects depend on a broker: key, and the words for so many of them. The first one that fits counts. */
const TIES = [
  ["triggers", (many) => `${counted(many, "trigger")} of it`],
  ["subscriptions", (many) => `${counted(many, "subscription")} of it`],
  ["sinks", (many) => `Dead-letter sink of ${counted(many, "other")}`],
  ["subscribers", (many) => `Subscriber of ${counted(many, "other trigger")}`],
];

/** How an object depends on a broker; undefined where it does not. `urls` are the broker's addresses. */
function tieOf({ kind, metadata, spec }, broker, urls) {
  const { name, namespace } = broker.metadata;
  const leadsHere = ({ ref, uri = "" } = {}) => (ref ? ref.kind === "Broker" && ref.name === name && (ref.namespace || metadata.namespace) === namespace : urls.includes(uri.replace(/\/$/, "")));
  if (kind !== "Broker" && brokerOf({ metadata, spec }) === `${namespace}/${name}`) return KINDS[kind].plural;
  if (kind === "Broker" && metadata.namespace === namespace && metadata.name === name) return undefined;
  return leadsHere(spec?.delivery?.deadLetterSink) ? "sinks" : leadsHere(spec?.subscriber) ? "subscribers" : undefined;
}

/** Objects of a kind with a text in their name or spec, in the first of some places where the user may list them. */
async function objectsWith(search, kind, places, signal) {
  const { root, plural } = KINDS[kind];
  for (const place of places) {
    const found = [];
    try {
      let next = "";
      do {
        const page = await get(within(root, place, plural) + searchOf({ search, limit: PAGE, continue: next }), { signal });
        found.push(...page.items);
        next = page.metadata.continue;
      } while (next && found.length < LOOKED_AT_MAX);
      return { found, isWhole: !next && !place };
    } catch (error) {
      if (error.status !== 403) throw error;
    }
  }
  return { found: [], isWhole: false };
}

/** Everything that depends on a broker, by tie. `isWhole` is false where there may be more than was looked at. */
async function dependentsOf(broker, signal) {
  const { name, namespace } = broker.metadata;
  const urls = [broker.status?.address, ...(broker.status?.addresses ?? [])].filter(Boolean).map(({ url }) => url.replace(/\/$/, ""));
  const places = current().namespaces?.all ? ["", namespace] : [namespace];
  const lists = await Promise.all(Object.keys(KINDS).map((kind) => objectsWith(name, kind, places, signal)));
  const tied = lists.flatMap(({ found }) => found).map((one) => ({ kind: one.kind, namespace: one.metadata.namespace, name: one.metadata.name, tie: tieOf(one, broker, urls) }));
  return { tied: tied.filter((one) => one.tie), isWhole: lists.every((one) => one.isWhole) };
}

/** One DELETE after the other, until it is stopped; what is gone already is deleted, too. Each with the error that it ended with. */
async function deleteAll(objects, signal, onEnd) {
  const ended = [];
  for (const one of objects) {
    if (signal.aborted) break;
    const { root, plural } = KINDS[one.kind];
    const error = await call("DELETE", objectPath(root, one.namespace, plural, one.name)).then(() => null, (failed) => (failed.status === 404 ? null : failed));
    ended.push({ ...one, error });
    onEnd(ended.length);
  }
  return ended;
}

/** @param {{object: any, onClose: () => void}} given The page of the list is shown when the object is gone. */
export function DeleteObject({ object: given, onClose }) {
  const [object] = useState(given); // the page behind finds out that it is gone
  const { kind } = object;
  const { name, namespace } = object.metadata;
  const may = useRights(namespace);
  const [found, setFound] = useState(kind === "Broker" ? null : { tied: [], isWhole: true });
  const [chosen, setChosen] = useState([]); // ties
  const [number, setNumber] = useState(0);
  const [ended, setEnded] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    if (found) return undefined;
    const stop = new AbortController();
    dependentsOf(object, stop.signal).then(setFound, (error) => stop.signal.aborted || (setProblem(error), setFound({ tied: [], isWhole: false })));
    return () => stop.abort();
  }, []);
  // Another broker has dependents of its own; rights of other namespaces are not known here.
  const canGo = (one) => one.kind !== "Broker" && one.namespace === namespace && may("delete", KINDS[one.kind].plural, KINDS[one.kind].group);
  const tied = found?.tied ?? [];
  const first = tied.filter((one) => chosen.includes(one.tie) && canGo(one));
  const self = { kind, namespace, name };
  const leave = () => (notify(`${kind} ${name} is deleted`), go([KINDS[kind].plural], { namespace }));
  async function remove(signal) {
    const others = await deleteAll(first, signal, setNumber);
    const stays = signal.aborted || others.some((one) => one.error);
    const [last] = stays ? [] : await deleteAll([self], signal, () => setNumber(first.length + 1));
    const all = last ? [...others, last] : others;
    if (signal.aborted) return notify(`Stopped: ${count(all.filter((one) => !one.error).length)} of ${count(first.length + 1)} deleted`);
    if (first.length) {
      setEnded({ all, isGone: Boolean(last && !last.error) });
      return true;
    }
    if (last.error) throw last.error;
    return leave();
  }
  if (ended) return html`<${Ended} ...${ended} self=${self} onGone=${leave} onClose=${onClose} />`;
  const verb = first.length ? `Delete all ${count(first.length + 1)}` : "Delete";
  return html`<${Confirm} title=${`Delete the ${nounOf(kind)} ${name}?`} verb=${verb} isWaiting=${!found} onConfirm=${remove} onClose=${onClose}>
    <p>${WORDS[kind]}</p>
    ${!found && html`<p class="muted" role="status">Looking for what depends on it…</p>`}
    <${Problem} error=${problem} />
    ${TIES.map(([tie, words]) => {
      const of = tied.filter((one) => one.tie === tie);
      const isChosen = chosen.includes(tie);
      const onChoose = () => setChosen(isChosen ? chosen.filter((one) => one !== tie) : [...chosen, tie]);
      return of.length > 0 && html`<${Tied} key=${tie} title=${words(of.length)} of=${of} namespace=${namespace} many=${of.filter(canGo).length} isChosen=${isChosen} onChoose=${onChoose} />`;
    })}
    ${tied.length > first.length && html`<p>Those that stay get no more events from it, and deliveries to it fail.</p>`}
    ${found && !found.isWhole && html`<p class="muted">More may depend on it: you may not see everything, or there is too much.</p>`}
    ${number > 0 && html`<p role="status"><progress max=${first.length + 1} value=${number}></progress> ${count(number)} of ${count(first.length + 1)}</p>`}
  <//>`;
}

/** Names of those that depend in one way, and the choice to delete them, too. */
const Tied = ({ title, of, namespace, many, isChosen, onChoose }) =>
  html`<section class="tied" aria-label=${title}>
    <h3>${title}</h3>
    <p>${of.slice(0, SHOWN_MAX).map((one, index) => html`${index > 0 && ", "}${one.kind !== "Trigger" && KINDS[one.kind].plural !== one.tie && `${nounOf(one.kind)} `}<a key=${`${one.kind} ${one.namespace} ${one.name}`} href=${link([KINDS[one.kind].plural, one.namespace, one.name])}>${one.namespace === namespace ? one.name : `${one.namespace}/${one.name}`}</a>`)}${of.length > SHOWN_MAX && ` and ${count(of.length - SHOWN_MAX)} more`}</p>
    ${many > 0 ? html`<label class="tick"><input type="checkbox" checked=${isChosen} onChange=${onChoose} /> ${many === of.length ? "Delete them, too" : `Delete ${count(many)} of them, too`}</label>` : html`<p class="muted">They stay: they are other brokers, of other namespaces, or you may not delete them.</p>`}
  </section>`;

/** What became of each. */
function Ended({ all, self, isGone, onGone, onClose }) {
  const close = isGone ? onGone : onClose;
  const failed = all.filter((one) => one.error);
  const sorted = [...failed, ...all.filter((one) => !one.error)];
  return html`<${Dialog} title=${`The ${nounOf(self.kind)} ${self.name} ${isGone ? "is deleted" : "stays"}`} onClose=${close}>
    <p role="status">${count(all.length - failed.length)} deleted${failed.length > 0 && `, ${count(failed.length)} not`}</p>
    <ul class="ended" tabindex="0" aria-label="What became of each">${sorted.slice(0, ENDED_SHOWN_MAX).map((one) => html`<li key=${`${one.kind} ${one.name}`}><${Status} tone=${one.error ? "bad" : "good"}>${one.error ? "Not deleted" : "Deleted"}<//> ${nounOf(one.kind)} ${one.name} ${one.error && html`<span class="muted">${one.error.message}</span>`}</li>`)}</ul>
    ${sorted.length > ENDED_SHOWN_MAX && html`<p class="muted">and ${count(sorted.length - ENDED_SHOWN_MAX)} more</p>`}
    <div class="dialog-actions"><button type="button" onClick=${close}>Close</button></div>
  <//>`;
}
