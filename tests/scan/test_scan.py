"""A reader hands out exactly the events that are wanted, whatever it passes over on the way."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.event.arrow import EVENT_SCHEMA
from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.skipping.literals import literals
from headgate.filter.skipping.prune import FilterValueRule, filter_value_rule
from headgate.ingress.encode import Entries, encode
from headgate.log.directory import LogDirectory, Partition
from headgate.log.format import Codec
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.kinds.specs import LogRule
from headgate.scan.chunks import ChunkLog
from headgate.scan.scan import Scan
from headgate.scan.source import Query
from headgate_api.event.http import canonical
from headgate_api.event.model import DataKind, Event
from tests.filter.hostile_events import random_event, random_stored_us
from tests.filter.strategies import random_filter, random_hard_filter
from tests.support import times

RULES = ["type", "tenant", "source", "data.s", 'ce.type + "/" + ce.tenant', "dataschema"]
TIMES = ["2026-11-21T10:00:00Z", "2020-02-29T18:29:59.123Z", "1970-01-01T00:00:00.001Z", "2020-02-29T18:29:59.123456Z"]
VALUES = ["a", "order.created", "/a", "gold", "abc", "a/gold", "nosuch", "mine"]


def value_of(event: Event, rule: FilterValueRule) -> str | None:
    given = event.extensions.get("filtervalue")
    return (rule.of(event) if given is None else canonical(given)) or None


class Stored(NamedTuple):
    """An event of the log, and when its chunk was written."""

    broker: str
    event: Event
    at_us: int


def store(directory: Path, rng: random.Random, rule: FilterValueRule, partitions: int = 2) -> dict[int, list[Stored]]:
    """Random chunks of two brokers, by partition."""
    stored: dict[int, list[Stored]] = {}
    for partition in range(partitions):
        stored[partition] = []
        times = sorted(random_stored_us(rng) for _ in range(12))
        clock = iter([*times, times[-1]])
        with PartitionWriter(
            Partition(directory / str(partition), "stop"), EVENT_SCHEMA, clock_us=lambda clock=clock: next(clock)
        ) as writer:
            for at_us in times:
                log = LogRule(rule, rng.choice([16, 40]), rng.choice([Codec.NONE, Codec.NONE, Codec.ZSTD]))
                group = [
                    Entries(rng.choice(["ns/a", "ns/a", "ns/b"]), log, [spiced(rng, random_event(rng))])
                    for _ in range(rng.choice([1, 2, 5, 20]))
                ]
                chunk = encode(group)
                writer.append(chunk)
                stored[partition] += [Stored(entry.broker, entry.events[0], at_us) for entry in group]
    return stored


@pytest.mark.parametrize("cel", ['ce.region == "eu"', 'has(ce.region) && ce.region in ["eu", "us"]', None])
@pytest.mark.parametrize("values", [None, frozenset({"eu"})])
def test_a_broker_made_anew_misses_none_of_its_events_and_has_none_of_the_one_before(
    tmp_path: Path, cel: str | None, values: frozenset[str] | None
) -> None:
    """A chunk of the old one, a chunk that both were in when it was written, and a chunk of the new one."""
    old, new = "ns/b/1", "ns/b/2"
    rules = {old: LogRule(filter_value_rule("type")), new: LogRule(filter_value_rule("region"))}

    def entries(broker: str, *names: str) -> Entries:
        return Entries(
            broker, rules[broker], [Event("1.0", one, "/s", "t", extensions={"region": "eu"}) for one in names]
        )

    chunks = [[entries(old, "a", "b")], [entries(old, "c"), entries(new, "d"), entries(old, "e")], [entries(new, "f")]]
    with PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA) as writer:
        for chunk in map(encode, chunks):
            writer.append(Encoded(chunk.batch, chunk.filter_values, also=chunk.also, bloom_bytes=chunk.bloom_bytes))
    scan = Scan(ChunkLog(LogDirectory(tmp_path, "stop")), Query(new, rules[new].value, values, cel=cel), {0: 0})
    found = [event.id for _ in range(3) for piece in scan.step(10) for event in piece.events()]
    scan.close()
    assert found == ["d", "f"]


def spiced(rng: random.Random, event: Event) -> Event:
    """Some events have a value of their producer's, and some write their data with escapes."""
    extensions = dict(event.extensions)
    if rng.random() < 0.1:
        extensions["filtervalue"] = rng.choice(["mine", "", "a"])
    data = event.data
    if event.data_kind is DataKind.JSON and data is not None and rng.random() < 0.2:
        data = (
            data.replace(b'"gold', b'"\\u0067old').replace(b'"order', b'"\\u006frder').replace(b'"abc', b'"a\\u0062c')
        )
    names = {name: getattr(event, name) for name in event.__struct_fields__}
    return Event(**{**names, "extensions": extensions, "data": data})


def expected(stored: dict[int, list[Stored]], query: Query, start: dict[int, int]) -> set[tuple[int, int]]:
    """What must come, by looking at every event."""
    wanted = set()
    for partition, entries in stored.items():
        for offset, entry in enumerate(entries):
            event = entry.event
            value = value_of(event, query.rule)
            if entry.broker != query.broker or offset < start[partition]:
                continue
            if query.values is not None and not (value in query.values if value else query.match_unfiltered):
                continue
            if query.cel is None or program(query.cel).evaluate(event, entry.at_us).kind is OutcomeKind.TRUE:
                wanted.add((partition, offset))
    return wanted


def read(scan: Scan, stored: dict[int, list[Stored]], events_max: int) -> list[tuple[int, int]]:
    found = []
    while True:
        pieces = scan.step(events_max)
        assert sum(len(piece.offsets) for piece in pieces) <= events_max
        for piece in pieces:
            for offset, event in zip(piece.offsets, piece.events(), strict=True):
                assert event == stored[piece.partition][offset].event
                found.append((piece.partition, offset))
                assert scan.positions[piece.partition] > offset
        if not pieces and scan.at_end():
            return found


def random_query(rng: random.Random, rule: FilterValueRule) -> Query:
    values = None if rng.random() < 0.4 else frozenset(rng.sample(VALUES, rng.randrange(4)))
    cel = None
    if rng.random() < 0.8:
        text = rng.choice([random_filter, random_hard_filter])(rng, rng.randrange(3))
        cel = rng.choice(
            [
                text,
                f'ce.type == "order.created" && ({text})',
                f'data.s == "abc" || ({text})',
                f'({text}) || "gold" in data.l',
                'data.l.exists(x, x == "order")',
                'ce.tenant == "gold"',
                f'publish_time {rng.choice(["<", ">=", "=="])} timestamp("{rng.choice(TIMES)}")',
                f'publish_time >= timestamp("{rng.choice(TIMES)}") && ({text})',
            ]
        )
    return Query("ns/a", rule, values, rng.random() < 0.3, cel)


@pytest.mark.parametrize("seed", range(times(3, 12)))
def test_what_comes_is_what_a_look_at_every_event_gives(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    rule = filter_value_rule(RULES[seed % len(RULES)])
    stored = store(tmp_path, rng, rule)
    seen: Counter[str] = Counter()
    for _ in range(60):
        query = random_query(rng, rule)
        start = {partition: rng.choice([0, 0, rng.randrange(len(entries))]) for partition, entries in stored.items()}
        scan = Scan(ChunkLog(LogDirectory(tmp_path, "stop")), query, start)
        found = read(scan, stored, rng.choice([1, 3, 10_000]))
        assert len(found) == len(set(found))
        assert set(found) == expected(stored, query, start), query
        for partition in stored:
            mine = [offset for at, offset in found if at == partition]
            assert mine == sorted(mine)
        assert scan.positions == {partition: len(entries) for partition, entries in stored.items()}
        counters = scan.counters
        assert counters.events_matched == len(found)
        seen["matched"] += len(found)
        seen["skipped"] += counters.chunks_skipped
        seen["clauses"] += bool(query.cel and literals(query.cel))
        scan.close()
    assert min(seen["matched"], seen["skipped"], seen["clauses"]) > 10


def test_a_reader_that_matches_nothing_comes_up_for_air_and_knows_where_it_is(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("headgate.scan.chunks.SCAN_CHUNKS_MAX", 2)
    rule = filter_value_rule("type")
    log = LogRule(rule)
    with PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA) as writer:
        for number in range(10):
            chunk = encode([Entries("ns/a", log, [Event("1.0", str(number), "/s", "t")])])
            writer.append(Encoded(chunk.batch, chunk.filter_values))
    scan = Scan(ChunkLog(LogDirectory(tmp_path, "stop")), Query("ns/a", rule, frozenset({"other"})), {0: 0})
    places = []
    while not scan.at_end():
        assert scan.step(1) == []
        places.append(scan.positions[0])
    assert places == [2, 4, 6, 8, 10]
    assert scan.counters.chunks_skipped == 10
    scan.close()


def test_a_wanted_value_that_was_only_the_filter_s_word_is_counted(tmp_path: Path):
    rule = filter_value_rule("type")
    with PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA) as writer:
        chunk = encode([Entries("ns/b", LogRule(rule), [Event("1.0", "1", "/s", "t")])])
        writer.append(Encoded(chunk.batch, chunk.filter_values))
    scan = Scan(ChunkLog(LogDirectory(tmp_path, "stop")), Query("ns/a", rule, frozenset({"t"})), {0: 0})
    assert scan.step(1) == []
    assert (scan.counters.chunks_read, scan.counters.false_positive_chunks) == (1, 1)
    scan.close()


@pytest.mark.parametrize("seed", range(times(1, 3)))
@pytest.mark.parametrize(
    "limits", [(1, math.inf, 1 << 30), (3, math.inf, 1 << 30), (1_000, 0.0, 1 << 30), (1_000, 0.0, 1)]
)
def test_turns_that_end_inside_chunks_find_and_count_what_long_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, limits: tuple[int, float, int]
):
    rng = random.Random(seed)
    rule = filter_value_rule(RULES[seed])
    stored = store(tmp_path, rng, rule)
    start = dict.fromkeys(stored, 0)
    events_max, until, bytes_max = limits
    for _ in range(15):
        query = random_query(rng, rule)
        long, short = (
            Scan(ChunkLog(LogDirectory(tmp_path, "stop")), query, start),
            Scan(ChunkLog(LogDirectory(tmp_path, "stop")), query, start),
        )
        wanted = read(long, stored, 10_000)
        found: list[tuple[int, int]] = []
        with monkeypatch.context() as patched:
            patched.setattr("headgate.scan.scan.SCAN_TURN_BYTES_MAX", bytes_max)
            while not short.at_end():
                before = short.positions
                pieces = short.step(events_max, until)
                found += [(piece.partition, offset) for piece in pieces for offset in piece.offsets]
                assert short.positions != before, "no progress"
        assert sorted(found) == sorted(wanted)
        assert short.counters == long.counters
        long.close()
        short.close()


def one_chunk(directory: Path, events: list[Event], rule: FilterValueRule) -> None:
    with PartitionWriter(Partition(directory / "0", "stop"), EVENT_SCHEMA) as writer:
        chunk = encode([Entries("ns/a", LogRule(rule), events)])
        writer.append(Encoded(chunk.batch, chunk.filter_values, also=chunk.also))


@pytest.mark.parametrize("text", [rb"a/b\"\\", rb"a\/b\"\\", rb"\u0061/b\"\\", rb"a/b\u0022\u005C"])
@pytest.mark.parametrize(
    "wanted", ['data.s.startsWith("a/b")', 'data.s.contains("/b\\"")', 'data.s.endsWith("b\\"\\\\")']
)
def test_a_text_is_found_however_its_data_writes_it(tmp_path: Path, text: bytes, wanted: str):
    rule = filter_value_rule("type")
    data = b'{"s": "%b"}' % text
    one_chunk(tmp_path, [Event("1.0", "1", "/s", "t", data_kind=DataKind.JSON, data=data)], rule)
    scan = Scan(ChunkLog(LogDirectory(tmp_path, "stop")), Query("ns/a", rule, cel=wanted), {0: 0})
    assert [piece.offsets for piece in scan.step(10)] == [[0]]
    scan.close()


@pytest.mark.parametrize("cel", [None, "ce.id != 'x'"])
def test_a_turn_ends_above_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cel: str | None):
    rule = filter_value_rule("type")
    events = [Event("1.0", str(n), "/s", "t", data_kind=DataKind.BINARY, data=bytes(1_000)) for n in range(10)]
    one_chunk(tmp_path, events, rule)
    monkeypatch.setattr("headgate.scan.scan.SCAN_TURN_BYTES_MAX", 2_500)
    scan = Scan(ChunkLog(LogDirectory(tmp_path, "stop")), Query("ns/a", rule, cel=cel), {0: 0})
    turns = []
    while pieces := scan.step(1_000):
        turns.append([offset for piece in pieces for offset in piece.offsets])
        assert sum(piece.size_bytes for piece in pieces) < 4_000
    assert turns == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    scan.close()


def test_a_turn_that_is_late_looks_at_one_event(tmp_path: Path):
    rule = filter_value_rule("type")
    one_chunk(tmp_path, [Event("1.0", str(n), "/s", "t") for n in range(4)], rule)
    scan = Scan(ChunkLog(LogDirectory(tmp_path, "stop")), Query("ns/a", rule, cel="int(ce.id) % 2 == 1"), {0: 0})
    turns = []
    while not scan.at_end():
        turns.append(sum(len(piece.offsets) for piece in scan.step(1_000, 0.0)))
    assert turns == [0, 1, 0, 1]
    assert (scan.counters.chunks_read, scan.counters.events_scanned, scan.counters.events_matched) == (1, 4, 2)
    scan.close()


def test_an_extension_is_no_column_whatever_it_is_called(tmp_path: Path):
    rule = filter_value_rule("extensions")
    one_chunk(tmp_path, [Event("1.0", "1", "/s", "t", extensions={"extensions": "gold"})], rule)
    scan = Scan(ChunkLog(LogDirectory(tmp_path, "stop")), Query("ns/a", rule, frozenset({"gold"})), {0: 0})
    assert [piece.offsets for piece in scan.step(10)] == [[0]]
    scan.close()


def test_a_scan_of_no_partitions_is_at_its_end(tmp_path: Path):
    scan = Scan(ChunkLog(LogDirectory(tmp_path, "stop")), Query("ns/a", filter_value_rule("type")), {})
    assert (scan.step(10), scan.at_end(), scan.positions) == ([], True, {})
    scan.close()
