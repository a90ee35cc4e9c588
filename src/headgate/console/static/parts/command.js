/** A command in one line, to be copied; and what a server without triggers offers first. */
import { plain } from "../format.js";
import { link } from "../router.js";
import { current, useStore } from "../store.js";
import { html } from "../ui.js";
import { Copy, Panel } from "./basics.js";

export const Command = ({ text, what }) =>
  html`<div class="command"><code tabindex="0" role="group" aria-label=${what}>${plain(text)}</code><${Copy} text=${text} what=${what} /></div>`;

/** Sends an event to a broker. Who has signed in shows a token there, too, which the page does not put into a text. */
export function curlOf(url) {
  const { user } = current();
  const token = user && user !== "system:anonymous" ? ' -H "authorization: Bearer $TOKEN"' : "";
  return `curl -i ${url}${token} -H 'ce-specversion: 1.0' -H 'ce-id: 1' -H 'ce-source: /me' -H 'ce-type: order.paid' -H 'content-type: application/json' -d '{"total": 120}'`;
}

export function FirstSteps() {
  const namespace = useStore((state) => state.route.query.namespace) || "default";
  const broker = `${namespace}/default`;
  return html`<${Panel} title="First steps"><ol class="steps">
    <li><h3>Send an event</h3><${Command} text=${curlOf(`${location.origin}/${broker}`)} what="the command that sends an event" /></li>
    <li><h3>Look at it</h3><p><a href=${link(["events"], { broker })}>Events of the broker ${broker}</a>, or <a href=${link(["playground"], { namespace })}>try a filter on some</a>.</p></li>
    <li><h3>Say who gets which events</h3><p>A trigger has a filter and the URL of a subscriber: <a href=${link(["new-trigger"], { namespace })}>New trigger</a>. In a shell:</p>
      <${Command} text=${`headgate get triggers -n ${namespace}`} what="the command that lists triggers" /></li>
  </ol><//>`;
}
