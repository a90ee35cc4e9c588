"""What was stored is known for its window, after a start, too; never more, and never an event that was not stored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, from_batch_all, to_batch
from headgate.ingress.deduplication import HASH_BYTES, DeduplicatingWriter, KnownEvents
from headgate.ingress.stored_bytes import CountingWriter, StoredBytes
from headgate.log.directory import LogDirectory
from headgate.log.errors import LogUnavailableError
from headgate.log.group_commit import Sifted
from headgate.log.reader import PartitionReader
from headgate.log.writer import Encoded, PartitionWriter
from headgate_api.event.model import Event

BROKER, OTHER, PLAIN = "shop/once/u1", "shop/also/u2", "shop/plain/u3"
WINDOW_US = 600_000_000
WINDOWS = {BROKER: WINDOW_US, OTHER: 60_000_000}


class Clock:
    def __init__(self) -> None:
        self.us = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.us


def chunk(*ids: str, broker: str = BROKER, source: str = "/s") -> Encoded:
    rows = [StoredEvent(broker, Event("1.0", one, source, "t")) for one in ids]
    return Encoded(to_batch(rows), [f"value of {one}" for one in ids], windows=WINDOWS)


class Log:
    """A partition, its writer for group commit, and what it holds."""

    def __init__(self, directory: Path, clock: Clock, *, events_max: int = 1_000) -> None:
        self.partition = LogDirectory(directory, "stop").partition(0)
        self._writer = PartitionWriter(self.partition, EVENT_SCHEMA, clock_us=clock)
        stored = StoredBytes(LogDirectory(directory, "stop"), 0, {0: self._writer})
        counting = CountingWriter(self._writer, stored, 0)
        self.once = DeduplicatingWriter(counting, events_max=events_max, clock_us=clock)

    def append(self, *ids: str, broker: str = BROKER, source: str = "/s") -> tuple[list[int], list[bool]]:
        """Offsets, and which were there."""
        found = self.once.append(chunk(*ids, broker=broker, source=source))
        if isinstance(found, Sifted):
            return list(found.offsets), list(found.was_there)
        return list(range(found, found + len(ids))), [False] * len(ids)

    def ids(self) -> list[str]:
        with PartitionReader(self.partition, start=0) as reader:
            found = []
            while (one := reader.read()) is not None:
                found += [row.event.id for row in from_batch_all(one.batch)]
            return found

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[Log]:
    found = Log(tmp_path, clock)
    yield found
    found.close()


def test_an_event_that_comes_again_is_where_it_was(log: Log) -> None:
    assert log.append("a", "b") == ([0, 1], [False, False])
    assert log.append("b", "c", "a", "c", "d") == ([1, 2, 0, 2, 3], [True, False, True, True, False])
    assert log.append("a", "d") == ([0, 3], [True, True])
    assert log.ids() == ["a", "b", "c", "d"]


def test_another_source_or_broker_has_other_events(log: Log) -> None:
    assert log.append("a")[0] == [0]
    assert log.append("a", source="/other")[0] == [1]
    assert log.append("a", broker=OTHER)[0] == [2]
    assert log.append("a", "a", broker=PLAIN) == ([3, 4], [False, False])


def test_the_text_of_an_event_is_no_other_events() -> None:
    texts = [("a", "b c"), ("a b", "c"), ("a b c", "")]
    writer = DeduplicatingWriter(_Nowhere(), clock_us=Clock())
    rows = [row for source, id_ in texts for row in writer._hashed([(BROKER, source, id_)], WINDOWS)]
    assert len({hash_ for _, hash_ in rows}) == 3


@pytest.mark.parametrize(("broker", "window_us"), WINDOWS.items())
def test_the_window_is_exact(log: Log, clock: Clock, broker: str, window_us: int) -> None:
    assert log.append("a", broker=broker)[0] == [0]
    clock.us += window_us
    assert log.append("a", broker=broker) == ([0], [True])
    clock.us += 1
    assert log.append("a", broker=broker) == ([1], [False])
    clock.us += window_us
    assert log.append("a", broker=broker) == ([1], [True])


def test_what_is_not_stored_is_not_known(tmp_path: Path) -> None:
    writer = _Nowhere()
    once = DeduplicatingWriter(writer, clock_us=Clock())
    writer.error = LogUnavailableError("no room")
    with pytest.raises(LogUnavailableError):
        once.append(chunk("a"))
    writer.error = None
    assert once.append(chunk("a")) == 0
    assert once.known == 1


def test_filter_values_go_with_their_events(log: Log) -> None:
    seen: list[Encoded] = []
    append = log.once._writer.append
    log.once._writer.append = lambda one: seen.append(one) or append(one)  # type: ignore[method-assign,func-returns-value]
    log.append("a", "b")
    log.append("a", "c", "b", "d")
    assert [one.filter_values for one in seen] == [["value of a", "value of b"], ["value of c", "value of d"]]


@pytest.mark.parametrize("seed", range(5))
def test_a_start_knows_what_was_known(tmp_path: Path, clock: Clock, seed: int) -> None:
    choose = random.Random(seed)
    model: dict[tuple[str, str], tuple[int, int]] = {}
    log = Log(tmp_path, clock)
    log.once.recover(log.partition, WINDOWS)
    end = 0
    for _ in range(200):
        if choose.random() < 0.1:
            log.close()
            log = Log(tmp_path, clock)
            log.once.recover(log.partition, WINDOWS)
        clock.us += choose.choice([0, 1, 1_000_000, 20_000_000])
        broker = choose.choice([*WINDOWS, PLAIN])
        ids = [str(choose.randrange(40)) for _ in range(choose.randrange(1, 6))]
        offsets, was_there = [], []
        for one in ids:
            offset, time_us = model.get((broker, one), (0, 0))
            there = broker in WINDOWS and time_us >= clock.us - WINDOWS[broker]
            if not there:
                offset, end = end, end + 1
                model[broker, one] = offset, clock.us
            offsets.append(offset)
            was_there.append(there)
        assert log.append(*ids, broker=broker) == (offsets, was_there)
    assert len(log.ids()) == end
    log.close()


def test_more_than_can_be_known_is_stored_and_said(tmp_path: Path, clock: Clock) -> None:
    log = Log(tmp_path, clock, events_max=3)
    assert log.append("a", "b", "c", "d")[0] == [0, 1, 2, 3]
    assert log.once.lacking() == {BROKER}
    assert log.append("a", "d") == ([0, 4], [True, False])  # d was not remembered
    clock.us += WINDOW_US // 2
    assert log.append("x", broker=PLAIN)[0] == [5]
    assert log.once.lacking() == {BROKER}
    clock.us += WINDOW_US * 2  # what was known is over
    assert log.once.lacking() == set()
    assert log.append("e", "f", "g")[0] == [6, 7, 8]
    assert log.once.lacking() == set()
    assert log.append("e", "f", "g")[1] == [True] * 3
    log.close()


def test_a_log_that_has_lost_some_of_the_window_says_so(tmp_path: Path, clock: Clock) -> None:
    partition = LogDirectory(tmp_path, "stop").partition(0)
    with PartitionWriter(partition, EVENT_SCHEMA, clock_us=clock, segment_bytes_max=1) as writer:
        for one in "abc":
            writer.append(chunk(one))
        writer.publish_first_offset(1)
        sorted(partition.directory.glob("*.seg"))[0].unlink()
    clock.us += WINDOW_US // 3
    log = Log(tmp_path, clock)
    log.once.recover(partition, WINDOWS)
    assert log.once.lacking() == {BROKER}  # the window of the other one is over
    assert log.append("b", "a") == ([1, 3], [True, False])
    clock.us += WINDOW_US
    assert log.once.lacking() == set()
    log.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_table_of_known_events_is_a_dictionary(seed: int) -> None:
    choose = random.Random(seed)
    table, model = KnownEvents(), dict[bytes, tuple[int, int]]()
    # Few values of a byte: one hash often ends as another one begins.
    names = [bytes(choose.choices([0, 1], k=HASH_BYTES)) for _ in range(3_000)]
    for number, name in enumerate(names):
        table.add(name, number, number)
        model[name] = number, number
    assert len(table) == len(names)
    assert all(table.find(name) == found for name, found in model.items())
    unknown = [bytes(choose.choices([0, 1], k=HASH_BYTES)) for _ in range(3_000)]
    assert all(table.find(name) == model.get(name) for name in unknown)
    table.sweep_all(2_000)
    assert len(table) == 1_000
    assert all(table.find(name) == (found if found[1] >= 2_000 else None) for name, found in model.items())
    table.sweep_all(9_999)
    assert (len(table), table._shards) == (0, {})


def test_turns_of_sweeping_forget_everything_in_the_end() -> None:
    table = KnownEvents()
    for number in range(500):
        table.add(random.Random(number).randbytes(HASH_BYTES), number, 0)
    turns = 0
    while len(table):
        table.sweep(1, 10)
        turns += 1
        assert turns < 100


class _Nowhere:
    append_time_us = Clock()()

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.next = 0

    def append(self, chunk: Encoded) -> int:
        if self.error is not None:
            raise self.error
        self.next += chunk.batch.num_rows
        return self.next - chunk.batch.num_rows

    def probe(self) -> None:
        pass
