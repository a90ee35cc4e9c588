/** Dead letters: the newest first, by reason; looked at, sent again, or discarded. */
import { get, OWN, post, within } from "../api.js";
import { ago, count, counted, groupedBy, plain } from "../format.js";
import { Ago, Confirm, Copy, Dialog, Empty, Facts, PageHead, Panel, Problem, Status } from "../parts/basics.js";
import { EventCard } from "../parts/code.js";
import { Pager, Table, usePages } from "../parts/table.js";
import { Views } from "../parts/views.js";
import { link, refine } from "../router.js";
import { useRights } from "../rights.js";
import { html, useData, useEffect, useRef, useState, useTitle } from "../ui.js";

const PAGE = 50;
const EVERY_MS = 4000;
const ASK_MS = 1000;
const PENDING_EVERY_MS = 15000;
const STATES = { kept: "no", sending: "busy", redriving: "busy" };
const TRIGGERS_SHOWN = 12;
const GROUPS_MAX = 500;
/** Why the last attempt failed, by the reason of a dead letter. */
const REASONS = {
  refused: "Connection refused",
  timeout: "No answer in time",
  dns: "Host name not found",
  tls: "TLS failed",
  certificate: "Certificate not trusted",
  connection: "Connection broken",
  policy: "Address not allowed",
  "filter-error": "Filter error",
  expired: "Too late",
};
const wordsOf = (reason) => REASONS[reason] ?? (/^\d/.test(reason) ? `Status ${reason}` : reason);
const lettersOf = (number) => counted(number, "dead letter");
/** How many there are; of many the newest alone are counted below a ceiling. */
const inAll = ({ total, partial }) => (partial ? `at least ${count(total)}` : `${count(total)} in all`);

export function DeadLetters({ route }) {
  const { namespace, trigger, reason, letter } = route.query;
  const pages = usePages(JSON.stringify([namespace, trigger, reason]));
  const [chosen, setChosen] = useState(new Set());
  const [asked, setAsked] = useState("");
  const may = useRights(namespace);
  useTitle("Dead letters");
  const base = within(OWN, namespace, "deadletters");
  const groups = useData(`${base}/counts`, { limit: GROUPS_MAX }, { everyMs: EVERY_MS, keep: true });
  const query = { limit: PAGE, after: pages.start, trigger: namespace ? trigger : "", reason, newest: true };
  const { data, error, isOld, reload } = useData(base, query, { everyMs: EVERY_MS, keep: true });
  useEffect(() => setChosen(new Set()), [namespace, trigger, reason, pages.start]);
  const whole = keptOf(groups.data, { trigger, reason });
  const items = data?.items ?? [];
  const choose = (ids, isChosen) => setChosen((old) => new Set(isChosen ? [...old, ...ids] : [...old].filter((one) => !ids.includes(one))));
  const done = () => (setChosen(new Set()), groups.reload(), reload());
  const open = (one) => refine({ letter: String(one.id) === letter ? "" : one.id });
  const of = chosen.size ? count(chosen.size) : groups.data?.partial ? "all" : `all ${count(whole)}`;
  const canAct = namespace && (chosen.size || whole) > 0;
  const act = { base, ids: [...chosen], whole, selection: { trigger, reason }, onDone: done, onClose: () => setAsked("") };
  return html`<${PageHead} title="Dead letters">
      <${Views} route=${route} />
      ${canAct && may("update", "deadletters") && html`<button type="button" class="primary" onClick=${() => setAsked("again")}>Send again ${of}…</button>`}
      ${canAct && may("delete", "deadletters") && html`<button type="button" class="danger quiet" onClick=${() => setAsked("discard")}>Discard ${of}…</button>`}
    <//>
    <${Groups} groups=${groups.data} chosen=${{ namespace, trigger, reason }} />
    <${Pending} namespace=${namespace} trigger=${trigger} />
    <${Problem} error=${error ?? groups.error} />
    ${letter && data && !items.some((one) => String(one.id) === letter) && html`<${Panel} title=${`Dead letter ${letter}`} aside=${html`<button type="button" class="link" onClick=${() => refine({ letter: "" })}>Close</button>`}><${Letter} namespace=${namespace} id=${letter} /><//>`}
    ${data && (items.length || data.next
      ? html`<div class="toolbar"><p class="muted">${namespace ? "" : "Choose a namespace to send some again or discard them."}</p><${Pager} pages=${pages} size=${PAGE} shown=${items.length} next=${data.next && String(data.next)} noun="dead letters" /></div>
        <${Table} label="Dead letters" columns=${columnsOf({ items, chosen, choose, canChoose: Boolean(namespace), open, letter })} rows=${items} keyOf=${(one) => String(one.id)} isOld=${isOld}
          onRow=${open} detail=${(one) => String(one.id) === letter && html`<${Letter} namespace=${one.namespace} id=${one.id} />`} />`
      : html`<${Empty} icon="dead-letters" title="No dead letters">An event that no attempt brought to its subscriber is kept here, with the reason.<//>`)}
    ${asked === "again" && html`<${SendAgain} ...${act} />`}
    ${asked === "discard" && html`<${Discard} ...${act} />`}`;
}

/** Events that wait for their time, by trigger, where there are any. */
export function Pending({ namespace, trigger }) {
  const { data } = useData(`${within(OWN, namespace, "pending")}/counts`, { limit: GROUPS_MAX }, { everyMs: PENDING_EVERY_MS, keep: true });
  const rows = (data?.items ?? []).filter((one) => !trigger || one.trigger === trigger).slice(0, TRIGGERS_SHOWN);
  if (!rows.length) return null;
  return html`<${Panel} title="Waiting for their time" aside=${trigger ? "" : inAll(data)}>
    <ul class="plain-list">${rows.map((one) => html`<li key=${`${one.namespace}/${one.trigger}`}><a href=${link(["triggers", one.namespace, one.trigger])}>${one.trigger}</a> <b>${count(one.count)}</b> <span class="muted">the first is due at ${plain(one.oldest)}</span></li>`)}</ul>
  <//>`;
}

/** How many of a selection are kept. */
const keptOf = (groups, { trigger, reason }) =>
  (groups?.items ?? []).filter((one) => (!trigger || one.trigger === trigger) && (!reason || one.reason === reason) && one.state === "kept").reduce((sum, one) => sum + one.count, 0);

function columnsOf({ items, chosen, choose, canChoose, open, letter }) {
  const ids = items.map((one) => one.id);
  const all = html`<input type="checkbox" aria-label="All of this page" checked=${ids.every((one) => chosen.has(one))} onChange=${(event) => choose(ids, event.target.checked)} />`;
  return [
    ...(canChoose ? [{ name: "", head: all, show: (one) => html`<input type="checkbox" aria-label=${`Dead letter ${one.id}`} checked=${chosen.has(one.id)} onChange=${(event) => choose([one.id], event.target.checked)} />` }] : []),
    { name: "Event", show: (one) => html`<button type="button" class="link name" aria-expanded=${String(one.id) === letter ? "true" : "false"} onClick=${() => open(one)}>${plain(one.eventId)}</button>` },
    { name: "Type", show: (one) => html`<span class="muted">${plain(one.eventType)}</span>` },
    { name: "Trigger", show: (one) => html`<a class="plain" href=${link(["triggers", one.namespace, one.trigger])}>${one.trigger}</a> <span class="muted">${one.namespace}</span>` },
    { name: "Reason", kind: "fill", show: (one) => html`${wordsOf(one.reason)} <span class="muted">${plain(one.problem ?? "")}</span>` },
    { name: "State", show: (one) => html`<${Status} tone=${STATES[one.state] ?? "idle"}>${one.state}<//>` },
    { name: "Attempts", kind: "number", show: (one) => count(one.attempts) },
    { name: "Died", kind: "number", show: (one) => html`<${Ago} time=${one.died} />` },
  ];
}

/** How many there are of each reason, and of which triggers: buttons that narrow the list. */
function Groups({ groups, chosen }) {
  if (!groups?.items.length) return null;
  const sum = (all) => all.reduce((total, one) => total + one.count, 0);
  const sorted = [...groupedBy(groups.items, (one) => one.reason)].sort(([, a], [, b]) => sum(b) - sum(a));
  const most = sum(sorted[0][1]);
  const named = (all) => [...groupedBy(all, (one) => `${one.namespace}/${one.trigger}`)].map(([name, rows]) => ({ name, number: sum(rows) }));
  return html`<${Panel} title="By reason" aside=${inAll(groups)}>
    <ul class="groups">
      ${sorted.map(([reason, rows]) => {
        const triggers = named(rows);
        const isChosen = chosen.reason === reason;
        return html`<li key=${reason}>
          <button type="button" aria-pressed=${isChosen ? "true" : "false"} onClick=${() => refine(isChosen ? { reason: "", trigger: "" } : { reason, trigger: "" })}>
            <span class="name">${wordsOf(reason)}</span> <span class="muted">${triggers.length === 1 ? triggers[0].name.split("/")[1] : counted(triggers.length, "trigger")}, newest ${ago(rows.map((one) => one.newest).sort().at(-1))} ago</span>
            <meter min="0" max=${most} value=${sum(rows)} aria-hidden="true"></meter><b>${count(sum(rows))}</b>
          </button>
          ${isChosen && triggers.length > 1 && html`<p class="chips">${triggers.slice(0, TRIGGERS_SHOWN).map(({ name, number }) => {
            const [namespace, trigger] = name.split("/");
            const isOne = chosen.trigger === trigger && chosen.namespace === namespace;
            return html`<button type="button" key=${name} aria-pressed=${isOne ? "true" : "false"} onClick=${() => refine(isOne ? { trigger: "" } : { namespace, trigger })}>${trigger} <b>${count(number)}</b></button>`;
          })}${triggers.length > TRIGGERS_SHOWN && html`<span class="muted">and ${count(triggers.length - TRIGGERS_SHOWN)} more</span>`}</p>`}
        </li>`;
      })}
    </ul>
    ${groups.more && html`<p class="muted">Small groups are left out.</p>`}
  <//>`;
}

const NAMES = { eventId: "Event", eventSource: "Source", eventType: "Type", trigger: "Trigger", reason: "Reason", code: "Status", attempts: "Attempts", died: "Died", destination: "Sent to", sink: "Dead-letter sink", problem: "What the sink said", answer: "Answer", state: "State" };

function Letter({ namespace, id }) {
  const { data, error } = useData(`${within(OWN, namespace, "deadletters")}/${encodeURIComponent(id)}`);
  const facts = Object.keys(NAMES).filter((name) => data && name in data && typeof data[name] !== "object" && data[name]);
  return html`<div class="letter"><${Problem} error=${error} />
    ${data && html`<${Facts} of=${facts.map((name) => [NAMES[name], html`<span class="mono">${plain(String(data[name]))}</span>${name === "eventId" && html`<${Copy} text=${data[name]} what="the id" />`}`])} />`}
    ${data?.event && html`<${EventCard} event=${data.event} />`}</div>`;
}

/** Posts to the server a page at a time until it has come to the end, or is stopped. */
async function throughPages(path, body, signal, onCount) {
  let place = {};
  let finished = 0;
  do {
    const page = await post(path, { ...body, ...place });
    finished += page.count;
    onCount(finished);
    place = { after: page.next, ceiling: page.ceiling };
  } while (place.after !== undefined && !signal.aborted);
  return finished;
}

const bodyOf = ({ ids, selection }) => (ids.length ? { ids } : Object.fromEntries(Object.entries(selection).filter(([, value]) => value)));
const Progress = ({ most, value, words }) => html`<p role="status"><progress max=${most} value=${value}></progress> ${count(value)} of ${count(most)} ${words}</p>`;

function Discard({ base, ids, whole, selection, onDone, onClose }) {
  const number = ids.length || whole;
  const [sofar, setSofar] = useState(null);
  const act = async (signal) => {
    await throughPages(`${base}/discard`, bodyOf({ ids, selection }), signal, setSofar);
    onDone();
  };
  return html`<${Confirm} title=${`Discard ${lettersOf(number)}?`} verb="Discard" onConfirm=${act} onClose=${onClose}>
    <p>They are deleted, with their events.</p>
    ${sofar !== null && html`<${Progress} most=${number} value=${sofar} words="discarded" />`}
  <//>`;
}

/** Sends again, follows the attempts, and says how they ended. */
function SendAgain({ base, ids, whole, selection, onDone, onClose }) {
  const number = ids.length || whole;
  const [step, setStep] = useState({ name: "ask" });
  const [error, setError] = useState(null);
  const stop = useRef(new AbortController());
  useEffect(() => () => stop.current.abort(), []);
  const isMine = (one) => !selection.trigger || one.trigger === selection.trigger;
  async function counts() {
    const { items } = await get(`${base}/counts`, { signal: stop.current.signal });
    const sum = (state) => items.filter((one) => isMine(one) && one.state === state).reduce((total, one) => total + one.count, 0);
    return { kept: sum("kept"), redriving: sum("redriving") };
  }
  async function send() {
    const { signal } = stop.current;
    setError(null);
    try {
      setStep({ name: "handing", value: 0 });
      const before = await counts();
      const handed = await throughPages(`${base}/redrive`, bodyOf({ ids, selection }), signal, (value) => setStep({ name: "handing", value }));
      for (;;) {
        const now = await counts();
        const left = Math.min(handed, now.redriving);
        if (signal.aborted) return;
        const back = Math.max(0, now.kept - (before.kept - handed));
        if (!left) return setStep({ name: "done", handed, back: Math.min(back, handed), other: number - handed }), onDone();
        setStep({ name: "sending", value: handed - left, most: handed });
        await new Promise((later) => setTimeout(later, ASK_MS));
      }
    } catch (failed) {
      if (!signal.aborted) setError(failed), setStep({ name: "ask" });
    }
  }
  const close = () => (step.name !== "ask" && onDone(), onClose());
  return html`<${Dialog} title=${step.name === "done" ? "Sent again" : `Send ${lettersOf(number)} again?`} onClose=${close}>
    <div class="text">
      ${step.name === "ask" && html`<p>Each goes to its trigger's subscriber again, by the trigger's delivery rules.</p>`}
      ${step.name === "handing" && html`<${Progress} most=${number} value=${step.value} words="on the way" />`}
      ${step.name === "sending" && html`<${Progress} most=${step.most} value=${step.value} words="have ended" />`}
      ${step.name === "done" && html`<div role="status">
        <p><${Status} tone="good">${count(step.handed - step.back)} delivered<//></p>
        ${step.back > 0 && html`<p><${Status} tone="bad">${count(step.back)} dead letters again<//></p>`}
        ${step.other > 0 && html`<p><${Status} tone="idle">${count(step.other)} not sent: the trigger is gone, or they were sent meanwhile<//></p>`}
      </div>`}
    </div>
    <${Problem} error=${error} />
    <div class="dialog-actions">
      <button type="button" onClick=${close}>${step.name === "ask" ? "Cancel" : "Close"}</button>
      ${step.name === "ask" && html`<button type="button" class="primary" onClick=${send}>Send again</button>`}
    </div>
  <//>`;
}
