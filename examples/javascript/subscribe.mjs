// Subscribe with the CloudEvents SDK: answer each order with an invoice, which becomes an event of the broker.
// node subscribe.mjs --port 9000
import http from 'node:http'
import { text } from 'node:stream/consumers'
import { parseArgs } from 'node:util'
import { CloudEvent, HTTP } from 'cloudevents'

const { values } = parseArgs({ options: { port: { type: 'string', default: '9000' } } })

function invoiceOf(order) {
  if (typeof order.data?.total !== 'number') throw new TypeError('an order has a total')
  console.log(`${order.id} of ${order.subject}: ${order.data.total}`)
  return new CloudEvent({
    id: `invoice-${order.id}`, // the same when the order comes again
    source: '/invoices/javascript',
    type: 'invoice.made',
    subject: order.subject,
    datacontenttype: 'application/json',
    data: { amount: order.data.total },
  })
}

const server = http.createServer(async (request, response) => {
  const body = await text(request)
  try {
    const order = HTTP.toEvent({ headers: request.headers, body })
    // `toEvent` takes anything; `validate` throws at what is missing, and says false to an unknown version.
    if (!order.validate()) throw new TypeError('CloudEvents 1.0')
    const reply = HTTP.structured(invoiceOf(order))
    response.writeHead(200, reply.headers).end(reply.body)
  } catch (error) {
    response.writeHead(400).end(`no order: ${error.message}`) // not tried again: a dead letter
  }
})
server.listen(Number(values.port), '127.0.0.1')
process.on('SIGINT', () => server.close())
