/** Dead letters: by reason and trigger; looked at, sent again, or discarded. */
import { OWN, post, within } from "../api.js";
import { ago, count, plain } from "../format.js";
import { Ago, Confirm, Empty, Facts, PageHead, Panel, Problem, Status } from "../parts/basics.js";
import { EventCard } from "../parts/code.js";
import { Pager, Table, usePages } from "../parts/table.js";
import { link, refine } from "../router.js";
import { useRights } from "../rights.js";
import { notify } from "../store.js";
import { html, useData, useEffect, useState, useTitle } from "../ui.js";

const PAGE = 50;
const EVERY_MS = 4000;
const STATES = { kept: "no", sending: "busy", redriving: "busy" };
const GROUPS_SHOWN = 12;
const lettersOf = (number) => `${count(number)} ${number === 1 ? "dead letter" : "dead letters"}`;
const VERBS = { redrive: ["Send again", "update"], discard: ["Discard", "delete"] };

export function DeadLetters({ route }) {
  const { namespace, trigger, reason, letter } = route.query;
  const pages = usePages(JSON.stringify([namespace, trigger, reason]));
  const [chosen, setChosen] = useState(new Set());
  const [asked, setAsked] = useState("");
  const may = useRights(namespace);
  useTitle("Dead letters");
  const base = within(OWN, namespace, "deadletters");
  const groups = useData(`${base}/counts`, {}, { everyMs: EVERY_MS, keep: true });
  const query = { limit: PAGE, after: pages.start, trigger: namespace ? trigger : "", reason };
  const { data, error, isOld, reload } = useData(base, query, { everyMs: EVERY_MS, keep: true });
  useEffect(() => setChosen(new Set()), [namespace, trigger, reason, pages.start]);
  const matching = (groups.data?.items ?? []).filter((one) => (!trigger || one.trigger === trigger) && (!reason || one.reason === reason) && one.state === "kept");
  const whole = matching.reduce((sum, one) => sum + one.count, 0);
  const choose = (id) => setChosen((old) => new Set(old.has(id) ? [...old].filter((one) => one !== id) : [...old, id]));
  const number = chosen.size || whole;
  const done = () => (setChosen(new Set()), groups.reload(), reload());
  return html`<${PageHead} title="Dead letters">
      ${namespace && number > 0 && Object.entries(VERBS).map(([verb, [words, right]]) => may(right, "deadletters") && html`<button type="button" key=${verb} class=${verb === "discard" ? "danger quiet" : "primary"} onClick=${() => setAsked(verb)}>${words} ${chosen.size ? count(chosen.size) : `all ${count(whole)}`}…</button>`)}
    <//>
    <${Groups} groups=${groups.data} chosen=${{ namespace, trigger, reason }} />
    <${Problem} error=${error ?? groups.error} />
    ${letter && html`<${Letter} namespace=${namespace} id=${letter} />`}
    ${data && (data.items.length
      ? html`<div class="toolbar"><p class="muted">${namespace ? "Choose some, or act on all of the selection." : "Choose a group to act on it."}</p><${Pager} pages=${pages} size=${PAGE} shown=${data.items.length} next=${data.next && String(data.next)} noun="dead letters" /></div>
        <${Table} label="Dead letters" columns=${columnsOf({ chosen, choose, canChoose: Boolean(namespace), trigger, reason })} rows=${data.items} keyOf=${(one) => String(one.id)} isOld=${isOld} />`
      : html`<${Empty} icon="dead-letters" title="No dead letters">An event that no attempt brought to its subscriber is kept here, with the reason.<//>`)}
    ${asked && html`<${Act} verb=${asked} base=${base} ids=${[...chosen]} whole=${whole} selection=${{ trigger, reason }} onDone=${done} onClose=${() => setAsked("")} />`}`;
}

const columnsOf = ({ chosen, choose, canChoose, trigger, reason }) => [
  ...(canChoose ? [{ name: "", show: (one) => html`<input type="checkbox" aria-label=${`Dead letter ${one.id}`} checked=${chosen.has(one.id)} onChange=${() => choose(one.id)} />` }] : []),
  { name: "State", show: (one) => html`<${Status} tone=${STATES[one.state] ?? "idle"}>${one.state}<//>` },
  { name: "Event", show: (one) => html`<a class="name" href=${link(["dead-letters"], { namespace: one.namespace, trigger, reason, letter: one.id })}>${plain(one.eventId)}</a> <span class="muted">${plain(one.eventType)}</span>` },
  { name: "Trigger", show: (one) => html`<a class="plain" href=${link(["triggers", one.namespace, one.trigger])}>${one.trigger}</a> <span class="muted">${one.namespace}</span>` },
  { name: "Reason", show: (one) => html`<code>${one.reason}</code>` },
  { name: "Sent to", kind: "fill", show: (one) => html`<code>${one.problem ?? one.destination}</code>` },
  { name: "Attempts", kind: "number", show: (one) => count(one.attempts) },
  { name: "Died", kind: "number", show: (one) => html`<${Ago} time=${one.died} />` },
];

/** How many there are of each trigger and reason: buttons that narrow the list. */
function Groups({ groups, chosen }) {
  if (!groups?.items.length) return null;
  const isChosen = (one) => chosen.namespace === one.namespace && chosen.trigger === one.trigger && chosen.reason === one.reason;
  const toggle = (one) => refine(isChosen(one) ? { trigger: "", reason: "" } : { namespace: one.namespace, trigger: one.trigger, reason: one.reason });
  const most = groups.items[0].count;
  return html`<${Panel} title="By trigger and reason" aside=${`${count(groups.total)} in all`}>
    <ul class="groups">
      ${groups.items.slice(0, GROUPS_SHOWN).map((one) => html`<li key=${`${one.namespace}/${one.trigger}/${one.reason}/${one.state}`}>
        <button type="button" aria-pressed=${isChosen(one) ? "true" : "false"} onClick=${() => toggle(one)}>
          <span class="name">${one.trigger}</span> <span class="muted">${one.namespace}</span> <code>${one.reason}</code> <span class="muted">${one.state}, newest ${ago(one.newest)} ago</span>
          <meter min="0" max=${most} value=${one.count} aria-hidden="true"></meter><b>${count(one.count)}</b>
        </button>
      </li>`)}
    </ul>
    ${groups.items.length > GROUPS_SHOWN && html`<p class="muted">and ${count(groups.items.length - GROUPS_SHOWN)} more groups</p>`}
  <//>`;
}

function Letter({ namespace, id }) {
  const { data, error } = useData(`${within(OWN, namespace, "deadletters")}/${encodeURIComponent(id)}`);
  const event = data?.event;
  return html`<${Panel} title=${`Dead letter ${id}`} aside=${html`<button type="button" class="link" onClick=${() => refine({ letter: "" })}>Close</button>`}>
    <${Problem} error=${error} />
    ${data && html`<${Facts} of=${Object.entries(data).filter(([name, value]) => name !== "event" && typeof value !== "object").map(([name, value]) => [name, html`<span class="mono">${String(value)}</span>`])} />`}
    ${event && html`<${EventCard} event=${event} />`}
  <//>`;
}

/** Sends again or discards, a page of the server at a time, and says how far it is. */
function Act({ verb, base, ids, whole, selection, onDone, onClose }) {
  const [words] = VERBS[verb];
  const number = ids.length || whole;
  const [sofar, setSofar] = useState(null);
  async function act(signal) {
    const body = ids.length ? { ids } : Object.fromEntries(Object.entries(selection).filter(([, value]) => value));
    let place = {};
    let finished = 0;
    do {
      const page = await post(`${base}/${verb}`, { ...body, ...place });
      finished += page.count;
      setSofar(finished);
      place = { after: page.next, ceiling: page.ceiling };
    } while (place.after !== undefined && !signal.aborted);
    notify(`${lettersOf(finished)} ${verb === "redrive" ? "sent on the way again" : "discarded"}${place.after === undefined ? "" : ", then stopped"}`);
    onDone();
  }
  return html`<${Confirm} title=${`${words} ${lettersOf(number)}?`} verb=${words} onConfirm=${act} onClose=${onClose}>
    <p>${verb === "redrive" ? "Each is sent to its trigger's subscriber again, by the trigger's rules." : "They are gone then, with their events."}</p>
    ${sofar !== null && html`<p role="status"><progress max=${number} value=${sofar}></progress> ${count(sofar)} of ${count(number)}</p>`}
  <//>`;
}
