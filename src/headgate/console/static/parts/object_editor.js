/** An object as YAML: checked by the server while one types, saved when it is wanted, and never over somebody else's. */
import { call, objectPath, within } from "../api.js";
import { unversioned, written, yaml } from "../format.js";
import { html, useEffect, useState } from "../ui.js";
import { Problem } from "./basics.js";
import { Difference } from "./code.js";
import { useDryRun, YAML } from "./dry_run.js";

const versionOf = ({ metadata }) => `resourceVersion: "${metadata.resourceVersion}"`;
const refused = (error) => error.causes.filter((one) => one.field).map((one) => `${one.field}: ${one.message}`);

/**
 * @param {{root: string, plural: string, namespace: string, object?: any, text?: string, canWrite: boolean,
 *   onText?: (text: string) => void, onSaved: (object: any) => void}} given `object` is changed; without one, `text`
 *   becomes a new one, and `onText` hears of what is typed.
 */
export function ObjectEditor({ root, plural, namespace, object, text: begun, canWrite, onText, onSaved }) {
  const [base, setBase] = useState(object); // what is changed
  const before = base ? yaml(written(base)) : "";
  const [text, setText] = useState(begun ?? before);
  const [isSaving, setSaving] = useState(false);
  const path = object ? objectPath(root, namespace, plural, object.metadata.name) : within(root, namespace, plural);
  const method = object ? "PUT" : "POST";
  const [verdict, setVerdict] = useDryRun(method, path, canWrite && text !== before ? text : null, YAML);
  /** Goes on from what the server has now, with the text as it is or with the server's. */
  function goOnFrom(newest, keepsText) {
    setText((old) => (keepsText ? old.replace(versionOf(base), versionOf(newest)) : yaml(written(newest))));
    setBase(newest);
  }
  async function save() {
    setSaving(true);
    try {
      const { data } = await call(method, path, { body: text, type: YAML });
      goOnFrom(data, false);
      onSaved(data);
    } catch (error) {
      setVerdict({ of: text, error });
    }
    setSaving(false);
  }
  const isChanged = text !== before;
  const isNewer = object && object.metadata.resourceVersion !== base.metadata.resourceVersion;
  const isOthers = isNewer && isChanged && yaml(unversioned(object)) !== yaml(unversioned(base));
  useEffect(() => {
    if (isNewer && !isOthers) goOnFrom(object, isChanged); // a write of its status, or nothing was typed yet
  }, [object?.metadata.resourceVersion]);
  const isChecked = verdict.of === text;
  const canSave = isChanged && isChecked && !verdict.error && !isOthers && !isSaving;
  const state = !isChanged ? "Unchanged" : isOthers ? "It is another one now" : !isChecked ? "Checking…" : verdict.error ? "The server refuses this" : "The server takes this";
  return html`<div class="editor">
    <div class="editor-text">
      <textarea class="code" aria-label="YAML" spellcheck="false" readonly=${!canWrite} rows=${Math.max(16, text.split("\n").length + 1)} value=${text} onInput=${({ target }) => (setText(target.value), onText?.(target.value))}></textarea>
    </div>
    <div class="editor-side">
      ${canWrite
        ? html`<div class="editor-state">
            <span class=${verdict.error && !isOthers && isChecked && isChanged ? "bad" : canSave ? "good" : "muted"} role="status">${state}</span>
            ${isChanged && object && !isOthers && html`<button type="button" onClick=${() => setText(before)}>Undo</button>`}
            <button type="button" class="primary" disabled=${!canSave} onClick=${save}>${object ? "Save" : "Create"}</button>
          </div>`
        : html`<p class="muted">You may look at this, and not change it.</p>`}
      ${isOthers && html`<div class="warning" role="alert">
        <p>Somebody else has changed it while you did.</p>
        <p class="actions"><button type="button" onClick=${() => goOnFrom(object, false)}>Take theirs</button><button type="button" onClick=${() => goOnFrom(object, true)}>Keep mine</button></p>
      </div>`}
      ${isChanged && isChecked && !isOthers && verdict.error && html`<${Problem} error=${verdict.error}>${refused(verdict.error).map((one) => html`<pre class="caret" key=${one}>${one}</pre>`)}<//>`}
      ${isChanged && verdict.warnings?.map((one) => html`<p class="warning" key=${one}>${one}</p>`)}
      ${canSave && object && html`<h2>What would change</h2><${Difference} before=${yaml(unversioned(object))} now=${yaml(unversioned(verdict.data))} />`}
    </div>
  </div>`;
}
