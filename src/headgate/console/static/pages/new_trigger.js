/** A new trigger: a form with the filter on the last events beside it, and the same as YAML. */
import { call, EVENTING, get, OWN, objectPath, post, within } from "../api.js";
import { plain } from "../format.js";
import { draftOf, filterSpec, jsonOf } from "../handover.js";
import { Choice, PageHead, Panel, Problem, Status } from "../parts/basics.js";
import { lastEvents } from "../parts/broker_field.js";
import { Matches } from "../parts/matches.js";
import { Meant, useMeant } from "../parts/meant.js";
import { ObjectEditor } from "../parts/object_editor.js";
import { go, link, refine } from "../router.js";
import { useRights } from "../rights.js";
import { current, set } from "../store.js";
import { html, useData, useEffect, useRested, useState, useTitle } from "../ui.js";

const START = { name: "my-trigger", broker: "default", dialect: "cel", text: 'ce.type == "order.paid"', transform: "", url: "http://127.0.0.1:9000/", retry: "", backoffDelay: "", timeout: "", ttl: "", sink: "" };
const BROKERS_MAX = 50;
const TYPES_SHOWN = 8;
const TEST = { rounds: 12, everyMs: 800 };
/** Delivery rules that the form has: name, words, what holds without it. */
const RULES = [
  ["retry", "Attempts after the first", "for 24 hours"],
  ["backoffDelay", "First wait between attempts", "PT0.2S"],
  ["timeout", "Time for one attempt", "PT30S"],
  ["ttl", "Too late after", "never"],
];

function specOf(form, dialects) {
  const rules = Object.fromEntries(RULES.map(([name]) => [name, form[name].trim()]).filter(([, value]) => value).map(([name, value]) => [name, name === "retry" ? Number(value) : value]));
  const delivery = { ...rules, ...(form.sink.trim() ? { deadLetterSink: { uri: form.sink.trim() } } : {}) };
  return {
    broker: form.broker,
    ...(form.text.trim() ? filterSpec(form.dialect, form.text, dialects) : {}),
    ...(form.transform.trim() ? { transform: form.transform } : {}),
    subscriber: { uri: form.url.trim() },
    ...(Object.keys(delivery).length ? { delivery } : {}),
  };
}

export function NewTrigger({ route }) {
  const namespace = route.query.namespace || "default";
  const tab = route.query.tab ?? "form";
  const [form, setForm] = useState(() => ({ ...START, ...current().draft }));
  const { data } = useData(`${OWN}/filters/dialects`);
  useEffect(() => set({ draft: form }), [form]); // a look at another page loses nothing
  useTitle("New trigger");
  const onSaved = ({ metadata }) => (set({ draft: {} }), go(["triggers", metadata.namespace, metadata.name]));
  const dialects = (data?.dialects ?? []).filter((one) => !one.fault);
  const given = { metadata: { name: form.name, namespace }, spec: specOf(form, dialects) };
  return html`<${PageHead} title="New trigger" above=${html`<a href=${link(["triggers"], { namespace })}>Triggers</a><span aria-hidden="true">/</span><span>${namespace}</span>`} />
    <${Choice} label="View" value=${tab} options=${[["form", "Form"], ["yaml", "YAML"]]} onChoice=${(one) => refine({ tab: one })} />
    ${tab === "yaml"
      ? html`<${ObjectEditor} root=${EVENTING} plural="triggers" namespace=${namespace} text=${draftOf(given)} canWrite=${true} onSaved=${onSaved} />`
      : html`<${Form} form=${form} given=${given} namespace=${namespace} dialects=${dialects} onChange=${(changes) => setForm((old) => ({ ...old, ...changes }))} onSaved=${onSaved} />`}`;
}

function Form({ form, given, namespace, dialects, onChange, onSaved }) {
  const may = useRights(namespace);
  const path = within(EVENTING, namespace, "triggers");
  const body = jsonOf(given);
  const rested = useRested(JSON.stringify(body), 400);
  const [verdict, setVerdict] = useState({ of: "" });
  const [isSaving, setSaving] = useState(false);
  useEffect(() => {
    const stop = new AbortController();
    call("POST", `${path}?dryRun=All`, { body: rested, signal: stop.signal }).then(
      ({ warnings }) => setVerdict({ of: rested, warnings }),
      (error) => stop.signal.aborted || setVerdict({ of: rested, error }),
    );
    return () => stop.abort();
  }, [rested, path]);
  const isChecked = verdict.of === JSON.stringify(body);
  async function create(event) {
    event.preventDefault();
    setSaving(true);
    try {
      onSaved((await call("POST", path, { body })).data);
    } catch (error) {
      setVerdict({ of: JSON.stringify(body), error });
      setSaving(false);
    }
  }
  const field = (name, more = {}) => ({ value: form[name], spellcheck: false, autocomplete: "off", onInput: (event) => onChange({ [name]: event.target.value }), ...more });
  const names = [...new Set(["cel", ...dialects.map((one) => one.name), form.dialect])];
  const brokers = useData(within(EVENTING, namespace, "brokers"), { limit: BROKERS_MAX });
  const broker = `${namespace}/${form.broker}`;
  const { filter, filters } = given.spec;
  const meant = useMeant(broker, filter || filters ? { filter, filters } : null);
  useEffect(() => {
    const [first] = brokers.data?.items ?? [];
    // Nobody has typed a broker yet, and the usual one is not there.
    if (first && form.broker === START.broker && !brokers.data.items.some(({ metadata }) => metadata.name === START.broker)) onChange({ broker: first.metadata.name });
  }, [brokers.data]);
  const choose = (dialect) => {
    const example = dialects.find((one) => one.name === dialect)?.example;
    onChange({ dialect, text: dialect === "cel" ? START.text : typeof example === "string" ? example : JSON.stringify(example ?? "", null, 2) });
  };
  return html`<form class="columns form" onSubmit=${create}>
    <div>
      <${Panel} title="Trigger">
        <label>Name <input required ...${field("name")} /></label>
        <label>Broker <input required list="form-brokers" ...${field("broker")} /></label>
        <datalist id="form-brokers">${(brokers.data?.items ?? []).map(({ metadata }) => html`<option key=${metadata.name} value=${metadata.name} />`)}</datalist>
      <//>
      <${Panel} title="Filter">
        <label>Dialect <select value=${form.dialect} onChange=${(event) => choose(event.target.value)}>${names.map((one) => html`<option key=${one} value=${one} selected=${one === form.dialect}>${one === "cel" ? "CEL" : one}</option>`)}</select></label>
        <textarea class="code filter-text" aria-label="Filter" rows=${Math.max(3, form.text.split("\n").length + 1)} placeholder="Every event of the broker" ...${field("text")}></textarea>
        ${!form.text.trim() && form.dialect === "cel" && html`<${Types} broker=${broker} onText=${(text) => onChange({ text })} />`}
        <${Meant} names=${meant} text=${form.text} onText=${(text) => onChange({ text })} />
        <details open=${Boolean(form.transform)}><summary>Transform: what is sent of each event</summary><textarea class="code filter-text" aria-label="Transform" rows="3" ...${field("transform")}></textarea></details>
      <//>
      <${Panel} title="Subscriber">
        <label>URL <input required type="url" ...${field("url")} /></label>
        ${may("create", "replays") && html`<${UrlTest} key=${broker} broker=${broker} namespace=${namespace} url=${form.url} />`}
      <//>
      <${Panel} title="Delivery rules">
        ${RULES.map(([name, words, without]) => html`<label key=${name}>${words} <input placeholder=${without} ...${field(name, name === "retry" ? { type: "number", min: 0, max: 1000 } : {})} /></label>`)}
        <label>Dead-letter sink <input type="url" placeholder="none: what is given up is dropped" ...${field("sink")} /></label>
        <p class="muted">Times are ISO 8601 durations: PT30S, PT5M, P1D.</p>
      <//>
    </div>
    <div class="form-side">
      <${Panel} title="On the last events"><${Tried} broker=${broker} spec=${given.spec} /><//>
      <${Panel} title="The server says" aside=${html`<button type="button" class="link" onClick=${() => refine({ tab: "yaml" })}>Look at the YAML</button>`}>
        ${!isChecked ? html`<p class="muted" role="status">Checking…</p>` : verdict.error ? html`<${Problem} error=${verdict.error} />` : html`<p role="status"><${Status} tone="good">It can be created<//></p>`}
        ${isChecked && verdict.warnings?.filter((one) => !meant.some(({ message }) => message === one)).map((one) => html`<p class="warning" key=${one}>${one}</p>`)}
        <p class="form-actions"><button type="submit" class="primary" disabled=${!isChecked || verdict.error || isSaving}>Create</button></p>
      <//>
    </div>
  </form>`;
}

/** Only what rests is tried: a broker that is being typed is asked for nothing. */
function Tried({ broker, spec }) {
  const rested = useRested(JSON.stringify({ broker, filter: spec.filter, filters: spec.filters }), 300);
  const { broker: where, filter, filters } = JSON.parse(rested);
  return html`<${Matches} key=${where} broker=${where} filter=${filter} filters=${filters} />`;
}

/** Types of the broker's events, for who has not written a filter yet. */
function Types({ broker, onText }) {
  const [space, short] = useRested(broker, 300).split("/");
  const { data } = useData(short ? `${objectPath(EVENTING, space, "brokers", short)}/catalogue` : null);
  const types = [...new Set((data?.items ?? []).map((one) => one.type))];
  return types.length > 0 && html`<p class="chips"><span class="muted">Types of the broker:</span> ${types.slice(0, TYPES_SHOWN).map((one) => html`<button type="button" key=${one} onClick=${() => onText(`ce.type == ${JSON.stringify(one)}`)}>${plain(one)}</button>`)}</p>`;
}

/** Sends the newest event of the broker to the URL, as a replay of one event does. */
function UrlTest({ broker, namespace, url }) {
  const [result, setResult] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const path = within(OWN, namespace, "replays");
  useEffect(() => setResult(null), [url]);
  async function test() {
    setBusy(true);
    setResult(null);
    try {
      const [event] = await lastEvents(broker, 1);
      if (!event) throw new Error("the broker has no event yet that could be sent");
      const cel = `ce.id == ${JSON.stringify(event.id)} && ce.source == ${JSON.stringify(event.source)}`;
      const { id } = await post(path, { broker: broker.split("/")[1], url: url.trim(), from: new Date(Date.now() - 864e5).toISOString(), filter: cel, rate: 10 });
      let seen = {};
      for (let round = 0; round < TEST.rounds && !seen.delivered && !seen.failed && !seen.deadLettered && !seen.problem; round++) {
        await new Promise((done) => setTimeout(done, TEST.everyMs));
        seen = await get(`${path}/${encodeURIComponent(id)}`);
        if (seen.state !== "running") break;
      }
      if (seen.state === "running") await post(`${path}/${encodeURIComponent(id)}/cancel`, {});
      setResult(seen.delivered ? { tone: "good", words: `The URL took the event ${event.id}` } : { tone: "bad", words: seen.problem || (seen.failed || seen.deadLettered ? "The URL refused the event" : seen.matched ? "No answer yet" : "The newest event is older than a day") });
    } catch (error) {
      setResult({ tone: "bad", words: error.message });
    }
    setBusy(false);
  }
  return html`<p class="url-test"><button type="button" disabled=${isBusy || !/^https?:/.test(url)} onClick=${test}>${isBusy ? "Sending…" : "Test: send the newest event"}</button>
    <span role="status">${result && html`<${Status} tone=${result.tone}>${plain(result.words)}<//>`}</span></p>`;
}
