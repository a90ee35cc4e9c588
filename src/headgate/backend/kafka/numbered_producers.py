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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import TopicConsumer, library
from headgate.backend.kafka.records import records_of
from headgate.backend.kafka.transactions import EventRecords, FencedName, FencedWriter
from headgate.ingress.producers import NumberedEntries, ProducerReplacedError, Producing, check_name
from headgate.log.group_commit import GroupCommit, Room
from headgate.shares import FairPlaces
from headgate.storage.threads import Threads
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.event.names import namespace_of
from headgate_api.limits import (
    COMMIT_QUEUE_BYTES_MAX,
    COMMIT_QUEUE_EVENTS_MAX,
    KAFKA_PRODUCER_STREAMS_MAX,
    KAFKA_PRODUCER_THREADS,
)

_DOING: Final = "events of a numbered producer cannot be stored"
_UNSURE: Final = "it is not known whether they are stored: open another stream, which says from which number on to send"
_OFFSET_MAX: Final = 1 << 62
"""A number may be larger than an offset: it stands in the commit's metadata, and the offset is for people."""


class NumberedWriter:
    """The newest stream of a producer, with the `newest` numbers before it; blocking, one thread at a time."""

    def __init__(self, config: KafkaConfig, broker: str, producer: str) -> None:
        self._topic = config.topic("events")
        digest = hashlib.sha256(f"{broker}\0{producer}".encode()).hexdigest()[:32]

        def fenced(hint: str) -> ProducerReplacedError:
            return ProducerReplacedError(
                f"the producer {producer!r} has opened another stream",
                hint=hint or "a producer has one stream at a time: give each process a name of its own",
            )

        # Before the numbers are read: nothing of an earlier stream is committed from here on.
        name = FencedName("events", f"producer-{digest}", _DOING, _UNSURE, fenced)
        self._writer = FencedWriter(config, name)
        with contextlib.closing(TopicConsumer.committed(config, _DOING, group=f"producer-{digest}")) as reader:
            self._group: object = reader.raw.consumer_group_metadata()
            partitions = range(config.topics.events.partitions)
            found = reader.commits([library().TopicPartition(self._topic, number) for number in partitions])
        self.newest = {place.partition: int(place.metadata or 0) for place in found if place.offset >= 0}

    def store(self, submits: Sequence[EventRecords]) -> list[int]:
        """Stores events with their numbers in one transaction, all or none; gives a number of no meaning for each.

        Raises ProducerReplacedError when there is a newer stream, else UnavailableError, whose hint says where it is
        not known whether they are stored.
        """
        newest = {partition: number for submit in submits for partition, number in submit.newest.items()}
        places = [
            library().TopicPartition(self._topic, partition, min(number + 1, _OFFSET_MAX), str(number))
            for partition, number in newest.items()
        ]
        try:
            self._writer.send_records(
                ("events", partition, record)
                for submit in submits
                for partition, records in submit.parts.items()
                for record in records
            )
            self._writer.add_places(places, self._group)
            self._writer.commit()
        except HeadgateError:
            raise
        except Exception as error:
            raise UnavailableError(f"{_DOING}: {error}") from error
        return [0] * len(submits)

    def close(self) -> None:
        """Gives the producer of Kafka back; its threads end here, and not where it is forgotten: that takes a while."""
        self._writer.close()
        del self._writer


@dataclass(eq=False)
class FencedProducing(Producing):
    """One stream of a producer; made by `FencedProducers.open`. `writer` and `commit` are None until `made` is set."""

    writer: NumberedWriter | None = None
    commit: GroupCommit[EventRecords, int] | None = None
    made: asyncio.Event = field(default_factory=asyncio.Event)
    place: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    async def append(self, parts: Mapping[int, NumberedEntries], size_bytes: int) -> None:
        assert self.commit is not None, "the stream is open"
        records = {partition: records_of(part.entries) for partition, part in parts.items()}
        newest = {partition: part.last for partition, part in parts.items()}
        done = self.commit.enqueue(EventRecords(records, newest), size_bytes, self.chain)
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        for partition, number in newest.items():
            self.submitted(partition, number, done)
        await asyncio.shield(done)  # what is under way is not given up with the request


class FencedProducers:
    """The `ProducerStreams` of one front, on its event loop."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
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
            opened.writer = await self._threads.run(NumberedWriter, self._config, opened.broker, opened.producer)
            # After an error of Kafka the writer takes nothing more, so no submit is tried alone.
            opened.commit = GroupCommit(opened.writer.store, self._threads, self._room, tries_alone=False)
        finally:
            opened.made.set()
        return opened.writer

    def close(self, producing: Producing) -> None:
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
