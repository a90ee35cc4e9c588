"""R01-R09: routing, replies, retries and dead letters as the specification has them."""

from __future__ import annotations

import itertools
import time
from typing import Final

from headgate_conformance.broker_context import (
    FAST,
    MAY,
    MUST,
    ONCE,
    RESTARTED,
    Answered,
    Check,
    CheckContext,
    ReceivedRequest,
    Respond,
    SkippedError,
    ViolationError,
    answer,
    expect,
    in_turn,
)

_HUGE_BYTES: Final = 8 << 20
_STEPS_MAX: Final = 200
_REST_S_MIN: Final = 8.0
"""How long nothing comes back from a loop that has ended; a step on a busy machine may take seconds."""


def with_receipt(body: bytes = b"{}") -> Respond:
    """A subscriber that answers events of the type `order` with the `receipt` r, and takes all others."""

    def respond(delivery: ReceivedRequest) -> Answered:
        if delivery.attribute("type") != "order":
            return 202, b"", {}
        headers = {"ce-specversion": "1.0", "ce-id": "r", "ce-source": "/reply", "ce-type": "receipt"}
        return 200, body, headers | {"content-type": "application/json"}

    return respond


def _durable(context: CheckContext) -> str:
    url = context.broker()
    back = {"up": False}
    taken: set[str] = set()  # by their answers: one that came before the broker was back may be answered after it

    def respond(delivery: ReceivedRequest) -> Answered:
        if not back["up"]:
            return 503, b"", {}
        taken.add(delivery.id)
        return 202, b"", {}

    inbox = context.inbox("t", respond)
    context.trigger("t", inbox, delivery={"retry": 100, "backoffDelay": "PT0.5S", "backoffPolicy": "linear"})
    ids = context.publish_all(url, range(50))
    context.environment.restart()
    back["up"] = True
    context.happens(lambda: taken >= set(ids))
    expect(taken >= set(ids), f"{len(set(ids) - taken)} of 50 acknowledged events are lost")
    return "killed right after the last answer: all of 50 acknowledged events came after the restart"


def _exactly_once(context: CheckContext) -> str:
    url = context.broker()
    inboxes = context.subscriber("all"), context.subscriber("some", filter={"attributes": {"type": "t"}})
    context.all_ready()
    ids = context.publish_all(url, range(50))
    for inbox in inboxes:
        context.arrive(inbox, *ids)
    return "50 events came to each of 2 triggers once"


def _equal_subscribers(context: CheckContext) -> str:
    url = context.broker()
    inbox = context.inbox("t")
    context.trigger("one", inbox, wait=False)
    context.trigger("two", inbox, wait=False)
    context.all_ready()
    context.publish(url, "1")
    context.arrive(inbox, "1", "1")
    return "2 triggers with the same subscriber: 2 deliveries"


def _data_unchanged(context: CheckContext) -> str:
    url, inbox = context.routed()
    bodies = {
        "json": (b' {"b" : 1.50, "a":[ 1e2,"\\u00fc" ] }\n', "application/json"),
        "bytes": (bytes(range(256)), "application/octet-stream"),
        "text": ("grün\r\n".encode(), "text/plain; charset=utf-8"),
    }
    for name, (body, media_type) in bodies.items():
        headers = {"ce-specversion": "1.0", "ce-id": name, "ce-source": "/c", "ce-type": "t"}
        context.post(url, headers | {"content-type": media_type}, body)
    context.arrive(inbox, *bodies)
    for delivery in inbox.deliveries:
        expect(delivery.body == bodies[delivery.id][0], f"the data of the event {delivery.id} was changed")
    return "JSON with odd spaces and numbers, all 256 bytes and text came byte for byte"


def _replies(context: CheckContext) -> str:
    url = context.broker()
    replier = context.subscriber("replier", with_receipt())
    other = context.subscriber("other", filter={"attributes": {"type": "receipt"}})
    context.all_ready()
    context.publish(url, "o", "order")
    context.arrive(other, "r", what="another trigger")
    context.arrive(replier, "o", "r", what="the trigger that made the reply")
    return "the reply came to another trigger and to the one that made it"


def _reply_not_stored(context: CheckContext) -> str:
    url = context.broker()
    huge = b'"' + b"x" * _HUGE_BYTES + b'"'
    headers = {"ce-specversion": "1.0", "ce-id": "huge", "ce-source": "/c", "ce-type": "huge"}
    try:
        status, _, _ = context.post(url, headers | {"content-type": "application/json"}, huge)
    except ViolationError:
        status = 0  # broken off: not stored either
    if 200 <= status < 300:
        raise SkippedError("the broker takes events of 8 MiB: there is no reply that it cannot store")
    inbox = context.inbox("t", with_receipt(huge))
    context.trigger("t", inbox, delivery=FAST | {"retry": 2}, filter={"attributes": {"type": "order"}})
    context.publish(url, "o", "order")
    context.arrive(inbox, "o", "o", "o")
    return "a reply of 8 MiB, too large to be stored: the event was delivered again, `retry` times"


def _loops(context: CheckContext) -> str:
    url = context.broker()
    numbers = itertools.count(1)

    def echo(_: ReceivedRequest) -> Answered:
        number = next(numbers)
        if number > _STEPS_MAX:
            return 202, b"", {}
        return 200, b"", {"ce-specversion": "1.0", "ce-id": f"r{number}", "ce-source": "/loop", "ce-type": "loop"}

    inbox = context.inbox("t", echo)
    context.trigger("t", inbox)
    context.publish(url, "o", "loop")
    count = -1
    while count != len(inbox.deliveries) and len(inbox.deliveries) <= _STEPS_MAX:
        count = len(inbox.deliveries)
        time.sleep(max(_REST_S_MIN, 2 * context.environment.where.quiet_s))
    expect(count > 1, "the reply does not come back to its trigger")
    expect(count <= _STEPS_MAX, f"a trigger that answers itself goes on for over {_STEPS_MAX} steps")
    return f"a trigger that answers itself ended after {count} deliveries"


def _retries(context: CheckContext) -> str:
    url = context.broker()
    rules = {"retry": 3, "backoffPolicy": "linear", "backoffDelay": "PT0.4S"}
    recovers = context.subscriber("recovers", in_turn(answer(503), answer(503), answer(202)), delivery=rules)
    never = context.subscriber("never", answer(503), delivery=rules)
    context.all_ready()
    context.publish(url, "1")
    context.arrive(never, "1", "1", "1", "1", what="a subscriber that never takes it, with retry 3,")
    context.arrive(recovers, "1", "1", "1", what="a subscriber that takes it at the third attempt")
    times = [delivery.at for delivery in never.deliveries]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    for number, pause in enumerate(pauses, start=1):
        expect(pause >= 0.4 * number - 0.02, f"retry {number} came after {pause:.2f} s instead of {0.4 * number:.1f} s")
    return "retry 3: 4 attempts and no more, linear pauses kept; taken at the third attempt: 3"


def _dead_letters(context: CheckContext) -> str:
    url = context.broker()
    sink, failing = context.inbox("sink"), context.inbox("failing", answer(500))
    hesitant = context.inbox("hesitant", in_turn(answer(503), answer(503), answer(202)))
    context.trigger("failing", failing, wait=False, delivery=ONCE | {"deadLetterSink": {"uri": sink.url}})
    context.trigger(
        "hesitant", failing, wait=False, delivery=FAST | {"retry": 2, "deadLetterSink": {"uri": hesitant.url}}
    )
    dropped = context.subscriber("dropped", answer(500), delivery=ONCE)
    context.subscriber("replier", with_receipt(), filter={"attributes": {"type": "order"}})
    context.all_ready()
    context.publish(url, "o", "order", {"n": 1})
    context.arrive(sink, "o", "r", what="the dead-letter sink")
    expect(all(letter.body in (b'{"n": 1}', b"{}") for letter in sink.deliveries), "a dead letter's data was changed")
    context.arrive(dropped, "o", "r", what="the subscriber without a sink")
    context.happens(lambda: set(hesitant.ids) >= {"o", "r"} and len(hesitant.deliveries) >= 4)
    expect(len(hesitant.deliveries) == 4, "a sink that fails at first is not tried again until it takes the letter")
    return "an initial event and a reply came to the sink; a failing sink is tried again; without one: dropped"


CHECKS: Final = (
    Check("R01", MUST, "Events are durable before they are acknowledged", _durable, RESTARTED),
    Check("R02", MUST, "Each associated Trigger is evaluated exactly once per event", _exactly_once),
    Check("R03", MUST, "One delivery per matching Trigger, with equal subscribers too", _equal_subscribers),
    Check("R04", MUST, "Event data is not modified", _data_unchanged),
    Check("R05", MUST, "Replies are routed as any event, to the Trigger that made them too", _replies),
    Check("R06", MUST, "When a reply cannot be stored the delivery failed and is retried", _reply_not_stored),
    Check("R07", MAY, "Loops are detected", _loops),
    Check("R08", MUST, "Retryable errors are retried up to `retry`, honouring the back-off", _retries),
    Check("R09", MUST, "Undeliverable events and replies go to the deadLetterSink, else are dropped", _dead_letters),
)
