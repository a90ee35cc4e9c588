/** What is sure of an object's filter without an event: which others it is like, and whether anything makes it true. */
import { EVENTING, objectPath } from "../api.js";
import { brokerOf, count, counted, filterText, fullName, plain, shortName } from "../format.js";
import { KINDS, nounOf } from "../kinds.js";
import { link } from "../router.js";
import { html, useData } from "../ui.js";

const SHOWN = 5;

/** Others of its broker, each `Kind/name`, as links to their pages. */
function Others({ object, broker, of }) {
  const links = of.slice(0, SHOWN).map((one, index) => {
    const [kind, ...path] = one.split("/");
    const name = path.join("/");
    const to = link([KINDS[kind].plural, ...fullName(broker.split("/")[0], name).split("/")]);
    return html`${index > 0 && ", "}${kind !== object.kind && `${nounOf(kind)} `}<a key=${one} href=${to}>${plain(name)}</a>`;
  });
  return html`${links}${of.length > SHOWN && ` and ${count(of.length - SHOWN)} more`}`;
}

/** Nothing, too, where the user may not ask, or the broker has too many filters. */
export function Lint({ object }) {
  const { kind, metadata } = object;
  const broker = brokerOf(object);
  const [namespace, name] = broker.split("/");
  const of = `${kind}/${shortName(namespace, `${metadata.namespace}/${metadata.name}`)}`;
  const found = useData(`${objectPath(EVENTING, namespace, "brokers", name)}/lint`, { of }).data?.items[0] ?? {};
  const said = [
    found.never && "No event makes it true",
    found.always && filterText(object.spec) && "Every event makes it true",
    found.equal && html`The same as <${Others} object=${object} broker=${broker} of=${found.equal} />`,
    found.impliedBy && html`All of its events also go to <${Others} object=${object} broker=${broker} of=${found.impliedBy} />`,
    found.redundant && `${counted(found.redundant, "alternative")} without effect`,
    ...(found.unseen ?? []).map((one) => plain(one.message)),
  ].filter(Boolean);
  return said.length > 0 && html`<ul class="lint" aria-label="What is sure of the filter">${said.map((one, index) => html`<li key=${index}>${one}</li>`)}</ul>`;
}
