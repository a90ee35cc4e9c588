"""Are events published over gRPC acknowledged in order after the fsync, and stored once however often they come?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate.auth.context import current_user
from headgate.auth.user import ANONYMOUS_NAME, authenticated
from headgate.ingress import publish_rpc
from headgate.ingress.producers import FILE, KnownProducers, Producers
from headgate.ingress.publish_rpc import decode
from headgate.log.directory import LogDirectory, Partition
from headgate.log.reader import PartitionReader
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.observe.tracing import Tracing
from headgate.rpc.service import RpcCall
from headgate.rpc.wire import parsed
from headgate.shares import PlacesTakenError
from headgate_api import limits
from headgate_api.event.model import Event
from headgate_api.rpc.cloudevents_pb2 import CloudEvent
from headgate_api.rpc.events import to_message
from headgate_api.rpc.headgate_pb2 import PublishRequest, PublishResponse
from tests.calls import Refused
from tests.ingress.publisher import BROKER, Log, answered, names, opened, publishing, request, run, said, stored_of

BAD_EVENT = to_message(Event("1.0", "x", "/s", "t"))
BAD_EVENT.id = ""


def test_many_requests_are_acknowledged_in_order_once_they_are_stored(tmp_path: Path) -> None:
    async def work() -> None:
        async with publishing(tmp_path) as (log, client):
            stream, _ = await opened(client)
            requests = 3 * limits.PUBLISH_REQUESTS_MAX

            async def send() -> None:
                for number in range(requests):
                    await stream.write(request(10 * number, 10))
                await stream.end()

            sending = asyncio.create_task(send())
            for number in range(requests):
                assert said(await stream.read()) == (10 * number, 10 * number + 9, 0)
                assert log.writers[0].next_offset >= 10 * (number + 1), "acknowledged before it is stored"
            assert await stream.read() is None
            await sending
            assert log.ids() == [names(0, 10 * requests)]

    run(work())


def test_filter_values_are_the_producers_where_it_gives_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with publishing(tmp_path) as (_, client):
            stream, _ = await opened(client)
            await stream.write(request(0, 3, filter_values=["a", "", "c"]))
            await stream.write(request(3, 2, filter_values=["a"]))
            answers = [said(message) for message in await stream.rest()]
            assert answers == [(0, 2, 0), (3, 4, "invalid")]
            extensions = [stored.event.extensions for stored in stored_of(tmp_path / "0")]
            assert extensions == [{"filtervalue": "a"}, {}, {"filtervalue": "c"}]
            with PartitionReader(Partition(tmp_path / "0", "stop"), start=0) as reader:
                assert reader.read(wanted={"c"}) is not None
                reader.seek(0)
                assert reader.read(wanted={"b"}) is None

    run(work())


@pytest.mark.parametrize(
    ("value", "code", "wrong"),
    [
        ("a\0b", "invalid-event", "event 1: filtervalue: a string must not hold U+0000"),
        ("\x1b", "invalid-event", "event 1: filtervalue: a string must not hold U+001B"),
        ("\ufdd0", "invalid-event", "event 1: filtervalue: a string must not hold U+FDD0"),
        ("v" * limits.EVENT_BYTES_MAX, "event-too-large", "event 1: an event must not be larger"),
    ],
)
def test_filter_values_are_checked_as_attributes_are(tmp_path: Path, value: str, code: str, wrong: str) -> None:
    async def work() -> None:
        async with publishing(tmp_path) as (log, client):
            stream, _ = await opened(client)
            await stream.write(request(0, 2, filter_values=["a", value]))
            [refused] = await stream.rest()
            assert said(refused) == (0, 1, code)
            assert refused.refused.problem.detail.startswith(wrong)
            assert log.ids() == [[]]

    run(work())


def test_a_filter_value_goes_before_the_attribute_of_that_name(tmp_path: Path) -> None:
    async def work() -> None:
        async with publishing(tmp_path) as (_, client):
            stream, _ = await opened(client)
            asked = request(0, 3, filter_values=["a", "", "é"])
            for event in asked.events:
                event.attributes["filtervalue"].ce_integer = 7
            await stream.write(asked)
            assert [said(message) for message in await stream.rest()] == [(0, 2, 0)]
            extensions = [stored.event.extensions for stored in stored_of(tmp_path / "0")]
            assert extensions == [{"filtervalue": "a"}, {"filtervalue": 7}, {"filtervalue": "é"}]

    run(work())


def test_what_is_wrong_is_refused_and_the_stream_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with publishing(tmp_path) as (log, client):
            for producer in ("", "p"):
                stream, first = await opened(client, producer)
                await stream.write(request(first))
                wrong = request(first + 1, 2)
                wrong.events[1].CopyFrom(BAD_EVENT)
                await stream.write(wrong)
                forged = request(first + 3)
                forged.events[0].attributes["headgatehops"].ce_integer = 1
                await stream.write(forged)
                many = request(first + 4, limits.PUBLISH_EVENTS_MAX + 1)
                await stream.write(many)
                last = first + 4 + len(many.events)
                await stream.write(request(last))
                assert [said(message) for message in await stream.rest()] == [
                    (first, first, 0),
                    (first + 1, first + 2, "invalid-event"),
                    (first + 3, first + 3, "invalid-event"),
                    (first + 4, last - 1, "too-large"),
                    (last, last, 0),
                ]
            assert log.ids() == [["e0", f"e{last}"] * 2]

    run(work())


@pytest.mark.parametrize(
    ("messages", "status", "code"),
    [
        ([], grpc.StatusCode.INVALID_ARGUMENT, "protocol"),
        ([b"\xff\xff"], grpc.StatusCode.INVALID_ARGUMENT, "protocol"),
        ([request(0)], grpc.StatusCode.NOT_FOUND, "unknown-broker"),
        ([PublishRequest(open=PublishRequest.Open(broker="ns/none"))], grpc.StatusCode.NOT_FOUND, "unknown-broker"),
        (
            [PublishRequest(open=PublishRequest.Open(broker=BROKER, producer="x" * 129))],
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid",
        ),
        (
            [PublishRequest(open=PublishRequest.Open(broker=BROKER)), request(5, 2), request(6)],
            grpc.StatusCode.INVALID_ARGUMENT,
            "protocol",
        ),
        (
            [PublishRequest(open=PublishRequest.Open(broker=BROKER)), request((1 << 64) - 2), request(0)],
            grpc.StatusCode.INVALID_ARGUMENT,
            "protocol",
        ),
        (
            [PublishRequest(open=PublishRequest.Open(broker=BROKER)), request((1 << 64) - 1)],
            grpc.StatusCode.INVALID_ARGUMENT,
            "protocol",
        ),
        (
            [PublishRequest(open=PublishRequest.Open(broker=BROKER)), request((1 << 64) - 3, 3)],
            grpc.StatusCode.INVALID_ARGUMENT,
            "protocol",
        ),
        ([PublishRequest(open=PublishRequest.Open(broker=BROKER))] * 2, grpc.StatusCode.INVALID_ARGUMENT, "protocol"),
    ],
)
def test_who_does_not_keep_to_the_rules_is_told_which(
    tmp_path: Path, messages: list[Any], status: grpc.StatusCode, code: str
) -> None:
    async def work() -> None:
        async with publishing(tmp_path) as (_, client):
            stream = client.call("Publisher/Publish", PublishResponse)
            for message in messages:
                await stream.write(message)
            with pytest.raises(Refused) as refused:
                await stream.rest()
            assert (refused.value.status, refused.value.code) == (status, code)
            again, _ = await opened(client)
            await again.write(request(0))
            assert [said(message) for message in await again.rest()] == [(0, 0, 0)]

    run(work())


def test_a_large_request_is_read_beside_the_loop_event_by_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read of the library is a step that everybody waits for."""
    decoded: list[tuple[int, bool]] = []
    read: list[bytes] = []

    def watched_decode(request: Any) -> Sequence[Event]:
        decoded.append((len(request.events), threading.current_thread() is threading.main_thread()))
        return decode(request)

    def watched_parsed(type_: Any, data: bytes) -> Any:
        assert type_ is CloudEvent
        read.append(data)
        return parsed(type_, data)

    monkeypatch.setattr(publish_rpc, "decode", watched_decode)
    monkeypatch.setattr(publish_rpc, "parsed", watched_parsed)
    few, many = limits.DECODE_EVENTS_INLINE, limits.DECODE_EVENTS_INLINE + 1
    assert len(request(few, many).SerializeToString()) < limits.RPC_BYTES_UNCOUNTED
    large = request(few + many)
    large.events[0].text_data = "x" * limits.RPC_BYTES_UNCOUNTED

    async def work() -> None:
        async with publishing(tmp_path) as (log, client):
            stream, _ = await opened(client)
            for sent in (request(0, few), request(few, many), large):
                await stream.write(sent)
            assert [said(message)[2] for message in await stream.rest()] == [0, 0, 0]
            assert log.ids() == [names(0, few + many + 1)]

    run(work())
    assert decoded == [(few, True), (many, False), (1, False)]
    assert [CloudEvent.FromString(data).id for data in read] == names(0, few + many + 1)


@pytest.mark.parametrize(
    ("event", "code", "wrong"),
    [
        (b"\xff", "invalid-event", "event 1: no io.cloudevents.v1.CloudEvent"),
        (b"\x2a\0" * limits.RPC_FIELDS_MAX + b"\x2a\0", "invalid-event", "event 1: a message has more than"),
        (b"x" * (limits.EVENT_BYTES_MAX + 1), "event-too-large", "event 1: an event must not be larger"),
    ],
)
def test_bytes_that_are_no_event_are_refused_and_the_stream_goes_on(
    tmp_path: Path, event: bytes, code: str, wrong: str
) -> None:
    size = bytes(len(event) >> shift & 0x7F | 0x80 for shift in (0, 7, 14)) + b"\0"

    async def work() -> None:
        async with publishing(tmp_path) as (_, client):
            stream, _ = await opened(client)
            await stream.write(request(0).SerializeToString() + b"\x1a" + size + event)
            await stream.write(request(2))
            refused, stored = await stream.rest()
            assert (said(refused), said(stored)) == ((0, 1, code), (2, 2, 0))
            assert refused.refused.problem.detail.startswith(wrong)

    run(work())


class HeldCall:
    """A call whose client opens a stream and then says nothing until it is told to leave."""

    def __init__(self, broker: str) -> None:
        self._first: list[bytes] = [PublishRequest(open=PublishRequest.Open(broker=broker)).SerializeToString()]
        self.opened = asyncio.Event()
        self.leave = asyncio.Event()

    async def read(self) -> bytes | None:
        if self._first:
            return self._first.pop()
        await self.leave.wait()
        return None

    async def write(self, _: bytes) -> None:
        self.opened.set()


def test_who_has_all_streams_that_he_may_leaves_some_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PUBLISH_STREAMS_MAX", 64)

    async def work() -> None:
        log = Log(tmp_path)
        log.brokers |= {path: ServedBroker(f"{path}/1", DEFAULT_RULE) for path in ("loud/b", "quiet/b")}
        streams: list[tuple[HeldCall, asyncio.Task[None]]] = []

        async def taken(user: str, broker: str) -> int:
            """How many streams a user gets."""
            for count in range(65):
                current_user.set(authenticated(user))
                held: Any = HeldCall(broker)
                stream = asyncio.create_task(log.rpc.publish(RpcCall(held, PublishRequest)))
                opening = asyncio.create_task(held.opened.wait())
                await asyncio.wait([stream, opening], return_when=asyncio.FIRST_COMPLETED)
                if stream.done():
                    opening.cancel()
                    with pytest.raises(PlacesTakenError, match="PUBLISH_STREAMS_MAX"):
                        stream.result()
                    return count
                streams.append((held, stream))
            raise AssertionError("there are more streams than there are")

        loud = await taken("eve", "loud/b")
        assert 32 < loud < 64
        assert await taken("ann", "loud/b") > 1, "another user of the same namespace"
        assert await taken("bob", "quiet/b") > 5, "another namespace"
        assert await taken("eve", "loud/b") == 0
        for held, stream in streams:
            held.leave.set()
            await stream
        assert await taken("eve", "loud/b") == loud, "places are given back"
        for held, stream in streams[-loud:]:
            held.leave.set()
            await stream
        await log.close()

    run(work())


def test_a_broker_that_goes_ends_its_streams(tmp_path: Path) -> None:
    async def work() -> None:
        async with publishing(tmp_path) as (log, client):
            stream, _ = await opened(client, "p")
            del log.brokers[BROKER]
            await stream.write(request(0))
            with pytest.raises(Refused) as refused:
                await stream.rest()
            assert refused.value.code == "unknown-broker"

    run(work())


# --- producers that number their events: what holds for every store is in tests/backend/numbered_contract.py ----------


class Failing:
    """Writes fail for as long as `broken` says so."""

    def __init__(self) -> None:
        from headgate.log.files import FileOps

        self._files = FileOps()
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def pwritev(self, fd: int, parts: Any, position: int) -> int:
        if self.broken:
            raise OSError(28, "No space left on device")
        return self._files.pwritev(fd, parts, position)


def test_nothing_is_stored_behind_what_failed(tmp_path: Path) -> None:
    """Else what failed, sent again, would pass for a duplicate and be lost."""

    async def work() -> None:
        files = Failing()
        async with publishing(tmp_path, files=files) as (log, client):
            stream, _ = await opened(client, "p")
            assert await answered(stream, request(0)) == (0, 0, 0)
            producing = log.producers._open[f"{BROKER}/1", "p"]
            rule = DEFAULT_RULE
            events = [Event("1.0", f"e{n}", "/s", "t") for n in range(4)]
            files.broken = True
            failing = asyncio.create_task(log.partitions.store_numbered(producing, rule, 1, events[1:2], 10))
            await asyncio.sleep(0)  # it is being written, the next ones wait behind it
            behind = [
                asyncio.create_task(log.partitions.store_numbered(producing, rule, n, events[n : n + 1], 10))
                for n in (2, 3)
            ]
            assert log.commits[0]._room.items == 1
            await asyncio.wait([failing])
            files.broken = False
            await asyncio.wait(behind)
            assert [type(task.exception()).__name__ for task in (failing, *behind)] == ["LogUnavailableError"] * 3
            await stream.write(request(4))
            [refused] = await stream.rest()
            assert said(refused) == (4, 4, "log-unavailable")
            assert refused.refused.problem.retriable
            assert log.ids() == [["e0"]]
            stream, following = await opened(client, "p")
            assert following == 1
            await stream.write(request(1, 4))
            assert [said(message) for message in await stream.rest()] == [(1, 4, 0)]
            assert log.ids() == [names(0, 5)]

    run(work())


def test_a_snapshot_bounds_what_a_start_reads_and_a_bad_one_costs_no_more_than_reading(tmp_path: Path) -> None:
    async def work() -> None:
        async with publishing(tmp_path, partitions=2) as (log, client):
            for producer in ("p", "q"):
                stream, _ = await opened(client, producer)
                await stream.write(request(0, 10))
                await stream.rest()
            await log.producers.snapshot(log.ends())
            stream, _ = await opened(client, "p")
            await stream.write(request(10, 5))
            await stream.rest()

        def newest() -> dict[tuple[str, str], int]:
            log = Log(tmp_path, 2)
            asyncio.run(log.close())
            return {(row.broker, row.producer): max(row.newest.values()) for row in log.producers._known.rows()}

        expected = {(f"{BROKER}/1", "q"): 9, (f"{BROKER}/1", "p"): 14}
        assert await asyncio.to_thread(newest) == expected
        snapshot = tmp_path / f"{FILE}-0"
        snapshot.write_bytes(snapshot.read_bytes()[:-3])
        assert await asyncio.to_thread(newest) == expected
        snapshot.unlink()
        assert await asyncio.to_thread(newest) == expected

    run(work())


@pytest.mark.parametrize("own", [True, False], ids=["of a stream", "of another front"])
def test_a_snapshot_holds_every_number_below_its_positions(tmp_path: Path, own: bool) -> None:
    """What is in the log and not known yet is waited for: a start reads nothing below the positions."""

    async def work() -> None:
        producers = Producers(LogDirectory(tmp_path, "stop"))
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if own:
            (await producers.open(f"{BROKER}/1", "p")).submitted(0, 7, stored)
        else:
            columns = {"broker": [f"{BROKER}/1"], "produced": ["7:p"]}
            producers.forwarded(0, pa.RecordBatch.from_pydict(columns), stored)
        snapshot = asyncio.create_task(producers.snapshot({0: 8}))
        await asyncio.sleep(0)
        stored.set_result(7)
        await snapshot
        again = Producers(LogDirectory(tmp_path, "stop"))
        again.recover({0: 8})
        assert again.newest(f"{BROKER}/1", "p") == {0: 7}

    run(work())


def test_a_snapshot_of_another_log_is_not_believed(tmp_path: Path) -> None:
    async def work() -> None:
        async with publishing(tmp_path / "a") as (log, client):
            stream, _ = await opened(client, "p")
            await stream.write(request(0, 10))
            await stream.rest()
            await log.producers.snapshot(log.ends())
        (tmp_path / "b").mkdir()
        (tmp_path / "a" / f"{FILE}-0").rename(tmp_path / "b" / f"{FILE}-0")
        async with publishing(tmp_path / "b") as (_, client):
            assert (await opened(client, "p"))[1] == 0

    run(work())


def test_producers_that_are_silent_for_longest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.ingress.producers.PRODUCERS_MAX", 2)

    async def work() -> None:
        async with publishing(tmp_path) as (_, client):
            for producer in ("p", "q", "p", "r"):
                stream, first = await opened(client, producer)
                await stream.write(request(first))
                await stream.rest()
            assert [(await opened(client, producer))[1] for producer in ("p", "q", "r")] == [2, 0, 1]

    run(work())


def known(rooms: KnownProducers) -> dict[str, list[str]]:
    found = dict[str, list[str]]()
    for row in rooms.rows():
        found.setdefault(f"{row.broker.partition('/')[0]} {row.user}", []).append(row.producer)
    return found


def test_nobodys_names_make_another_ones_numbers_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of another namespace, and in it not those of another user; who has most gives one up."""
    monkeypatch.setattr("headgate.ingress.producers.PRODUCERS_MAX", 8)
    rooms = KnownProducers()
    rooms.learn(("quiet/b/1", "p"), "ann", {0: 7, 1: 3})
    rooms.learn(("loud/b/1", "own"), "bob", {0: 1})
    for number in range(100):
        rooms.learn(("loud/b/1", f"x{number}"), "eve", {0: number})
    assert rooms.get(("quiet/b/1", "p")) == {0: 7, 1: 3}
    assert known(rooms) == {"quiet ann": ["p"], "loud bob": ["own"], "loud eve": [f"x{n}" for n in range(94, 100)]}
    rooms.get(("loud/b/1", "x94"), "eve")  # heard of again
    for number in range(3):
        rooms.learn(("third/b/1", f"y{number}"), "", {0: number})
    assert known(rooms)["loud eve"] == ["x94", "x98", "x99"]
    assert (rooms.get(("loud/b/1", "x95")), len(rooms.rows())) == (None, 8)


def test_who_takes_the_room_is_known_after_a_start(tmp_path: Path) -> None:
    async def work() -> None:
        async with publishing(tmp_path) as (log, client):
            stream, _ = await opened(client, "p")
            await stream.write(request(0))
            await stream.rest()
            await log.producers.snapshot(log.ends())
        again = await asyncio.to_thread(Log, tmp_path, 1)
        assert [row.user for row in again.producers._known.rows()] == [ANONYMOUS_NAME]
        await again.close()

    run(work())


def test_a_span_says_that_its_events_came_over_grpc(tmp_path: Path) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))

    async def work() -> None:
        async with publishing(tmp_path, tracing=Tracing(provider)) as (_, client):
            stream, _ = await opened(client)
            await stream.write(request(0, 2))
            await stream.read()

    run(work())
    (span,) = spans.get_finished_spans()
    attributes = dict(span.attributes or {})
    assert (span.name, attributes["messaging.protocol"], attributes["network.protocol.name"]) == (
        "receive",
        "GRPC",
        "grpc",
    )
    assert attributes["messaging.batch.message_count"] == 2
    assert attributes["messaging.destination"] == "broker:b.ns"
    assert "http.response.status_code" not in attributes
