"""What does an operator see of a real server: its numbers, its health, its end?"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE, S_ISSOCK

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.observe.metrics import DECLARED
from headgate.testing.server import Server
from headgate_api.limits import DRAIN_S_MAX
from tests.commands import headgate, told
from tests.support import eventually
from tests.system.collector import Collector
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

pytestmark = pytest.mark.system

WITHOUT_VALUES = {
    *("headgate_trigger_backlog_deliveries", "headgate_trigger_oldest_seconds"),
    *("headgate_quota_events", "headgate_quota_bytes", "headgate_quota_refused", "headgate_quota_readers"),
    *("headgate_quota_consumers", "headgate_quota_dead_letters", "headgate_quota_stored_bytes"),
    *("headgate_broker_events_accepted", "headgate_namespace_delivery_seconds", "headgate_namespace_given_up"),
    *("headgate_deduplication_known", "headgate_deduplication_forgotten"),
    *("headgate_source_records_admitted", "headgate_source_records_refused"),
    "headgate_tls_certificate_expires_timestamp_seconds",
    "headgate_places_taken",
}
"""Metrics by trigger, broker, namespace, source, certificate or place: none before one has something to count."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Server]:
    """One server for this module, which exports its spans."""
    folder: Path = tmp_path_factory.mktemp("outside")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        with Server(folder / "data", log=folder / "server.log") as running:
            yield running


def trigger(server: Server, name: str, uri: str, expression: str, **delivery: object) -> None:
    spec = {"broker": "default", "subscriber": {"uri": uri}, "filter": {"expression": expression}}
    server.create("triggers", "default", name, spec | ({"delivery": delivery} if delivery else {}))
    server.wait_trigger_ready("default", name)


def numbers(server: Server) -> dict[tuple[str, str], float]:
    """(sample, label's value) -> number, bounds of buckets aside."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        assert answer.headers["content-type"].startswith("text/plain")
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "le" not in sample.labels:
                found[sample.name, "".join(sample.labels.values())] = sample.value
    return found


def untold(server: Server) -> set[str]:
    """Metrics that should be there, and that no part has written so far: each writes its own once a second."""
    told = {name.removesuffix("_total").removesuffix("_count").removesuffix("_sum") for name, _ in numbers(server)}
    return {name.removesuffix("_total") for name in DECLARED} - told - WITHOUT_VALUES


def post(server: Server, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", path, body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_every_stage_of_an_event_is_counted(outside: Server, subscriber: Subscriber) -> None:
    trigger(outside, "numbered", subscriber.url("numbered"), 'ce.type == "numbered" && data.n > 1')
    trigger(outside, "refused", "http://127.0.0.1:9/", 'ce.type == "refused"', retry=1, backoffDelay="PT0.05S")
    eventually(lambda: not untold(outside), lambda: f"no part tells {untold(outside)}")
    before = numbers(outside)
    publisher = Publisher(outside)
    for number in range(4):
        assert publisher.publish(f"n{number}", "numbered", {"n": number}) == 202
    assert publisher.publish("n-error", "numbered", {"other": 1}) == 202
    assert publisher.publish("n-refused", "refused") == 202
    assert post(outside, "/default/default", {"ce-specversion": "1.0", "ce-id": "x", "ce-source": "/s"}) == 400
    assert post(outside, "/default/nowhere", {"ce-specversion": "1.0"}) == 404
    eventually(lambda: len(subscriber.ids("numbered")) == 2)

    def grew(name: str, label: str = "") -> float:
        return numbers(outside)[name, label] - before[name, label]

    due = {
        ("headgate_events_accepted_total", ""): 6,
        ("headgate_store_seconds_count", ""): 6,
        ("headgate_requests_refused_total", "invalid-event"): 1,
        ("headgate_requests_refused_total", "unknown-broker"): 1,
        ("headgate_events_malformed_total", "type"): 1,
        ("headgate_filtered_total", "matched"): 3,
        ("headgate_deliveries_total", "delivered"): 2,
        ("headgate_deliveries_total", "failed"): 1,
        ("headgate_attempts_failed_total", "refused"): 2,
        ("headgate_retries_total", ""): 1,
        ("headgate_send_seconds_count", ""): 4,
        ("headgate_delivery_seconds_count", ""): 2,
        ("headgate_events_evaluated_total", "wanted"): 4,  # the matcher names the error, too
    }
    for (name, label), count in due.items():
        eventually(lambda name=name, label=label, count=count: grew(name, label) >= count)  # type: ignore[misc]
        assert grew(name, label) == count, (name, label)

    def is_told() -> bool:
        """Each part writes its numbers once a second, so those of two parts may differ for so long."""
        now = numbers(outside)
        parts = ("front-0", "dispatcher-0", "reader", "matcher")
        return (
            now["headgate_generation", ""] == now["headgate_generation_desired", ""] > 0
            and now["headgate_match_runs", "in_force"] == 1
            and [now["headgate_ready", part] for part in parts] == [1, 1, 1, 1]
            and now["headgate_log_bytes", "events"] > 0
            and now["headgate_log_records", "events"] >= 6
            and now["headgate_match_seconds_count", ""] >= 1
            and now["headgate_chunk_records_count", "events"] >= 1
        )

    eventually(is_told, lambda: numbers(outside))


def test_backlog_and_age_are_told_by_trigger(outside: Server) -> None:
    trigger(outside, "stuck", "http://127.0.0.1:9/", 'ce.type == "stuck"', retry=20, backoffDelay="PT60S")
    publisher = Publisher(outside)
    for number in range(3):
        assert publisher.publish(f"s{number}", "stuck") == 202
    eventually(lambda: numbers(outside).get(("headgate_trigger_backlog_deliveries", "default/stuck")) == 3)
    eventually(lambda: numbers(outside).get(("headgate_trigger_oldest_seconds", "default/stuck"), 0.0) > 1)
    outside.delete("triggers", "default", "stuck")


TRACE = "0af7651916cd43dd8448eb211c80319c"


def event_headers(event_id: str, type_: str, **more: str) -> dict[str, str]:
    ce = {"ce-specversion": "1.0", "ce-id": event_id, "ce-source": "/test", "ce-type": type_}
    return ce | {name.replace("_", "-"): value for name, value in more.items()}


def test_a_trace_goes_from_producer_to_subscriber_and_reply(
    outside: Server, collector: Collector, subscriber: Subscriber
) -> None:
    answer = {"ce-specversion": "1.0", "ce-id": "answer", "ce-source": "/sub", "ce-type": "traced.answer"}
    subscriber.answers["traced"] = (200, b"", *answer.items())
    trigger(outside, "traced", subscriber.url("traced"), 'ce.type == "traced"')
    trigger(outside, "replied", subscriber.url("replied"), 'ce.type == "traced.answer"')
    producer = f"00-{TRACE}-b7ad6b7169203331-01"
    sent = event_headers("tr1", "traced", traceparent=producer, tracestate="shop=1")
    assert post(outside, "/default/default", sent) == 202
    eventually(lambda: len(collector.of(TRACE).get("deliver", [])) == 2)
    eventually(lambda: len(collector.of(TRACE).get("receive", [])) == 2)
    spans = collector.of(TRACE)
    first, second = spans["receive"]
    assert first.parent == "b7ad6b7169203331"
    assert first.state == "shop=1"
    delivery, answered = spans["deliver"]
    assert delivery.parent == first.id
    assert second.parent == delivery.id, "the reply belongs to the attempt that it answers"
    assert answered.parent == second.id
    match = spans["match"][0]
    assert (match.parent, match.start_ns <= match.end_ns) == (first.id, True)
    common = {
        "messaging.system": "knative",
        "messaging.protocol": "HTTP",
        "messaging.message_id": "tr1",
        "messaging.message.id": "tr1",
        "network.protocol.name": "http",
        "cloudevents.event_id": "tr1",
        "cloudevents.event_source": "/test",
        "cloudevents.event_type": "traced",
        "cloudevents.event_spec_version": "1.0",
    }
    assert first.attributes == common | {
        "messaging.destination": "broker:default.default",
        "messaging.destination.name": "broker:default.default",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "http.response.status_code": 202,
    }
    assert match.attributes == common | {
        "messaging.destination": "trigger:traced.default",
        "messaging.destination.name": "trigger:traced.default",
        "messaging.operation.name": "match",
        "messaging.operation.type": "process",
    }
    assert delivery.attributes == common | {
        "messaging.destination": "trigger:traced.default",
        "messaging.destination.name": "trigger:traced.default",
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "send",
        "headgate.attempt": 1,
        "http.response.status_code": 200,
    }
    assert (first.part, delivery.part) == ("front-0", "dispatcher-0")
    got = next(one for one in subscriber.deliveries if one.path == "/traced")
    assert got.headers["traceparent"] == f"00-{TRACE}-{delivery.id}-01", "the header names this hop"
    assert got.headers["tracestate"] == "shop=1"
    assert got.headers["ce-traceparent"] == f"00-{TRACE}-{first.id}-01", "the extension that ingress added"


def test_each_attempt_is_a_span_and_an_extension_of_the_producer_stays(
    outside: Server, collector: Collector, subscriber: Subscriber
) -> None:
    trace = TRACE.replace("0a", "1a")
    own = f"00-{trace}-00f067aa0ba902b7-01"
    subscriber.status = 503
    trigger(outside, "again", subscriber.url("again"), 'ce.type == "again"', retry=2, backoffDelay="PT0.01S")
    assert post(outside, "/default/default", event_headers("ag1", "again", ce_traceparent=own)) == 202
    eventually(lambda: len(collector.of(trace).get("deliver", [])) == 3)
    spans = collector.of(trace)
    assert [span.attributes["headgate.attempt"] for span in spans["deliver"]] == [1, 2, 3]
    assert all(span.failed and span.attributes["http.response.status_code"] == 503 for span in spans["deliver"])
    assert all(span.attributes["error.type"] == "503" for span in spans["deliver"])
    assert len(spans["match"]) == 1
    assert {span.parent for span in spans["deliver"]} == {"00f067aa0ba902b7"}
    assert {one.headers["ce-traceparent"] for one in subscriber.deliveries} == {own}


def test_what_the_producer_does_not_sample_is_not_exported_but_goes_on(
    outside: Server, collector: Collector, subscriber: Subscriber
) -> None:
    trace = TRACE.replace("0a", "2a")
    trigger(outside, "unsampled", subscriber.url("unsampled"), 'ce.type == "unsampled"')
    sent = event_headers("us1", "unsampled", traceparent=f"00-{trace}-b7ad6b7169203331-00")
    assert post(outside, "/default/default", sent) == 202
    eventually(lambda: "us1" in subscriber.ids("unsampled"))
    got = next(one for one in subscriber.deliveries if one.path == "/unsampled").headers["traceparent"]
    assert got.startswith(f"00-{trace}-")
    assert got.endswith("-00")
    after = TRACE.replace("0a", "3a")  # exported later than the other would have been
    sent = event_headers("us2", "unsampled", traceparent=f"00-{after}-b7ad6b7169203331-01")
    assert post(outside, "/default/default", sent) == 202
    eventually(lambda: "deliver" in collector.of(after))
    assert collector.of(trace) == {}


def test_an_events_whole_story_is_told(outside: Server, subscriber: Subscriber) -> None:
    subscriber.status = 503
    trigger(outside, "told", subscriber.url("told"), 'ce.type == "told"', retry=1, backoffDelay="PT0.01S")
    assert Publisher(outside).publish("story-1", "told") == 202

    def story(*options: str) -> list[str]:
        return told("trace", "story-1", "--server", outside.url, *options).splitlines()

    eventually(lambda: story()[-1].endswith("ended: failed"))
    patterns = [
        r"event story-1  source /test  type told  broker default/default",
        r"trace [0-9a-f]{32}",
        r"\S+Z  stored: partition \d, offset \d+, chunk \d+ to \d+",
        r"\S+Z  matched: trigger default/told, verdict match, generation \d+, outbox position \d+",
        r"\S+Z    attempt 1: 503 Service Unavailable, failed \(503\)",
        r"\S+Z    attempt 2: 503 Service Unavailable, failed \(503\)",
        r"\S+Z    ended: failed",
    ]
    lines = story()
    assert len(lines) == len(patterns), lines
    for pattern, line in zip(patterns, lines, strict=True):
        assert re.fullmatch(pattern, line), line
    (line,) = story("--json")
    assert [one.get("status", 0) for one in json.loads(line)["matches"][0]["attempts"]] == [503, 503, 0]
    missing = headgate("trace", "nobody", "--server", outside.url)
    assert (missing.exit_code, "stored no event with the id 'nobody'" in missing.stderr) == (1, True)


def test_no_event_data_is_logged_and_each_line_is_one_fact(outside: Server, subscriber: Subscriber) -> None:
    """Everything that this module did is in the log: failures, refusals, filter errors, restarts."""
    marker = "SeCrEtMaRkEr"
    trigger(outside, "quiet", "http://127.0.0.1:9/", 'ce.type == "quiet" && data.n > 1', retry=0)
    publisher = Publisher(outside)
    assert publisher.publish("q1", "quiet", {"n": 2, "secret": marker}, secret=marker) == 202
    assert publisher.publish("q2", "quiet", {"n": marker}, secret=marker) == 202  # the filter is an error
    bad = event_headers("q3", "quiet", ce_time=marker)
    assert post(outside, "/default/default", bad, marker.encode()) == 400
    eventually(lambda: b"events given up" in outside_log(outside))
    text = outside_log(outside)
    assert marker.encode() not in text
    for line in text.splitlines():
        if line.startswith(b"{"):
            fact = json.loads(line)
            assert {"event", "level", "timestamp", "process"} <= fact.keys(), line


def outside_log(server: Server) -> bytes:
    return (server.data.parent / "server.log").read_bytes()


def verbose(server: Server) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/readyz?verbose")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_stop_under_load_is_orderly_and_loses_nothing(outside: Server, subscriber: Subscriber) -> None:
    """The last test of the module: it stops the server, with producers at work and a slow subscriber that replies."""
    subscriber.delay_s = 0.3
    subscriber.answers["loaded"] = lambda delivery: (
        200,
        b"",
        *[("ce-specversion", "1.0"), ("ce-source", "/reply"), ("ce-type", "answered"), ("ce-id", delivery.id)],
    )
    trigger(outside, "answered", subscriber.url("answered"), 'ce.type == "answered"')
    trigger(outside, "loaded", subscriber.url("loaded"), 'ce.type == "loaded"')
    accepted: list[str] = []

    def produce(producer: int) -> None:
        publisher = Publisher(outside)
        with contextlib.suppress(OSError, http.client.HTTPException):
            for number in itertools.count():
                event_id = f"p{producer}-{number}"
                if publisher.publish(event_id, "loaded") != 202:
                    return
                accepted.append(event_id)
                time.sleep(0.01)  # what waits is enough for a stop to leave it

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in producers:
        thread.start()
    eventually(lambda: len(subscriber.ids("loaded")) > 50)
    started = time.monotonic()
    assert outside.stop() == 0
    assert time.monotonic() - started < DRAIN_S_MAX, "Kubernetes kills what takes longer"
    for thread in producers:
        thread.join()
    subscriber.delay_s = 0.0
    outside.start()
    for path in ("loaded", "answered"):
        eventually(lambda path=path: set(accepted) <= set(subscriber.ids(path)))  # type: ignore[misc]
        repeated = [event_id for event_id, count in subscriber.ids(path).items() if count > 1]
        assert repeated == [], f"{path}: what was in flight had ended, its reply was stored, and both were written down"


def test_nobody_else_may_read_what_a_server_stores(outside: Server) -> None:
    found: dict[Path, int] = {}
    for path in (outside.data, *outside.data.rglob("*")):
        # Spark makes its copies of jars executable for all, in a directory that nobody else may enter.
        if path.suffix != ".jar":
            with contextlib.suppress(FileNotFoundError):  # a file that has just taken the place of another one
                found[path] = path.lstat().st_mode
    assert any(S_ISSOCK(mode) for mode in found.values())
    assert any(path.suffix == ".seg" for path in found)
    assert [f"{path} {S_IMODE(mode):o}" for path, mode in found.items() if mode & 0o077] == []
