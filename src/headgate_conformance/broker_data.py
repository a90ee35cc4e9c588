"""D01-D21: CloudEvents over HTTP as the data plane's specification has them, both ways."""

from __future__ import annotations

import itertools
import re
import threading
import time
from typing import Final

from headgate_conformance.broker_context import (
    COUNTED,
    FAST,
    MAY,
    MUST,
    ONCE,
    RESTARTED,
    SHOULD,
    Answered,
    Check,
    CheckContext,
    ReceivedRequest,
    SkippedError,
    answer,
    expect,
    in_turn,
)
from headgate_conformance.broker_routing import with_receipt

_EVENT: Final = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/c", "ce-type": "t"}
_STRUCTURED: Final = {"content-type": "application/cloudevents+json"}
_TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
_REPLY_TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
_TRACEPARENT_FORM: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_CONCURRENT_MAX: Final = 256
_GROWTH_MIN: Final = 1.5
"""How much longer than the shortest pause the last one is; exponential ones double."""
_NO_COUNT: Final = re.compile(r"_(bucket|sum|created)\b")
"""Samples of a metric that do not count."""
_HOLD_S_MAX: Final = 5.0
"""How long a slow subscriber holds a request: less than a broker's time-out."""


def _modes(context: CheckContext) -> str:
    url = context.ingress
    sent = {
        "binary mode": (_EVENT | {"content-type": "application/json"}, b'{"a":1}'),
        "binary mode without data": (_EVENT, b""),
        "structured mode": (_STRUCTURED, b'{"specversion":"1.0","id":"1","source":"/c","type":"t","data":{"a":1}}'),
    }
    for name, (headers, body) in sent.items():
        context.accepted(url, headers, body, name)
    return "binary with and without data, structured: accepted"


def _by_post(context: CheckContext) -> str:
    url, inbox = context.routed()
    context.publish(url, "1")
    context.arrive(inbox, "1")
    method = inbox.deliveries[0].method
    expect(method == "POST", f"the delivery is a {method}")
    return "POST"


def _options(context: CheckContext) -> str:
    status, _, headers = context.post(context.ingress, {"webhook-request-origin": "example.com"}, method="OPTIONS")
    if not 200 <= status < 300:
        raise SkippedError("the broker does not answer OPTIONS, which it need not")
    allowed = headers.get("allow", "")
    expect("POST" in [method.strip() for method in allowed.split(",")], f"Allow is {allowed!r}")
    return f"Allow: {allowed}"


def _other_methods(context: CheckContext) -> str:
    methods = ("GET", "HEAD", "PUT", "PATCH", "DELETE")
    for method in methods:
        status, _, _ = context.post(context.ingress, _EVENT if method not in ("GET", "HEAD") else {}, method=method)
        expect(status == 405, f"{method} is answered with {status}")
    return f"405 for {', '.join(methods)}"


def _success(context: CheckContext) -> str:
    return str(context.accepted(context.ingress, _EVENT))


def _malformed(context: CheckContext) -> str:
    bad: dict[str, tuple[dict[str, str], bytes]] = {
        f"no {name}": ({key: value for key, value in _EVENT.items() if key != f"ce-{name}"}, b"")
        for name in ("id", "source", "type")
    }
    bad["an empty id"] = (_EVENT | {"ce-id": ""}, b"")
    bad["no event at all"] = ({"content-type": "text/plain"}, b"hello")
    bad["structured mode that is no JSON"] = (_STRUCTURED, b'{"specversion":')
    bad["structured mode without an id"] = (_STRUCTURED, b'{"specversion":"1.0","source":"/c","type":"t"}')
    bad["an unknown event format"] = ({"content-type": "application/cloudevents+nonsense"}, b"{}")
    for name, (headers, body) in bad.items():
        status, _, _ = context.post(context.ingress, headers, body)
        expect(400 <= status < 500, f"{name} is answered with {status}")
    return f"{len(bad)} malformed requests: 4xx each"


def _stored_first(context: CheckContext) -> str:
    url, inbox = context.routed()
    ids = context.publish_all(url, range(20))
    context.environment.restart()
    missing = context.missing(inbox, ids)
    expect(not missing, f"{len(missing)} of 20 acknowledged events never came")
    return "killed right after the last answer: all of 20 acknowledged events came, before or after"


def _answers(context: CheckContext) -> str:
    url = context.broker()
    taken, final, again = (200, 201, 202, 204), (301, 302, 400, 401, 403, 410, 422), (404, 408, 409, 429, 500, 503, 777)
    inboxes = {
        # A body is no answer to a 204; the statuses are what counts.
        status: context.subscriber(str(status), answer(status, location="/elsewhere"), delivery=FAST | {"retry": 2})
        for status in (*taken, *final, *again)
    }
    context.all_ready()
    context.publish(url, "1")
    for status in (*again, *taken, *final):
        times = 3 if status in again else 1
        context.arrive(inboxes[status], *["1"] * times, what=f"a subscriber that answers {status}")
    return f"retried: {_list(again)}; not retried: {_list((*taken, *final))}"


def _list(statuses: tuple[int, ...]) -> str:
    return ", ".join(map(str, statuses))


def _duplicates(context: CheckContext) -> str:
    url, inbox = context.routed()
    for source in ("/a", "/a", "/b"):
        context.accepted(url, _EVENT | {"ce-source": source}, what="an event sent again")
    context.happens(lambda: len({delivery.attribute("source") for delivery in inbox.deliveries}) == 2)
    time.sleep(context.environment.where.quiet_s)
    sources = sorted(delivery.attribute("source") for delivery in inbox.deliveries)
    expect(set(sources) == {"/a", "/b"}, "an event of another source with the same id is taken for a duplicate")
    kept = "kept" if sources.count("/a") == 2 else "dropped"
    return f"a duplicate is accepted and {kept}; the same id of another source is another event"


def _congestion(context: CheckContext) -> str:
    url = context.broker()
    times: list[float] = []

    def busy(delivery: ReceivedRequest) -> Answered:
        times.append(delivery.at)
        return 503, b"", {}

    answering = threading.Event()

    def slow(_: ReceivedRequest) -> Answered:
        answering.wait(_HOLD_S_MAX)
        return 202, b"", {}

    delay_s = 0.2
    rules = {"retry": 3, "backoffPolicy": "exponential", "backoffDelay": f"PT{delay_s}S"}
    context.subscriber("failing", busy, delivery=rules, filter={"attributes": {"type": "one"}})
    sleepy = context.subscriber("slow", slow, filter={"attributes": {"type": "many"}})
    context.all_ready()
    context.publish(url, "1", "one")
    ids = context.publish_all(url, range(400), "many")
    context.rests(lambda: sleepy.busy)  # it has as many requests as the broker gives to one that does not answer
    answering.set()
    context.happens(lambda: set(ids) <= set(sleepy.ids) and len(times) >= 4)
    expect(set(ids) <= set(sleepy.ids), "a slow subscriber does not get all of 400 events")
    most = sleepy.busy_max
    expect(most <= _CONCURRENT_MAX, f"{most} requests at the same time to a subscriber that is slow")
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    expect(len(pauses) >= 3, f"{len(times)} attempts instead of 4")
    # A busy machine may make any pause longer, the first one too: the last one is compared with the shortest.
    is_each_long_enough = all(pause >= delay_s * 2**number - 0.02 for number, pause in enumerate(pauses))
    does_grow = is_each_long_enough and pauses[-1] > _GROWTH_MIN * min(pauses[:-1])
    expect(does_grow, "the pauses between attempts do not grow")
    return f"pauses grow; a slow subscriber got 400 events, never over {_CONCURRENT_MAX} at the same time"


def _prefer(context: CheckContext) -> str:
    url, inbox = context.routed()
    context.publish(url, "1")
    context.arrive(inbox, "1")
    found = inbox.deliveries[0].headers.get("prefer", "")
    expect("reply" in [part.strip() for part in found.split(",")], f"Prefer is {found!r}")
    return f"Prefer: {found}"


def _accepted_is_no_reply(context: CheckContext) -> str:
    url = context.broker()
    headers = {"ce_specversion": "1.0", "ce_id": "r", "ce_source": "/c", "ce_type": "receipt"}
    replier = context.subscriber("replier", answer(202, b"{}", **headers), filter={"attributes": {"type": "order"}})
    other = context.subscriber("other", filter={"attributes": {"type": "receipt"}})
    context.all_ready()
    context.publish(url, "o", "order")
    context.arrive(replier, "o")
    expect(not other.deliveries, "a 202 that looks like an event is taken for a reply")
    return "a 202 that looks like an event is none"


def _versions(context: CheckContext) -> str:
    url, inbox = context.routed()
    status, _, _ = context.post(url, _EVENT | {"ce-specversion": "0.3", "ce-id": "old"})
    if status >= 400:
        raise SkippedError("the broker takes events of 1.0 only")
    context.publish(url, "new")
    context.arrive(inbox, "old", "new")
    found = {delivery.id: delivery.attribute("specversion") for delivery in inbox.deliveries}
    expect(found == {"old": "0.3", "new": "1.0"}, f"the versions are {found}")
    return "0.3 stays 0.3, 1.0 stays 1.0"


def _identical(context: CheckContext) -> str:
    url, inbox = context.routed()
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-source": "/c?q=1#part",
        "ce-type": "com.example.Type",
        "ce-subject": "Z%C3%BCrich",
        "ce-time": "2020-02-29T12:00:00.123456789Z",
        "ce-dataschema": "http://example.com/schema",
        "ce-myextension": "value%20%22quoted%22",
        "content-type": "application/json",
    }
    context.post(url, headers, b'{"a": [1, 2.0]}')
    context.arrive(inbox, "1")
    came = inbox.deliveries[0]
    changed = [name for name, value in headers.items() if came.headers.get(name) != value]
    expect(not changed, f"changed: {', '.join(changed)}")
    expect(came.body == b'{"a": [1, 2.0]}', "the data was changed")
    return f"{len(headers)} headers and the data came as they were sent"


def _at_least_once(context: CheckContext) -> str:
    url = context.broker()
    inboxes = [context.subscriber(str(n), filter={"attributes": {"type": f"t{n % 2}"}}) for n in range(4)]
    context.all_ready()
    for number in range(200):
        context.publish(url, str(number), f"t{number % 2}")
    for number, inbox in enumerate(inboxes):
        wanted = {str(n) for n in range(200) if n % 2 == number % 2}
        context.missing(inbox, wanted)
        expect(set(inbox.ids) == wanted, f"{len(set(inbox.ids) ^ wanted)} events are missing or too many")
    return "200 events, 4 triggers with 2 filters: every match came, nothing else"


def _unwanted(context: CheckContext) -> str:
    context.publish(context.broker(), "1")
    return "an event that no Trigger wants is accepted"


def _malformed_reply(context: CheckContext) -> str:
    url = context.broker()
    malformed = {
        "no-id": answer(200, b"{}", ce_specversion="1.0", ce_source="/c", ce_type="receipt"),
        "no-json": answer(200, b'{"specversion":', content_type="application/cloudevents+json"),
    }
    rules = FAST | {"retry": 2}
    inboxes = {name: context.subscriber(name, respond, delivery=rules) for name, respond in malformed.items()}
    plain = context.subscriber("plain", answer(200, b"thanks", content_type="text/plain"), delivery=rules)
    context.all_ready()
    context.publish(url, "o", "order")
    for name, inbox in inboxes.items():
        context.arrive(inbox, "o", "o", "o", what=f"a subscriber whose reply has {name}")
    context.arrive(plain, "o", what="a subscriber whose 200 is no event")
    return "binary without an id and structured that is no JSON: retried; a plain 200 is not"


def _reply_not_accepted(context: CheckContext) -> str:
    url = context.broker()
    respond = in_turn(answer(200, ce_specversion="1.0", ce_id="r"), with_receipt())
    rules, orders = FAST | {"retry": 3}, {"attributes": {"type": "order"}}
    replier = context.subscriber("replier", respond, delivery=rules, filter=orders)
    other = context.subscriber("other", filter={"attributes": {"type": "receipt"}})
    context.all_ready()
    context.publish(url, "o", "order")
    context.arrive(other, "r", what="the trigger that wants the reply")
    context.arrive(replier, "o", "o", what="the trigger whose first reply was not accepted")
    return "the initial event was delivered again, and the second reply went out"


def _grows(context: CheckContext, before: dict[str, float], words: str, by: int) -> str:
    """A sample whose name or label has one of the words and which grew by at least so much.

    Of several the one that has the word in its name, then the one with the shortest name: how much each grew depends on
    other checks' triggers, which may still be at work.
    """
    pattern = re.compile(words)
    found: list[tuple[bool, int, str]] = []

    def holds() -> bool:
        now = context.environment.numbers()
        counts = {name: value for name, value in now.items() if not _NO_COUNT.search(name)}
        grown = {name: value - before.get(name, 0.0) for name, value in counts.items()}
        enough = [sample for sample, growth in grown.items() if pattern.search(sample) and growth >= by]
        names = {sample.partition("{")[0] for sample in enough}
        found[:] = [(pattern.search(name) is None, len(name), name) for name in names]
        return bool(found)

    expect(context.happens(holds), f"no metric named like {words} grew by {by}")
    return min(found)[2]


def _give_up(context: CheckContext) -> str:
    url = context.broker()
    inbox = context.inbox("t", answer(500))
    context.trigger("t", inbox, delivery=ONCE)
    before = context.environment.numbers()
    context.arrive(inbox, *context.publish_all(url, range(5)))
    name = _grows(context, before, "fail|drop|gave|dead|lost", 5)
    return f"5 events given up: {name} says so"


def _numbers(context: CheckContext) -> str:
    url, inbox = context.routed()
    before = context.environment.numbers()
    ids = context.publish_all(url, range(15))
    for _ in range(5):
        context.post(url, {"ce-specversion": "1.0", "ce-id": "x"})
    context.arrive(inbox, *ids)
    words: tuple[tuple[str, int], ...] = (("malformed|invalid|refused|reject", 5), ("accept", 15), ("deliver", 15))
    names = [_grows(context, before, pattern, by) for pattern, by in words]
    return ", ".join(names)


def _traces(context: CheckContext) -> str:
    url = context.broker()
    good = with_receipt()

    def respond(delivery: ReceivedRequest) -> Answered:
        status, body, headers = good(delivery)
        own = {"ce-traceparent": _traceparent(_REPLY_TRACE)} if delivery.attribute("id") == "own" else {}
        return status, body, {**headers, "ce-id": delivery.attribute("id"), **own}

    replier = context.subscriber("replier", respond, filter={"attributes": {"type": "order"}})
    other = context.subscriber("other", filter={"attributes": {"type": "receipt"}})
    context.all_ready()
    for event_id, name in (("header", "traceparent"), ("attribute", "ce-traceparent"), ("own", "traceparent")):
        context.post(url, _EVENT | {"ce-type": "order", "ce-id": event_id, name: _traceparent(_TRACE)})
    ids = ("header", "attribute", "own")
    context.arrive(replier, *ids)
    context.arrive(other, *ids)
    came = {one.attribute("id"): _trace_of(one) for one in replier.deliveries}
    expect(came == dict.fromkeys(ids, _TRACE), "the producer's trace does not come to the subscriber")
    replied = {one.attribute("id"): _trace_of(one) for one in other.deliveries}
    expect(replied.pop("own") == _REPLY_TRACE, "a reply's own trace does not stay")
    expect(set(replied.values()) == {_TRACE}, "the trace does not go on with the reply")
    return "the producer's trace comes to the subscriber and goes on with the reply; a reply's own stays"


def _traceparent(trace: str) -> str:
    return f"00-{trace}-00f067aa0ba902b7-01"


def _trace_of(delivery: ReceivedRequest) -> str:
    found = _TRACEPARENT_FORM.fullmatch(delivery.headers.get("traceparent", ""))
    return found[1] if found else ""


CHECKS: Final = (
    Check("D01", MUST, "CloudEvents 1.0 in binary and structured mode", _modes, ()),
    Check("D02", MUST, "Deliveries are POSTs", _by_post),
    Check("D03", MAY, "OPTIONS may be answered; then Allow includes POST", _options, ()),
    Check("D04", MUST, "Any method but POST on a publish URI is answered with 405", _other_methods, ()),
    Check("D05", MUST, "2xx for an accepted event", _success, ()),
    Check("D06", MUST, "4xx for what is no CloudEvent", _malformed, ()),
    Check("D07", SHOULD, "No success before the event is handled or stored", _stored_first, RESTARTED),
    Check("D08", MUST, "What each status of a subscriber's answer means", _answers),
    Check("D09", MUST, "Duplicates are accepted; equal is the same source and id", _duplicates),
    Check("D10", MUST, "Congestion control and retries", _congestion),
    Check("D11", MUST, "Prefer: reply on every delivery", _prefer),
    Check("D12", MUST, "A 202 is never a reply", _accepted_is_no_reply),
    Check("D13", SHOULD, "The version of an event stays", _versions),
    Check("D14", SHOULD, "Attributes and data arrive as they were sent", _identical),
    Check("D15", SHOULD, "At least once to every Trigger that was Ready and matches", _at_least_once),
    Check("D16", MAY, "An event that no Trigger wants may be dropped", _unwanted),
    Check("D17", SHOULD, "A malformed reply is a failed delivery", _malformed_reply),
    Check("D18", SHOULD, "A reply that is not accepted: the initial event is delivered again", _reply_not_accepted),
    Check("D19", SHOULD, "The operator hears of events given up", _give_up, COUNTED),
    Check("D20", SHOULD, "Metrics of malformed requests, accepted events and deliveries", _numbers, COUNTED),
    Check("D21", SHOULD, "The trace goes on to subscribers and replies", _traces),
)
