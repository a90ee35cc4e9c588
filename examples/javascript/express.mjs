// A subscriber with Express: it verifies who sends, and books each payment once.
// WEBHOOK_SECRET=whsec_... node express.mjs --port 9000
import fs from 'node:fs'
import { parseArgs } from 'node:util'
import { HTTP } from 'cloudevents'
import express from 'express'
import { Webhook, WebhookVerificationError } from 'standardwebhooks'

const { values } = parseArgs({ options: { port: { type: 'string', default: '9000' } } })
const webhook = new Webhook(process.env.WEBHOOK_SECRET)

// One line a booking. The line is both the work and the note that it was done, so that no crash parts them.
const file = fs.openSync(process.env.BOOKINGS ?? 'bookings.jsonl', 'a+')
const keyOf = ({ source, id }) => JSON.stringify([source, id])
const lines = fs.readFileSync(file, 'utf8').split('\n').slice(0, -1)
const booked = new Set(lines.map((line) => keyOf(JSON.parse(line))))

function book(payment) {
  if (booked.has(keyOf(payment))) return false
  fs.writeSync(file, `${JSON.stringify(payment)}\n`)
  fs.fdatasyncSync(file)
  booked.add(keyOf(payment))
  return true
}

const app = express()
// The body as text: a signature is of bytes, and not of what a parser made of them.
app.post('/', express.text({ type: () => true, limit: '2mb' }), (request, response) => {
  const { headers, body } = request
  let order
  try {
    webhook.verify(body, headers)
    order = HTTP.toEvent({ headers, body })
    // `toEvent` takes anything; `validate` throws at what is missing, and says false to an unknown version.
    if (!order.validate()) throw new TypeError('CloudEvents 1.0')
    if (typeof order.data?.total !== 'number') throw new TypeError('a payment has a total')
  } catch (error) {
    const isForged = error instanceof WebhookVerificationError
    return response.status(isForged ? 401 : 400).send(error.message) // neither is tried again
  }
  try {
    const isNew = book({ source: order.source, id: order.id, total: order.data.total })
    console.log(isNew ? `${order.id}: ${order.data.total}` : `${order.id} again`)
    return response.sendStatus(204)
  } catch (error) {
    return response.status(503).set('retry-after', '1').send(`not now: ${error.message}`) // tried again
  }
})
const server = app.listen(Number(values.port), '127.0.0.1')
process.on('SIGINT', () => server.close())
