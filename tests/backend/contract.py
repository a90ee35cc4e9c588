"""What every event store keeps: the tests of the interface `EventReader`, for each store to inherit.

A store is opened anew by each test, and by programs of their own that are killed (`tests/backend/writer.py`).
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import pytest

from headgate.backend.kafka.scan import EventPage
from headgate.event.arrow import from_batch_all
from headgate.ingress.encode import Entries
from headgate.ingress.partitions import EventAppender
from headgate.objects.kinds.specs import DEFAULT_RULE
from headgate.scan.source import ReadableLog
from headgate_api.errors import TooLargeError
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import COMMIT_QUEUE_EVENTS_MAX
from tests.support import times

PARTITIONS = 2
BROKER = "default/default/1b4e28ba"


class EventReader(Protocol):
    """Reads one partition forward; blocking, for one thread at a time. Sees what is durable, and nothing else."""

    @property
    def position(self) -> int:
        """Offset of the next event to be read, or below it where numbers are left out."""
        ...

    def read(self) -> EventPage | None:
        """The next events, from `position` on; None at the end of what is durable.

        Everything below an `end_offset()` that was asked for before is read before None is returned.

        Raises:
            UnavailableError: The store does not answer; `position` stays.
        """
        ...

    def seek(self, offset: int) -> None:
        """Goes on reading at `offset`. What retention has removed is passed over."""
        ...

    def first_offset(self) -> int:
        """The first offset that retention has kept."""
        ...

    def end_offset(self) -> int:
        """Every event that can be read now is below it."""
        ...

    def close(self) -> None:
        """Gives everything back; idempotent."""
        ...


class OpenStore(Protocol):
    """A store that a test has for itself."""

    @property
    def address(self) -> Sequence[str]:
        """What a program needs to open it, too: see `tests/backend/writer.py`."""
        ...

    async def appender(self) -> EventAppender:
        """Opens it for writing."""
        ...

    def reader(self, partition: int, start: int = 0) -> EventReader:
        """Opens it for reading."""
        ...

    def log(self) -> ReadableLog:
        """Opens it for scans."""
        ...

    def settle(self, offsets: Mapping[int, Sequence[int]]) -> None:
        """Returns once these events can be read, which an appender has answered for."""
        ...

    def close(self) -> None:
        """Gives back what the test has left open."""
        ...


def event(name: object, **extensions: str | int | bool) -> Event:
    return Event("1.0", str(name), "/s", "t", extensions=dict(extensions), data_kind=DataKind.JSON, data=b'{"a":1}')


def entries(*names: object, **extensions: str | int | bool) -> Entries:
    return Entries(BROKER, DEFAULT_RULE, [event(name, **extensions) for name in names])


def pages(reader: EventReader) -> list[EventPage]:
    """Everything up to the end."""
    found = []
    while (page := reader.read()) is not None:
        found.append(page)
    return found


def stored(reader: EventReader) -> dict[int, Event]:
    """Everything up to the end, by offset."""
    found: dict[int, Event] = {}
    for page in pages(reader):
        assert len(page.offsets) == len(page.append_times_us) == page.batch.num_rows
        assert list(page.offsets) == sorted(set(page.offsets))
        assert page.next_offset > page.offsets[-1] > max(found, default=-1)
        rows = from_batch_all(page.batch)
        assert {row.broker for row in rows} == {BROKER}
        found |= dict(zip(page.offsets, [row.event for row in rows], strict=True))
    return found


def whole(ids: Sequence[str]) -> Mapping[str, int]:
    """How many events there are of each batch; ids are BATCH/NUMBER/SIZE."""
    counts: dict[str, int] = defaultdict(int)
    for name in ids:
        counts[name.partition("/")[0]] += 1
    sizes = {name.partition("/")[0]: int(name.rpartition("/")[2]) for name in ids}
    assert counts == sizes, "a batch is there in part, or twice"
    return counts


class EventStoreContract:
    """The tests; a store's own class has the fixture `store`."""

    @pytest.fixture
    def store(self) -> OpenStore:
        raise NotImplementedError

    async def appended(self, store: OpenStore, *parts: Mapping[int, Entries]) -> list[Mapping[int, Sequence[int]]]:
        """Some appends, one after the other; they can be read."""
        appender = await store.appender()
        try:
            found = [await appender.append(part, 1_000) for part in parts]
        finally:
            await appender.close()
        for offsets in found:
            await asyncio.to_thread(store.settle, offsets)
        return found

    def test_what_was_appended_is_read_at_the_offsets_that_were_answered(self, store: OpenStore) -> None:
        (one, some) = asyncio.run(self.appended(store, {0: entries("a", n=1)}, {0: entries("b", "c"), 1: entries("d")}))
        assert [len(offsets) for offsets in (one[0], some[0], some[1])] == [1, 2, 1]
        assert stored(store.reader(0)) == dict(
            zip([*one[0], *some[0]], [event("a", n=1), event("b"), event("c")], strict=True)
        )
        assert stored(store.reader(1)) == {some[1][0]: event("d")}

    def test_every_reader_reads_an_appended_event_once(self, store: OpenStore) -> None:
        async def run() -> None:
            appender = await store.appender()
            readers = [store.reader(0), store.reader(0)]
            for number in range(20):
                names = [f"{number}/{i}" for i in range(1 + number % 3)]
                offsets = await appender.append({0: entries(*names)}, 100)
                await asyncio.to_thread(store.settle, offsets)
                for reader in readers:
                    found = await asyncio.to_thread(stored, reader)
                    assert (list(found), [each.id for each in found.values()]) == (list(offsets[0]), names)
            await appender.close()

        asyncio.run(run())

    def test_reading_begins_at_any_offset(self, store: OpenStore) -> None:
        found = asyncio.run(
            self.appended(store, *[{0: entries(f"{n}a", f"{n}b")} for n in range(3)], {0: entries("z")})
        )
        offsets = [offset for part in found for offset in part[0]]
        everything = stored(store.reader(0))
        assert list(everything) == offsets
        reader = store.reader(0)
        for offset in offsets:
            assert list(stored(store.reader(0, offset))) == [each for each in offsets if each >= offset]
            reader.seek(offset)
            assert list(stored(reader)) == [each for each in offsets if each >= offset]
        assert (reader.first_offset(), reader.position) == (0, reader.end_offset())
        assert reader.end_offset() > offsets[-1]
        assert reader.read() is None

    def test_an_empty_partition_has_an_end(self, store: OpenStore) -> None:
        reader = store.reader(1)
        assert (reader.read(), reader.first_offset(), reader.end_offset(), reader.position) == (None, 0, 0, 0)

    def test_events_of_a_key_keep_their_order(self, store: OpenStore) -> None:
        """Many producers at once, each of which waits for its answer, with single events and batches."""

        async def produce(appender: EventAppender, key: str, chance: random.Random) -> Mapping[int, Sequence[int]]:
            number = 0
            while number < 60:
                names = range(number, number + chance.choice([1, 1, 5]))
                number = names.stop
                last = await appender.append({0: entries(*names, partitionkey=key)}, 100)
            return last

        async def run() -> None:
            appender = await store.appender()
            ends = await asyncio.gather(*[produce(appender, f"k{n}", random.Random(n)) for n in range(8)])
            await appender.close()
            for last in ends:
                await asyncio.to_thread(store.settle, last)

        asyncio.run(run())
        of_key: dict[object, list[int]] = defaultdict(list)
        for each in stored(store.reader(0)).values():
            of_key[each.extensions["partitionkey"]].append(int(each.id))
        assert len(of_key) == 8
        assert all(numbers == list(range(len(numbers))) and len(numbers) >= 60 for numbers in of_key.values())

    def test_no_reader_ever_sees_a_part_of_a_batch(self, store: OpenStore) -> None:
        async def run() -> None:
            appender = await store.appender()
            reader = store.reader(0)
            writing = asyncio.gather(
                *[
                    appender.append({0: entries(*[f"{n}/{i}/{size}" for i in range(size)])}, 100)
                    for n, size in enumerate([1, 700, 1, 2, 300] * 4)
                ]
            )
            seen: list[str] = []
            while not writing.done():
                seen += [each.id for each in (await asyncio.to_thread(stored, reader)).values()]
                whole(seen)
            for offsets in await writing:
                await asyncio.to_thread(store.settle, offsets)
            seen += [each.id for each in (await asyncio.to_thread(stored, reader)).values()]
            assert len(whole(seen)) == 20
            await appender.close()

        asyncio.run(run())

    def test_what_is_too_much_stores_nothing(self, store: OpenStore) -> None:
        async def run() -> None:
            appender = await store.appender()
            with pytest.raises(TooLargeError):
                await appender.append({0: entries(*range(COMMIT_QUEUE_EVENTS_MAX + 1))}, 100)
            store.settle(await appender.append({0: entries("after")}, 100))
            await appender.close()

        asyncio.run(run())
        assert [each.id for each in stored(store.reader(0)).values()] == ["after"]

    def test_a_killed_writer_leaves_whole_batches_and_all_that_it_acknowledged(self, store: OpenStore) -> None:
        acknowledged: set[str] = set()
        turns = times(1, 2)
        for turn in range(turns):
            line = [sys.executable, "-m", "tests.backend.writer", str(turn), *store.address]
            with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout is not None
                for count, name in enumerate(writer.stdout):
                    acknowledged.add(name.strip())
                    if count == 40:
                        writer.send_signal(signal.SIGKILL)
        asyncio.run(self.appended(store, {0: entries("after/0/2", "after/1/2")}))  # ends what was left open
        there = whole([each.id for each in stored(store.reader(0)).values()])
        assert len(acknowledged) > 40 * turns
        assert acknowledged <= there.keys()
        assert "after" in there
