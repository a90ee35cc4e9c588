/** Subscriptions: the list, and one of them with its backlog and consumers. */
import { call, objectPath, OWN, post, within } from "../api.js";
import { count, counted, filterText } from "../format.js";
import { toPlayground } from "../handover.js";
import { Ago, Choice, Dialog, Empty, Facts, NoCounters, PageHead, Panel, Problem, Ready, Tile } from "../parts/basics.js";
import { BrokerLink } from "../parts/broker_field.js";
import { Cel } from "../parts/code.js";
import { Conditions, readiness } from "../parts/conditions.js";
import { DeleteObject } from "../parts/delete_object.js";
import { Lint } from "../parts/lint.js";
import { ObjectEditor } from "../parts/object_editor.js";
import { Pager, SearchBox, Table, usePages } from "../parts/table.js";
import { Views } from "../parts/views.js";
import { link, refine } from "../router.js";
import { useRights } from "../rights.js";
import { notify } from "../store.js";
import { html, useData, useState, useTitle } from "../ui.js";

const PAGE = 50;
const EVERY_MS = 3000;

const COLUMNS = [
  { name: "State", show: (one) => html`<${Ready} ...${readiness(one)} />` },
  { name: "Name", show: ({ metadata }) => html`<a class="name" href=${link(["subscriptions", metadata.namespace, metadata.name])}>${metadata.name}</a> <span class="muted">${metadata.namespace}</span>` },
  { name: "Broker", show: ({ metadata, spec }) => html`<${BrokerLink} of=${{ metadata, spec }} />` },
  { name: "Type", show: ({ spec }) => spec.type ?? "exclusive" },
  { name: "Filter", kind: "fill", show: ({ spec }) => (filterText(spec) ? html`<${Cel} text=${filterText(spec).slice(0, 300)} />` : html`<span class="muted">every event</span>`) },
];

export function Subscriptions({ route }) {
  const { namespace, search } = route.query;
  const may = useRights(namespace);
  const pages = usePages(JSON.stringify([namespace, search]));
  useTitle("Subscriptions");
  const query = { limit: PAGE, continue: pages.start, search };
  const { data, error, isOld } = useData(within(OWN, namespace, "subscriptions"), query, { everyMs: EVERY_MS, keep: true });
  return html`<${PageHead} title="Subscriptions">
      <${Views} route=${route} />
      ${may("create", "subscriptions") && html`<a class="button primary" href=${link(["new-subscription"], { namespace })}>New subscription</a>`}
    <//>
    <div class="toolbar">
      <${SearchBox} label="Search names and filters" value=${search} onSearch=${(text) => refine({ search: text })} />
      ${data && html`<${Pager} pages=${pages} size=${PAGE} shown=${data.items.length} next=${data.metadata.continue} noun="subscriptions" />`}
    </div>
    <${Problem} error=${error} />
    ${data && (data.items.length
      ? html`<${Table} label="Subscriptions" columns=${COLUMNS} rows=${data.items} keyOf=${(one) => one.metadata.uid} isOld=${isOld} />`
      : html`<${Empty} icon="subscriptions" title="No subscriptions">A subscription is a filter with a durable cursor: consumers pull its events and acknowledge them.<//>`)}`;
}

export function SubscriptionPage({ route }) {
  const [namespace, name] = route.segments;
  const tab = route.query.tab ?? "overview";
  const may = useRights(namespace);
  const [asked, setAsked] = useState("");
  const path = objectPath(OWN, namespace, "subscriptions", name);
  const object = useData(path, {}, { everyMs: EVERY_MS });
  const stats = useData(`${path}/stats`, {}, { everyMs: EVERY_MS });
  const consumers = useData(`${path}/consumers`, {}, { everyMs: EVERY_MS });
  useTitle(name);
  const one = object.data;
  const isOthers = stats.error?.status === 403 && may("get", "subscriptions/stats");
  const above = html`<a href=${link(["subscriptions"], { namespace })}>Subscriptions</a><span aria-hidden="true">/</span><a href=${link(["subscriptions"], { namespace })}>${namespace}</a>`;
  return html`<${PageHead} title=${name} above=${above} status=${!object.error && one && html`<${Ready} ...${readiness(one)} />`}>
      ${one && !isOthers && may("create", "subscriptions/analyze") && html`<button type="button" onClick=${() => setAsked("analyze")}>Try a filter…</button>`}
      ${one && !isOthers && may("create", "subscriptions/seek") && html`<button type="button" onClick=${() => setAsked("seek")}>Seek…</button>`}
      ${one && may("delete", "subscriptions") && html`<button type="button" class="danger quiet" onClick=${() => setAsked("delete")}>Delete…</button>`}
    <//>
    <${Choice} label="View" value=${tab} options=${[["overview", "Overview"], ["yaml", "YAML"]]} onChoice=${(view) => refine({ tab: view })} />
    <${Problem} error=${object.error} />
    ${!object.error && html`<${NoCounters} error=${stats.error} isOthers=${isOthers} />`}
    ${one && tab === "overview" && html`<${SubscriptionOverview} object=${one} stats=${stats.data} consumers=${consumers.data} />`}
    ${one && tab === "yaml" && html`<${ObjectEditor} root=${OWN} plural="subscriptions" namespace=${namespace} object=${one} canWrite=${may("update", "subscriptions")} onSaved=${() => (notify("Saved"), object.reload())} />`}
    ${asked === "delete" && html`<${DeleteObject} object=${one} onClose=${() => setAsked("")} />`}
    ${asked === "seek" && html`<${Seek} path=${path} name=${name} onClose=${() => setAsked("")} />`}
    ${asked === "analyze" && html`<${Analyze} path=${path} onClose=${() => setAsked("")} />`}`;
}

function SubscriptionOverview({ object, stats, consumers }) {
  const { spec, status, metadata } = object;
  const text = filterText(spec);
  return html`${stats && html`<dl class="tiles">
      <${Tile} label="Backlog" value=${count(stats.backlog)} note=${stats.candidates ? `${count(stats.candidates)} still to be decided` : "exact"} />
      <${Tile} label="With consumers" value=${count(stats.unacknowledged)} />
      <${Tile} label="Acknowledged" value=${count(stats.acknowledged)} note=${`${count(stats.redelivered)} handed out again`} />
      <${Tile} label="Accepted" value=${count(stats.accepted)} note=${`${count(stats.rejected)} rejected, ${counted(stats.errors, "error")}`} />
      <${Tile} label="Given up" value=${count(stats.expired)} tone=${stats.expired ? "bad" : ""} />
    </dl>`}
    <div class="columns">
      <div>
        <${Panel} title="Consumers" aside=${consumers?.type}><${Consumers} of=${consumers} /><//>
        <${Panel} title="Conditions"><${Conditions} of=${status?.conditions} /><//>
      </div>
      <div>
        <${Panel} title="Filter" aside=${html`<button type="button" class="link" onClick=${() => toPlayground(spec)}>Open in the playground</button>`}>
          ${text ? html`<div class="block"><${Cel} text=${text} /></div>` : html`<p class="muted">Every event of the broker.</p>`}
          <${Lint} key=${metadata.generation} object=${object} />
        <//>
        ${spec.transform && html`<${Panel} title="Transform"><div class="block"><${Cel} text=${spec.transform} /></div><//>`}
        <${Panel} title="Rules"><${Facts} of=${[
          ["Broker", html`<${BrokerLink} of=${object} />`],
          ["Type", spec.type ?? "exclusive"],
          ["Ack timeout", html`<code>${spec.ackTimeout ?? "PT30S"}</code>`],
          ["Handed out at most", spec.maxDeliveries && `${spec.maxDeliveries} times`],
          ["Made", html`<${Ago} time=${metadata.creationTimestamp} />`],
        ]} /><//>
      </div>
    </div>`;
}

function Consumers({ of }) {
  if (!of) return html`<p class="muted">The consumers are not known here.</p>`;
  const columns = [
    { name: "Consumer", kind: "fill", show: (one) => html`<span class="name">${one.consumer}</span> ${of.lease?.consumer === one.consumer && html`<span class="muted">has the lease</span>`}` },
    { name: "Events", kind: "number", show: (one) => count(one.events) },
    { name: "Oldest", kind: "number", show: (one) => html`<${Ago} time=${one.oldest} />` },
    { name: "Again", kind: "number", show: (one) => count(one.redelivered) },
  ];
  const lease = of.lease && !of.items.some((one) => one.consumer === of.lease.consumer) ? [{ consumer: of.lease.consumer, events: 0, redelivered: 0 }] : [];
  const rows = [...of.items, ...lease];
  return html`${rows.length ? html`<${Table} label="Consumers" columns=${columns} rows=${rows} keyOf=${(one) => one.consumer} />` : html`<${Empty} title="Nobody consumes">A consumer pulls with <code>headgate consume</code>, over HTTP or gRPC.<//>`}
    ${of.waiting > 0 && html`<p class="muted">${counted(of.waiting, "event")} are read and with nobody now.</p>`}`;
}

/** Moves a subscription, and shows how far the search for the place is. */
function Seek({ path, name, onClose }) {
  const [to, setTo] = useState("earliest");
  const [first, setFirst] = useState("");
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const { data: progress } = useData(isBusy ? `${path}/seek` : null, {}, { everyMs: 500 });
  async function seek() {
    setBusy(true);
    setError(null);
    try {
      const { position } = await post(`${path}/seek`, { to, ...(first.trim() ? { first } : {}) });
      notify(`${name} goes on at ${position}`);
      onClose();
    } catch (failed) {
      setError(failed);
    }
    setBusy(false);
  }
  return html`<${Dialog} title=${`Where ${name} goes on`} onClose=${onClose}>
    <label>To <input class="mono" value=${to} onInput=${(event) => setTo(event.target.value)} /></label>
    <p class="muted">earliest, latest, a time such as 2026-01-31T09:30:00Z, or a position such as 0:123</p>
    <label>and there the first event with <input class="mono" placeholder='data.id == 4711' value=${first} onInput=${(event) => setFirst(event.target.value)} /></label>
    <${Problem} error=${error} />
    ${isBusy && html`<p role="status"><progress max=${progress?.eventsTotal || 1} value=${progress?.eventsScanned || 0}></progress> ${counted(progress?.eventsScanned, "event")} scanned</p>`}
    <div class="dialog-actions">
      ${isBusy ? html`<button type="button" onClick=${() => call("DELETE", `${path}/seek`).catch(setError)}>Stop the search</button>` : html`<button type="button" onClick=${onClose}>Cancel</button>`}
      <button type="button" class="primary" disabled=${isBusy} onClick=${seek}>Seek</button>
    </div>
  <//>`;
}

/** How many events of the backlog another filter would take. */
function Analyze({ path, onClose }) {
  const [filter, setFilter] = useState("");
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const ask = () => post(`${path}/analyze`, { filter: { cel: filter } }).then((one) => (setFound(one), setError(null)), setError);
  return html`<${Dialog} title="Try a filter on the backlog" onClose=${onClose}>
    <label>Filter in CEL <input class="mono" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>
    <p class="muted">Nothing is consumed.</p>
    <${Problem} error=${error} />
    ${found && html`<div role="status"><${Facts} of=${Object.entries(found).filter(([, value]) => typeof value !== "object").map(([key, value]) => [key, typeof value === "number" ? count(value) : String(value)])} /></div>`}
    <div class="dialog-actions"><button type="button" onClick=${onClose}>Close</button><button type="button" class="primary" disabled=${!filter.trim()} onClick=${ask}>Try it</button></div>
  <//>`;
}
