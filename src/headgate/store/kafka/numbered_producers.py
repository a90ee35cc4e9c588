"""Numbered producers on Kafka: each event once and in order, whichever front a stream is at, whatever dies.

A stream is a transactional producer of Kafka, named after the broker and the producer. So the newest stream fences the
one before it, at whichever front that is: what it has not committed is given up, and it commits nothing more. A
transaction has events and, for each partition of theirs, the newest number, as the commit of a consumer group of the
same name, of which nobody is a member. So the two are there together or not at all, and the next stream begins by
reading the numbers. No front owns anything, and nothing is read but 12 numbers.
docs/adr/0025-a-stream-is-a-fenced-transaction.md has the reasons.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from headgate.errors import HeadgateError, OverloadedError, UnavailableError
from headgate.event.identity import namespace_of
from headgate.ingress.producers import NumberedEntries, ProducerReplacedError, Producing, check_name
from headgate.limits import (
    COMMIT_QUEUE_BYTES_MAX,
    COMMIT_QUEUE_EVENTS_MAX,
    KAFKA_PRODUCER_STREAMS_MAX,
    KAFKA_PRODUCER_THREADS,
)
from headgate.shares import FairPlaces
from headgate.store.config import KafkaConfig
from headgate.store.kafka.client import TopicConsumer, library
from headgate.store.kafka.records import KafkaRecord, records_of
from headgate.store.kafka.transactions import FencedWriter, Office, Submit, next_group

_DOING: Final = "events of a numbered producer cannot be stored"
_UNSURE: Final = "it is not known whether they are stored: open another stream, which says from which number on to send"
_T = TypeVar("_T")
_OFFSET_MAX: Final = 1 << 62
"""A number may be larger than an offset: it stands in the commit's metadata, and the offset is for people."""


class NumberedWriter:
    """The newest stream of a producer, as Kafka sees it; blocking, one thread at a time.

    `newest` has, by partition, the newest number stored before it was made.

    Raises:
        UnavailableError: Kafka does not answer.
        KafkaDeniedError: We may not.
    """

    def __init__(self, config: KafkaConfig, broker: str, producer: str) -> None:
        self._topic = config.topic("events")
        digest = hashlib.sha256(f"{broker}\0{producer}".encode()).hexdigest()[:32]

        def fenced(hint: str) -> ProducerReplacedError:
            return ProducerReplacedError(
                f"the producer {producer!r} has opened another stream",
                hint=hint or "a producer has one stream at a time: give each process a name of its own",
            )

        # Before the numbers are read: nothing of an earlier stream is committed from here on.
        office = Office("events", f"producer-{digest}", _DOING, _UNSURE, fenced)
        self._writer = FencedWriter(config, office)
        with contextlib.closing(TopicConsumer.committed(config, _DOING, group=f"producer-{digest}")) as reader:
            self._group: object = reader.raw.consumer_group_metadata()
            partitions = range(config.topics.events.partitions)
            found = reader.commits([library().TopicPartition(self._topic, number) for number in partitions])
        self.newest = {place.partition: int(place.metadata or 0) for place in found if place.offset >= 0}

    def store(self, parts: Mapping[int, Sequence[KafkaRecord]], newest: Mapping[int, int]) -> None:
        """Stores events with their numbers, all or none; `newest` has the last one's, by partition.

        Raises:
            ProducerReplacedError: There is a newer stream.
            UnavailableError: Kafka did not take them; the hint says where that is not known.
        """
        self._writer.send_records(("events", number, each) for number, records in parts.items() for each in records)
        places = [
            library().TopicPartition(self._topic, partition, min(number + 1, _OFFSET_MAX), str(number))
            for partition, number in newest.items()
        ]
        self._writer.add_places(places, self._group)
        self._writer.commit()

    def close(self) -> None:
        """Gives the producer of Kafka back; its threads end here, and not where it is forgotten: that takes a while."""
        self._writer.close()
        del self._writer


class _Numbered(Submit[int]):
    """Events on their way into a transaction, with the newest number by partition."""

    __slots__ = ("newest",)

    def __init__(self, parts: Mapping[int, Sequence[KafkaRecord]], newest: Mapping[int, int], size_bytes: int) -> None:
        super().__init__(parts, size_bytes, asyncio.get_running_loop().create_future())
        self.newest = newest


@dataclass(eq=False)
class FencedProducing(Producing):
    """One stream of a producer; made by `FencedProducers.open`.

    Attributes:
        writer: Stores its events; None until it is made.
        made: Done once it is, or cannot be.
        waiting: What is not in a transaction yet.
        task: Commits; None while nothing waits.
        place: Is given back when it is closed.
    """

    writer: NumberedWriter | None = None
    made: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: deque[_Numbered] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    place: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    async def append(self, parts: Mapping[int, NumberedEntries], size_bytes: int) -> None:
        """See `EventAppender.append_numbered`."""
        assert isinstance(self.owner, FencedProducers), "it made this one"
        await self.owner.append(self, parts, size_bytes)


class FencedProducers:
    """See `ProducerStreams`; of one front, on its event loop."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._places = FairPlaces("numbered-producers", "KAFKA_PRODUCER_STREAMS_MAX", KAFKA_PRODUCER_STREAMS_MAX)
        self._open: dict[tuple[str, str], FencedProducing] = {}
        self._threads = ThreadPoolExecutor(KAFKA_PRODUCER_THREADS, thread_name_prefix="producers")
        self._closing: set[asyncio.Task[None]] = set()
        self._events = self._bytes = 0

    async def open(self, broker: str, producer: str, user: str = "") -> Producing:
        """See `ProducerStreams.open`."""
        check_name(producer)
        key = broker, producer
        while (old := self._open.get(key)) is not None:
            old.replaced.set()
            await old.made.wait()
            if old.under_way:
                await asyncio.wait(set(old.under_way))
            if self._open.get(key) is old:
                del self._open[key]
        place = contextlib.ExitStack()
        place.enter_context(self._places.held(namespace_of(broker), user))
        opened = self._open[key] = FencedProducing(self, broker, producer, {}, user, place=place)
        making = asyncio.create_task(self._make(opened))
        making.add_done_callback(lambda done: done.cancelled() or done.exception())  # also when nobody awaits it
        try:
            # Not given up with the request: it would fence the stream that its client opens next.
            writer = await asyncio.shield(making)
            opened.check_in_force()
        except BaseException:
            self.close(opened)
            raise
        opened.newest.update(writer.newest)
        return opened

    async def _make(self, opened: FencedProducing) -> NumberedWriter:
        try:
            made = partial(NumberedWriter, self._config, opened.broker, opened.producer)
            opened.writer = await self._in_thread(made)
        finally:
            opened.made.set()
        return opened.writer

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self, producing: Producing) -> None:
        """See `ProducerStreams.close`."""
        assert isinstance(producing, FencedProducing), "`open` made it"
        if not producing.closed:
            producing.closed = True
            ending = asyncio.create_task(self._end(producing))
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
                await self._in_thread(producing.writer.close)

    def settle(self, producing: Producing, partition: int, number: int, done: asyncio.Future[int]) -> None:
        """See `ProducerStreams.settle`."""
        producing.under_way.discard(done)
        if not done.cancelled() and done.exception() is None:
            producing.newest[partition] = max(number, producing.newest.get(partition, -1))

    async def stop(self) -> None:
        """Stores what waits, and gives everything back; streams have ended."""
        for one in list(self._open.values()):
            self.close(one)
        if self._closing:
            await asyncio.wait(set(self._closing))
        self._threads.shutdown()

    # --- events -----------------------------------------------------------------------------------------

    async def append(self, producing: FencedProducing, parts: Mapping[int, NumberedEntries], size_bytes: int) -> None:
        """See `EventAppender.append_numbered`."""
        if producing.chain.problem is not None:
            raise producing.chain.behind()
        records = {partition: records_of(part.entries) for partition, part in parts.items()}
        newest = {partition: part.last for partition, part in parts.items()}
        count = sum(map(len, records.values()))
        if self._events + count > COMMIT_QUEUE_EVENTS_MAX or self._bytes + size_bytes > COMMIT_QUEUE_BYTES_MAX:
            error = OverloadedError(f"{self._events} events wait for Kafka already", hint="try again later")
            producing.chain.end(error)
            raise error
        submit = _Numbered(records, newest, size_bytes)
        submit.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._events, self._bytes = self._events + count, self._bytes + size_bytes
        for partition, number in newest.items():
            producing.submitted(partition, number, submit.done)
        producing.waiting.append(submit)
        if producing.task is None:
            producing.task = asyncio.create_task(self._commit_all(producing), name="numbered-producer")
        try:
            await asyncio.shield(submit.done)  # what is under way is not given up with the request
        finally:
            self._events, self._bytes = self._events - count, self._bytes - size_bytes

    async def _commit_all(self, producing: FencedProducing) -> None:
        """Commits until nothing waits; the next submit starts it again. What fails ends the chain."""
        try:
            while group := next_group(producing.waiting):
                error = await self._commit(producing, group)
                if error is None:
                    for submit in group:
                        submit.done.set_result(0)
                    continue
                producing.chain.end(error)
                if isinstance(error, ProducerReplacedError):
                    producing.replaced.set()
                for submit in group:
                    submit.fail(error)
                while producing.waiting:
                    producing.waiting.popleft().fail(producing.chain.behind())
        finally:
            producing.task = None

    async def _commit(self, producing: FencedProducing, group: Sequence[_Numbered]) -> HeadgateError | None:
        """Stores some submits in one transaction; why that failed."""
        assert producing.writer is not None, "the stream is open"
        parts: dict[int, list[KafkaRecord]] = {}
        newest: dict[int, int] = {}
        for submit in group:
            newest.update(submit.newest)
            for partition, records in submit.parts.items():
                parts.setdefault(partition, []).extend(records)
        try:
            await self._in_thread(partial(producing.writer.store, parts, newest))
        except HeadgateError as error:
            return error
        except Exception as error:  # noqa: BLE001 - those who wait get it
            return UnavailableError(f"{_DOING}: {error}")
        return None
