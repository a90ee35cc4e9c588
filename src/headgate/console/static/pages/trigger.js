/** One trigger: what it does now, its last attempts, its filter on what comes, and what is wrong with it. */
import { call, EVENTING, objectPath, OWN, post, within } from "../api.js";
import { ago, brokerOf, count, counted, duration, filterText, plain, rate } from "../format.js";
import { toPlayground } from "../handover.js";
import { Ago, Choice, Copy, Dialog, Empty, Facts, NoCounters, PageHead, Panel, Problem, Ready, Status, Tile } from "../parts/basics.js";
import { BrokerLink } from "../parts/broker_field.js";
import { Chart } from "../parts/chart.js";
import { Cel } from "../parts/code.js";
import { Conditions, readiness } from "../parts/conditions.js";
import { DeleteObject } from "../parts/delete_object.js";
import { Lint } from "../parts/lint.js";
import { Matches } from "../parts/matches.js";
import { ObjectEditor } from "../parts/object_editor.js";
import { SendEvent } from "../parts/send_event.js";
import { Table } from "../parts/table.js";
import { link, refine } from "../router.js";
import { useRights } from "../rights.js";
import { notify } from "../store.js";
import { html, useData, useMemo, useState, useTitle } from "../ui.js";
import { Pending } from "./dead_letters.js";

const EVERY_MS = 3000;
const LETTERS = { shown: 5, everyMs: 10_000 };
const GROUP = "eventing.knative.dev";
const PAUSED = "headgate.dev/delivery.paused";

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
  const isOthers = stats.error?.status === 403 && may("get", "triggers/stats", GROUP);
  const state = isOthers ? trigger && readiness(trigger) : !stats.error && stats.data;
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
  const above = html`<a href=${link(["triggers"], { namespace })}>Triggers</a><span aria-hidden="true">/</span><a href=${link(["triggers"], { namespace })}>${namespace}</a>`;
  return html`<${PageHead} title=${name} above=${above} status=${state && html`<${Ready} ...${state} />`}>
      ${trigger && may("create", "brokers/events", GROUP) && html`<button type="button" onClick=${() => setAsked("send")}>Send a test event…</button>`}
      ${trigger && may("patch", "triggers", GROUP) && html`<button type="button" disabled=${isBusy} onClick=${turn}>${isPaused ? "Resume" : "Pause"}</button>`}
      ${trigger && may("create", "replays") && html`<button type="button" onClick=${() => setAsked("replay")}>Replay…</button>`}
      ${trigger && may("delete", "triggers", GROUP) && html`<button type="button" class="danger quiet" onClick=${() => setAsked("delete")}>Delete…</button>`}
    <//>
    <${Choice} label="View" value=${tab} options=${[["overview", "Overview"], ["yaml", "YAML"]]} onChoice=${(one) => refine({ tab: one })} />
    <${Problem} error=${problem ?? object.error} />
    ${!object.error && html`<${NoCounters} error=${stats.error} isOthers=${isOthers} />`}
    ${trigger && tab === "overview" && html`<${TriggerOverview} trigger=${trigger} stats=${stats.data?.stats} />`}
    ${trigger && tab === "yaml" && html`<${ObjectEditor} root=${EVENTING} plural="triggers" namespace=${namespace} object=${trigger} canWrite=${may("update", "triggers", GROUP)} onSaved=${() => (notify("Saved"), object.reload())} />`}
    ${asked === "delete" && html`<${DeleteObject} object=${trigger} onClose=${() => setAsked("")} />`}
    ${asked === "send" && html`<${SendEvent} broker=${brokerOf(trigger)} onClose=${() => setAsked("")} />`}
    ${asked === "replay" && html`<${Replay} trigger=${trigger} onClose=${() => setAsked("")} />`}`;
}

function TriggerOverview({ trigger, stats }) {
  const { spec, status = {}, metadata } = trigger;
  const text = filterText(spec);
  const broker = brokerOf(trigger);
  const subscriber = status.subscriberUri ?? spec.subscriber?.uri;
  return html`${stats && html`<dl class="tiles">
      <${Tile} label="Delivered" value=${count(stats.delivered)} note=${html`since <${Ago} time=${stats.since} />`} />
      <${Tile} label="Rate" value=${rate(stats.rate)} unit="/s" note="of the last minute" />
      <${Tile} label="Backlog" value=${count(stats.backlog) + (stats.lagging ? "+" : "")} note=${stats.oldestUndelivered ? `oldest ${ago(stats.oldestUndelivered)}` : "nothing waits"} tone=${stats.lagging ? "warn" : ""} />
      <${Tile} label="Given up" value=${count(stats.failed)} note=${`${counted(stats.attemptsFailed, "attempt")} failed`} tone=${stats.failed ? "bad" : ""} />
      <${Tile} label="Circuit" value=${stats.circuit === "open" ? "Open" : "Closed"} note=${stats.circuit === "open" ? "no attempts for now" : "attempts are made"} tone=${stats.circuit === "open" ? "bad" : ""} />
    </dl>`}
    <div class="columns">
      <div>
        <${Panel} title="Conditions"><${Conditions} of=${status.conditions} /><//>
        ${stats?.course && html`<${Course} of=${stats.course} />`}
        <${DeadLetters} namespace=${metadata.namespace} name=${metadata.name} />
        <${Pending} namespace=${metadata.namespace} trigger=${metadata.name} />
      </div>
      <div>
        <${Panel} title="Filter" aside=${html`<button type="button" class="link" onClick=${() => toPlayground(spec)}>Open in the playground</button>`}>
          ${text ? html`<div class="block"><${Cel} text=${text} /></div>` : html`<p class="muted">Every event of the broker.</p>`}
          <${Lint} key=${metadata.generation} object=${trigger} />
          <${Matches} broker=${broker} filter=${spec.filter} filters=${spec.filters} />
        <//>
        ${spec.transform && html`<${Panel} title="Transform"><div class="block"><${Cel} text=${spec.transform} /></div><//>`}
        <${Panel} title="Delivery">
          <${Facts} of=${[
            ["Broker", html`<${BrokerLink} of=${trigger} />`],
            ["Subscriber", subscriber ? html`<span class="mono">${subscriber}</span><${Copy} text=${subscriber} what="the subscriber's URL" />` : "not known"],
            ["Dead letters", status.deadLetterSinkUri && html`<span class="mono">${status.deadLetterSinkUri}</span>`],
            ...Object.entries(spec.delivery ?? {}).filter(([key]) => key !== "deadLetterSink").map(([key, value]) => [key, html`<span class="mono">${typeof value === "object" ? JSON.stringify(value) : String(value)}</span>`]),
            ["Made", html`<${Ago} time=${metadata.creationTimestamp} />`],
          ]} />
        <//>
      </div>
    </div>
    ${stats && html`<${Panel} title="Last attempts">
      ${stats.attempts?.length
        ? html`<${Table} label="Last attempts" columns=${attemptColumns(broker)} rows=${stats.attempts} keyOf=${(one) => `${one.time} ${one.source} ${one.id}`} />`
        : html`<${Empty} title="No attempt yet">The first event that its filter matches is sent at once.<//>`}
    <//>`}`;
}

const isGood = ({ status = 0, reason }) => status >= 200 && status < 300 && !reason;

const attemptColumns = (broker) => [
  { name: "When", show: (one) => html`<${Ago} time=${one.time} />` },
  { name: "Status", show: (one) => html`<${Status} tone=${isGood(one) ? "good" : "bad"}>${one.status || one.reason || "no answer"}<//>` },
  { name: "Event", show: (one) => html`<a class="name" href=${link(["events", ...broker.split("/"), one.id], { source: one.source })}>${plain(one.id)}</a>` },
  { name: "Attempt", kind: "number", show: (one) => one.attempt },
  { name: "Took", kind: "number", show: (one) => duration(one.seconds) },
  { name: "Answer", kind: "fill", show: (one) => html`<code>${plain(one.answer || one.detail || "")}</code>` },
];

/** How many were delivered and how fast, of the last quarter of an hour. */
function Course({ of: { from, seconds, delivered, failed, latency } }) {
  const times = useMemo(() => delivered.map((_, index) => Date.parse(from) / 1000 + index * seconds), [from]);
  const each = (numbers) => numbers.map((one) => one / seconds);
  return html`<${Panel} title="Events a second" aside="15 minutes">
      <${Chart} label=${`Events a second of the last 15 minutes. In the last ten seconds ${delivered.at(-1)} delivered, ${failed.at(-1)} attempts failed.`} times=${times} format=${rate} lines=${[
        { name: "delivered", tone: "good", values: each(delivered), fill: true },
        { name: "failed attempts", tone: "bad", values: each(failed), dash: [4, 3] },
      ]} />
    <//>
    <${Panel} title="From stored to delivered" aside="15 minutes">
      <${Chart} label=${`Mean time from stored to delivered of the last 15 minutes. Now ${duration(latency.at(-1))}.`} times=${times} format=${duration} lines=${[{ name: "mean", tone: "accent", values: latency, fill: true }]} />
    <//>`;
}

/** The newest dead letters of the trigger, where it has any. */
function DeadLetters({ namespace, name }) {
  const { data } = useData(within(OWN, namespace, "deadletters"), { trigger: name, newest: true, limit: LETTERS.shown }, { everyMs: LETTERS.everyMs });
  if (!data?.items.length) return null;
  return html`<${Panel} title="Dead letters" aside=${html`<a href=${link(["dead-letters"], { namespace, trigger: name })}>All of them</a>`}>
    <ul class="plain-list">${data.items.map((one) => html`<li key=${one.id}><a href=${link(["dead-letters"], { namespace, trigger: name, letter: one.id })}>${plain(one.eventId)}</a> <code>${one.reason}</code> <span class="muted"><${Ago} time=${one.died} /></span></li>`)}</ul>
  <//>`;
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
      const body = { broker: brokerOf(trigger), trigger: name, from, to: "next", rate: Number(speed), dryRun };
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
