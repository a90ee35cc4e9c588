import asyncio

import pytest

from headgate.auth.user import authenticated
from headgate.objects.kinds.egress import RESERVED_NAMESPACES
from headgate.observe.metrics import EVENTS_ACCEPTED, REQUESTS_REFUSED, STORE_SECONDS
from headgate_api.errors import OverloadedError, TooLargeError, UnavailableError
from headgate_api.event.http import BATCH_JSON, STRUCTURED_JSON
from headgate_api.event.json_format import encode_batch, encode_event
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import (
    BATCH_BYTES_MAX,
    BODIES_READING_BYTES_MAX,
    EVENT_BYTES_MAX,
    REQUEST_HEAD_BYTES_MAX,
    RETRY_AFTER_OVERLOAD_S,
    RETRY_AFTER_UNAVAILABLE_S,
)
from tests.ingress.support import FakeLog, call, ingress, publish, run

EVENT = Event("1.0", "1", "/s", "t", datacontenttype="application/json", data_kind=DataKind.JSON, data=b'{"a": 1}')
STRUCTURED = [("content-type", STRUCTURED_JSON)]
BATCH = [("content-type", BATCH_JSON)]
ATTRIBUTES = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")]


def refusals():
    return sum(child.value for child in REQUESTS_REFUSED.children.values())


def test_binary_structured_and_batched_events_are_stored_as_they_came():
    log = FakeLog()
    app = ingress(log)
    assert publish(app, EVENT).status == 202
    assert run(call(app, headers=STRUCTURED, pieces=(encode_event(EVENT),)))[0].status == 202
    answer, _ = run(call(app, headers=BATCH, pieces=(encode_batch([EVENT, EVENT]),)))
    assert (answer.status, answer.body, answer.headers) == (202, b"", {"content-length": "0"})
    assert log.events == [EVENT] * 4
    assert [len(submit) for submit in log.submits] == [1, 1, 2]
    assert {item.broker for submit in log.submits for item in submit} == {"ns/b/uid"}


def test_a_trace_goes_on_with_the_event_where_no_spans_are_made_too():
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "shop=1"}
    own = {"traceparent": trace["traceparent"].replace("b7", "c7")}
    log = FakeLog()
    app = ingress(log)
    run(call(app, headers=[*ATTRIBUTES, *trace.items()]))
    run(call(app, headers=[*BATCH, *trace.items()], pieces=(encode_batch([EVENT, EVENT]),)))
    run(call(app, headers=[*ATTRIBUTES, *trace.items(), ("ce-traceparent", own["traceparent"])]))
    run(call(app, headers=[*ATTRIBUTES, ("traceparent", "no context")]))
    assert [event.extensions for event in log.events] == [trace, trace, trace, own, {}]


def test_nothing_is_answered_before_the_event_is_stored():
    async def scenario():
        log = FakeLog()
        log.gate = asyncio.Event()
        request = asyncio.create_task(call(ingress(log), headers=STRUCTURED, pieces=(encode_event(EVENT),)))
        await asyncio.sleep(0.01)
        assert not request.done()
        log.gate.set()
        answer, _ = await request
        return answer.status

    assert run(scenario()) == 202


def test_an_empty_batch_is_accepted_and_stores_nothing():
    log = FakeLog()
    answer, _ = run(call(ingress(log), headers=BATCH, pieces=(b"[]",)))
    assert (answer.status, log.submits) == (202, [])


def test_a_batch_with_one_bad_event_stores_nothing_and_says_which():
    log = FakeLog()
    body = encode_batch([EVENT]).replace(b"]", b',{"specversion":"1.0","id":"","source":"/s","type":"t"}]')
    answer, _ = run(call(ingress(log), headers=BATCH, pieces=(body,)))
    assert (answer.status, log.submits) == (400, [])
    assert answer.problem == {
        "type": "urn:headgate:problem:invalid-event",
        "title": "Bad Request",
        "status": 400,
        "detail": "event 1: id: must be a non-empty string",
        "code": "invalid-event",
        "attribute": "id",
        "index": 1,
    }


def test_the_first_event_of_a_batch_is_named_too():
    answer, _ = run(call(ingress(FakeLog()), headers=BATCH, pieces=(b"[{}]",)))
    assert answer.problem["index"] == 0


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "QUERY"])
def test_other_methods_are_refused(method):
    log = FakeLog()
    answer, _ = run(call(ingress(log), method=method, headers=ATTRIBUTES))
    assert (answer.status, answer.headers["allow"], answer.problem["code"]) == (
        405,
        "POST, OPTIONS",
        "method-not-allowed",
    )
    assert log.submits == []


def test_options_is_the_webhook_handshake():
    answer, _ = run(call(ingress(FakeLog()), method="OPTIONS"))
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers == {"allow": "POST, OPTIONS", "content-length": "0"}
    asked = [("webhook-request-origin", "eventemitter.example.com"), ("webhook-request-rate", "120")]
    answer, _ = run(call(ingress(FakeLog()), method="OPTIONS", headers=asked))
    assert answer.status == 200
    assert answer.headers["webhook-allowed-origin"] == "eventemitter.example.com"
    assert answer.headers["webhook-allowed-rate"] == "*"


@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
def test_an_unknown_broker_is_not_found(method):
    answer, _ = run(call(ingress(FakeLog()), method=method, path="/ns/other", headers=ATTRIBUTES))
    assert (answer.status, answer.problem["code"]) == (404, "unknown-broker")
    assert "ns/other" in answer.problem["detail"]


@pytest.mark.parametrize(
    "path",
    ["/", "", "/ns", "/ns/", "//b", "//b/", "/ns//", "/ns/b//", "/ns/b/c", "/ns/b/c/", "/metrics", "/metrics/", "*"]
    + [f"/{segment}/b" for segment in sorted(RESERVED_NAMESPACES)],
)
def test_everything_else_goes_to_the_fallback(path):
    answer, _ = run(call(ingress(FakeLog(), brokers=[path[1:]]), path=path, headers=ATTRIBUTES))
    assert (answer.status, answer.body) == (299, path.encode())


def test_a_slash_behind_the_broker_does_not_matter():
    log = FakeLog()
    assert publish(ingress(log), EVENT, path="/ns/b/").status == 202
    assert log.events == [EVENT]
    assert run(call(ingress(log), method="OPTIONS", path="/ns/b/"))[0].status == 200


def test_other_kinds_of_scope_go_to_the_fallback():
    seen = []

    async def fallback(scope, receive, send):
        seen.append(scope["type"])

    app = ingress(FakeLog())
    app._fallback = fallback
    run(app({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


def test_a_body_in_pieces_is_read_whole():
    log = FakeLog()
    body = encode_event(EVENT)
    answer, unread = run(call(ingress(log), headers=STRUCTURED, pieces=(body[:7], b"", body[7:])))
    assert (answer.status, unread, log.events) == (202, 0, [EVENT])


@pytest.mark.parametrize("pieces", [(None,), (b'{"specversion"', None)])
def test_a_client_that_leaves_is_not_answered(pieces):
    log = FakeLog()
    app = ingress(log)
    answer, _ = run(call(app, headers=STRUCTURED, pieces=pieces))
    assert (answer, log.submits, len(app._bodies)) == (None, [], 0)


@pytest.mark.parametrize(("kind", "limit"), [(STRUCTURED, EVENT_BYTES_MAX), (BATCH, BATCH_BYTES_MAX)])
def test_a_declared_length_over_the_limit_is_refused_before_anything_is_read(kind, limit):
    for length in (str(limit + 1), "9" * 30):
        answer, unread = run(call(ingress(FakeLog()), headers=[*kind, ("content-length", length)], pieces=(b"x",)))
        assert (answer.status, unread, answer.headers["connection"]) == (413, 1, "close")
        assert answer.problem["code"] == "event-too-large"
    answer, unread = run(call(ingress(FakeLog()), headers=[*kind, ("content-length", str(limit))], pieces=(b"x",)))
    assert (answer.status, unread) == (400, 0)


def test_a_body_without_declared_length_is_counted():
    app = ingress(FakeLog())
    answer, unread = run(call(app, headers=STRUCTURED, pieces=(b" " * EVENT_BYTES_MAX, b"  ", b"never read", b"")))
    assert (answer.status, unread, len(app._bodies)) == (413, 2, 0)
    answer, _ = run(call(app, headers=STRUCTURED, pieces=(b" " * (EVENT_BYTES_MAX + 1),)))
    assert answer.status == 413


def test_bodies_in_pieces_share_a_bound():
    app = ingress(FakeLog())
    app._bodies.take("other", "eve", BODIES_READING_BYTES_MAX)
    answer, unread = run(call(app, headers=STRUCTURED, pieces=(b"{", b"}", b"")))
    assert (answer.status, unread, answer.headers["connection"]) == (429, 2, "close")
    assert "BODIES_READING_BYTES_MAX" in answer.problem["detail"]
    assert len(app._bodies) == BODIES_READING_BYTES_MAX


def test_a_body_takes_room_for_each_piece_that_comes():
    app = ingress(FakeLog())
    app._bodies.take("other", "eve", BODIES_READING_BYTES_MAX - 10)
    answer, unread = run(call(app, headers=STRUCTURED, pieces=(b"{", b" " * 20, b"}", b"")))
    assert (answer.status, answer.problem["code"], unread) == (429, "bodies", 2)
    assert len(app._bodies) == BODIES_READING_BYTES_MAX - 10


def test_a_sender_of_many_bodies_leaves_room_for_others():
    app, log = ingress(log := FakeLog()), log
    text = encode_event(EVENT)
    pieces = (text[:1], text[1:])

    def post(user):
        return run(call(app, headers=STRUCTURED, pieces=pieces, user=user))[0]

    eve, ann = authenticated("eve"), authenticated("ann")
    app._bodies.take("ns", "eve", BODIES_READING_BYTES_MAX * 5 // 8)
    assert [post(user).status for user in (eve, ann)] == [202, 202]
    app._bodies.take("loud", "eve", BODIES_READING_BYTES_MAX // 8)
    refused = post(eve)
    assert (refused.status, refused.problem["code"]) == (429, "bodies")
    assert "'eve'" in refused.problem["detail"]
    assert post(ann).status == 202, "another user in the same namespace"
    assert len(log.events) == 3


def test_headers_over_the_limit_are_refused():
    answer, _ = run(call(ingress(FakeLog()), headers=[("x-large", "x" * REQUEST_HEAD_BYTES_MAX)]))
    assert (answer.status, answer.problem["code"]) == (431, "headers-too-large")


def test_what_waits_for_the_disk_is_charged_with_its_headers():
    log = FakeLog()
    headers = [*ATTRIBUTES, ("ce-large", "x" * 1000), ("content-type", "text/plain")]
    run(call(ingress(log), headers=headers, pieces=(b"y" * 500,)))
    assert log.sizes == [sum(len(name) + len(text) for name, text in headers) + 500]


@pytest.mark.parametrize(
    ("headers", "status", "code", "attribute"),
    [
        ([("content-type", "application/json")], 400, "invalid-event", "specversion"),
        ([*ATTRIBUTES, ("ce-time", "yesterday")], 400, "invalid-event", "time"),
        ([("content-type", "application/cloudevents+avro")], 415, "unsupported-format", ""),
        ([("content-type", f"{STRUCTURED_JSON}; charset=utf-16")], 415, "unsupported-format", ""),
        ([*ATTRIBUTES, ("content-encoding", "gzip")], 415, "unsupported-format", ""),
    ],
)
def test_invalid_events_are_refused_with_the_attribute(headers, status, code, attribute):
    refused = refusals()
    answer, _ = run(call(ingress(FakeLog()), headers=headers, pieces=(b"{}",)))
    found = answer.problem
    assert (answer.status, found["status"], found["code"], found.get("attribute", "")) == (
        status,
        status,
        code,
        attribute,
    )
    assert refusals() == refused + 1


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (OverloadedError("the queue is full"), 429, str(RETRY_AFTER_OVERLOAD_S)),
        (UnavailableError("the disk is full"), 503, str(RETRY_AFTER_UNAVAILABLE_S)),
        (TooLargeError("too much at once"), 413, None),
    ],
)
def test_a_log_that_does_not_take_events_says_when_to_come_back(error, status, retry_after):
    accepted = EVENTS_ACCEPTED.value
    answer = publish(ingress(FakeLog(error)), EVENT)
    assert (answer.status, answer.headers.get("retry-after"), answer.problem["detail"]) == (
        status,
        retry_after,
        error.message,
    )
    assert EVENTS_ACCEPTED.value == accepted


def test_accepted_events_are_counted_and_timed():
    accepted, timed = EVENTS_ACCEPTED.value, sum(STORE_SECONDS.counts)
    run(call(ingress(FakeLog()), headers=BATCH, pieces=(encode_batch([EVENT] * 3),)))
    assert EVENTS_ACCEPTED.value == accepted + 3
    assert sum(STORE_SECONDS.counts) == timed + 1
