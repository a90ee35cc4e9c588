"""The prose of the page."""

from __future__ import annotations

from benchmarks.published.setups import BATCH, QUIET, filter_text

HEAD = f"""# The benchmark that nobody published

<!-- Written by `python -m benchmarks.published --page`: edit benchmarks/published/page.py. -->

What do filters on the server cost when thousands of tenants have them? Reviewers of broker-side filters have asked for these figures elsewhere. This page has them for Headgate, end to end: over HTTP, with a real server, durable (a 202 after `fdatasync`), and a subscriber in a process of its own.

This page is made of [its results](published.json). The program and its options: `python -m benchmarks.published --help`.

## What is measured

Each broker belongs to a tenant of its own. There are three setups:

- `3`: three triggers a broker, each with a filter of five conditions.
- `15`: five triggers for each of the three.
- `none`: the same brokers without any trigger.

In each setup {QUIET} quiet brokers have one trigger without a filter each. A filter:

    {filter_text("t7_2", "wanted-2")}

The field of the last condition is another one in each filter, so there are as many shapes of filters as filters. Every event meets the first four conditions of all filters of its broker, whether it matches or not. An event that matches is wanted by one trigger. In the setup `none` the events that match go to the quiet brokers.

- *Stored/s* and *delivered/s*: a closed loop of single POSTs. *Behind* is how long after the last 202 the last delivery came.
- *To the 202*: from before a POST to its answer, in the closed loop.
- *To the subscriber*: from when an event was due to its arrival, at the steady rate. A p99 needs 100 deliveries.
- *Half in batches*: {BATCH} single events, then a batch of {BATCH}, and so on.
- *us*: processor time of a process with all its threads, from `/proc`, until a second after the last delivery. The matcher is the JVM and its driver.
- *Written*: bytes that the processes gave to the disk, from `/proc`. A write of a part of a page counts as a page.
- *Collections*, *pauses*, *allocated*: of the JVM's garbage collector, from a flight recording.

Publisher, subscriber and server share the machine, so they compete for its cores.
"""

MATCHERS = """`python -m benchmarks.peers` runs Headgate beside its peers, in turns and in one run.

### Matchers

Each matcher has the same filters and the same events, and one core for all its threads. Before a measurement each is compared with cel-cpp: *wrong* are its pairs of event and filter in the first 1,000 events beyond those that cel-cpp finds. Each gives back which filters an event matches.

- Headgate: the match in Spark, on one thread. It reads a chunk log, so that the attributes are columns; it parses the JSON of the data of each event.
- quamina and event-ruler: the filters are patterns. They parse the whole event from JSON in memory, `{"ce": {...}, "data": {...}}`: they look at fields in the order of their names, and with the attributes first both are up to ten times faster than with the JSON format of CloudEvents. quamina 0.7 panics where 256 filters begin with one value, so equal filters are one for it, and those beyond the limit are in a matcher of their own. A filter with `anything-but` and one with plain values on the same field can make it find too much.
- expr, of Inngest, where it has run (with `--also`: this repository does not build it): the filters are CEL. Equality and comparison of numbers have an index; what an index leaves is evaluated by cel-go. The event is decoded by Go's library for JSON.
"""

SYSTEMS = """### Whole systems

All systems are durable: an event is synced to the disk before its acknowledgement, and each producer waits for that before it sends its next event. Each has as many consumers with a filter for one type each, whose state is durable, and each event is delivered to one of them and acknowledged. The event is the same: eight attributes and 132 bytes of JSON. Server, producers and consumers share the cores. A system is started anew for each round, and gets the same load for as long before it is measured.

- Headgate: `headgate serve` with its defaults. Events come over HTTP, and are POSTed to a subscriber. Besides the event it writes the match and the end of the delivery to disk.
- ActiveMQ Artemis: JMS over TCP, a durable subscription with a selector on a property for each consumer, persistent messages, `blockOnDurableSend`, a journal with `fdatasync`, by libaio where it is installed. Each producer has a connection.
- NATS JetStream: a stream in files with `sync_interval: always`, a durable consumer with a filter on the subject for each consumer, explicit acknowledgements. Each producer has a connection.

What differs: the peers are asked for the type alone, as a property or as a subject, and the event's data stays opaque to them. Their clients keep connections of their own protocols, where Headgate makes a request of HTTP for each delivery. Processor time tells more than the clock: it does not contain the wait for the disk.
"""

CANNOT = """### What each peer cannot do

| | Headgate | Knative 0.50, data plane with the in-memory channel | ActiveMQ Artemis 2.56 | NATS JetStream 2.15 |
|---|---|---|---|---|
| filter on the JSON data of an event | yes | no: attributes and extensions | no: properties; XPath for XML bodies | no: the subject |
| filter of five conditions | yes | yes, on attributes | yes, on properties | no: tokens of the subject |
| on disk before the acknowledgement | yes, `fdatasync` | no: in memory | yes for persistent messages on durable queues | with `sync_interval: always`; by default within two minutes |
| filters belong to a tenant's broker | yes | yes | by address | by stream and account |
| pushes by HTTP | yes | yes | no: clients connect | no: clients connect |
| filters are evaluated | as one join of all filters | one by one, a request each | one by one | by a consumer's subject |
"""

NEIGHBOUR = f"The {QUIET} quiet brokers have no filters. They get their events at a steady rate, alone and beside one broker that gets ten times as many. Of the noisy events one in ten matches, where its broker has filters."

CURVE = "All filters belong to one broker and have five conditions. No event matches any of them; each event is wanted by one more trigger. The goal is a cost that stays within 10 %."

BUSY = "the machine was busy with other work, so these figures are only a sample"
