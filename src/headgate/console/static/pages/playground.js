/** The playground: a filter, events, and why each is matched or not. All of it is in the address. */
import { get, OWN } from "../api.js";
import { copy } from "../clipboard.js";
import { EVENTS, EXAMPLES, START } from "../examples.js";
import { count, counted, plain } from "../format.js";
import { toNewTrigger } from "../handover.js";
import { packed, unpacked } from "../link_state.js";
import { BrokerField, lastEvents } from "../parts/broker_field.js";
import { Dialog, Empty, PageHead, Panel, Problem, Status } from "../parts/basics.js";
import { Cel, Difference, EventCard, inOrder } from "../parts/code.js";
import { FilterTrace } from "../parts/filter_trace.js";
import { Meant, useMeant } from "../parts/meant.js";
import { Counts, useVerdicts, VERDICTS } from "../parts/verdicts.js";
import { refine } from "../router.js";
import { useRights } from "../rights.js";
import { notify } from "../store.js";
import { html, useEffect, useRef, useRested, useState, useTitle } from "../ui.js";

const EVENTS_MAX = 100;
const TRANSFORM = '{"type": ce.type + ".v2", "data": {"id": data.id}}';
const DECIDERS = {
  matcher: "The matcher decides alone, by a table of all filters.",
  cel: "The matcher finds candidates; cel-cpp decides each.",
  both: "The matcher decides some events, cel-cpp the others.",
  nobody: "It is false for every event.",
};

/** Events of a text: a JSON array, one event, or one a line. */
export function eventsOf(text) {
  const trimmed = text.trim();
  if (!trimmed) return [];
  try {
    const found = JSON.parse(trimmed);
    return Array.isArray(found) ? found : [found];
  } catch (error) {
    const all = trimmed.split("\n").filter((line) => line.trim());
    if (all.length < 2) throw error;
    return all.map((line, index) => {
      try {
        return JSON.parse(line);
      } catch (failed) {
        throw new Error(`line ${index + 1}: ${failed.message}`);
      }
    });
  }
}

/** A text of somebody else's JSON; what is none has another one instead. */
const textOf = (value, other) => (typeof value === "string" ? value : other);

export function Playground({ route }) {
  const [shown, setShown] = useState(null);
  const rested = useRested(shown, 300);
  const shared = useRef({ s: undefined, shown: null }); // what the address holds
  useTitle("Playground");
  useEffect(() => {
    const { s } = route.query;
    if (shown && s === shared.current.s) return;
    (s ? unpacked(s) : Promise.resolve(START)).then((found) => {
      if (!found) notify("This link holds no filter");
      const next = { dialect: textOf(found?.dialect, "cel"), text: textOf(found?.text, START.text), transform: textOf(found?.transform, ""), events: Array.isArray(found?.events) ? found.events.slice(0, EVENTS_MAX) : EVENTS };
      shared.current = { s, shown: next };
      setShown(next);
    });
  }, [route.query.s]);
  useEffect(() => {
    if (!rested || rested === shared.current.shown) return undefined;
    let isOver = false;
    packed(rested).then((s) => {
      if (isOver) return; // another page is shown, or more was typed
      shared.current = { s, shown: rested };
      refine({ s });
    });
    return () => (isOver = true);
  }, [rested]);
  const keep = (changes) => setShown((old) => ({ ...old, ...changes }));
  return shown && html`<${Bench} ...${shown} onChange=${keep} namespace=${route.query.namespace ?? ""} />`;
}

function Bench({ dialect, text, transform, events, onChange, namespace }) {
  const may = useRights(namespace);
  const { data, error } = useVerdicts(text.trim() ? { dialect, text, transform, events, explain: true } : null);
  const [dialects, setDialects] = useState([]);
  const [isEditing, setEditing] = useState(false);
  const [opened, setOpened] = useState(0);
  const [broker, setBroker] = useState(""); // whose events are tried
  const meant = useMeant(broker, text.trim() ? { dialect, text } : null);
  useEffect(() => {
    get(`${OWN}/filters/dialects`).then(({ dialects: found }) => setDialects(found.filter((one) => !one.fault)), () => {});
  }, []);
  const names = [...new Set(["cel", ...dialects.map((one) => one.name), dialect])];
  const examples = EXAMPLES[dialect] ?? dialects.filter((one) => one.name === dialect && one.example).map((one) => [one.name, one.example]);
  const choose = (name) => {
    const [first] = EXAMPLES[name] ?? dialects.filter((one) => one.name === name && one.example).map((one) => [one.name, one.example]);
    onChange({ dialect: name, text: first ? first[1] : "" });
  };
  const share = async () => {
    refine({ s: await packed({ dialect, text, transform, events }) });
    await copy(location.href, "The link is copied: it holds the filter and the events");
  };
  return html`<${PageHead} title="Playground">
      <button type="button" onClick=${share}>Copy link</button>
      ${may("create", "triggers", "eventing.knative.dev") && html`<button type="button" class="primary" disabled=${!data} onClick=${() => toNewTrigger({ dialect, text, transform }, dialects, namespace)}>Make this a trigger</button>`}
    <//>
    <div class="bench">
      <section class="bench-filter" aria-label="Filter">
        <div class="bench-bar">
          <label><span>Dialect</span>
            <select value=${dialect} onChange=${(event) => choose(event.target.value)}>${names.map((one) => html`<option key=${one} value=${one} selected=${one === dialect}>${one === "cel" ? "CEL" : one}</option>`)}</select>
          </label>
          ${examples.length > 0 && html`<label><span class="unseen">Example</span>
            <select value="" onChange=${(event) => event.target.value && onChange({ text: event.target.value })}>
              <option value="">Examples</option>${examples.map(([name, one]) => html`<option key=${name} value=${one}>${name}</option>`)}
            </select></label>`}
        </div>
        <textarea class="code filter-text ${error ? "wrong" : ""}" aria-label="Filter" data-search spellcheck="false" rows=${Math.max(4, text.split("\n").length + 1)} value=${text} onInput=${(event) => onChange({ text: event.target.value })}></textarea>
        <details open=${Boolean(transform)}>
          <summary>Transform: what is sent of each event</summary>
          <textarea class="code filter-text" aria-label="Transform" spellcheck="false" rows=${Math.max(3, transform.split("\n").length + 1)} placeholder=${TRANSFORM} value=${transform} onInput=${(event) => onChange({ transform: event.target.value })}></textarea>
        </details>
        <${Problem} error=${error} />
        <${Meant} names=${meant} text=${text} onText=${(one) => onChange({ text: one })} />
        ${data?.explanation && html`<${Explanation} cel=${data.cel} dialect=${dialect} of=${data.explanation} />`}
      </section>
      <section class="bench-events" aria-label="Events">
        <${EventsBar} events=${events} counts=${data?.counts} namespace=${namespace} onEvents=${(found, of) => (onChange({ events: found.slice(0, EVENTS_MAX) }), setBroker(of))} onEdit=${() => setEditing(true)} />
        ${events.length === 0 && html`<${Empty} icon="events" title="No events">Paste some, take the last of a broker, or open a file.<//>`}
        ${data?.tracesLeftOut > 0 && html`<p class="muted">${counted(data.tracesLeftOut, "event")} shown without the parts of the filter: too many or too large.</p>`}
        <ol class="verdicts">
          ${events.map((event, index) => html`<${Verdict} key=${index} event=${event} result=${data?.results?.[index]} text=${data?.text} isOpen=${index === opened} onToggle=${() => setOpened(index === opened ? -1 : index)} />`)}
        </ol>
      </section>
    </div>
    ${isEditing && html`<${EditEvents} events=${events} onClose=${() => setEditing(false)} onEvents=${(found) => (onChange({ events: found.slice(0, EVENTS_MAX) }), setEditing(false))} />`}`;
}

function EventsBar({ events, counts, namespace, onEvents, onEdit }) {
  const [broker, setBroker] = useState("");
  const [error, setError] = useState(null);
  const attempt = (work, of = "") => async (...given) => {
    try {
      onEvents(await work(...given), of);
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  };
  const ofBroker = attempt(() => lastEvents(broker, 50), broker);
  const ofFile = attempt(async (event) => eventsOf(await event.target.files[0].text()));
  return html`<div class="bench-bar">
      <div class="counts" role="status">
        ${counts
          ? html`<${Counts} counts=${counts} />`
          : html`<span class="muted">${counted(events.length, "event")}</span>`}
      </div>
      <div class="actions">
        <button type="button" onClick=${onEdit}>Edit events</button>
        <label class="button">Open a file<input type="file" class="unseen" accept=".json,.jsonl,.ndjson,application/json" onChange=${ofFile} /></label>
      </div>
    </div>
    <form class="bench-bar" onSubmit=${(event) => (event.preventDefault(), ofBroker())}>
      <${BrokerField} value=${broker} namespace=${namespace} onChange=${setBroker} />
      <button type="submit" disabled=${!broker.includes("/")}>Take its last 50</button>
    </form>
    <${Problem} error=${error} />`;
}

function EditEvents({ events, onEvents, onClose }) {
  const [text, setText] = useState(JSON.stringify(events, null, 2));
  const [error, setError] = useState(null);
  const use = () => {
    try {
      onEvents(eventsOf(text));
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<${Dialog} title="Events" onClose=${onClose}>
    <p class="muted">A JSON array of CloudEvents, or one a line. At most ${EVENTS_MAX} are tried.</p>
    <textarea class="code" aria-label="Events as JSON" rows="22" cols="80" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    <${Problem} error=${error} />
    <div class="dialog-actions"><button type="button" onClick=${onClose}>Cancel</button><button type="button" class="primary" onClick=${use}>Use these</button></div>
  <//>`;
}

function Verdict({ event, result, text, isOpen, onToggle }) {
  const [tone, word] = VERDICTS[result?.outcome] ?? ["busy", "…"];
  const reason = result?.error ?? result?.transformError ?? (result?.decided && result.outcome !== "true" ? `${result.decided.part} is ${result.decided.value}` : "");
  const named = event && typeof event === "object" ? event : {};
  const said = (value, other = "") => plain(textOf(value, value === undefined ? other : JSON.stringify(value)));
  return html`<li class="verdict ${isOpen ? "open" : ""}">
    <button type="button" class="verdict-head" aria-expanded=${isOpen ? "true" : "false"} onClick=${onToggle}>
      <${Status} tone=${tone}>${word}<//>
      <span class="verdict-type">${said(named.type, "no type")}</span>
      <span class="muted verdict-id">${said(named.source)} · ${said(named.id)}</span>
      <span class="verdict-why">${reason}</span>
    </button>
    ${isOpen && html`<div class="verdict-body">
      ${result?.trace && html`<${FilterTrace} text=${text} trace=${result.trace} />`}
      ${result?.error && html`<${Problem} error=${{ message: result.error, hint: result.hint }} />`}
      ${result?.transformError && html`<${Problem} error=${{ message: `The transform is an error: ${result.transformError}` }} />`}
      ${result?.sent && html`<${Difference} label="What the transform changes" before=${inOrder(named)} now=${inOrder(result.sent)} />`}
      <${EventCard} event=${named} />
    </div>`}
  </li>`;
}

function Explanation({ cel, dialect, of }) {
  const { rows, rowsLeftOut, cost, skips, notes, advice, decidedBy } = of;
  return html`${dialect !== "cel" && html`<${Panel} title="The CEL that it becomes" quiet><div class="block"><${Cel} text=${cel} /></div><//>`}
    ${advice?.map((one) => html`<p class="warning" key=${one.message}>${one.message}</p>`)}
    <${Panel} title="Who decides" quiet>
      <p>${DECIDERS[decidedBy]}</p>
      ${notes?.map((one) => html`<p class="muted" key=${one}>${one}</p>`)}
      <ul class="plan-rows">
        ${rows.slice(0, 20).map((row, index) => html`<li key=${index}>
          <${Status} tone=${row.verdict === "match" ? "good" : "busy"}>${row.verdict}<//>
          <span>${row.index.length > 0 ? html`finds <${Cel} text=${row.index.join(" && ")} />` : html`<span class="muted">scans every event</span>`}
          ${row.compare.length > 0 && html`<br />compares <${Cel} text=${row.compare.join(" && ")} />`}</span>
        </li>`)}
      </ul>
      ${rows.length - 20 + (rowsLeftOut ?? 0) > 0 && html`<p class="muted">and ${count(Math.max(0, rows.length - 20) + (rowsLeftOut ?? 0))} more rows</p>`}
    <//>
    <div class="columns even">
      <${Panel} title="Cost of an event" quiet>
        <dl class="counts-list"><div><dt>look-ups</dt><dd>${count(cost.lookups)}</dd></div><div><dt>scans</dt><dd>${count(cost.scans)}</dd></div><div><dt>steps of cel-cpp</dt><dd>${count(cost.steps)}</dd></div></dl>
      <//>
      <${Panel} title="What reading skips" quiet><p>${skips.says}</p><//>
    </div>`;
}
