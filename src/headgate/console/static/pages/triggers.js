/** Triggers: the list. */
import { OWN, within } from "../api.js";
import { ago, count, filterText, fullName, rate } from "../format.js";
import { Choice, Empty, PageHead, Problem, Ready } from "../parts/basics.js";
import { Cel } from "../parts/code.js";
import { Pager, SearchBox, Table, usePages } from "../parts/table.js";
import { Views } from "../parts/views.js";
import { link, refine } from "../router.js";
import { useRights } from "../rights.js";
import { html, useData, useTitle } from "../ui.js";

const PAGE = 50;
const EVERY_MS = 3000;
const STATES = [["", "All"], ["ready", "Ready"], ["notready", "Not ready"], ["troubled", "In trouble"]];
const GROUP = "eventing.knative.dev";

const COLUMNS = [
  { name: "State", show: (one) => html`<${Ready} ...${one} />` },
  { name: "Name", show: (one) => html`<a class="name" href=${link(["triggers", one.namespace, one.name])}>${one.name}</a> <span class="muted">${one.namespace}</span>` },
  { name: "Broker", show: (one) => html`<a class="plain" href=${link(["brokers", ...fullName(one.namespace, one.broker).split("/")])}>${one.broker}</a>` },
  { name: "Filter", kind: "fill", show: (one) => (filterText(one) ? html`<${Cel} text=${filterText(one).slice(0, 300)} />` : html`<span class="muted">every event</span>`) },
  { name: "Delivered/s", kind: "number", show: (one) => (one.stats ? rate(one.stats.rate) : "–") },
  { name: "Backlog", kind: "number", show: (one) => (one.stats ? `${count(one.stats.backlog)}${one.stats.lagging ? "+" : ""}` : "–") },
  { name: "Oldest", kind: "number", show: (one) => (one.stats?.oldestUndelivered ? ago(one.stats.oldestUndelivered) : "–") },
  { name: "Failed", kind: "number", show: (one) => (one.stats ? html`<span class=${one.stats.failed ? "bad" : ""}>${count(one.stats.failed)}</span>` : "–") },
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
      <${Views} route=${route} />
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
    ? html`<${Empty} icon="search" title="No trigger matches">Search for other words, or <button type="button" class="link" onClick=${() => refine({ search: "", state: "" })}>show all</button>.<//>`
    : html`<${Empty} icon="triggers" title="No triggers yet">
        <p>A trigger says which events of a broker go to which subscriber.</p>
        <p><a class="button" href=${link(["playground"], { namespace })}>Try a filter first</a> ${canCreate && html`<a class="button primary" href=${link(["new-trigger"], { namespace })}>New trigger</a>`}</p>
      <//>`;
