// Publish an order with the CloudEvents SDK.
// node publish.mjs http://127.0.0.1:8080/default/default [binary]
import { CloudEvent, HTTP } from 'cloudevents'

const [broker, mode] = process.argv.slice(2)
const order = new CloudEvent({
  id: 'javascript-1', // stays the same when the order is sent again, so that subscribers know it
  source: '/shop/javascript',
  type: 'order.paid',
  subject: 'Grün & Co',
  datacontenttype: 'application/json',
  data: { total: 250 },
})
const { headers, body } = mode === 'binary' ? HTTP.binary(order) : HTTP.structured(order)

// By fetch, and not by the SDK's httpTransport: that does not tell a 503 from a 202.
for (let attempt = 1; ; attempt += 1) {
  const answer = await fetch(broker, { method: 'POST', headers, body, signal: AbortSignal.timeout(30_000) })
  if (answer.ok) {
    console.log(`published ${order.id}`)
    break
  }
  if (![429, 503].includes(answer.status) || attempt === 5) {
    throw new Error(`not published: ${answer.status} ${await answer.text()}`)
  }
  const seconds = Number(answer.headers.get('retry-after')) || attempt
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000))
}
