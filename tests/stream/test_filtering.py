"""Does filtering by values do what users of RabbitMQ streams expect? Their client's scenarios, on our log and reader.

Chunks are as large as a producer of small batches makes them; what is asked is what its tests ask: all of its own come,
what comes beside it (events looked at that have another value) is little.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from headgate.event.arrow import EVENT_SCHEMA
from headgate.filter.skipping.prune import EXTENSION, filter_value_rule
from headgate.ingress.encode import Entries, encode, event_commit
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.publish_http import Ingress
from headgate.log.directory import LogDirectory, Partition
from headgate.log.reader import PartitionReader
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.kinds.specs import LogRule, ServedBroker
from headgate.scan.chunks import ChunkLog
from headgate.scan.scan import Scan
from headgate.scan.source import Query, ScanCounters
from headgate_api.event.json_format import encode_batch
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import BLOOM_BYTES_MAX, BLOOM_BYTES_MIN
from tests.ingress.support import call, fallback

BROKER = "ns/b"
IDENTITY = f"{BROKER}/1"
BY_GROUP = filter_value_rule("group")
CHUNK_EVENTS = 50
WAVE = 10_000


def event(number: int, value: str | None) -> Event:
    extensions = {} if value is None else {"group": value}
    data = b'{"n":%d}' % number
    return Event("1.0", f"e{number}", "/s", "t", extensions=extensions, data_kind=DataKind.JSON, data=data)


class Log:
    """One partition; `stored` is the value of each event, by offset."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stored: list[str | None] = []
        self._writer = PartitionWriter(Partition(directory / "0", "stop"), EVENT_SCHEMA)

    def wave(
        self, given: Iterable[str | None], *, bloom_bytes: int = BLOOM_BYTES_MIN, size: int = CHUNK_EVENTS
    ) -> None:
        """Stores an event a value, `size` in a chunk."""
        rule, values = LogRule(BY_GROUP, bloom_bytes), list(given)
        for at in range(0, len(values), size):
            events = [event(len(self.stored) + index, value) for index, value in enumerate(values[at : at + size])]
            chunk = encode([Entries(IDENTITY, rule, events)])
            self._writer.append(
                Encoded(chunk.batch, chunk.filter_values, also=chunk.also, bloom_bytes=chunk.bloom_bytes)
            )
            self.stored += values[at : at + size]

    def read(self, *values: str, cel: str | None = None, unfiltered: bool = False) -> tuple[list[int], ScanCounters]:
        """Offsets that a reader gets, and what it took."""
        wanted = frozenset(values) if values or unfiltered else None
        scan = Scan(
            ChunkLog(LogDirectory(self.directory, "stop")), Query(IDENTITY, BY_GROUP, wanted, unfiltered, cel), {0: 0}
        )
        found: list[int] = []
        while not scan.at_end():
            for piece in scan.step(1_000):
                found += piece.offsets
        scan.close()
        return found, scan.counters

    def of(self, *values: str | None) -> list[int]:
        return [offset for offset, value in enumerate(self.stored) if value in values]

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterable[Log]:
    log = Log(tmp_path)
    yield log
    log.close()


def one_value_a_chunk(rng: random.Random, chunks: int) -> list[str | None]:
    """What producers that each have a value of their own leave behind."""
    return [value for _ in range(chunks) for value in [f"customer-{rng.randrange(40)}"] * CHUNK_EVENTS]


def test_three_waves_with_events_without_a_value_between(log: Log) -> None:
    rng = random.Random(7)
    for wave in range(3):
        if wave:
            log.wave([None] * 20 * CHUNK_EVENTS)
        log.wave(one_value_a_chunk(rng, 60))
    mine = log.of("customer-7")
    others = len(log.stored) - len(mine)
    assert mine, "the seed must give the reader something"
    found, counters = log.read("customer-7")
    assert found == mine
    assert counters.events_scanned - len(mine) < 0.05 * others
    assert counters.chunks_read + counters.chunks_skipped == len(log.stored) // CHUNK_EVENTS
    both, counters = log.read("customer-7", unfiltered=True)
    assert both == log.of("customer-7", None)
    assert counters.events_scanned - len(both) < 0.05 * others
    only, _ = log.read(unfiltered=True)
    assert only == log.of(None)
    # A filter that pins the value skips as the value itself does; one more condition changes only what comes.
    pinned, again = log.read(cel='ce.group == "customer-7"')
    assert (pinned, again.chunks_skipped) == (mine, log.read("customer-7")[1].chunks_skipped)
    narrower, again = log.read("customer-7", cel="data.n % 2 == 0")
    assert narrower == [offset for offset in mine if offset % 2 == 0]


@pytest.mark.parametrize("unfiltered", [False, True])
def test_a_wave_of_three_values_between_two_without(log: Log, unfiltered: bool) -> None:
    rng = random.Random(1)
    log.wave([None] * 1_000)
    log.wave(rng.choices(["apple", "banana", "pear"], k=1_000))
    log.wave([None] * 1_000)
    found, counters = log.read("apple", unfiltered=unfiltered)
    assert found == log.of("apple", *([None] if unfiltered else []))
    # Every chunk of the middle has apples, so all of it is looked at; the outer ones only where they are asked for.
    assert counters.events_scanned == (3_000 if unfiltered else 1_000)


def test_a_fourth_value_after_ten_thousand_events_of_three(log: Log) -> None:
    rng = random.Random(2)
    log.wave(rng.choices(["apple", "café", "pear"], k=WAVE))
    log.wave(["orange"] * WAVE)
    found, counters = log.read("orange")
    assert found == list(range(WAVE, 2 * WAVE))
    assert WAVE <= counters.events_scanned < 2 * WAVE
    assert log.read("café")[0] == log.of("café")


def test_a_log_of_events_without_values_is_read_whole_and_by_no_value(log: Log) -> None:
    log.wave([None, ""] * 500)
    assert len(log.read()[0]) == 1_000
    found, counters = log.read("apple")
    assert (found, counters.events_scanned) == ([], 0)
    assert len(log.read(unfiltered=True)[0]) == 1_000


def test_sizes_of_filters_may_be_mixed_in_one_log(log: Log) -> None:
    rng = random.Random(3)
    sizes = [BLOOM_BYTES_MIN, 64, 17, BLOOM_BYTES_MAX, 128, BLOOM_BYTES_MIN]
    for size in sizes:
        log.wave(rng.choices([f"v{number}" for number in range(200)], k=500), bloom_bytes=size)
    with PartitionReader(Partition(log.directory / "0", "stop"), start=0) as reader:
        kept = []
        while (chunk := reader.read()) is not None:
            kept.append(chunk.header.bloom_bytes)
    assert kept == [size for size in sizes for _ in range(500 // CHUNK_EVENTS)]
    for value in ("v0", "v7", "v199"):
        assert log.read(value)[0] == log.of(value)
    assert log.read("never")[0] == []


@pytest.mark.parametrize("size", [BLOOM_BYTES_MIN - 1, BLOOM_BYTES_MAX + 1, 0, -1])
def test_a_size_out_of_bounds_stores_nothing(tmp_path: Path, size: int) -> None:
    chunk = encode([Entries(IDENTITY, LogRule(BY_GROUP), [event(0, "a")])])
    with pytest.raises(ValueError, match=r"16\.\.255"):
        PartitionWriter(Partition(tmp_path / "1", "stop"), EVENT_SCHEMA, bloom_bytes=size)
    with PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA) as writer:
        with pytest.raises(ValueError, match=r"16\.\.255"):
            writer.append(Encoded(chunk.batch, chunk.filter_values, bloom_bytes=size))
        for allowed in (BLOOM_BYTES_MIN, BLOOM_BYTES_MAX):
            writer.append(Encoded(chunk.batch, chunk.filter_values, bloom_bytes=allowed))
        assert writer.next_offset == 2


def test_every_event_of_a_published_batch_has_its_own_value(tmp_path: Path) -> None:
    """What RabbitMQ's sub-batches and Pulsar's batches cannot: the producer's value, the rule's, none, in one body."""
    values: list[Callable[[Event], Event]] = [
        lambda one: one,
        lambda one: with_extension(one, "mine"),
        lambda one: with_extension(one, ""),
    ]

    async def publish() -> None:
        with PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA) as writer:
            commit = event_commit(writer)
            app = Ingress(
                Intake(Partitions([commit]), {BROKER: ServedBroker(IDENTITY, LogRule(BY_GROUP))}.get), fallback
            )
            for batch in range(40):
                events = [values[index % 3](event(5 * batch + index, f"g{batch}")) for index in range(5)]
                headers = [("content-type", "application/cloudevents-batch+json")]
                answer, _ = await call(app, "POST", f"/{BROKER}", headers, (encode_batch(events),))
                assert answer is not None
                assert answer.status == 202
            await commit.close()

    asyncio.run(publish())
    log = Log(tmp_path)
    mine, _ = log.read("mine")
    assert mine == [5 * batch + index for batch in range(40) for index in (1, 4)]
    of_rule, counters = log.read("g11")
    assert of_rule == [55, 58]
    assert counters.chunks_skipped > 30
    none, _ = log.read(unfiltered=True)
    assert none == [5 * batch + 2 for batch in range(40)]
    assert sorted(mine + none + log.read(*[f"g{batch}" for batch in range(40)])[0]) == list(range(200))
    log.close()


def with_extension(one: Event, value: str) -> Event:
    names = {name: getattr(one, name) for name in one.__struct_fields__}
    return Event(**{**names, "extensions": {**one.extensions, EXTENSION: value}})


def test_a_chunk_of_five_with_mixed_content_is_read_from_each_of_its_events(log: Log) -> None:
    """Inclusive is the event's own position, exclusive the next one; a filter does not move where a reader stands."""
    log.wave(["a", "b", None, "a", "b"] * 4, size=5)
    for start in range(21):
        for wanted in (None, frozenset({"a"})):
            scan = Scan(ChunkLog(LogDirectory(log.directory, "stop")), Query(IDENTITY, BY_GROUP, wanted), {0: start})
            found = [offset for piece in scan.step(1_000) for offset in piece.offsets]
            assert found == [at for at in range(start, 20) if wanted is None or log.stored[at] == "a"]
            assert scan.positions == {0: 20}
            scan.close()
    # One event a turn: the reader may stop inside a chunk and be given up and resumed there.
    found, at = [], 0
    while at < 20:
        scan = Scan(ChunkLog(LogDirectory(log.directory, "stop")), Query(IDENTITY, BY_GROUP, frozenset({"b"})), {0: at})
        found += [offset for piece in scan.step(1) for offset in piece.offsets]
        at = scan.positions[0]
        scan.close()
    assert found == log.of("b")
