/** Brokers: the list, and one of them. */
import { EVENTING, objectPath, OWN, within } from "../api.js";
import { count, rate } from "../format.js";
import { Ago, Choice, Copy, Empty, Facts, PageHead, Panel, Problem, Ready, Tile } from "../parts/basics.js";
import { Command, curlOf } from "../parts/command.js";
import { Conditions } from "../parts/conditions.js";
import { DeleteObject } from "../parts/delete_object.js";
import { ObjectEditor } from "../parts/object_editor.js";
import { SendEvent } from "../parts/send_event.js";
import { Pager, SearchBox, Table, usePages } from "../parts/table.js";
import { Views } from "../parts/views.js";
import { link, refine } from "../router.js";
import { useRights } from "../rights.js";
import { notify } from "../store.js";
import { html, useData, useState, useTitle } from "../ui.js";

const PAGE = 50;
const EVERY_MS = 3000;
const GROUP = "eventing.knative.dev";

const COLUMNS = [
  { name: "State", show: (one) => html`<${Ready} ...${one} />` },
  { name: "Name", show: (one) => html`<a class="name" href=${link(["brokers", one.namespace, one.name])}>${one.name}</a> <span class="muted">${one.namespace}</span>` },
  { name: "Address", kind: "fill", show: (one) => html`<code>${one.url}</code>` },
  { name: "Triggers", kind: "number", show: (one) => count(one.triggers) },
  { name: "Subscriptions", kind: "number", show: (one) => count(one.subscriptions) },
  { name: "Received", kind: "number", show: (one) => (one.stats ? count(one.stats.received) : "–") },
  { name: "Received/s", kind: "number", show: (one) => (one.stats ? rate(one.stats.rate) : "–") },
];

export function Brokers({ route }) {
  const { namespace, search } = route.query;
  const may = useRights(namespace);
  const pages = usePages(JSON.stringify([namespace, search]));
  useTitle("Brokers");
  const query = { limit: PAGE, continue: pages.start, search };
  const { data, error, isOld } = useData(within(OWN, namespace, "brokerstats"), query, { everyMs: EVERY_MS, keep: true });
  return html`<${PageHead} title="Brokers">
      <${Views} route=${route} />
      ${may("create", "brokers", GROUP) && html`<a class="button primary" href=${link(["new-broker"], { namespace })}>New broker</a>`}
    <//>
    <div class="toolbar">
      <${SearchBox} label="Search brokers" value=${search} onSearch=${(text) => refine({ search: text })} />
      ${data && html`<${Pager} pages=${pages} size=${PAGE} shown=${data.items.length} total=${data.total} next=${data.continue} noun="brokers" />`}
    </div>
    <${Problem} error=${error} />
    ${data && (data.items.length
      ? html`<${Table} label="Brokers" columns=${COLUMNS} rows=${data.items} keyOf=${(one) => one.uid} isOld=${isOld} />`
      : html`<${Empty} icon="brokers" title="No broker matches">A broker is a named entry for events. Create one with <code>headgate apply</code> or <code>kubectl apply</code>.<//>`)}`;
}

export function BrokerPage({ route }) {
  const [namespace, name] = route.segments;
  const tab = route.query.tab ?? "overview";
  const may = useRights(namespace);
  const mayAnywhere = useRights(null);
  const path = objectPath(EVENTING, namespace, "brokers", name);
  const object = useData(path, {}, { everyMs: EVERY_MS });
  const summary = useData(`${path}/stats`, {}, { everyMs: EVERY_MS });
  const [asked, setAsked] = useState("");
  useTitle(name);
  const broker = object.data;
  const above = html`<a href=${link(["brokers"], { namespace })}>Brokers</a><span aria-hidden="true">/</span><a href=${link(["brokers"], { namespace })}>${namespace}</a>`;
  return html`<${PageHead} title=${name} above=${above} status=${!summary.error && summary.data && html`<${Ready} ...${summary.data} />`}>
      ${may("get", "brokers/catalogue", GROUP) && html`<a class="button" href=${link(["catalogue"], { broker: `${namespace}/${name}` })}>Catalogue</a>`}
      ${mayAnywhere("list", "chunks") && html`<a class="button" href=${link(["chunks"], { broker: `${namespace}/${name}` })}>Chunks</a>`}
      ${may("create", "brokers/events", GROUP) && html`<button type="button" onClick=${() => setAsked("send")}>Send a test event…</button>`}
      ${may("get", "brokers/events", GROUP) && html`<a class="button" href=${link(["events"], { broker: `${namespace}/${name}` })}>Look at its events</a>`}
      ${broker && may("delete", "brokers", GROUP) && html`<button type="button" class="danger quiet" onClick=${() => setAsked("delete")}>Delete…</button>`}
    <//>
    <${Choice} label="View" value=${tab} options=${[["overview", "Overview"], ["yaml", "YAML"]]} onChoice=${(one) => refine({ tab: one })} />
    <${Problem} error=${object.error ?? summary.error} />
    ${broker && tab === "overview" && html`<${BrokerOverview} broker=${broker} summary=${summary.data} />`}
    ${asked === "send" && html`<${SendEvent} broker=${`${namespace}/${name}`} onClose=${() => setAsked("")} />`}
    ${asked === "delete" && html`<${DeleteObject} object=${broker} onClose=${() => setAsked("")} />`}
    ${broker && tab === "yaml" && html`<${ObjectEditor} root=${EVENTING} plural="brokers" namespace=${namespace} object=${broker} canWrite=${may("update", "brokers", GROUP)} onSaved=${() => (notify("Saved"), object.reload())} />`}`;
}

function BrokerOverview({ broker, summary }) {
  const { metadata, spec = {}, status = {} } = broker;
  return html`${summary && html`<dl class="tiles">
      ${summary.stats && html`<${Tile} label="Received" value=${count(summary.stats.received)} />
      <${Tile} label="Rate" value=${rate(summary.stats.rate)} unit="/s" note="of the last minute" />`}
      <${Tile} label="Triggers" value=${count(summary.triggers)} />
      <${Tile} label="Subscriptions" value=${count(summary.subscriptions)} />
    </dl>`}
    <div class="columns">
      <${Panel} title="Conditions"><${Conditions} of=${status.conditions} /><//>
      <div>
        <${Panel} title="Send events here">
          <p class="with-copy"><code>${status.address?.url ?? "It has no address yet."}</code>${status.address && html`<${Copy} text=${status.address.url} what="the broker's URL" />`}</p>
          ${status.address && html`<${Command} text=${curlOf(status.address.url)} what="the command that sends an event" />`}
        <//>
        <${Panel} title="Log">
          <${Facts} of=${[
            ["Filter value", html`<code>${spec.log?.filterValue ?? "type"}</code>`],
            ["Retention", html`<code>${spec.log?.retention ?? "the server's"}</code>`],
            ["Compression", html`<code>${spec.log?.compression ?? "none"}</code>`],
            ["Made", html`<${Ago} time=${metadata.creationTimestamp} />`],
          ]} />
        <//>
      </div>
    </div>`;
}
