/** Catalogue: which types of events flow through a broker, what they look like, and who wants them. */
import { EVENTING, objectPath } from "../api.js";
import { ago, count, counted, plain, rate } from "../format.js";
import { brokerIn, BrokerOfPage } from "../parts/broker_field.js";
import { Ago, Empty, PageHead, Panel, Problem } from "../parts/basics.js";
import { EventCard, Json } from "../parts/code.js";
import { link, refine } from "../router.js";
import { html, useData, useTitle } from "../ui.js";

export function Catalogue({ route }) {
  const { namespace, type, source } = route.query;
  const full = brokerIn(route.query);
  const [space, short] = full.split("/");
  const { data, error, reload } = useData(short ? `${objectPath(EVENTING, space, "brokers", short)}/catalogue` : null);
  useTitle("Catalogue");
  const listed = data?.items.find((one) => one.type === type && one.source === source) ?? data?.items[0];
  const detail = useData(listed ? `${objectPath(EVENTING, space, "brokers", short)}/catalogue` : null, { type: listed?.type, source: listed?.source }, { keep: true });
  const looked = detail.data?.items[0];
  const chosen = looked && looked.type === listed?.type && looked.source === listed?.source ? looked : listed;
  return html`<${PageHead} title="Catalogue" />
    <div class="toolbar"><${BrokerOfPage} broker=${full} namespace=${namespace} alsoGone=${{ type: "", source: "" }} />${data && html`<span class="muted">${counted(data.events, "event")} ${data.complete ? "of the whole log" : data.since && html`since <${Ago} time=${data.since} />`}</span><button type="button" onClick=${reload}>Look again</button>`}</div>
    ${!full && html`<${Empty} icon="brokers" title="Choose a broker">The types of its events are listed here.<//>`}
    ${error?.status === 404 ? html`<${Empty} icon="catalogue" title="No catalogue here">There is no such broker.<//>` : html`<${Problem} error=${error} />`}
    ${data && !data.items.length && html`<${Empty} icon="catalogue" title="No events yet">${data.complete ? "Each type of event is listed here once the first one has come." : "The log is still being read: look again."}<//>`}
    ${chosen && html`<div class="columns narrow-left">
      <ul class="types" aria-label="Types">
        ${data.items.map((one) => html`<li key=${`${one.type} ${one.source}`}>
          <button type="button" aria-pressed=${one === listed ? "true" : "false"} onClick=${() => refine({ type: one.type, source: one.source })}>
            <span class="name">${plain(one.type)}</span><span class="muted">${plain(one.source)}</span><span class="figures">${count(one.count)} · ${rate(one.rate)}/s · ${ago(one.lastSeen)} ago</span>${one.notJson > 0 && html`<span class="warn">${count(one.notJson)} no JSON</span>`}
          </button>
        </li>`)}
        ${data.leftOut > 0 && html`<li class="muted">and ${counted(data.leftOut, "event")} of further types</li>`}
      </ul>
      <div>
        <${Panel} title=${plain(chosen.type)} aside=${html`<a href=${link(["events"], { broker: full, filter: `ce.type == ${JSON.stringify(chosen.type)}` })}>Look at them</a>`}>
          <p>${chosen !== looked ? html`<span class="muted">Looking…</span>` : chosen.wantedBy?.length ? html`Wanted by ${chosen.wantedBy.map((one) => html`<a key=${one} href=${link(["triggers", ...one.split("/")])}>${one}</a> `)}` : html`<span class="muted">${chosen.judged === false ? "Who wants these was not looked at." : "No trigger that you may see wants these."}</span>`}</p>
        <//>
        ${chosen.notJson > 0 && html`<p class="warn">${counted(chosen.notJson, "event")} of these ${chosen.notJson === 1 ? "says" : "say"} in the media type that the data is JSON, and it is not. No filter finds anything in such data.</p>`}
        ${chosen.schema && html`<${Panel} title="Schema of the data, as it was seen"><div class="json mono" tabindex="0" role="region" aria-label="Schema"><${Json} value=${chosen.schema} /></div><//>`}
        ${chosen.example && html`<${Panel} title="An example"><${EventCard} event=${chosen.example} /><//>`}
      </div>
    </div>`}`;
}
