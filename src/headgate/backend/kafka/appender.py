"""Appending to the topic `events`: single events by an idempotent producer, batches and numbered ones in transactions.

A transaction makes a batch readable as a whole or not at all, and costs some milliseconds more: batches that wait while
one is committed share the next one. docs/adr/0014-batches-are-transactions.md has the reasons.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import BOUNDED_SEND, KafkaAdmin, TopicProducer, library, offset_of
from headgate.backend.kafka.producer_numbers import group_of, number_place, producer_name, read_numbers
from headgate.backend.kafka.records import KafkaRecord, records_of
from headgate.backend.kafka.transactions import EventRecords, FencedName, FencedWriter, fenced_by, name_taken
from headgate.ingress.encode import Entries
from headgate.ingress.partitions import WaitingEvents
from headgate.ingress.producers import ProducerReplacedError, Producing, check_name
from headgate.log.group_commit import GroupCommit, Room
from headgate.shares import FairPlaces
from headgate.storage.threads import Threads
from headgate_api.errors import HeadgateError, OverloadedError, UnavailableError
from headgate_api.event.names import namespace_of
from headgate_api.limits import (
    COMMIT_QUEUE_BYTES_MAX,
    COMMIT_QUEUE_EVENTS_MAX,
    KAFKA_APPEND_S_MAX,
    KAFKA_PROBE_S_MAX,
    KAFKA_PRODUCER_STREAMS_MAX,
    KAFKA_PRODUCER_THREADS,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_POLL_S: Final = 0.1
"""How long the thread that takes acknowledgements waits for one: a close is noticed so late."""
_DOING: Final = "events cannot be stored"
_UNSURE: Final = "it is not known whether they are stored; sent again, they may be stored twice"
_log = structlog.get_logger(__name__)


class KafkaAppender:
    """The `EventAppender` of the topic `events`, on the running event loop.

    `name` is that of this process, the same after a restart and no other one's: what a crash left open is ended by the
    next process of that name, instead of after KAFKA_TRANSACTION_S_MAX. `problem` is why nothing is taken now, as
    `probe` found; empty when events are.
    """

    def __init__(self, config: KafkaConfig, name: str) -> None:
        self._config = config
        self._topic = config.topic("events")
        self._name = FencedName("events", f"front-{name}", _DOING, _UNSURE, name_taken(_DOING))
        self._loop = asyncio.get_running_loop()
        self._single = self._idempotent()
        self._batches: FencedWriter | None = None  # made by the first batch
        self._thread = Threads("kafka-batches")
        self._room = Room("Kafka", COMMIT_QUEUE_EVENTS_MAX, COMMIT_QUEUE_BYTES_MAX)
        self._commit = GroupCommit(self._transaction, self._thread, self._room)
        self._shares = WaitingEvents()
        self._singles: set[asyncio.Future[int]] = set()
        self._closing = threading.Event()
        self.problem = ""
        self._poller = threading.Thread(target=self._poll, name="kafka-acknowledgements", daemon=True)
        self._poller.start()

    async def append(self, parts: Mapping[int, Entries], size_bytes: int) -> Mapping[int, Sequence[int]]:
        self.check()
        count = sum(len(entries) for entries in parts.values())
        broker = next(iter(parts.values())).broker
        size = self._shares.enter(broker, count, size_bytes)
        try:
            batch = EventRecords({partition: records_of(entries) for partition, entries in parts.items()})
            if count > 1:
                return await self._commit.enqueue(batch, size_bytes)
            ((partition, (record,)),) = batch.parts.items()
            self._room.enter(1, size_bytes)
            try:
                return {partition: [await self._send(partition, record)]}
            finally:
                self._room.leave(1, size_bytes)
        finally:
            self._shares.leave(broker, size)

    def check(self) -> None:
        """Raises UnavailableError while nothing is taken."""
        if self._closing.is_set():
            raise UnavailableError("the connection to Kafka is closing")
        if self.problem:
            raise UnavailableError(self.problem, hint="nothing is stored: send it again later")

    async def probe(self) -> None:
        """Asks Kafka once. While it does not answer, events are refused at once, instead of waiting for it in vain."""
        self.problem = await asyncio.to_thread(self._asked)

    def _asked(self) -> str:
        producer = self._single
        try:
            with producer.errors():
                producer.raw.list_topics(self._topic, timeout=KAFKA_PROBE_S_MAX)
        except HeadgateError as error:
            return error.message
        return ""

    # --- single events ---------------------------------------------------------------------------------

    def _send(self, partition: int, record: KafkaRecord) -> asyncio.Future[int]:
        """Hands one record to the producer; done with its offset once every in-sync copy has it."""
        done: asyncio.Future[int] = self._loop.create_future()
        producer = self._single

        def delivered(error: KafkaError | None, message: Message) -> None:  # in the thread that polls
            offset = -1 if error is not None else offset_of(message)
            self._loop.call_soon_threadsafe(self._settle, done, producer, error, offset)

        try:
            producer.offer(self._topic, partition, record, delivered)
        except BufferError as error:
            raise OverloadedError("too many records wait for Kafka", hint="try again later") from error
        except library().KafkaException as error:
            self._renew(producer, error.args[0])
            raise producer.error(error.args[0]) from error
        self._singles.add(done)
        done.add_done_callback(self._singles.discard)
        return done

    def _settle(
        self, done: asyncio.Future[int], producer: TopicProducer, error: KafkaError | None, offset: int
    ) -> None:
        if error is not None:
            self._renew(producer, error)
        if done.done():
            return
        if error is None:
            done.set_result(offset)
        else:
            done.set_exception(producer.error(error))

    def _renew(self, failed: TopicProducer, error: KafkaError) -> None:
        """A producer whose order is broken for good takes nothing more: the next event gets a new one."""
        if error.fatal() or error.code() == library().KafkaError._FATAL:
            self._replace(failed, error.str())

    def _replace(self, failed: TopicProducer, problem: str) -> None:
        if failed is not self._single:
            return
        _log.error("the producer for Kafka is made anew", problem=problem)
        self._single = self._idempotent()
        failed.raw.purge()
        with suppress(library().KafkaException, SystemError):  # the fatal error once more
            failed.raw.poll(0)  # what it still held fails now

    def _idempotent(self) -> TopicProducer:
        own = {
            **BOUNDED_SEND,
            "message.timeout.ms": round(KAFKA_APPEND_S_MAX * 1_000),
            "queue.buffering.max.kbytes": 4 * COMMIT_QUEUE_BYTES_MAX >> 10,
        }
        return TopicProducer(self._config, _DOING, own)

    def _poll(self) -> None:
        while not self._closing.is_set():
            producer = self._single
            try:
                producer.raw.poll(_POLL_S)
            except (library().KafkaException, SystemError) as error:  # fatal: no callback gets it
                self._loop.call_soon_threadsafe(self._replace, producer, str(error))

    # --- batches ---------------------------------------------------------------------------------------

    def _transaction(self, group: Sequence[EventRecords]) -> list[dict[int, list[int]]]:
        """Stores some batches in one transaction; blocking. Returns their offsets by partition."""
        writer = self._ready()
        try:
            stored = writer.send_events(group)
            writer.commit()
        except HeadgateError as error:
            # The next batch gets a new one, which ends this transaction first.
            _log.error("the producer of batches for Kafka is made anew", problem=error.message)
            self._batches = None
            writer.close()
            raise
        left = {partition: iter(offsets) for (_, partition), offsets in stored.items()}
        return [
            {partition: list(islice(left[partition], len(records))) for partition, records in batch.parts.items()}
            for batch in group
        ]

    async def recover(self) -> None:
        """Ends a batch that an earlier process of our name left open: it holds readers up, until the first batch."""
        await self._thread.run(self._ready)

    def _ready(self) -> FencedWriter:
        """The producer of batches; in its thread."""
        if self._batches is None:
            self._batches = FencedWriter(self._config, self._name)
        return self._batches

    async def append_numbered(self, producing: Producing, parts: Mapping[int, Entries], size_bytes: int) -> int:
        """By the stream's own producer, which the next stream fences."""
        await fenced(producing).append(parts, size_bytes)
        return 0

    async def close(self) -> None:
        if self._closing.is_set():
            return
        await self._commit.close()
        if self._singles:
            await asyncio.wait(self._singles)
        self._closing.set()
        await asyncio.to_thread(self._poller.join)
        self._thread.close()


# --- numbered producers ---------------------------------------------------------------------------
# Each event once and in order, whichever front a stream is at, whatever dies. A stream is a transactional producer of
# Kafka: the newest one of its name fences the one before it, at whichever front. A transaction has events and, for each
# partition of theirs, the newest number, as the commit of a consumer group of the same name that has no members.
# docs/adr/0025-a-stream-is-a-fenced-transaction.md has the reasons.

_NUMBERED_DOING: Final = "events of a numbered producer cannot be stored"
_NUMBERED_UNSURE: Final = (
    "it is not known whether they are stored: open another stream, which says from which number on to send"
)


class NumberedWriter:
    """The newest stream of a producer, when it is made; blocking."""

    def __init__(self, config: KafkaConfig, broker: str, producer: str) -> None:
        self._config = config
        self._using = threading.Lock()
        name = producer_name(broker, producer)
        fenced = fenced_by(
            ProducerReplacedError,
            f"the producer {producer!r} has opened another stream",
            "a producer has one stream at a time: give each process a name of its own",
        )
        self._writer: FencedWriter | None = FencedWriter(
            config, FencedName("events", name, _NUMBERED_DOING, _NUMBERED_UNSURE, fenced)
        )
        self._group = group_of(config, name, _NUMBERED_DOING)

    def store(self, submits: Sequence[EventRecords]) -> list[int]:
        """Stores events with their numbers in one transaction, all or none; gives a number of no meaning for each.

        Raises ProducerReplacedError when there is a newer stream, else UnavailableError, whose hint says where it is
        not known whether they are stored.
        """
        newest = {partition: number for submit in submits for partition, number in submit.newest.items()}
        places = [number_place(self._config, partition, number) for partition, number in newest.items()]
        with self._using:
            assert self._writer is not None, "nothing is under way when it is closed"
            try:
                self._writer.send_events(submits)
                self._writer.add_places(places, self._group)
                self._writer.commit()
            except HeadgateError:
                raise
            except Exception as error:
                raise UnavailableError(f"{_NUMBERED_DOING}: {error}") from error
        return [0] * len(submits)

    def check_newest(self) -> None:
        """Raises ProducerReplacedError when there is a newer stream: Kafka lets it begin nothing."""
        with self._using:
            if self._writer is not None:
                self._writer.send(())
                self._writer.add_places([number_place(self._config, 0, 0)], self._group)
                self._writer.abort()

    def close(self) -> None:
        """Gives the producer of Kafka back; its threads end here, and not where it is forgotten: that takes a while."""
        with self._using:
            if self._writer is not None:
                self._writer.close()
                self._writer = None


@dataclass(eq=False, kw_only=True)
class FencedProducing(Producing):
    """One stream of a producer; made by `FencedProducers.open`. `writer` and `commit` are None until `made` is set."""

    admin: KafkaAdmin
    place: ExitStack
    stream: int = field(default_factory=time.time_ns)
    writer: NumberedWriter | None = None
    commit: GroupCommit[EventRecords, int] | None = None
    made: asyncio.Event = field(default_factory=asyncio.Event)

    async def append(self, parts: Mapping[int, Entries], size_bytes: int) -> None:
        assert self.commit is not None, "the stream is open"
        records = {partition: records_of(part) for partition, part in parts.items()}
        newest = {partition: part.numbers[-1].last for partition, part in parts.items()}
        done = self.commit.enqueue(EventRecords(records, newest), size_bytes, self.chain)
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        for partition, number in newest.items():
            self.submitted(partition, number, done)
        await asyncio.shield(done)  # what is under way is not given up with the request

    async def learn(self) -> None:
        """Learns what is stored, and has a larger number than the streams that stored it.

        Comes behind the writer: it fences, and an earlier stream commits nothing from then on.
        """
        found = await asyncio.to_thread(read_numbers, self.admin, producer_name(self.broker, self.producer))
        self.newest.update({partition: number for partition, (number, _) in found.items()})
        largest = max((stream for _, stream in found.values()), default=0)
        if largest > self.stream:
            self.stream = largest + 1

    async def check_newest(self) -> None:
        """Raises ProducerReplacedError when there is a newer stream, at whichever front."""
        assert self.writer is not None, "the stream is open"
        await asyncio.to_thread(self.writer.check_newest)


def fenced(producing: Producing) -> FencedProducing:
    """A stream of Kafka."""
    assert isinstance(producing, FencedProducing), "producers on Kafka have opened it"
    return producing


class FencedProducers:
    """The `ProducerStreams` of one front, on its event loop.

    `begin` has others who store for a stream, too, take it for the newest one.
    """

    def __init__(self, config: KafkaConfig, begin: Callable[[FencedProducing], Awaitable[None]] | None = None) -> None:
        self._config = config
        self._admin = KafkaAdmin(config, _NUMBERED_DOING)
        self._begin = begin
        self._places = FairPlaces("numbered-producers", "KAFKA_PRODUCER_STREAMS_MAX", KAFKA_PRODUCER_STREAMS_MAX)
        self._open: dict[tuple[str, str], FencedProducing] = {}
        self._threads = Threads("producers", KAFKA_PRODUCER_THREADS)
        self._room = Room("Kafka", COMMIT_QUEUE_EVENTS_MAX, COMMIT_QUEUE_BYTES_MAX)
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, broker: str, producer: str, user: str = "") -> Producing:
        check_name(producer)
        key = broker, producer
        while (old := self._open.get(key)) is not None:
            old.replaced.set()
            await old.made.wait()
            if old.under_way:
                await asyncio.wait(set(old.under_way))
            if self._open.get(key) is old:
                del self._open[key]
        place = ExitStack()
        place.enter_context(self._places.held(namespace_of(broker), user))
        opened = self._open[key] = FencedProducing(self, broker, producer, {}, user, admin=self._admin, place=place)
        making = asyncio.create_task(self._make(opened))
        making.add_done_callback(lambda done: done.cancelled() or done.exception())  # also when nobody awaits it
        try:
            # Not given up with the request: it would fence the stream that its client opens next.
            await asyncio.shield(making)
            opened.check_in_force()
            await opened.learn()
            if self._begin is not None:
                await self._begin(opened)
        except BaseException:
            self.close(opened)
            raise
        return opened

    async def _make(self, opened: FencedProducing) -> None:
        try:
            opened.writer = await self._threads.run(NumberedWriter, self._config, opened.broker, opened.producer)
            # After an error of Kafka the writer takes nothing more, so no submit is tried alone.
            opened.commit = GroupCommit(opened.writer.store, self._threads, self._room, tries_alone=False)
        finally:
            opened.made.set()

    def close(self, producing: Producing) -> None:
        if not producing.closed:
            producing.closed = True
            ending = asyncio.create_task(self._end(fenced(producing)))
            self._closing.add(ending)
            ending.add_done_callback(self._closing.discard)

    async def _end(self, producing: FencedProducing) -> None:
        with producing.place:
            await producing.made.wait()
            if producing.under_way:
                await asyncio.wait(set(producing.under_way))
            key = producing.broker, producing.producer
            if self._open.get(key) is producing:
                del self._open[key]
            if producing.writer is not None:
                await self._threads.run(producing.writer.close)

    def settle(self, producing: Producing, partition: int, number: int, done: asyncio.Future[int]) -> None:
        producing.under_way.discard(done)
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if isinstance(error, ProducerReplacedError):
            producing.replaced.set()
        elif error is None:
            producing.newest[partition] = max(number, producing.newest.get(partition, -1))

    async def stop(self) -> None:
        """Stores what waits, and gives everything back; streams have ended."""
        for one in list(self._open.values()):
            self.close(one)
        if self._closing:
            await asyncio.wait(set(self._closing))
        self._threads.close()
