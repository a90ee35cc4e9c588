"""Appending to the topic `events`: single events by an idempotent producer, batches in transactions.

Both wait for all in-sync copies (acks=all). A transaction costs some milliseconds more than a single event, and is what
makes a batch readable as a whole or not at all: batches that wait while one is committed share the next one, as chunks
of the embedded log share an fsync. docs/adr/0014-batches-are-transactions.md has the reasons.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import BOUNDED_SEND, TopicProducer, library, offset_of
from headgate.backend.kafka.numbered_producers import FencedProducing
from headgate.backend.kafka.records import KafkaRecord, records_of
from headgate.backend.kafka.transactions import EventRecords, FencedName, FencedWriter, name_taken
from headgate.ingress.encode import Entries
from headgate.ingress.partitions import WaitingEvents
from headgate.ingress.producers import NumberedEntries, Producing
from headgate.log.group_commit import GroupCommit, Room
from headgate.storage.threads import Threads
from headgate_api.errors import HeadgateError, OverloadedError, UnavailableError
from headgate_api.limits import (
    COMMIT_QUEUE_BYTES_MAX,
    COMMIT_QUEUE_EVENTS_MAX,
    KAFKA_APPEND_S_MAX,
    KAFKA_PROBE_S_MAX,
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
    next process of that name, instead of after KAFKA_TRANSACTION_S_MAX.
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
        self._problem = ""
        self._poller = threading.Thread(target=self._poll, name="kafka-acknowledgements", daemon=True)
        self._poller.start()

    async def append(self, parts: Mapping[int, Entries], size_bytes: int) -> Mapping[int, Sequence[int]]:
        if self._closing.is_set():
            raise UnavailableError("the connection to Kafka is closing")
        if self._problem:
            raise UnavailableError(self._problem, hint="nothing is stored: send it again later")
        count = sum(len(entries) for entries in parts.values())
        namespace, size = self._shares.enter(next(iter(parts.values())).broker, count, size_bytes)
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
            self._shares.leave(namespace, size)

    @property
    def problem(self) -> str:
        """Why nothing is taken now, as `probe` found; empty when events are."""
        return self._problem

    async def probe(self) -> None:
        """Asks Kafka once. While it does not answer, events are refused at once, instead of waiting for it in vain."""
        self._problem = await asyncio.to_thread(self._asked)

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
            stored = writer.send_records(
                ("events", partition, record)
                for batch in group
                for partition, records in batch.parts.items()
                for record in records
            )
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

    async def append_numbered(
        self, producing: Producing, parts: Mapping[int, NumberedEntries], size_bytes: int
    ) -> None:
        """By the stream's own producer, which the next stream fences."""
        assert isinstance(producing, FencedProducing), "producers on Kafka have opened it"
        await producing.append(parts, size_bytes)

    async def close(self) -> None:
        if self._closing.is_set():
            return
        await self._commit.close()
        if self._singles:
            await asyncio.wait(self._singles)
        self._closing.set()
        await asyncio.to_thread(self._poller.join)
        self._thread.close()
