"""R01-R09: routing, replies, retries and dead letters as the specification has them."""

from __future__ import annotations

import itertools
import time
from typing import Final

from headgate_conformance.broker_context import (
    MAY,
    MUST,
    Answered,
    Check,
    CheckContext,
    Facility,
    ReceivedRequest,
    Respond,
    SkippedError,
    ViolationError,
    answer,
    expect,
)

FAST: Final = {"backoffDelay": "PT0.05S", "backoffPolicy": "linear"}
_HUGE_BYTES: Final = 8 << 20
_STEPS_MAX: Final = 200
_REST_S_MIN: Final = 8.0
"""How long nothing comes back from a loop that has ended; a step on a busy machine may take seconds."""


def reply_to(type_: str, event_id: str, reply_type: str, body: bytes = b"{}") -> Respond:
    """A subscriber that answers events of a type with an event, and takes all others."""

    def respond(delivery: ReceivedRequest) -> Answered:
        if delivery.attribute("type") != type_:
            return 202, b"", {}
        headers = {"ce-specversion": "1.0", "ce-id": event_id, "ce-source": "/reply", "ce-type": reply_type}
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
    ids = [str(n) for n in range(50)]
    for event_id in ids:
        context.publish(url, event_id)
    context.environment.restart()
    back["up"] = True
    context.happens(lambda: taken >= set(ids))
    expect(taken >= set(ids), f"{len(set(ids) - taken)} of 50 acknowledged events are lost")
    return "killed right after the last answer: all of 50 acknowledged events came after the restart"


def _exactly_once(context: CheckContext) -> str:
    url = context.broker()
    inboxes = {"all": context.inbox("all"), "some": context.inbox("some")}
    context.trigger("all", inboxes["all"], wait=False)
    context.trigger("some", inboxes["some"], wait=False, filter={"attributes": {"type": "t"}})
    context.all_ready("all", "some")
    ids = [str(n) for n in range(50)]
    for event_id in ids:
        context.publish(url, event_id)
    for inbox in inboxes.values():
        context.arrive(inbox, *ids)
    return "50 events came to each of 2 triggers once"


def _equal_subscribers(context: CheckContext) -> str:
    url = context.broker()
    inbox = context.inbox("t")
    context.trigger("one", inbox, wait=False)
    context.trigger("two", inbox, wait=False)
    context.all_ready("one", "two")
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
    replier = context.inbox("replier", reply_to("order", "r", "receipt"))
    other = context.inbox("other")
    context.trigger("replier", replier, wait=False)
    context.trigger("other", other, wait=False, filter={"attributes": {"type": "receipt"}})
    context.all_ready("replier", "other")
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
    inbox = context.inbox("t", reply_to("order", "r", "receipt", huge))
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
    until = {"recovers": 3}

    def recover(_: ReceivedRequest) -> Answered:
        until["recovers"] -= 1
        return (202 if until["recovers"] <= 0 else 503), b"", {}

    recovers, never = context.inbox("recovers", recover), context.inbox("never", answer(503))
    rules = {"retry": 3, "backoffPolicy": "linear", "backoffDelay": "PT0.4S"}
    context.trigger("recovers", recovers, wait=False, delivery=rules)
    context.trigger("never", never, wait=False, delivery=rules)
    context.all_ready("recovers", "never")
    context.publish(url, "1")
    context.arrive(never, "1", "1", "1", "1", what="a subscriber that never takes it, with retry 3,")
    context.arrive(recovers, "1", "1", "1", what="a subscriber that takes it at the third attempt")
    times = [delivery.at for delivery in never.deliveries]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    for number, pause in enumerate(pauses, start=1):
        expect(pause >= 0.4 * number - 0.02, f"retry {number} came after {pause:.2f} s instead of {0.4 * number:.1f} s")
    return "retry 3: 4 attempts and no more, linear pauses kept; taken at the third attempt: 3"


def _dead_letters(context: CheckContext) -> str:
    failures = {"left": 2}

    def hesitate(_: ReceivedRequest) -> Answered:
        failures["left"] -= 1
        return (202 if failures["left"] < 0 else 503), b"", {}

    url = context.broker()
    sink, failing = context.inbox("sink"), context.inbox("failing", answer(500))
    hesitant, dropped = context.inbox("hesitant", hesitate), context.inbox("dropped", answer(500))
    replier = context.inbox("replier", reply_to("order", "r", "receipt"))
    once = FAST | {"retry": 0}
    context.trigger("failing", failing, wait=False, delivery=once | {"deadLetterSink": {"uri": sink.url}})
    context.trigger(
        "hesitant", failing, wait=False, delivery=FAST | {"retry": 2, "deadLetterSink": {"uri": hesitant.url}}
    )
    context.trigger("dropped", dropped, wait=False, delivery=once)
    context.trigger("replier", replier, wait=False, filter={"attributes": {"type": "order"}})
    context.all_ready("failing", "hesitant", "dropped", "replier")
    context.publish(url, "o", "order", {"n": 1})
    context.arrive(sink, "o", "r", what="the dead-letter sink")
    expect(all(letter.body in (b'{"n": 1}', b"{}") for letter in sink.deliveries), "a dead letter's data was changed")
    context.arrive(dropped, "o", "r", what="the subscriber without a sink")
    context.happens(lambda: set(hesitant.ids) >= {"o", "r"} and len(hesitant.deliveries) >= 4)
    expect(len(hesitant.deliveries) == 4, "a sink that fails at first is not tried again until it takes the letter")
    return "an initial event and a reply came to the sink; a failing sink is tried again; without one: dropped"


_API: Final = (Facility.API,)
CHECKS: Final = (
    Check("R01", MUST, "Events are durable before they are acknowledged", (Facility.API, Facility.RESTART), _durable),
    Check("R02", MUST, "Each associated Trigger is evaluated exactly once per event", _API, _exactly_once),
    Check("R03", MUST, "One delivery per matching Trigger, with equal subscribers too", _API, _equal_subscribers),
    Check("R04", MUST, "Event data is not modified", _API, _data_unchanged),
    Check("R05", MUST, "Replies are routed as any event, to the Trigger that made them too", _API, _replies),
    Check("R06", MUST, "When a reply cannot be stored the delivery failed and is retried", _API, _reply_not_stored),
    Check("R07", MAY, "Loops are detected", _API, _loops),
    Check("R08", MUST, "Retryable errors are retried up to `retry`, honouring the back-off", _API, _retries),
    Check(
        "R09", MUST, "Undeliverable events and replies go to the deadLetterSink, else are dropped", _API, _dead_letters
    ),
)
