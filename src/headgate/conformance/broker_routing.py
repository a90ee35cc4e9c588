"""R01-R09: routing, replies, retries and dead letters as the specification has them."""

from __future__ import annotations

import itertools
import time
from typing import Final

from headgate.conformance.broker_context import MAY, MUST, Check, CheckContext, expect
from headgate.conformance.broker_environment import (
    Answered,
    Facility,
    ReceivedRequest,
    Respond,
    SkippedError,
    ViolationError,
    answer,
)

FAST: Final = {"backoffDelay": "PT0.05S", "backoffPolicy": "linear"}
_HUGE_BYTES: Final = 8 << 20
_STEPS_MAX: Final = 200


def reply_to(type_: str, event_id: str, reply_type: str, body: bytes = b"{}") -> Respond:
    """A subscriber that answers events of a type with an event, and takes all others."""

    def respond(delivery: ReceivedRequest) -> Answered:
        if delivery.attribute("type") != type_:
            return 202, b"", {}
        headers = {"ce-specversion": "1.0", "ce-id": event_id, "ce-source": "/reply", "ce-type": reply_type}
        return 200, body, headers | {"content-type": "application/json"}

    return respond


def _durable(scene: CheckContext) -> str:
    url = scene.broker()
    back = {"up": False}
    inbox = scene.inbox("t", lambda _: (202 if back["up"] else 503, b"", {}))
    scene.trigger("t", inbox, delivery={"retry": 100, "backoffDelay": "PT0.5S", "backoffPolicy": "linear"})
    ids = [str(n) for n in range(50)]
    for event_id in ids:
        scene.publish(url, event_id)
    scene.stage.restart()
    back["up"] = True
    inbox.deliveries.clear()
    scene.happens(lambda: set(ids) <= set(inbox.ids))
    expect(set(ids) <= set(inbox.ids), f"{len(set(ids) - set(inbox.ids))} of 50 acknowledged events are lost")
    return "killed right after the last answer: all of 50 acknowledged events came after the restart"


def _exactly_once(scene: CheckContext) -> str:
    url = scene.broker()
    inboxes = {"all": scene.inbox("all"), "some": scene.inbox("some")}
    scene.trigger("all", inboxes["all"], wait=False)
    scene.trigger("some", inboxes["some"], wait=False, filter={"attributes": {"type": "t"}})
    scene.all_ready("all", "some")
    ids = [str(n) for n in range(50)]
    for event_id in ids:
        scene.publish(url, event_id)
    for inbox in inboxes.values():
        scene.arrive(inbox, *ids)
    return "50 events came to each of 2 triggers once"


def _equal_subscribers(scene: CheckContext) -> str:
    url = scene.broker()
    inbox = scene.inbox("t")
    scene.trigger("one", inbox, wait=False)
    scene.trigger("two", inbox, wait=False)
    scene.all_ready("one", "two")
    scene.publish(url, "1")
    scene.arrive(inbox, "1", "1")
    return "2 triggers with the same subscriber: 2 deliveries"


def _data_unchanged(scene: CheckContext) -> str:
    url = scene.broker()
    inbox = scene.inbox("t")
    scene.trigger("t", inbox)
    bodies = {
        "json": (b' {"b" : 1.50, "a":[ 1e2,"\\u00fc" ] }\n', "application/json"),
        "bytes": (bytes(range(256)), "application/octet-stream"),
        "text": ("grün\r\n".encode(), "text/plain; charset=utf-8"),
    }
    for name, (body, media_type) in bodies.items():
        headers = {"ce-specversion": "1.0", "ce-id": name, "ce-source": "/c", "ce-type": "t"}
        scene.post(url, headers | {"content-type": media_type}, body)
    scene.arrive(inbox, *bodies)
    for delivery in inbox.deliveries:
        expect(delivery.body == bodies[delivery.id][0], f"the data of the event {delivery.id} was changed")
    return "JSON with odd spaces and numbers, all 256 bytes and text came byte for byte"


def _replies(scene: CheckContext) -> str:
    url = scene.broker()
    replier = scene.inbox("replier", reply_to("order", "r", "receipt"))
    other = scene.inbox("other")
    scene.trigger("replier", replier, wait=False)
    scene.trigger("other", other, wait=False, filter={"attributes": {"type": "receipt"}})
    scene.all_ready("replier", "other")
    scene.publish(url, "o", "order")
    scene.arrive(other, "r", what="another trigger")
    scene.arrive(replier, "o", "r", what="the trigger that made the reply")
    return "the reply came to another trigger and to the one that made it"


def _reply_not_stored(scene: CheckContext) -> str:
    url = scene.broker()
    huge = b'"' + b"x" * _HUGE_BYTES + b'"'
    headers = {"ce-specversion": "1.0", "ce-id": "huge", "ce-source": "/c", "ce-type": "huge"}
    try:
        status, _, _ = scene.post(url, headers | {"content-type": "application/json"}, huge)
    except ViolationError:
        status = 0  # broken off: not stored either
    if 200 <= status < 300:
        raise SkippedError("the broker takes events of 8 MiB: there is no reply that it cannot store")
    inbox = scene.inbox("t", reply_to("order", "r", "receipt", huge))
    scene.trigger("t", inbox, delivery=FAST | {"retry": 2}, filter={"attributes": {"type": "order"}})
    scene.publish(url, "o", "order")
    scene.arrive(inbox, "o", "o", "o")
    return "a reply of 8 MiB, too large to be stored: the event was delivered again, `retry` times"


def _loops(scene: CheckContext) -> str:
    url = scene.broker()
    numbers = itertools.count(1)

    def echo(_: ReceivedRequest) -> Answered:
        number = next(numbers)
        if number > _STEPS_MAX:
            return 202, b"", {}
        return 200, b"", {"ce-specversion": "1.0", "ce-id": f"r{number}", "ce-source": "/loop", "ce-type": "loop"}

    inbox = scene.inbox("t", echo)
    scene.trigger("t", inbox)
    scene.publish(url, "o", "loop")
    count = -1
    while count != len(inbox.deliveries) and len(inbox.deliveries) <= _STEPS_MAX:
        count = len(inbox.deliveries)
        time.sleep(max(2.0, 2 * scene.stage.where.quiet_s))
    expect(count > 1, "the reply does not come back to its trigger")
    expect(count <= _STEPS_MAX, f"a trigger that answers itself goes on for over {_STEPS_MAX} steps")
    return f"a trigger that answers itself ended after {count} deliveries"


def _retries(scene: CheckContext) -> str:
    url = scene.broker()
    until = {"recovers": 3}

    def recover(_: ReceivedRequest) -> Answered:
        until["recovers"] -= 1
        return (202 if until["recovers"] <= 0 else 503), b"", {}

    recovers, never = scene.inbox("recovers", recover), scene.inbox("never", answer(503))
    rules = {"retry": 3, "backoffPolicy": "linear", "backoffDelay": "PT0.4S"}
    scene.trigger("recovers", recovers, wait=False, delivery=rules)
    scene.trigger("never", never, wait=False, delivery=rules)
    scene.all_ready("recovers", "never")
    scene.publish(url, "1")
    scene.arrive(never, "1", "1", "1", "1", what="a subscriber that never takes it, with retry 3,")
    scene.arrive(recovers, "1", "1", "1", what="a subscriber that takes it at the third attempt")
    times = [delivery.at for delivery in never.deliveries]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    for number, pause in enumerate(pauses, start=1):
        expect(pause >= 0.4 * number - 0.02, f"retry {number} came after {pause:.2f} s instead of {0.4 * number:.1f} s")
    return "retry 3: 4 attempts and no more, linear pauses kept; taken at the third attempt: 3"


def _dead_letters(scene: CheckContext) -> str:
    failures = {"left": 2}

    def hesitate(_: ReceivedRequest) -> Answered:
        failures["left"] -= 1
        return (202 if failures["left"] < 0 else 503), b"", {}

    url = scene.broker()
    sink, failing = scene.inbox("sink"), scene.inbox("failing", answer(500))
    hesitant, dropped = scene.inbox("hesitant", hesitate), scene.inbox("dropped", answer(500))
    replier = scene.inbox("replier", reply_to("order", "r", "receipt"))
    once = FAST | {"retry": 0}
    scene.trigger("failing", failing, wait=False, delivery=once | {"deadLetterSink": {"uri": sink.url}})
    scene.trigger(
        "hesitant", failing, wait=False, delivery=FAST | {"retry": 2, "deadLetterSink": {"uri": hesitant.url}}
    )
    scene.trigger("dropped", dropped, wait=False, delivery=once)
    scene.trigger("replier", replier, wait=False, filter={"attributes": {"type": "order"}})
    scene.all_ready("failing", "hesitant", "dropped", "replier")
    scene.publish(url, "o", "order", {"n": 1})
    scene.arrive(sink, "o", "r", what="the dead-letter sink")
    expect(all(letter.body in (b'{"n": 1}', b"{}") for letter in sink.deliveries), "a dead letter's data was changed")
    scene.arrive(dropped, "o", "r", what="the subscriber without a sink")
    scene.happens(lambda: set(hesitant.ids) >= {"o", "r"} and len(hesitant.deliveries) >= 4)
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
