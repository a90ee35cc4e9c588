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

PEERS = """Each peer runs its own program in the same session. The table has a line for each thing that the program measured, with the program's words for its settings.

- Knative: its broker's ingress, channel and filter handlers over HTTP in one process, without Kubernetes. As many triggers as event types, an exact type each, so one match an event.
- ActiveMQ Artemis: embedded, JMS over TCP. As many consumers of one topic as event types, with a selector for one type each, so one match an event. Its publisher does not wait for acknowledgements, also of persistent messages.
- NATS JetStream: embedded, over TCP. One stream with one consumer, whose filter is a subject with a wildcard. `lat`: all messages match; `max`: those of one domain in eight.
- Headgate: 100 triggers with an exact type each, so one match an event.

The programs differ in more than the system: Headgate alone has its publishers and its subscriber in other processes, and it alone syncs to the disk before it answers. So the table says what each system does on this machine. It is no race.

What each peer cannot do:

| | Headgate | Knative 0.50, data plane with the in-memory channel | ActiveMQ Artemis 2.56 | NATS JetStream 2.15 |
|---|---|---|---|---|
| filter on the JSON data of an event | yes | no: attributes and extensions | no: properties; XPath for XML bodies | no: the subject |
| filter of five conditions | yes | yes, on attributes | yes, on properties | no: tokens of the subject |
| on disk before the acknowledgement | yes, `fdatasync` | no: in memory | yes for persistent messages | with `sync_interval: always`; by default within two minutes |
| as measured here | durable | in memory | as `persistent` says: 0 or 1 | file store, default `sync_interval` |
| filters belong to a tenant's broker | yes | yes | by address | by stream and account |
| pushes by HTTP | yes | yes | no: clients connect | no: clients connect |
| filters are evaluated | as one join of all filters | one by one, a request each | one by one | by a consumer's subject |
"""

NEIGHBOUR = f"The {QUIET} quiet brokers have no filters. They get their events at a steady rate, alone and beside one broker that gets ten times as many. Of the noisy events one in ten matches, where its broker has filters."

CURVE = "All filters belong to one broker and have five conditions. No event matches any of them; each event is wanted by one more trigger. The goal is a cost that stays within 10 %."

BUSY = "the machine was busy with other work, so these figures are only a sample"
