/** Triggers: the list, one of them, and a new one. */
import { call, EVENTING, objectPath, OWN, post, within } from "../api.js";
import { ago, count, counted, filterText, rate } from "../format.js";
import { draftOf, toPlayground } from "../handover.js";
import { Ago, Choice, Confirm, Dialog, Empty, Facts, PageHead, Panel, Problem, Ready, Tile } from "../parts/basics.js";
import { Cel } from "../parts/code.js";
import { Conditions } from "../parts/conditions.js";
import { Lint } from "../parts/lint.js";
import { ObjectEditor } from "../parts/object_editor.js";
import { Pager, SearchBox, Table, usePages } from "../parts/table.js";
import { go, link, refine } from "../router.js";
import { useRights } from "../rights.js";
import { current, notify } from "../store.js";
import { html, useData, useState, useTitle } from "../ui.js";

const PAGE = 50;
const EVERY_MS = 3000;
const STATES = [["", "All"], ["ready", "Ready"], ["notready", "Not ready"], ["troubled", "In trouble"]];
const GROUP = "eventing.knative.dev";
const PAUSED = "headgate.dev/delivery.paused";

const COLUMNS = [
  { name: "State", show: (one) => html`<${Ready} ...${one} />` },
  { name: "Name", show: (one) => html`<a class="name" href=${link(["triggers", one.namespace, one.name])}>${one.name}</a> <span class="muted">${one.namespace}</span>` },
  { name: "Broker", show: (one) => html`<a class="plain" href=${link(["brokers", one.namespace, one.broker])}>${one.broker}</a>` },
  { name: "Filter", kind: "fill", show: (one) => (filterText(one) ? html`<${Cel} text=${filterText(one).slice(0, 300)} />` : html`<span class="muted">every event</span>`) },
  { name: "Delivered/s", kind: "number", show: (one) => rate(one.stats?.rate) },
  { name: "Backlog", kind: "number", show: (one) => html`${count(one.stats?.backlog)}${one.stats?.lagging ? "+" : ""}` },
  { name: "Oldest", kind: "number", show: (one) => (one.stats?.oldestUndelivered ? ago(one.stats.oldestUndelivered) : "–") },
  { name: "Failed", kind: "number", show: (one) => html`<span class=${one.stats?.failed ? "bad" : ""}>${count(one.stats?.failed)}</span>` },
];

export function Triggers({ route }) {
  const { namespace, search, state } = route.query;
  const may = useRights(namespace);
  const pages = usePages(JSON.stringify([namespace, search, state]));
  useTitle("Triggers");
  const query = { limit: PAGE, continue: pages.start, search, state };
  const { data, error, isOld } = useData(within(OWN, namespace, "triggerstats"), query, { everyMs: EVERY_MS, keep: true });
  const canCreate = may("create", "triggers", GROUP);
  return html`<${PageHead} title="Triggers">
      ${canCreate && html`<a class="button primary" href=${link(["new-trigger"], { namespace })}>New trigger</a>`}
    <//>
    <div class="toolbar">
      <${SearchBox} label="Search names and filters" value=${search} onSearch=${(text) => refine({ search: text })} />
      <${Choice} label="State" value=${state ?? ""} options=${STATES} onChoice=${(one) => refine({ state: one })} />
      ${data && html`<${Pager} pages=${pages} size=${PAGE} shown=${data.items.length} total=${data.total} next=${data.continue} noun="triggers" />`}
    </div>
    <${Problem} error=${error} />
    ${data && (data.items.length
      ? html`<${Table} label="Triggers" columns=${COLUMNS} rows=${data.items} keyOf=${(one) => one.uid} isOld=${isOld} />`
      : html`<${Nothing} isSearch=${search || state} canCreate=${canCreate} namespace=${namespace} />`)}`;
}

const Nothing = ({ isSearch, canCreate, namespace }) =>
  isSearch
    ? html`<${Empty} icon="search" title="No trigger is like that">Search for other words, or <button type="button" class="link" onClick=${() => refine({ search: "", state: "" })}>show all</button>.<//>`
    : html`<${Empty} icon="triggers" title="No triggers yet">
        <p>A trigger says which events of a broker go to which subscriber.</p>
        <p><a class="button" href=${link(["playground"], { namespace })}>Try a filter first</a> ${canCreate && html`<a class="button primary" href=${link(["new-trigger"], { namespace })}>New trigger</a>`}</p>
      <//>`;

export function TriggerPage({ route }) {
  const [namespace, name] = route.segments;
  const tab = route.query.tab ?? "overview";
  const may = useRights(namespace);
  const [asked, setAsked] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const path = objectPath(EVENTING, namespace, "triggers", name);
  const object = useData(path, {}, { everyMs: EVERY_MS });
  const stats = useData(`${path}/stats`, {}, { everyMs: EVERY_MS });
  useTitle(name);
  const trigger = object.data;
  const isPaused = trigger?.metadata.annotations?.[PAUSED] === "true";
  const turn = async () => {
    setBusy(true);
    setProblem(null);
    try {
      const body = { metadata: { annotations: { [PAUSED]: isPaused ? null : "true" } } };
      await call("PATCH", path, { body, type: "application/merge-patch+json" });
      notify(isPaused ? `${name} goes on` : `${name} is paused: its events wait`);
      object.reload();
    } catch (failed) {
      setProblem(failed);
    }
    setBusy(false);
  };
  const remove = async () => {
    await call("DELETE", path);
    notify(`Trigger ${name} is deleted`);
    go(["triggers"], { namespace });
  };
  const above = html`<a href=${link(["triggers"], { namespace })}>Triggers</a><span aria-hidden="true">/</span><a href=${link(["triggers"], { namespace })}>${namespace}</a>`;
  return html`<${PageHead} title=${name} above=${above} status=${!stats.error && stats.data && html`<${Ready} ...${stats.data} />`}>
      ${trigger && may("patch", "triggers", GROUP) && html`<button type="button" disabled=${isBusy} onClick=${turn}>${isPaused ? "Resume" : "Pause"}</button>`}
      ${trigger && may("create", "replays") && html`<button type="button" onClick=${() => setAsked("replay")}>Replay…</button>`}
      ${trigger && may("delete", "triggers", GROUP) && html`<button type="button" class="danger quiet" onClick=${() => setAsked("delete")}>Delete…</button>`}
    <//>
    <${Choice} label="View" value=${tab} options=${[["overview", "Overview"], ["yaml", "YAML"]]} onChoice=${(one) => refine({ tab: one })} />
    <${Problem} error=${problem ?? object.error} />
    ${trigger && tab === "overview" && html`<${TriggerOverview} trigger=${trigger} stats=${stats.data?.stats} />`}
    ${trigger && tab === "yaml" && html`<${ObjectEditor} root=${EVENTING} plural="triggers" namespace=${namespace} object=${trigger} canWrite=${may("update", "triggers", GROUP)} onSaved=${() => (notify("Saved"), object.reload())} />`}
    ${asked === "delete" && html`<${Confirm} title=${`Delete the trigger ${name}?`} verb="Delete" onConfirm=${remove} onClose=${() => setAsked("")}>Its subscriber gets no more events.<//>`}
    ${asked === "replay" && html`<${Replay} trigger=${trigger} onClose=${() => setAsked("")} />`}`;
}

function TriggerOverview({ trigger, stats }) {
  const { spec, status = {}, metadata } = trigger;
  const text = filterText(spec);
  return html`${stats && html`<dl class="tiles">
      <${Tile} label="Delivered" value=${count(stats.delivered)} note=${`since ${new Date(stats.since).toLocaleString()}`} />
      <${Tile} label="Rate" value=${rate(stats.rate)} unit="/s" note="of the last minute" />
      <${Tile} label="Backlog" value=${count(stats.backlog) + (stats.lagging ? "+" : "")} note=${stats.oldestUndelivered ? `oldest ${ago(stats.oldestUndelivered)}` : "nothing waits"} tone=${stats.lagging ? "warn" : ""} />
      <${Tile} label="Failed" value=${count(stats.failed)} note=${`${counted(stats.attemptsFailed, "attempt")} failed`} tone=${stats.failed ? "bad" : ""} />
      <${Tile} label="Circuit" value=${stats.circuit === "open" ? "Open" : "Closed"} note=${stats.circuit === "open" ? "no attempts for now" : "attempts are made"} tone=${stats.circuit === "open" ? "bad" : ""} />
    </dl>`}
    <div class="columns">
      <${Panel} title="Conditions"><${Conditions} of=${status.conditions} /><//>
      <div>
        <${Panel} title="Filter" aside=${html`<button type="button" class="link" onClick=${() => toPlayground(spec)}>Open in the playground</button>`}>
          ${text ? html`<div class="block"><${Cel} text=${text} /></div>` : html`<p class="muted">Every event of the broker.</p>`}
          <${Lint} key=${metadata.generation} object=${trigger} />
        <//>
        ${spec.transform && html`<${Panel} title="Transform"><div class="block"><${Cel} text=${spec.transform} /></div><//>`}
        <${Panel} title="Delivery">
          <${Facts} of=${[
            ["Broker", html`<a href=${link(["brokers", metadata.namespace, spec.broker ?? "default"])}>${spec.broker ?? "default"}</a>`],
            ["Subscriber", html`<span class="mono">${status.subscriberUri ?? spec.subscriber?.uri ?? "not known"}</span>`],
            ["Dead letters", status.deadLetterSinkUri && html`<span class="mono">${status.deadLetterSinkUri}</span>`],
            ...Object.entries(spec.delivery ?? {}).filter(([key]) => key !== "deadLetterSink").map(([key, value]) => [key, html`<span class="mono">${typeof value === "object" ? JSON.stringify(value) : String(value)}</span>`]),
            ["Made", html`<${Ago} time=${metadata.creationTimestamp} />`],
          ]} />
        <//>
      </div>
    </div>`;
}

/** Sends stored events to a trigger again. */
function Replay({ trigger, onClose }) {
  const { namespace, name } = trigger.metadata;
  const [from, setFrom] = useState("earliest");
  const [speed, setSpeed] = useState("100");
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const counting = useData(found ? `${within(OWN, namespace, "replays")}/${found.id}` : null, {}, { everyMs: 1000 });
  const ask = (dryRun) => async () => {
    setError(null);
    try {
      const body = { broker: trigger.spec.broker ?? "default", trigger: name, from, to: "next", rate: Number(speed), dryRun };
      const begun = await post(within(OWN, namespace, "replays"), body);
      if (dryRun) return setFound(begun);
      notify(`The replay ${begun.id} has begun`);
      onClose();
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<${Dialog} title=${`Replay stored events to ${name}`} onClose=${onClose}>
    <label>From <input value=${from} onInput=${(event) => (setFrom(event.target.value), setFound(null))} /></label>
    <p class="muted">earliest, a time such as 2026-01-31T09:30:00Z, or a position such as 0:123</p>
    <label>Events a second at most <input type="number" min="1" value=${speed} onInput=${(event) => setSpeed(event.target.value)} /></label>
    <${Problem} error=${error} />
    ${counting.data && html`<p role="status">${counting.data.state === "running" ? "So far" : "It would be"} <strong>${count(counting.data.matched)}</strong> events.</p>`}
    <div class="dialog-actions">
      <button type="button" onClick=${onClose}>Cancel</button>
      <button type="button" onClick=${ask(true)}>Count them</button>
      <button type="button" class="primary" onClick=${ask(false)}>Replay</button>
    </div>
  <//>`;
}

export function NewTrigger({ route }) {
  const namespace = route.query.namespace || "default";
  const [begun] = useState(() => current().draft || draftOf({ namespace }));
  useTitle("New trigger");
  const onSaved = (object) => go(["triggers", object.metadata.namespace, object.metadata.name]);
  return html`<${PageHead} title="New trigger" above=${html`<a href=${link(["triggers"], { namespace })}>Triggers</a>`} />
    <${ObjectEditor} root=${EVENTING} plural="triggers" namespace=${namespace} text=${begun} canWrite=${true} onSaved=${onSaved} />`;
}
