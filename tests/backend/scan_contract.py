"""What scans of every event store keep: the tests of `headgate.scan.source`, for each store to inherit.

The truth is what cel-cpp says of every event that the store's plain reader hands out.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace
from starlette.applications import Starlette

from headgate.event.arrow import from_batch_all
from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.request import filter_and_filters
from headgate.ingress.encode import Entries
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.scan import scan as scan_module
from headgate.scan.pages import Located, LogScanner
from headgate.scan.scan import Piece, Scan
from headgate.scan.search import EventFinder, FilterSearch, latest
from headgate.scan.source import EARLIEST, NEXT, Query, ReadableLog, start_offsets
from headgate.stream import follow
from headgate.stream.api import ReadApi
from headgate.stream.follow import Readers
from headgate.stream.request import ReadRequest, read_request
from headgate_api.event.model import DataKind, Event
from headgate_api.event.rfc3339 import text as time_text
from headgate_api.positions import PositionError
from tests.backend.contract import BROKER, PARTITIONS, OpenStore
from tests.filter.hostile_events import random_event
from tests.stream.test_api import Client, listening

OTHER = "default/other/77"
SERVED = ServedBroker(BROKER, DEFAULT_RULE)
PATH = "default/default"
FILTERS: Sequence[tuple[str, object]] = (
    ("filter", 'ce.type.startsWith("order") && (!has(ce.subject) || ce.subject != "a")'),
    ("filter", 'data.s == "gold" || publish_time > timestamp("2000-01-01T00:00:00Z") && ce.type == "a"'),
    ("filter", {"attributes": {"type": "order"}}),
    ("filter", {"cesql": "type LIKE 'order%' OR EXISTS tenant"}),
    ("filter", {"eventPattern": {"detail": {"s": [{"prefix": "go"}, "order"]}}}),
    ("filter", {"jms": "JMSType LIKE 'a%' OR JMSType = 'order'"}),
    ("filter", {"pulsar": {"property": "tenant", "operator": "IN", "values": ["a", "gold"]}}),
    ("filter", {"tags": {"anytag0": "gold"}}),
    ("filters", [{"prefix": {"type": "order"}}, {"not": {"suffix": {"type": "created"}}}]),
)
"""One of each dialect, as a request names it."""


@dataclass(frozen=True)
class Known:
    """A stored event as the store's plain reader hands it out."""

    partition: int
    offset: int
    stored_us: int
    broker: str
    event: Event


def hostile(rng: random.Random) -> Event:
    """An event that ingress would accept: extensions may be maps in version 0.3 alone."""
    event = random_event(rng)
    has_map = any(isinstance(value, dict) for value in event.extensions.values())
    return replace(event, specversion="0.3") if has_map else event


def known(store: OpenStore) -> list[Known]:
    """Everything that is stored, in order within each partition."""
    found = []
    for partition in range(PARTITIONS):
        reader = store.reader(partition)
        while (page := reader.read()) is not None:
            rows = zip(page.offsets, page.append_times_us, from_batch_all(page.batch), strict=True)
            found += [Known(partition, at, stored_us, row.broker, row.event) for at, stored_us, row in rows]
    return found


def cel_of(name: str, value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return compile_filter(*filter_and_filters(*((text, None) if name == "filter" else (None, text)))).cel


def wanted(everything: Iterable[Known], cel: str | None, broker: str = BROKER) -> list[Known]:
    """What cel-cpp takes."""
    own = [one for one in everything if one.broker == broker]
    if cel is None:
        return own
    judge = program(cel)
    return [one for one in own if judge.evaluate(one.event, one.stored_us).kind is OutcomeKind.TRUE]


def places(found: Iterable[Known]) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = defaultdict(list)
    for one in found:
        offsets[one.partition].append(one.offset)
    return dict(offsets)


def scanned(scan: Scan, events_max: int = 1_000) -> list[Piece]:
    """Every piece up to the end, by turns."""
    found, deadline = [], time.monotonic() + 60
    try:
        while True:
            pieces = scan.step(events_max)
            found += pieces
            if not pieces and scan.at_end():
                return found
            assert time.monotonic() < deadline
    finally:
        scan.close()


def offsets_of(pieces: Iterable[Piece]) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = defaultdict(list)
    for piece in pieces:
        offsets[piece.partition] += piece.offsets
    return dict(offsets)


@dataclass(frozen=True)
class Filled:
    """A store with hostile events, and what they are; for all tests that only read."""

    store: OpenStore
    events: Sequence[Known]


def filled_with(store: OpenStore) -> Filled:
    """The store, with events that `known` has read back."""
    asyncio.run(ScanContract.fill(store, 1))
    return Filled(store, known(store))


class ScanContract:
    """The tests; a store's own class has the fixture `store`, its file `filled`."""

    @pytest.fixture
    def store(self) -> OpenStore:
        raise NotImplementedError

    @pytest.fixture
    def log(self, filled: Filled) -> Iterator[ReadableLog]:
        log = filled.store.log()
        yield log
        log.close()

    @staticmethod
    async def fill(store: OpenStore, seed: int, appends: int = 60) -> None:
        """Hostile events of two brokers, one by one and in batches."""
        rng = random.Random(seed)
        appender = await store.appender()
        waiting = []
        for _ in range(appends):
            events = [hostile(rng) for _ in range(rng.choice([1, 1, 2, 30]))]
            entries = Entries(rng.choice([BROKER, BROKER, OTHER]), DEFAULT_RULE, events)
            waiting.append(asyncio.ensure_future(appender.append({rng.randrange(PARTITIONS): entries}, 1_000)))
            if rng.random() < 0.2:
                await waiting[-1]
        for offsets in await asyncio.gather(*waiting):
            await asyncio.to_thread(store.settle, offsets)
        await appender.close()

    @staticmethod
    async def append(store: OpenStore, partition: int, *names: str) -> float:
        """Stores events; when that was answered, as `time.monotonic()` says."""
        appender = await store.appender()
        events = [Event("1.0", name, "/s", "t", data_kind=DataKind.JSON, data=b"{}") for name in names]
        offsets = await appender.append({partition: Entries(BROKER, DEFAULT_RULE, events)}, 100)
        answered_s = time.monotonic()
        await asyncio.to_thread(store.settle, offsets)
        await appender.close()
        return answered_s

    def test_a_filter_of_each_dialect_takes_what_cel_cpp_says(self, filled: Filled, log: ReadableLog) -> None:
        everything = filled.events
        start, taken = start_offsets(log, EARLIEST), 0
        for name, value in (*FILTERS, ("filter", "true")):
            query = Query(BROKER, DEFAULT_RULE.value, cel=cel_of(name, value))
            truth = wanted(everything, query.cel)
            taken += len(truth)
            pieces = scanned(Scan(log, query, start), 50)
            assert offsets_of(pieces) == places(truth), value
            by_place = {(one.partition, one.offset): one for one in truth}
            for piece in pieces:
                rows = zip(piece.offsets, piece.append_times_us, piece.events(), strict=True)
                assert all(
                    (by_place[piece.partition, at].stored_us, by_place[piece.partition, at].event) == (us, event)
                    for at, us, event in rows
                )
        assert taken > 300

    def test_a_scan_begins_ends_and_is_cut_anywhere(
        self, filled: Filled, log: ReadableLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        everything, rng = filled.events, random.Random(2)
        ends = log.end_offsets()
        for turn in range(12):
            monkeypatch.setattr(scan_module, "SCAN_TURN_BYTES_MAX", rng.choice([1, 1_000, 1 << 20]))
            start = {partition: rng.randint(0, end) for partition, end in ends.items()}
            end = {partition: rng.randint(at, ends[partition]) for partition, at in start.items()}
            cel = rng.choice([None, 'ce.type.startsWith("order")'])
            query = Query(BROKER, DEFAULT_RULE.value, cel=cel)
            scan = Scan(log, query, start, end if turn % 3 else {})
            found: list[Piece] = []
            for _ in range(rng.choice([0, 1, 3])):  # goes on in another scan
                found += scan.step(rng.choice([1, 7]), time.monotonic() if turn % 2 else time.monotonic() + 60)
            behind = scan.positions
            scan.close()
            found += scanned(Scan(log, query, behind, end if turn % 3 else {}), rng.choice([1, 40]))
            limits = end if turn % 3 else ends
            truth = [one for one in everything if start[one.partition] <= one.offset < limits[one.partition]]
            assert offsets_of(found) == places(wanted(truth, cel))

    def test_positions_behind_every_turn_lose_and_repeat_nothing(self, filled: Filled, log: ReadableLog) -> None:
        found = defaultdict(list)
        at = start_offsets(log, EARLIEST)
        query = Query(BROKER, DEFAULT_RULE.value)
        ends, deadline = log.end_offsets(), time.monotonic() + 60
        while at != ends:
            scan = Scan(log, query, at)
            for piece in scan.step(20):
                found[piece.partition] += piece.offsets
            at = scan.positions
            scan.close()
            assert time.monotonic() < deadline
        assert found == places(wanted(filled.events, None))

    def test_time_begins_at_the_first_event_stored_then(self, store: OpenStore) -> None:
        async def run() -> None:
            for number in range(3):
                await self.append(store, number % PARTITIONS, f"{number}a", f"{number}b")
                await asyncio.sleep(0.005)  # another millisecond

        asyncio.run(run())
        everything, log = known(store), store.log()
        for one in everything:
            found = start_offsets(log, time_text(one.stored_us))
            for partition, at in found.items():
                since = [
                    each.offset
                    for each in everything
                    if each.partition == partition and each.stored_us >= one.stored_us
                ]
                assert at == (since[0] if since else log.end_offsets()[partition])
        assert start_offsets(log, "2100-01-01T00:00:00Z") == start_offsets(log, NEXT) == log.end_offsets()

    def test_the_first_and_the_last_event_of_an_expression_are_found(self, filled: Filled, log: ReadableLog) -> None:
        everything = filled.events

        async def run() -> None:
            with ThreadPoolExecutor(2) as threads:
                finder = EventFinder(log, LogScanner(log, threads))
                start, end = start_offsets(log, EARLIEST), start_offsets(log, NEXT)
                for cel in ('ce.type == "order"', 'has(ce.tenant) && ce.tenant == "gold"', "false"):
                    truth = [Located(one.stored_us, one.partition, one.offset) for one in wanted(everything, cel)]
                    for last in (False, True):
                        search = FilterSearch(BROKER, DEFAULT_RULE.value, cel, last)
                        found = await finder.find(search, start, end)
                        assert found == (None if not truth else max(truth) if last else min(truth))
                own = FilterSearch(BROKER, DEFAULT_RULE.value, None, last=True)
                found_latest = await latest(finder, own, start, end)
                assert found_latest == {
                    partition: offsets[-1] for partition, offsets in places(wanted(everything, None)).items()
                }

        asyncio.run(run())

    # --- over HTTP and following -----------------------------------------------------------------------

    @staticmethod
    @asynccontextmanager
    async def readers(log: ReadableLog) -> AsyncIterator[Readers]:
        readers = Readers(log, {PATH: SERVED}.get)
        try:
            yield readers
        finally:
            await readers.close()

    def test_http_answers_from_every_place_and_by_every_filter(
        self, filled: Filled, log: ReadableLog, tmp_path: Path
    ) -> None:
        everything = filled.events
        own = wanted(everything, None)

        async def run(get: Callable[..., Any]) -> None:
            def placed(lines: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
                found: dict[int, list[int]] = defaultdict(list)
                for line in lines:
                    if "hgposition" in line:
                        partition, _, offset = line["hgposition"].partition(":")
                        found[int(partition)].append(int(offset))
                return dict(found)

            for name, value in FILTERS[:4]:
                lines = await get(**{name: value if isinstance(value, str) else json.dumps(value)})
                assert placed(lines) == places(wanted(everything, cel_of(name, value)))
                assert lines[-1]["progress"]["atEnd"]
            half = own[len(own) // 2]
            begin = {partition: (half.offset if partition == half.partition else 0) for partition in range(PARTITIONS)}
            token = ",".join(f"{partition}:{at}" for partition, at in begin.items())
            assert placed(await get(**{"from": token})) == places(o for o in own if o.offset >= begin[o.partition])
            values = {half.event.type}
            assert placed(await get(filterValue=half.event.type)) == places(o for o in own if o.event.type in values)
            first = 'ce.type == "order"'
            at_first = min((o.stored_us, o.partition, o.offset) for o in wanted(everything, first))
            found = placed(await get(first=first))
            stored = {(o.partition, o.offset): o.stored_us for o in own}
            assert all(stored[p, o] >= at_first[0] for p, offsets in found.items() for o in offsets)
            assert found[at_first[1]][0] == at_first[2]

        async def serve() -> None:
            async with self.readers(log) as readers:
                app = Starlette(routes=ReadApi(readers).routes(), exception_handlers=ERROR_HANDLERS)
                async with listening(app, tmp_path / "r.sock"):
                    client, path = Client(tmp_path / "r.sock"), f"/{PATH}/events"

                    async def get(**parameters: object) -> list[dict[str, Any]]:
                        answer = await client.get(urlencode(parameters), path=path)
                        assert answer.status == 200, answer.body
                        return [json.loads(line) for line in answer.body.splitlines()]

                    await run(get)
                    ends = ",".join(f"{partition}:{1 << 40}" for partition in range(PARTITIONS))
                    refused = await client.get(urlencode({"from": ends}), path=path)
                    assert (refused.status, b"behind the end" in refused.body) == (400, True)

        asyncio.run(serve())

    def test_one_that_follows_gets_new_events_within_a_second(
        self, store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is woken: no timer of its own looks for them."""
        monkeypatch.setattr(follow, "READ_PROGRESS_S", 1_000.0)

        async def run() -> list[float]:
            await self.append(store, 0, "old")
            delays = []
            async with self.readers(store.log()) as readers:
                wanted = read_request(SERVED, [("from", "next")], follow=True)
                async with aclosing(readers.reading(wanted)) as reading:
                    assert not (await anext(reading)).pieces  # says where it begins
                    for number in range(3):
                        appending = asyncio.create_task(self.append(store, number % PARTITIONS, f"new{number}"))
                        while not (turn := await anext(reading)).pieces:
                            pass
                        got_s = time.monotonic()
                        assert [event.id for _, _, event, _ in turn.placed()] == [f"new{number}"]
                        delays.append(got_s - await appending)
                assert len(readers._places) == 0
            return delays

        assert min(asyncio.run(asyncio.wait_for(run(), 60))) < 1.0

    def test_a_client_that_leaves_ends_its_scan(self, log: ReadableLog, tmp_path: Path) -> None:
        async def run() -> None:
            async with self.readers(log) as readers:
                app = Starlette(routes=ReadApi(readers).routes(), exception_handlers=ERROR_HANDLERS)
                async with listening(app, tmp_path / "r.sock"):
                    client = Client(tmp_path / "r.sock")
                    for query in ("from=earliest&follow=true", "from=next&follow=true"):
                        async with client.open(query, path=f"/{PATH}/events") as source:
                            assert await source.readuntil(b"position")
                            assert len(readers._places) == 1
                        while len(readers._places):
                            await asyncio.sleep(0.01)

        asyncio.run(asyncio.wait_for(run(), 60))

    def test_a_reader_that_searches_everything_takes_one_turn_as_every_other(
        self, log: ReadableLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By turns: between two steps of a reader each of the others has one at most."""
        order: list[int] = []
        step = Scan.step

        def counted(scan: Scan, *arguments: Any) -> list[Piece]:
            order.append(id(scan))
            return step(scan, *arguments)

        monkeypatch.setattr(Scan, "step", counted)
        monkeypatch.setattr(follow, "READ_EVENTS_PER_TURN", 5)
        hard = 'ce.type.matches("(a|b|order)*nothing") || false'

        async def run() -> None:
            growth = follow.LogGrowth(log)
            with ThreadPoolExecutor(1) as threads:

                async def read(cel: str | None) -> int:
                    request = ReadRequest(Query(BROKER, DEFAULT_RULE.value, cel=cel), limit=40 if cel is None else None)
                    async with aclosing(follow.turns(log, request, threads, growth)) as turns:
                        return sum([len(piece.offsets) async for turn in turns for piece in turn.pieces])

                found = await asyncio.gather(*[read(cel) for cel in (hard, None, None, None, None)])
            assert found[1:] == [40] * 4

        asyncio.run(run())
        steps: Mapping[int, list[int]] = defaultdict(list)
        for at, scan in enumerate(order):
            steps[scan].append(at)
        assert len(steps) == 5
        for scan, places_of in steps.items():
            for before, after in pairwise(places_of):
                between = [other for other in order[before + 1 : after] if other != scan]
                assert max((between.count(other) for other in set(between)), default=0) <= 2, order

    def test_a_place_behind_the_end_is_refused(self, store: OpenStore) -> None:
        async def run() -> None:
            await self.append(store, 0, "a")
            async with self.readers(store.log()) as readers:
                wanted = read_request(SERVED, [("from", "0:7777,1:0")], follow=True)
                with pytest.raises(PositionError, match="0:7777 is behind the end"):
                    await anext(readers.reading(wanted))

        asyncio.run(run())
