/** What is sure of an object's filter without an event: which others it is like, and whether anything makes it true. */
import { EVENTING, objectPath } from "../api.js";
import { count, counted, filterText, plain } from "../format.js";
import { link } from "../router.js";
import { html, useData } from "../ui.js";

const SHOWN = 5;
const PAGES = { Trigger: "triggers", Subscription: "subscriptions" };

/** Others of an object's namespace, each `Kind/name`, as links to their pages. */
function Others({ object, of }) {
  const links = of.slice(0, SHOWN).map((one, index) => {
    const [kind, name] = one.split("/");
    const to = link([PAGES[kind], object.metadata.namespace, name]);
    return html`${index > 0 && ", "}${kind !== object.kind && `${kind.toLowerCase()} `}<a key=${one} href=${to}>${plain(name)}</a>`;
  });
  return html`${links}${of.length > SHOWN && ` and ${count(of.length - SHOWN)} more`}`;
}

/** Nothing, too, where the user may not ask, or the broker has too many filters. */
export function Lint({ object }) {
  const { kind, metadata, spec } = object;
  const path = `${objectPath(EVENTING, metadata.namespace, "brokers", spec.broker ?? "default")}/lint`;
  const found = useData(path, { of: `${kind}/${metadata.name}` }).data?.items[0] ?? {};
  const said = [
    found.never && "No event makes it true",
    found.always && filterText(spec) && "Every event makes it true",
    found.equal && html`The same as <${Others} object=${object} of=${found.equal} />`,
    found.impliedBy && html`All of its events also go to <${Others} object=${object} of=${found.impliedBy} />`,
    found.redundant && `${counted(found.redundant, "alternative")} without effect`,
    ...(found.unseen ?? []).map((one) => plain(one.message)),
  ].filter(Boolean);
  return said.length > 0 && html`<ul class="lint" aria-label="What is sure of the filter">${said.map((one, index) => html`<li key=${index}>${one}</li>`)}</ul>`;
}
