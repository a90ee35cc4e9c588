/** A new broker, trigger or subscription: one form by a table of fields, and the same object as YAML. */
import { call, EVENTING, within } from "../api.js";
import { besides, valueAt, withValue } from "../fields.js";
import { filterOf } from "../filters.js";
import { brokerOf, unversioned, yaml } from "../format.js";
import { fresh, KINDS, nounOf } from "../kinds.js";
import { Choice, PageHead, Panel, Problem, Status } from "../parts/basics.js";
import { useDryRun, YAML } from "../parts/dry_run.js";
import { FilterField, Tried } from "../parts/filter_field.js";
import { useMeant } from "../parts/meant.js";
import { ObjectEditor } from "../parts/object_editor.js";
import { UrlTest } from "../parts/url_test.js";
import { useRights } from "../rights.js";
import { go, link, refine } from "../router.js";
import { current, set } from "../store.js";
import { html, useData, useEffect, useState, useTitle } from "../ui.js";

const BROKERS_MAX = 50;

/**
 * @typedef {Object} Field A row of a form.
 * @property {string} at Its place in the object.
 * @property {string} words
 * @property {string} [without] What holds without it.
 * @property {[string, string][]} [options] Its values with their words; the first one holds without it.
 * Further members are attributes of its `input`.
 */
const NAME = { at: "metadata.name", words: "Name", required: true };
const BROKER = { at: "spec.broker", words: "Broker", without: "default", list: "form-brokers" };
const SINK = { at: "spec.delivery.deadLetterSink.uri", words: "Dead-letter sink", type: "url", without: "none: what is given up is dropped" };
const RULES = [
  { at: "spec.delivery.retry", words: "Attempts after the first", without: "for 24 hours", type: "number", min: 0, max: 1000 },
  { at: "spec.delivery.backoffDelay", words: "First wait between attempts", without: "PT0.2S" },
  { at: "spec.delivery.backoffPolicy", words: "Further waits", options: [["exponential", "exponential: each twice as long"], ["linear", "linear: each longer by the first"]] },
  { at: "spec.delivery.timeout", words: "Time for one attempt", without: "PT30S" },
  { at: "spec.delivery.delay", words: "Not before", without: "at once" },
  { at: "spec.delivery.ttl", words: "Too late after", without: "never" },
  SINK,
];
const FILTER = { title: "Filter", rows: [], part: FilterField };

/** By kind: what a form has, a panel after the other. `part` is drawn below the rows. */
const PANELS = {
  Broker: [
    { title: "Broker", rows: [NAME] },
    {
      title: "Log",
      rows: [
        { at: "spec.log.retention", words: "Retention", without: "the server's" },
        { at: "spec.deduplication.window", words: "Deduplication window", without: "none: an event may be stored again" },
        { at: "spec.log.filterValue", words: "Filter value", without: "type (it cannot change later)" },
      ],
    },
    { title: "Delivery rules of triggers that have none", rows: RULES },
  ],
  Trigger: [
    { title: "Trigger", rows: [NAME, BROKER], part: Brokers },
    FILTER,
    { title: "Subscriber", rows: [{ at: "spec.subscriber.uri", words: "URL", type: "url" }], part: Subscriber },
    { title: "Delivery rules", rows: RULES },
  ],
  Subscription: [
    { title: "Subscription", rows: [NAME, BROKER], part: Brokers },
    FILTER,
    {
      title: "Consumers",
      rows: [
        { at: "spec.type", words: "Type", options: [["exclusive", "exclusive: one, others are refused"], ["failover", "failover: one, the next takes over"], ["shared", "shared: each gets other events"], ["keyShared", "keyShared: each gets other partition keys, in order"]] },
        { at: "spec.ackTimeout", words: "Ack timeout", without: "PT30S" },
        { at: "spec.maxDeliveries", words: "Handed out at most", without: "until it is acknowledged", type: "number", min: 1, max: 1000 },
        { at: "spec.filterFrom", words: "Filter from", without: "now (or: beginning, 0:123)" },
        SINK,
      ],
    },
  ],
};
/** What every form shows in one way or another. */
const SHOWN = ["apiVersion", "kind", "metadata.name", "metadata.namespace"];

/** Places of an object that its form does not show. */
function hiddenOf(kind, object) {
  const filter = kind === "Broker" ? [] : [filterOf(object.spec ?? {}).place, "spec.transform"];
  return besides(object, [...SHOWN, ...filter, ...PANELS[kind].flatMap(({ rows }) => rows.map(({ at }) => at))]);
}

export const NewBroker = ({ route }) => html`<${NewObject} kind="Broker" route=${route} />`;
export const NewTrigger = ({ route }) => html`<${NewObject} kind="Trigger" route=${route} />`;
export const NewSubscription = ({ route }) => html`<${NewObject} kind="Subscription" route=${route} />`;

function NewObject({ kind, route }) {
  const { root, plural } = KINDS[kind];
  const namespace = route.query.namespace || "default";
  const tab = route.query.tab ?? "form";
  const path = within(root, namespace, plural);
  const title = `New ${nounOf(kind)}`;
  const [draft, setDraft] = useState(() => current().drafts[kind] ?? { object: fresh(kind), text: null });
  useEffect(() => set({ drafts: { ...current().drafts, [kind]: draft } }), [draft]); // a look at another page loses nothing
  useTitle(title);
  const object = withValue(draft.object, "metadata.namespace", namespace);
  const written = yaml(object);
  const onObject = (change) => setDraft((old) => ({ object: change(old.object), text: null }));
  const onText = (text) => setDraft((old) => ({ ...old, text: text === written ? null : text }));
  const onSaved = ({ metadata }) => (set({ drafts: { ...current().drafts, [kind]: undefined } }), go([plural, metadata.namespace, metadata.name]));
  const list = `${plural[0].toUpperCase()}${plural.slice(1)}`;
  return html`<${PageHead} title=${title} above=${html`<a href=${link([plural], { namespace })}>${list}</a><span aria-hidden="true">/</span><span>${namespace}</span>`} />
    <${Choice} label="View" value=${tab} options=${[["form", "Form"], ["yaml", "YAML"]]} onChoice=${(one) => refine({ tab: one })} />
    ${tab === "yaml"
      ? html`<${ObjectEditor} root=${root} plural=${plural} namespace=${namespace} text=${draft.text ?? written} canWrite=${true} onText=${onText} onSaved=${onSaved} />`
      : draft.text === null
        ? html`<${Form} kind=${kind} object=${object} path=${path} namespace=${namespace} onObject=${onObject} onSaved=${onSaved} />`
        : html`<${OfYaml} path=${path} text=${draft.text} onObject=${onObject} />`}`;
}

/** The server alone reads YAML: the object that it would make of it is what the form goes on with. */
function OfYaml({ path, text, onObject }) {
  const [{ data, error }] = useDryRun("POST", path, text, YAML);
  useEffect(() => {
    if (data) onObject(() => unversioned(data));
  }, [data]);
  if (!error) return html`<p class="muted" role="status">Reading the YAML…</p>`;
  return html`<${Problem} error=${error}>
    <p>The server refuses the YAML, so the form cannot show it.</p>
    <p class="actions"><button type="button" onClick=${() => refine({ tab: "yaml" })}>Back to the YAML</button><button type="button" onClick=${() => onObject((old) => old)}>Drop the YAML</button></p>
  <//>`;
}

function Form({ kind, object, path, namespace, onObject, onSaved }) {
  const body = JSON.stringify(object);
  const [verdict, setVerdict] = useDryRun("POST", path, body);
  const [isSaving, setSaving] = useState(false);
  const isChecked = verdict.of === body;
  const hidden = hiddenOf(kind, object);
  const spec = object.spec ?? {};
  const broker = brokerOf(object);
  const meant = useMeant(broker, spec.filter || spec.filters ? { filter: spec.filter, filters: spec.filters } : null);
  const onSpec = (change) => onObject((old) => ({ ...old, spec: change(old.spec ?? {}) }));
  async function create(event) {
    event.preventDefault();
    setSaving(true);
    try {
      onSaved((await call("POST", path, { body })).data);
    } catch (error) {
      setVerdict({ of: body, error });
      setSaving(false);
    }
  }
  return html`<form class="columns form" noValidate onSubmit=${create}>
    <div>
      ${hidden.length > 0 && html`<p class="muted besides">Kept, and not shown in the form: ${hidden.map((place, index) => html`${index > 0 && ", "}<code key=${place}>${place}</code>`)}</p>`}
      ${PANELS[kind].map(({ title, rows, part: Part }) => html`<${Panel} key=${title} title=${title}>
        ${rows.map((row) => html`<${Row} key=${row.at} of=${row} object=${object} onObject=${onObject} />`)}
        ${Part && html`<${Part} spec=${spec} broker=${broker} namespace=${namespace} meant=${meant} onSpec=${onSpec} />`}
      <//>`)}
      <p class="muted">Times are ISO 8601 durations: PT30S, PT5M, P1D.</p>
    </div>
    <div class="form-side">
      ${kind !== "Broker" && html`<${Panel} title="On the last events"><${Tried} broker=${broker} spec=${spec} /><//>`}
      <${Panel} title="The server says" aside=${html`<button type="button" class="link" onClick=${() => refine({ tab: "yaml" })}>Look at the YAML</button>`}>
        ${!isChecked ? html`<p class="muted" role="status">Checking…</p>` : verdict.error ? html`<${Problem} error=${verdict.error} />` : html`<p role="status"><${Status} tone="good">It can be created<//></p>`}
        ${isChecked && verdict.warnings?.filter((one) => !meant.some(({ message }) => message === one)).map((one) => html`<p class="warning" key=${one}>${one}</p>`)}
        <p class="form-actions"><button type="submit" class="primary" disabled=${!isChecked || verdict.error || isSaving}>Create</button></p>
      <//>
    </div>
  </form>`;
}

function Row({ of: { at, words, without, options, ...attributes }, object, onObject }) {
  const value = String(valueAt(object, at) ?? options?.[0][0] ?? "");
  const onInput = ({ target }) => {
    const text = target.value.trim();
    onObject((old) => withValue(old, at, text && attributes.type === "number" ? Number(text) : text));
  };
  return html`<label>${words} ${options
    ? html`<select value=${value} onChange=${onInput}>${options.map(([key, says]) => html`<option key=${key} value=${key} selected=${key === value}>${says}</option>`)}</select>`
    : html`<input placeholder=${without} spellcheck="false" autocomplete="off" ...${attributes} value=${value} onInput=${onInput} />`}</label>`;
}

/** The names of the namespace's brokers, for the field; one of them where nobody has chosen, and the usual one is not there. */
function Brokers({ spec, namespace, onSpec }) {
  const { data } = useData(within(EVENTING, namespace, "brokers"), { limit: BROKERS_MAX });
  const names = (data?.items ?? []).map(({ metadata }) => metadata.name);
  useEffect(() => {
    const usual = KINDS.Trigger.spec.broker;
    if (!names.length || spec.broker !== usual || names.includes(usual)) return;
    if (document.activeElement?.getAttribute("list") === BROKER.list) return; // somebody is about to type one
    onSpec((old) => (old.broker === usual ? { ...old, broker: names[0] } : old)); // a name may have been typed since
  }, [data]);
  return html`<datalist id="form-brokers">${names.map((one) => html`<option key=${one} value=${one} />`)}</datalist>`;
}

function Subscriber({ spec, broker, namespace }) {
  const may = useRights(namespace);
  return may("create", "replays") && html`<${UrlTest} broker=${broker} namespace=${namespace} url=${spec.subscriber?.uri ?? ""} />`;
}
