/** An object as YAML: checked by the server while one types, saved when it is wanted. */
import { call, objectPath, within } from "../api.js";
import { difference, unversioned, written, yaml } from "../format.js";
import { html, useEffect, useRested, useState } from "../ui.js";
import { Problem } from "./basics.js";

const YAML = "application/yaml";
const refused = (error) => error.causes.filter((one) => one.field).map((one) => `${one.field}: ${one.message}`);

/**
 * @param {{root: string, plural: string, namespace: string, object?: any, text?: string, canWrite: boolean,
 *   onSaved: (object: any) => void}} given `object` is changed; without one, `text` becomes a new one.
 */
export function ObjectEditor({ root, plural, namespace, object, text: begun, canWrite, onSaved }) {
  const before = object ? yaml(written(object)) : "";
  const [text, setText] = useState(begun ?? before);
  const [verdict, setVerdict] = useState({ of: before });
  const rested = useRested(text, 400);
  const path = object ? objectPath(root, namespace, plural, object.metadata.name) : within(root, namespace, plural);
  const method = object ? "PUT" : "POST";
  useEffect(() => {
    if (!canWrite || rested === before) return undefined;
    const stop = new AbortController();
    call(method, `${path}?dryRun=All`, { body: rested, type: YAML, signal: stop.signal }).then(
      ({ data, warnings }) => setVerdict({ of: rested, warnings, would: yaml(unversioned(data)) }),
      (error) => stop.signal.aborted || setVerdict({ of: rested, error }),
    );
    return () => stop.abort();
  }, [rested, path]);
  async function save() {
    try {
      onSaved((await call(method, path, { body: text, type: YAML })).data);
    } catch (error) {
      setVerdict({ of: text, error });
    }
  }
  const isChanged = text !== before;
  const isChecked = verdict.of === text;
  const canSave = isChanged && isChecked && !verdict.error;
  const state = !isChanged ? "Unchanged" : !isChecked ? "Checking…" : verdict.error ? "The server refuses this" : "The server takes this";
  return html`<div class="editor">
    <div class="editor-text">
      <textarea class="code" aria-label="YAML" spellcheck="false" readonly=${!canWrite} rows=${Math.max(16, text.split("\n").length + 1)} value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    </div>
    <div class="editor-side">
      ${canWrite
        ? html`<div class="editor-state">
            <span class=${verdict.error && isChecked && isChanged ? "bad" : canSave ? "good" : "muted"} role="status">${state}</span>
            ${isChanged && object && html`<button type="button" onClick=${() => setText(before)}>Undo</button>`}
            <button type="button" class="primary" disabled=${!canSave} onClick=${save}>${object ? "Save" : "Create"}</button>
          </div>`
        : html`<p class="muted">You may look at this, and not change it.</p>`}
      ${isChanged && isChecked && verdict.error && html`<${Problem} error=${verdict.error}>${refused(verdict.error).map((one) => html`<pre class="caret" key=${one}>${one}</pre>`)}<//>`}
      ${isChanged && verdict.warnings?.map((one) => html`<p class="warning" key=${one}>${one}</p>`)}
      ${canSave && object && html`<h2>What would change</h2><${Difference} before=${yaml(unversioned(object))} now=${verdict.would} />`}
    </div>
  </div>`;
}

function Difference({ before, now }) {
  const all = difference(before, now);
  const near = all.map((_, index) => all.slice(Math.max(0, index - 2), index + 3).some((one) => one.kind !== " "));
  return html`<pre class="difference">${all.map((one, index) =>
    near[index] ? html`<span key=${index} class=${one.kind === "+" ? "added" : one.kind === "-" ? "removed" : ""}>${`${one.kind} ${one.text}\n`}</span>` : null,
  )}</pre>`;
}
