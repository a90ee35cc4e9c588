/** Chunks: the newest of the log as their headers show them, and which of them a reader skips for a filter. */
import { OWN } from "../api.js";
import { bytes, clock, count, counted, plain } from "../format.js";
import { Empty, PageHead, Problem, Status } from "../parts/basics.js";
import { brokerIn, BrokerOfPage } from "../parts/broker_field.js";
import { Pager, Table, usePages } from "../parts/table.js";
import { link, refine } from "../router.js";
import { html, useData, useTitle, useTyped } from "../ui.js";

const PAGE = 50;
const SKIPPED = { value: "it holds none of the values", time: "its events have other times", stored: "it was stored at another time", offset: "it has other offsets" };
const READ = { unfiltered: "events without a filter value", any: "no value is asked for" };

/** The time of day, with the day where that is not today. */
function When({ time }) {
  const day = new Date(time).toLocaleDateString("en-CA");
  const isToday = day === new Date().toLocaleDateString("en-CA");
  return html`<time class="mono" dateTime=${time} title=${new Date(time).toLocaleString()}>${isToday ? "" : `${day} `}${clock(time)}</time>`;
}

const COLUMNS = [
  { name: "Offsets", show: (one) => html`<span class="mono">${one.firstOffset}–${one.nextOffset - 1}</span>` },
  { name: "Events", kind: "number", show: (one) => (one.damage ? "" : count(one.events)) },
  { name: "On disk", kind: "number", show: (one) => (one.damage ? "" : bytes(one.bytes)) },
  { name: "Codec", show: (one) => one.codec },
  { name: "Stored", show: (one) => (one.damage ? html`<${Status} tone="bad">damaged<//>` : html`<${When} time=${one.stored} />`) },
  { name: "Event times", show: (one) => (one.timeFrom ? html`<${When} time=${one.timeFrom} />${one.timeTo !== one.timeFrom && html` – <${When} time=${one.timeTo} />`}` : html`<span class="muted">none</span>`) },
  { name: "Bloom filter", show: (one) => (one.bloomBytes ? `${one.bloomBytes} B, ${Math.round(100 * (one.bloomFilled ?? 0))} % full` : html`<span class="muted">none</span>`) },
];
const FILTER = { name: "Filter", kind: "fill", show: ({ decision }) => decision && html`<${Decision} ...${decision} />` };

function Decision({ read, by, values = [], valuesLeftOut }) {
  if (!read) return html`<${Status} tone="idle">skipped<//> <span class="muted">${SKIPPED[by] ?? by}</span>`;
  const why = values.length ? html`may hold ${values.map((one) => html`<code key=${one}>${plain(one)}</code> `)}${valuesLeftOut && `and ${count(valuesLeftOut)} more`}` : READ[by] ?? by;
  return html`<${Status} tone="good">read<//> <span class="muted">${why}</span>`;
}

export function Chunks({ route }) {
  const { filter = "", partition = "" } = route.query;
  const broker = brokerIn(route.query);
  const pages = usePages(JSON.stringify([broker, filter, partition]));
  const asked = { broker, filter, partition, before: pages.start, limit: PAGE };
  const { data, error, reload, isOld } = useData(`${OWN}/chunks`, asked, { keep: true });
  useTitle("Chunks");
  const above = html`<a href=${link(["events"], { broker, filter })}>Events</a>`;
  return html`<${PageHead} title="Chunks" above=${above}><button type="button" onClick=${reload}>Look again</button><//>
    <${Asked} ...${{ broker, filter, partition, error }} namespace=${route.query.namespace ?? ""} partitions=${data?.partitions ?? []} chosen=${data?.partition} />
    ${error?.status === 404 ? html`<${Empty} icon="events" title="No chunks here">${plain(error.message)}${error.hint && html`<br />${plain(error.hint)}`}<//>` : html`<${Problem} error=${error} />`}
    ${data && !error && html`<${Listed} data=${data} isOld=${isOld} pages=${pages} hasFilter=${Boolean(filter)} />`}`;
}

function Asked({ broker, filter, partition, namespace, partitions, chosen, error }) {
  const [text, setText] = useTyped(filter);
  const isWrong = error?.status === 422;
  const send = (event) => {
    event.preventDefault();
    refine({ filter: text });
  };
  return html`<form class="toolbar query" onSubmit=${send}>
    <${BrokerOfPage} broker=${broker} namespace=${namespace} alsoGone=${{ partition: "" }} />
    <label class="cel-box"><span class="unseen">Filter in CEL</span>
      <input class=${`mono ${isWrong ? "wrong" : ""}`} aria-invalid=${isWrong ? "true" : undefined} data-search spellcheck="false" autocomplete="off" placeholder='Which are skipped for a filter? ce.type == "order.paid"' value=${text} onInput=${(event) => setText(event.target.value)} />
    </label>
    <button type="submit" class="primary">Look</button>
    ${filter && html`<button type="button" onClick=${() => refine({ filter: "" })}>Clear</button>`}
    ${partitions.length > 1 && html`<label><span>Partition</span>
      <select value=${partition || String(chosen)} onChange=${(event) => refine({ partition: event.target.value })}>
        ${partitions.map(({ partition: one, firstOffset, nextOffset }) => html`<option key=${one} value=${one} selected=${String(one) === (partition || String(chosen))}>${one} (${counted(nextOffset - firstOffset, "event")})</option>`)}
      </select>
    </label>`}
  </form>`;
}

function Listed({ data, isOld, pages, hasFilter }) {
  const { items, totals, partitions, partition } = data;
  const ends = partitions?.find((one) => one.partition === partition);
  if (!items.length) return html`<${Empty} icon="events" title="No chunks yet">Events that are stored together are one chunk.<//>`;
  const filtered = totals.chunksRead !== undefined && hasFilter;
  return html`<div class="toolbar">
      <p class="counters" role="status">
        ${filtered
          ? html`<span><b>${count(totals.chunksRead)}</b> of ${counted(totals.chunks, "chunk")} read</span><span><b>${bytes(totals.bytesRead)}</b> of ${bytes(totals.bytes)} read</span>`
          : html`<span><b>${counted(totals.chunks, "chunk")}</b></span><span><b>${counted(totals.events, "event")}</b> of all brokers</span><span><b>${bytes(totals.bytes)}</b> on disk</span>`}
        ${ends && html`<span>partition ${partition} has the offsets <b>${ends.firstOffset}</b> to <b>${ends.nextOffset - 1}</b></span>`}
      </p>
      <${Pager} pages=${pages} size=${PAGE} shown=${items.length} next=${data.before === undefined ? "" : String(data.before)} noun="chunks" />
    </div>
    ${filtered && html`<p class="muted">Skipped: ${plain(data.skips)}. Filter values are made by <code>${plain(data.filterValue)}</code>. What is counted is on this page.</p>`}
    <${Table} label="Chunks, the newest first" columns=${filtered ? [...COLUMNS, FILTER] : COLUMNS} rows=${items} keyOf=${(one) => String(one.firstOffset)} isOld=${isOld} detail=${(one) => one.damage && html`<span class="bad">${plain(one.damage)}</span>`} />`;
}
