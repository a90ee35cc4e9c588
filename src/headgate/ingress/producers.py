"""Numbered producers: which of their events are stored already, by producer and partition.

A producer that names itself and numbers its events may send again what was not acknowledged: what is stored is
acknowledged, and not stored twice. Three things make one number enough:

* an event goes to the same partition whenever it comes (by its key, else by its producer);
* a producer has one stream at a time: a new one ends the old one and waits until nothing of it is under way;
* within a stream nothing is stored behind what failed (`log.group_commit.SubmitChain`).

With several fronts the stream is at the front that writes its producer's own partition; the others are asked what they
have of it when it begins. The number is stored with its event, so what is in memory is of the log, and read from there
on start, from where the last snapshot ends. What a forgotten producer sends again is new: it learns of it when it opens
a stream, as `next_number` is below what it was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import structlog

from headgate.log.directory import LogDirectory
from headgate.log.errors import CorruptChunkError
from headgate.log.files import FileOps, replace_file
from headgate.log.group_commit import SubmitChain
from headgate.log.reader import PartitionReader
from headgate.log.writer import Numbers
from headgate.shares import Shares
from headgate_api.errors import ConflictError, HeadgateError, InvalidInputError
from headgate_api.event.names import namespace_of
from headgate_api.limits import PRODUCER_CHARS_MAX, PRODUCERS_MAX, PRODUCERS_POLL_S, PRODUCERS_SNAPSHOT_EVENTS

FILE: Final = "producers"
"""Names of the snapshots begin so, in the directory of the partitions; the number of their front follows."""

Elsewhere = Callable[[str, str], Awaitable[Mapping[int, int]]]
"""Tells what other fronts know of a producer of a broker: by partition, the newest number stored."""

_Key = tuple[str, str]
"""The broker's identity and the producer's name."""

_log = structlog.get_logger(__name__)


class ProducerReplacedError(ConflictError):
    """The producer has opened another stream."""

    code = "producer-replaced"


class NumbersMovedError(HeadgateError):
    """A partition has other numbers of a producer than its stream knows, of one before it or behind it."""

    code = "producer-numbers"
    retriable = True
    http_status = 409


class ProducerStreams(Protocol):
    """The streams of numbered producers: of the log (`Producers`), or of Kafka (`backend/kafka/appender.py`).

    One suite of tests holds both to what is said here (`tests/backend/numbered_contract.py`).
    """

    async def open(self, broker: str, producer: str, user: str = "") -> Producing:
        """A producer's stream begins; the one that it had ends, and nothing of it is under way any more.

        `user` opens it, and takes the room for it. UnavailableError: what is known of the producer cannot be asked for.
        """

    def close(self, producing: Producing) -> None:
        """The stream has ended; what of it is under way is still stored, and waited for by the next one."""

    def settle(self, producing: Producing, partition: int, number: int, done: asyncio.Future[Any]) -> None:
        """What a stream has submitted is stored, or will not be."""


@dataclass(eq=False)
class Producing:
    """One stream of a producer; made by `ProducerStreams.open`.

    `broker` is the broker's identity: one created again knows no number of the one before it.
    """

    owner: ProducerStreams
    broker: str
    producer: str
    newest: dict[int, int]  # the newest number stored, by partition
    user: str = ""
    chain: SubmitChain = field(default_factory=SubmitChain)  # everything that the stream submits is in it
    replaced: asyncio.Event = field(default_factory=asyncio.Event)  # set when another stream has taken its place
    under_way: set[asyncio.Future[Any]] = field(default_factory=set)  # submitted, and not known to be stored or not
    sent: dict[int, int] = field(default_factory=dict)  # the newest number submitted, by partition
    stream: int = 0  # where streams are told apart by those who store, a larger one than those before it
    closed: bool = False

    @property
    def next_number(self) -> int:
        """Behind the newest one stored; 0 for a producer that is not known."""
        return max(self.newest.values(), default=-1) + 1

    def is_stored(self, partition: int, number: int) -> bool:
        return number <= self.newest.get(partition, -1)

    def numbers(self, partition: int, last: int) -> Numbers:
        """Those of the next events that go to a partition."""
        return Numbers(self.broker, self.producer, self.stream, self.before(partition), last)

    def before(self, partition: int) -> int:
        """The number that the next events of a partition follow; -1 for none."""
        return max(self.newest.get(partition, -1), self.sent.get(partition, -1))

    def submitted(self, partition: int, number: int, done: asyncio.Future[Any]) -> None:
        """Events up to this number are on their way to a partition; at once after they were enqueued."""
        self.sent[partition] = number
        self.under_way.add(done)
        done.add_done_callback(lambda _: self.owner.settle(self, partition, number, done))

    def check_in_force(self) -> None:
        """Raises ProducerReplacedError when another stream has taken its place."""
        if self.replaced.is_set():
            raise ProducerReplacedError(
                f"the producer {self.producer!r} has opened another stream",
                hint="a producer has one stream at a time: give each process a name of its own",
            )


class _Row(msgspec.Struct, array_like=True):
    broker: str
    producer: str
    newest: dict[int, int]
    user: str = ""


class _Snapshot(msgspec.Struct, array_like=True):
    positions: dict[int, int]
    rows: list[_Row]


class KnownProducers:
    """The newest numbers of producers, of PRODUCERS_MAX of them. Room is divided between namespaces, then users.

    For a further one the namespace that has most gives one up, in it the user who has most, and of his the one that has
    been silent for longest: nobody's names make another one's numbers forgotten. The log does not say whose a producer
    is; those that were read from it alone count as those of one user.
    """

    def __init__(self) -> None:
        self._numbers: dict[_Key, dict[int, int]] = {}
        self._users: dict[_Key, str] = {}
        self._shares = Shares[_Key]()
        """Those silent for longest first."""

    def get(self, key: _Key, user: str = "") -> dict[int, int] | None:
        """By partition, the newest number of a producer, which is heard of now; None: nothing is known of it."""
        found = self._numbers.get(key)
        if found is not None:
            self._place(key, user)
        return found

    def learn(self, key: _Key, user: str, numbers: Mapping[int, int]) -> None:
        newest = self._numbers.setdefault(key, {})
        for partition, number in numbers.items():
            newest[partition] = max(number, newest.get(partition, -1))
        self._place(key, user)
        while len(self._numbers) > PRODUCERS_MAX:
            silent = self._shares.largest()
            self._remove(silent)
            del self._numbers[silent]

    def rows(self) -> list[_Row]:
        return [_Row(*key, dict(newest), self._users[key]) for key, newest in self._numbers.items()]

    def _place(self, key: _Key, user: str) -> None:
        """Puts a producer behind all others of its user."""
        user = user or self._users.get(key, "")
        self._remove(key)
        self._users[key] = user
        self._shares.add(namespace_of(key[0]), user, key)

    def _remove(self, key: _Key) -> None:
        user = self._users.pop(key, None)
        if user is not None:
            self._shares.remove(namespace_of(key[0]), user, key)


class Producers:
    """What is known of producers. Belongs to the event loop, but for `recover`, which comes before it.

    The log's directory holds the snapshots.
    """

    def __init__(self, log: LogDirectory, front: int = 0, elsewhere: Elsewhere | None = None) -> None:
        self._log = log
        self._file = log.directory / f"{FILE}-{front}"
        self._elsewhere = elsewhere
        self._own: frozenset[int] | None = None
        """The partitions of which the numbers are kept: those of `recover`; None before it, for all."""
        self._known = KnownProducers()
        self._open: dict[tuple[str, str], Producing] = {}
        self._forwarded: set[asyncio.Future[Any]] = set()

    # --- streams --------------------------------------------------------------------------------------

    async def open(self, broker: str, producer: str, user: str = "") -> Producing:
        """See `ProducerStreams.open`; UnavailableError when another front does not answer."""
        check_name(producer)
        key = broker, producer
        while (old := self._open.get(key)) is not None:
            old.replaced.set()
            if old.under_way:
                await asyncio.wait(set(old.under_way))
            if self._open.get(key) is old:
                del self._open[key]
        opened = self._open[key] = Producing(self, broker, producer, {}, user)
        try:
            opened.newest.update(await self._elsewhere(broker, producer) if self._elsewhere is not None else {})
        except BaseException:
            self.close(opened)
            raise
        opened.check_in_force()
        opened.newest.update(self.newest(broker, producer, user))
        return opened

    def newest(self, broker: str, producer: str, user: str = "") -> dict[int, int]:
        """By partition of this front, the newest number of a producer that is stored."""
        return dict(self._known.get((broker, producer), user) or {})

    def forwarded(self, partition: int, batch: pa.RecordBatch, done: asyncio.Future[Any]) -> None:
        """Events that another front has sent are on their way to a partition; at once after they were enqueued."""

        def settle(done: asyncio.Future[Any]) -> None:
            self._forwarded.discard(done)
            if not done.cancelled() and done.exception() is None:
                self._recover(partition, batch)

        self._forwarded.add(done)
        done.add_done_callback(settle)  # before whoever waits for it goes on

    def close(self, producing: Producing) -> None:
        producing.closed = True
        self._forget(producing)

    def settle(self, producing: Producing, partition: int, number: int, done: asyncio.Future[Any]) -> None:
        producing.under_way.discard(done)
        if not done.cancelled() and done.exception() is None:
            producing.newest[partition] = max(number, producing.newest.get(partition, -1))
            if self._own is None or partition in self._own:
                self._known.learn((producing.broker, producing.producer), producing.user, {partition: number})
        self._forget(producing)

    def _forget(self, producing: Producing) -> None:
        key = producing.broker, producing.producer
        if producing.closed and not producing.under_way and self._open.get(key) is producing:
            del self._open[key]

    # --- disk -----------------------------------------------------------------------------------------

    async def keep(self, ends: Callable[[], Mapping[int, int]]) -> None:
        """Writes down what is known whenever much has been stored; `ends` gives the next offset of each partition."""
        written = sum(ends().values())
        while True:
            await asyncio.sleep(PRODUCERS_POLL_S)
            now = ends()
            if sum(now.values()) - written >= PRODUCERS_SNAPSHOT_EVENTS and await self.try_snapshot(now):
                written = sum(now.values())

    async def try_snapshot(self, positions: Mapping[int, int]) -> bool:
        """Writes down what is known; where the disk does not take it, the next start reads more of the log."""
        try:
            await self.snapshot(positions)
        except OSError as error:
            _log.error("the snapshot of producers cannot be written", error=str(error))
            return False
        return True

    async def snapshot(self, positions: Mapping[int, int]) -> None:
        """Writes down what is known; where the disk does not take it (OSError), the last snapshot stays.

        `positions` are behind the last event of each partition, read before this call.
        """
        # What was stored below those positions and is not known yet is under way still.
        waiting = self._forwarded.union(*(producing.under_way for producing in self._open.values()))
        if waiting:
            await asyncio.wait(waiting)
        data = msgspec.msgpack.encode(_Snapshot(dict(positions), self._known.rows()))
        await asyncio.to_thread(replace_file, FileOps(), self._file, data)

    def recover(self, ends: Mapping[int, int]) -> None:
        """Learns what the log holds; blocking. Reads what was stored since the last snapshot, else all of the log.

        `ends` has the next offset of each partition of this front.
        """
        self._own = frozenset(ends)
        positions = self._load(ends)
        for partition, end in ends.items():
            with PartitionReader(self._log.partition(partition), start=positions.get(partition, 0)) as reader:
                try:
                    while reader.position < end and (chunk := reader.read()) is not None:
                        if "produced" in chunk.schema.names:
                            self._recover(partition, chunk.batch)
                except CorruptChunkError as error:
                    # Readers of that place get the error; that a producer may store an event twice stops nothing.
                    _log.error("producers' numbers cannot be read on", partition=partition, error=error.message)

    def _recover(self, partition: int, batch: pa.RecordBatch) -> None:
        column = batch.column("produced")
        if column.null_count == len(column):
            return
        newest: dict[_Key, int] = {}
        for broker, text in zip(batch.column("broker").to_pylist(), column.to_pylist(), strict=True):
            if text is not None:
                number, _, producer = text.partition(":")
                newest[broker, producer] = max(int(number), newest.pop((broker, producer), -1))
        for key, largest in newest.items():
            self._known.learn(key, "", {partition: largest})

    def _load(self, ends: Mapping[int, int]) -> dict[int, int]:
        """The newest snapshot of each partition, whichever front wrote it; where they end."""
        positions: dict[int, int] = {}
        best: dict[int, _Snapshot] = {}
        for path in sorted(self._log.directory.glob(f"{FILE}-*")):
            found = _snapshot(path)
            if found is None or any(position > ends.get(one, position) for one, position in found.positions.items()):
                continue  # it is of another log
            for partition in found.positions.keys() & ends.keys():
                if positions.get(partition, -1) < found.positions[partition]:
                    positions[partition] = found.positions[partition]
                    best[partition] = found
        for partition, snapshot in best.items():
            for row in snapshot.rows:
                if partition in row.newest:
                    self._known.learn((row.broker, row.producer), row.user, {partition: row.newest[partition]})
        return positions


def _snapshot(path: Path) -> _Snapshot | None:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=_Snapshot)
    except (OSError, msgspec.DecodeError) as error:
        _log.error("a snapshot of producers cannot be read, the log is", file=str(path), error=str(error))
        return None


def check_name(producer: str) -> None:
    """Raises InvalidInputError for a producer's name that is too long, or has a NUL."""
    if len(producer) > PRODUCER_CHARS_MAX or "\0" in producer:
        raise InvalidInputError(f"a producer's name has at most {PRODUCER_CHARS_MAX} characters, none of them NUL")


def produced(producer: str, numbers: Sequence[int]) -> list[str]:
    """The values of the column `produced` for a producer's events."""
    return [f"{number}:{producer}" for number in numbers]
