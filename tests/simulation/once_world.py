"""A partition of the topic `events` in memory, and processes that all take themselves for its owner at times.

A process stops wherever it asks Kafka for something, and others act meanwhile: they take over, append, die. Producers
send events, some of them with numbers. A seed decides which.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from headgate.backend.kafka.window_writer import (
    FencedAppends,
    PartitionGoesError,
    StoredName,
    WindowWriter,
    WriterFencedError,
)
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, from_batch_all, to_batch
from headgate.ingress.producers import NumbersMovedError, produced
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded, Numbers
from headgate_api.errors import UnavailableError
from headgate_api.event.model import Event

BROKER, PLAIN = "shop/once/u1", "shop/plain/u2"
WINDOW_US = 60_000_000
WINDOWS = {BROKER: WINDOW_US}
NOTHING = pa.RecordBatch.from_pylist([], EVENT_SCHEMA)
PROCESSES = 3
PRODUCERS = 2
IDS = 12
DEEP = 3
"""So many processes may stand still at a time, each within what another one's stop lets happen."""


@dataclass
class Transaction:
    """What was appended in it is committed, will never be, or not yet known (`is_open`)."""

    is_open: bool = True
    is_committed: bool = False

    def end(self, *, is_committed: bool) -> None:
        self.is_open, self.is_committed = False, is_committed


@dataclass
class Record:
    offset: int
    time_us: int
    broker: str
    id: str
    transaction: Transaction
    number: int | None = None
    producer: str = ""


@dataclass
class Stream:
    """One of a producer, by its number, and the newest number of an event that it knows to be there."""

    number: int
    newest: int


@dataclass
class Producer:
    """Numbers its events, sends again what was not answered, in a new stream, and forgets at times what it had.

    Two numbers after each other are of one event, so that owners know the second one by its id.
    """

    name: str
    life: int = 0
    next: int = 0
    """The first number that was not answered."""
    stream: Stream | None = None

    def id_of(self, number: int) -> str:
        return f"{self.name}.{self.life}.{number // 2}"


@dataclass
class World:
    """See `faults` for what must hold."""

    seed: int
    log: list[Record] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    accepted: list[tuple[str, int]] = field(default_factory=list)
    """Ids that a producer was answered for, and where they are."""
    known: list[str] = field(default_factory=list)
    """Ids that a producer was answered for, as their numbers were there."""
    numbers: dict[str, list[tuple[Transaction, int, int]]] = field(default_factory=dict)
    """By producer, what was written as its newest number, and its stream."""
    forgotten: list[str] = field(default_factory=list)
    """What a producer was told that is below what it was answered for."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock_us = 1_800_000_000_000_000
        self.next_offset = self.first = 0
        self.fence = 0
        self.written = Transaction(is_open=False)
        """The last transaction of who stores once."""
        self.others: list[Transaction] = []
        """Open ones of fronts that store batches of other brokers."""
        self._depth = 0
        self._busy: set[int] = set()
        self._writers = [self.made() for _ in range(PROCESSES)]
        self._producers = [Producer(f"p{number}") for number in range(PRODUCERS)]

    def made(self) -> WindowWriter:
        return WindowWriter(Partition(self), lambda: WINDOWS, events_max=1_000, clock_us=lambda: self.clock_us)

    def run(self, acts: int = 60) -> None:
        for _ in range(acts):
            self.act()
        for one in self.others:
            one.end(is_committed=True)

    def act(self) -> None:
        self.clock_us += self.random.choice([0, 1_000, 1_000_000, 10_000_000])
        free = [number for number in range(PROCESSES) if number not in self._busy]
        choice = self.random.random()
        if choice < 0.1:
            self.store_batch()
        elif choice < 0.15 and self.others:
            self.others.pop(0).end(is_committed=self.random.random() < 0.5)
        elif choice < 0.2 and free:
            self._writers[self.random.choice(free)] = self.made()  # killed, and started again
            self.totals["killed"] += 1
        elif choice < 0.6 and free:
            self.publish_numbered(self.random.choice(self._producers), self.random.choice(free))
        elif free:
            self.publish(self.random.choice(free))

    def newest(self, producer: str) -> tuple[int, int]:
        """The newest number that is committed, and its stream; waits for nothing."""
        written = self.numbers.get(producer, [])
        if any(one.is_open for one, _, _ in written):
            raise UnavailableError("a transaction is open")
        return next(((number, stream) for one, number, stream in reversed(written) if one.is_committed), (-1, 0))

    def open_stream(self, producer: Producer, number: int) -> None:
        """Has a process take a new stream for the newest one, as soon as nothing of an earlier one comes between."""
        producer.stream, life = None, producer.life
        for _ in range(3):
            try:
                newest, largest = self.newest(producer.name)
            except UnavailableError:
                return
            made = Stream(largest + 1, newest)
            if self._append(number, self._numbered(producer, made, newest, []), []):
                break
        else:
            return
        if producer.stream is not None or producer.life != life:
            return  # it has opened another one meanwhile
        producer.stream = made
        self.totals["streams"] += 1
        if self.random.random() < 0.2:  # it remembers nothing, and goes on as it is told
            producer.life, producer.next = producer.life + 1, newest + 1
        if newest < producer.next - 1:
            self.forgotten.append(f"{producer.name} was told {newest}, and answered for {producer.next - 1}")

    def _numbered(self, producer: Producer, stream: Stream, last: int, sent: Sequence[int]) -> Encoded:
        rows = [StoredEvent(BROKER, Event("1.0", producer.id_of(one), "/s", "t")) for one in sent]
        batch = to_batch(rows, produced(producer.name, sent)) if rows else NOTHING
        numbers = [Numbers(BROKER, producer.name, stream.number, stream.newest, last)]
        return Encoded(batch, ["" for _ in rows], windows=WINDOWS if rows else {}, numbers=numbers)

    def publish_numbered(self, producer: Producer, number: int) -> None:
        """A stream sends what was not answered. An earlier one may have some under way, of which nobody will hear."""
        if producer.stream is None or self.random.random() < 0.3:
            self.open_stream(producer, number)
        if (stream := producer.stream) is None:
            return
        first, after = producer.next, stream.newest
        every = range(first, first + self.random.randint(1, 4))
        sent = [one for one in every if one > after]
        if sent:
            ids = [producer.id_of(one) for one in sent]
            if not self._append(number, self._numbered(producer, stream, sent[-1], sent), ids):
                if producer.stream is stream:
                    producer.stream = None
                return
            stream.newest = sent[-1]
        if producer.stream is stream:  # else the answer comes to nobody
            self.known += [producer.id_of(one) for one in every if one <= after]
            producer.next = max(producer.next, every[-1] + 1)
            self.totals["numbered"] += len(sent)

    def publish(self, number: int) -> None:
        """A producer sends some of its events to a process, which it takes for the owner, or which does so itself."""
        ids = [f"{self.random.randrange(IDS)}" for _ in range(self.random.randint(1, 4))]
        rows = [StoredEvent(BROKER, Event("1.0", one, "/s", "t")) for one in ids]
        self._append(number, Encoded(to_batch(rows), ["" for _ in ids], windows=WINDOWS), ids)

    def _append(self, number: int, chunk: Encoded, ids: Sequence[str]) -> bool:
        """Whether the process has answered for a chunk, which may be long on its way to it."""
        self.stand_still()
        if number in self._busy:
            return False  # it is lost
        self._busy.add(number)
        try:
            found = self._writers[number].append(chunk)
        except WriterFencedError:
            self.totals["fenced"] += 1
        except NumbersMovedError:
            self.totals["moved"] += 1
        except UnavailableError:
            self.totals["unknown"] += 1
        else:
            assert isinstance(found, Sifted)
            self.accepted += zip(ids, found.offsets, strict=True)
            self.totals["known"] += sum(found.was_there)
            self.totals["new"] += len(ids) - sum(found.was_there)
            return True
        finally:
            self._busy.discard(number)
        return False

    def store_batch(self) -> None:
        """Another front stores events of a broker without a window; what comes behind is held back meanwhile."""
        self.others.append(Transaction())
        self.append(PLAIN, [("x", None), ("y", None)], self.others[-1])

    def append(self, broker: str, rows: Sequence[tuple[str, str | None]], transaction: Transaction) -> list[int]:
        """Rows are ids, with what stands in the column `produced`."""
        first = len(self.log)
        for one, text in rows:
            number, _, producer = (text or "").partition(":")
            numbered = int(number) if number else None
            self.log.append(Record(self.next_offset, self.clock_us, broker, one, transaction, numbered, producer))
            self.next_offset += 1
        self.next_offset += 1  # the mark at its end
        return [record.offset for record in self.log[first:]]

    def stand_still(self) -> None:
        """Whoever is at work stops here, and others act."""
        if self._depth < DEEP and self.random.random() < 0.1:
            self._depth += 1
            self.totals["stopped"] += 1
            for _ in range(self.random.randint(1, 4)):
                self.act()
            self._depth -= 1

    def stable(self) -> int:
        """Readers of committed records see nothing from here on."""
        return min((one.offset for one in self.log if one.transaction.is_open), default=self.next_offset)

    def faults(self) -> Iterator[str]:
        places: dict[str, list[Record]] = {}
        for record in self.log:
            if record.broker == BROKER and record.transaction.is_committed:
                places.setdefault(record.id, []).append(record)
        for id_, found in places.items():
            for one, two in pairwise(found):
                if two.time_us - one.time_us < WINDOW_US:
                    yield f"{id_} is at {one.offset} and, {(two.time_us - one.time_us) / 1e6} s later, at {two.offset}"
        for id_, offset in self.accepted:
            if all(one.offset != offset for one in places.get(id_, ())):
                yield f"{id_} was accepted and is not at {offset}"
        yield from (f"{id_} was accepted and is nowhere" for id_ in self.known if id_ not in places)
        yield from self.forgotten
        numbered: dict[str, int] = {}
        for record in self.log:
            if record.number is not None and record.transaction.is_committed:
                if record.number <= numbered.get(record.producer, -1):
                    yield f"{record.producer} has {record.number} at {record.offset}, behind a larger number"
                numbered[record.producer] = record.number


class Partition:
    """See `OwnedPartition`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def fence(self) -> FencedAppends:
        world = self._world
        world.stand_still()
        world.fence += 1
        if world.written.is_open:
            world.written.end(is_committed=False)
        made = Appends(world, world.fence)
        world.stand_still()
        return made

    def first(self) -> int:
        return self._world.first

    def at_time(self, time_us: int) -> int:
        committed = self._world.stable()
        self._world.stand_still()
        found = (one.offset for one in self._world.log if one.time_us >= time_us)
        return min(next(found, committed), committed)

    def end(self) -> int:
        self._world.stand_still()
        return self._world.next_offset

    def newest(self, broker: str, producer: str) -> tuple[int, int]:
        self._world.stand_still()
        found = self._world.newest(producer)
        self._world.stand_still()
        return found

    def names(
        self, start: int, end: int, brokers: Container[str], stopped: Callable[[], bool]
    ) -> Iterator[StoredName | None]:
        world = self._world
        at = start
        while at < end:
            world.stand_still()
            if stopped():
                raise PartitionGoesError
            for one in list(world.log):
                if at <= one.offset < min(end, world.stable()):
                    at = one.offset + 1
                    if one.broker in brokers and one.transaction.is_committed:
                        yield StoredName(one.offset, one.time_us, one.broker, "/s", one.id)
            if world.stable() >= end:
                return
            if not world.others or world.random.random() < 0.2:
                raise UnavailableError("a transaction does not end")
            world.others.pop(0).end(is_committed=True)


class Appends:
    """See `FencedAppends`."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self.is_failed = False

    def append(self, chunk: Encoded) -> Sequence[int]:
        world = self._world
        world.stand_still()
        self._check()
        transaction = world.written = Transaction()
        ids = [row.event.id for row in from_batch_all(chunk.batch)]
        offsets = world.append(
            BROKER, [*zip(ids, chunk.batch.column("produced").to_pylist(), strict=True)], transaction
        )
        for one in chunk.numbers:
            world.numbers.setdefault(one.producer, []).append((transaction, one.last, one.stream))
        world.stand_still()
        self._check()
        fate = world.random.random()
        if fate < 0.1:  # open: the next one ends it
            self._fail()
        transaction.end(is_committed=True)
        if fate < 0.2:  # stored, and nobody hears of it
            self._fail()
        return offsets

    def announce(self, offset: int) -> None:
        self._world.stand_still()
        self._check()

    def close(self) -> None: ...

    def _check(self) -> None:
        if self._number != self._world.fence:
            self.is_failed = True
            raise WriterFencedError("another process writes")

    def _fail(self) -> None:
        self.is_failed = True
        raise UnavailableError("it is not known whether they are stored")
