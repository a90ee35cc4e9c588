/** Overview: what is going on, and what needs attention. */
import { OWN, within } from "../api.js";
import { count, counted, duration, groupedBy, rate } from "../format.js";
import { KINDS } from "../kinds.js";
import { Ago, Empty, Fold, PageHead, Panel, Problem, Status, Tile } from "../parts/basics.js";
import { FirstSteps } from "../parts/command.js";
import { inWords, toneOf } from "../parts/conditions.js";
import { Chart } from "../parts/chart.js";
import { link } from "../router.js";
import { html, useData, useMemo, useTitle } from "../ui.js";

const EVERY_MS = 5000;

const place = ({ kind, namespace, name }) =>
  kind === "DeadLetters" ? link(["dead-letters"], { namespace, trigger: name }) : KINDS[kind] && link([KINDS[kind].plural, namespace, name]);

export function Overview({ route }) {
  const { namespace } = route.query;
  const { data, error } = useData(within(OWN, namespace, "summary"), {}, { everyMs: EVERY_MS });
  useTitle("Overview");
  return html`<${PageHead} title="Overview" status=${error ? html`<${Status} tone="warn">State not known<//>` : data && html`<${Status} tone=${data.ready ? "good" : "bad"}>${data.ready ? "Every part is ready" : "Not every part is ready"}<//>`} />
    <${Problem} error=${error} />
    ${data && !data.objects.triggers && !data.objects.subscriptions && html`<${FirstSteps} />`}
    ${data && html`${data.history ? html`<${Numbers} of=${data} namespace=${namespace} /><${Charts} history=${data.history} />` : html`<${OwnNumbers} of=${data} namespace=${namespace} />`}<${Attention} of=${data} />${!error && html`<${Parts} parts=${data.parts} />`}`}`;
}

/** Of who may have a part of the events: there are no totals of all for him. */
const OwnNumbers = ({ of: { backlog, objects }, namespace }) =>
  html`<p class="muted">You may have a part of the events, so totals of all are not shown. Each trigger of yours has its own numbers.</p>
  <dl class="tiles">
    <${Tile} label="Brokers" value=${count(objects.brokers)} note=${html`<a href=${link(["brokers"], { namespace })}>look at them</a>`} />
    <${Tile} label="Triggers" value=${count(objects.triggers)} note=${html`<a href=${link(["triggers"], { namespace })}>look at them</a>`} />
    <${Tile} label="Subscriptions" value=${count(objects.subscriptions)} note=${html`<a href=${link(["subscriptions"], { namespace })}>look at them</a>`} />
    <${Backlog} of=${backlog} label="Backlog of yours" />
  </dl>`;

const Backlog = ({ of, label }) =>
  html`<${Tile} label=${label} value=${count(of.deliveries)} tone=${of.lagging || of.circuitsOpen ? "warn" : ""} note=${`${count(of.lagging)} lagging, ${counted(of.circuitsOpen, "circuit")} open`} />`;

const Numbers = ({ of: { rates, latency, backlog, objects, deadLetters }, namespace }) =>
  html`<dl class="tiles">
    <${Tile} label="Received" value=${rate(rates.received)} unit="/s" note=${html`<a href=${link(["brokers"], { namespace })}>${counted(objects.brokers, "broker")}</a>`} />
    <${Tile} label="Delivered" value=${rate(rates.delivered)} unit="/s" note=${html`<a href=${link(["triggers"], { namespace })}>${counted(objects.triggers, "trigger")}</a>`} />
    <${Tile} label="Median delivery" value=${duration(latency?.p50)} note=${latency ? `p99 ${duration(latency.p99)}` : "nothing was delivered"} />
    <${Backlog} of=${backlog} label="Backlog" />
    <${Tile} label="Dead letters" value=${count(deadLetters.kept)} tone=${deadLetters.kept ? "bad" : ""} note=${html`<a href=${link(["dead-letters"], { namespace })}>${deadLetters.kept ? "look at them" : "none is kept"}</a>`} />
  </dl>`;

function Charts({ history }) {
  const { from, seconds, received, delivered, failed, p50, p99 } = history;
  const times = useMemo(() => received.map((_, index) => Date.parse(from) / 1000 + index * seconds), [from, received.length]);
  return html`<div class="columns even">
    <${Panel} title="Events a second" aside="15 minutes">
      <${Chart} label=${`Events a second of the last 15 minutes. Now ${rate(received.at(-1))} received, ${rate(delivered.at(-1))} delivered, ${rate(failed.at(-1))} failed.`}
        times=${times} format=${rate} lines=${[
          { name: "received", tone: "accent", values: received, fill: true },
          { name: "delivered", tone: "good", values: delivered },
          { name: "failed", tone: "bad", values: failed, dash: [4, 3] },
        ]} />
    <//>
    <${Panel} title="From stored to delivered" aside="15 minutes">
      <${Chart} label=${`Time from stored to delivered. Now ${duration(p50.at(-1))} at the median, ${duration(p99.at(-1))} for 99 of 100.`}
        times=${times} format=${duration} lines=${[
          { name: "p99", tone: "warn", values: p99, dash: [4, 3] },
          { name: "p50", tone: "accent", values: p50, fill: true },
        ]} />
    <//>
  </div>`;
}

/** Equal troubles of the same kind of object, the largest groups first. */
const grouped = (attention) =>
  [...groupedBy(attention, (one) => `${one.kind} ${one.type} ${one.reason}`)].sort(([, a], [, b]) => b.length - a.length);

const nounOf = ({ kind }) => (kind === "DeadLetters" ? "trigger" : kind.toLowerCase());
const wordsOf = (one) => (one.kind === "DeadLetters" ? "Dead letters are kept" : inWords({ ...one, status: "False" }));
const newest = (members) => members.map((one) => one.since).filter(Boolean).sort().at(-1);

const Attention = ({ of: { attention, attentionTotal, deadLetters: hasLetters } }) =>
  html`<${Panel} title="Needs attention" aside=${attention.length < attentionTotal ? `${count(attention.length)} of ${count(attentionTotal)}` : attentionTotal ? count(attentionTotal) : ""}>
    ${attention.length
      ? html`<ul>${grouped(attention).map(([key, members]) => html`<${Fold} key=${key} head=${html`<${Status} tone=${members[0].kind === "DeadLetters" ? "warn" : (toneOf(members[0].severity) ?? "bad")}>${wordsOf(members[0])}<//> <span class="muted">${members.length === 1 ? members[0].name : counted(members.length, nounOf(members[0]))}</span><span class="muted since">${newest(members) && html`<${Ago} time=${newest(members)} />`}</span>`}>
          <ul>${members.map((one) => html`<li key=${`${one.namespace}/${one.name}`}>${place(one) ? html`<a class="name" href=${place(one)}>${one.name}</a>` : html`<span class="name">${one.name}</span>`} <span class="muted">${one.namespace}</span> ${one.message}</li>`)}</ul>
        <//>`)}</ul>`
      : html`<${Empty} title="Nothing needs attention">${hasLetters ? "Every condition is as it should be, and no dead letter is kept." : "Every condition that you may see is as it should be."}<//>`}
  <//>`;

const Parts = ({ parts }) =>
  html`<${Panel} title="Parts"><ul class="parts">
    ${parts.map((one) => html`<li key=${one.name + one.server}><${Status} tone=${one.ready ? "good" : "bad"} title=${one.note}>${one.name}<//>${one.server && html` <span class="muted">${one.server}</span>`}${!one.ready && one.note && html`<p class="muted">${one.note}</p>`}</li>`)}
  </ul><//>`;
