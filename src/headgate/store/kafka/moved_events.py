"""Stored events and undelivered rows of a server without Kafka on their way into the topics.

Rows go as a matcher's run writes them (docs/spec/outbox-topic.md): a run of its own number matches the events that had
been matched before, for the targets that have not got them. So dispatchers take them as any other rows, and the next
run begins behind them. Events get new places; those with one partition key keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headgate.errors import UnavailableError
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, from_batch
from headgate.ingress.partitions import partition_of_key
from headgate.limits import (
    KAFKA_APPEND_S_MAX,
    KAFKA_RECORD_BYTES_MAX,
    KAFKA_RECORDS_WAITING_MAX,
    MOVED_BYTES_AT_ONCE,
    MOVED_EVENTS_AT_ONCE,
    OUTBOX_RECORD_TARGETS_MAX,
)
from headgate.log.reader import Chunk
from headgate.outbox.shards import dispatcher_of
from headgate.store.config import KafkaConfig
from headgate.store.embedded_state import UndeliveredRows
from headgate.store.kafka.library import Faults, library, made_client, translated
from headgate.store.kafka.outbox_records import (
    EVENT,
    HEAD,
    HEADER,
    TARGET,
    OutboxKind,
    encode_hello,
    encode_over,
    encode_passed,
)
from headgate.store.kafka.records import KafkaRecord, encode_record

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_DOING: Final = "the deployment on Kafka cannot be written"
_POLL_S: Final = 0.05
_PRODUCED: Final = EVENT_SCHEMA.get_field_index("produced")


class TopicProducer:
    """Writes records of several topics, in order by partition; every in-sync copy has them after `flush`. Blocking.

    Args:
        config: Of the deployment.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._faults = Faults()
        self._error: KafkaError | None = None
        own = {
            "enable.idempotence": True,
            "acks": "all",
            "message.max.bytes": KAFKA_RECORD_BYTES_MAX,
            "message.timeout.ms": round(KAFKA_APPEND_S_MAX * 1_000),
            "queue.buffering.max.messages": KAFKA_RECORDS_WAITING_MAX,
            "linger.ms": 1,
        }
        self._producer: Producer = made_client(library().Producer, config, self._faults, own)

    def send(
        self, topic: str, partition: int, record: KafkaRecord, on_offset: Callable[[int], object] = lambda _: None
    ) -> None:
        """Sends a record.

        Args:
            topic: By its name in `TopicsConfig`.
            partition: Of it.
            record: The record.
            on_offset: Called within `send` or `flush` with its offset.
        """

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                self._error = self._error or error
            else:
                on_offset(offset)

        name = self._config.topic(topic)
        while True:
            try:
                self._producer.produce(
                    name, record.value, record.key, partition, on_delivery=delivered, headers=list(record.headers)
                )
                break
            except BufferError:  # its queue is full: acknowledgements make room
                self._producer.poll(_POLL_S)
        self._producer.poll(0)

    def flush(self) -> None:
        """Waits for everything that was sent.

        Raises:
            UnavailableError: Kafka did not take all of it.
            KafkaDeniedError: We may not.
        """
        left = self._producer.flush(KAFKA_APPEND_S_MAX)
        if self._error is not None:
            raise translated(self._faults.cause(self._error), _DOING, self._config)
        if left:
            raise UnavailableError(f"{_DOING}: Kafka does not answer")


@dataclass(slots=True)
class _Sent:
    """An event on its way, and for whom it is undelivered."""

    source: int
    stored_us: int
    record: KafkaRecord
    targets: list[tuple[int, int]]
    offset: int = -1

    def put(self, offset: int) -> None:
        self.offset = offset


class MovedEvents:
    """Copies events, and writes the rows of a run for them. Blocking.

    Args:
        config: Of the deployment.
        producer: Writes them.
        run: Number of the run.
        generation: Of its filters.

    Attributes:
        counts: Events by partition of the topic.
        rows: Deliveries that were written to the outbox.
    """

    def __init__(self, config: KafkaConfig, producer: TopicProducer, run: int, generation: int) -> None:
        self._producer = producer
        self._run = run
        self._generation = generation
        self._outboxes = config.topics.outbox.partitions
        self.counts = dict.fromkeys(range(config.topics.events.partitions), 0)
        self.rows = 0

    def begin(self) -> None:
        """The run begins, in every partition of the outbox."""
        for source in self.counts:
            hello = encode_hello(
                run=self._run,
                generation=self._generation,
                partition=source,
                start=0,
                partitions=len(self.counts),
                outbox_partitions=self._outboxes,
            )
            self._say(hello)

    def copy(
        self,
        chunks: Iterable[tuple[int, Chunk, range]],
        undelivered: UndeliveredRows | None,
        tell: Callable[[int], object],
    ) -> None:
        """Copies events, a piece after the other.

        Args:
            chunks: Partition, chunk, and the rows that are meant.
            undelivered: Whose deliveries are written to the outbox; None: nobody has matched these events.
            tell: Called with how many more have been copied.

        Raises:
            UnavailableError: Kafka did not take all of it.
        """
        piece: list[_Sent] = []
        size = 0
        for partition, chunk, rows in chunks:
            for row in rows:
                stored = from_batch(chunk.batch, row)
                targets = [] if undelivered is None else undelivered.of(partition, chunk.first_offset + row)
                sent = self._send(partition, chunk, row, stored, targets)
                piece.append(sent)
                size += sent.record.size_bytes
                if len(piece) >= MOVED_EVENTS_AT_ONCE or size >= MOVED_BYTES_AT_ONCE:
                    self._finish(piece, tell)
                    piece, size = [], 0
        self._finish(piece, tell)

    def end(self, passed: Mapping[int, int]) -> None:
        """Everything below these offsets has been matched, and the run is over.

        Args:
            passed: By partition of the topic `events`.
        """
        for source, offset in passed.items():
            self._say(encode_passed(run=self._run, generation=self._generation, partition=source, passed=offset))
        self._say(encode_over(run=self._run, generation=self._generation))
        self._producer.flush()

    def _send(
        self, partition: int, chunk: Chunk, row: int, stored: StoredEvent, targets: list[tuple[int, int]]
    ) -> _Sent:
        produced = _produced(chunk.batch, row)
        record = encode_record(stored.broker, stored.event, produced)
        count = len(self.counts)
        source = partition % count if record.key is None else partition_of_key(record.key, count)
        sent = _Sent(source, chunk.append_time_us, record, targets)
        self._producer.send("events", source, record, sent.put)
        self.counts[source] += 1
        return sent

    def _finish(self, piece: list[_Sent], tell: Callable[[int], object]) -> None:
        """Waits until the events of a piece are stored, and writes their rows."""
        self._producer.flush()
        for sent in piece:
            by_outbox: dict[int, list[tuple[int, int]]] = {}
            for target, verdict in sent.targets:
                by_outbox.setdefault(dispatcher_of(target, self._outboxes), []).append((target, verdict))
            for outbox, targets in by_outbox.items():
                self._match(sent, outbox, targets)
            self.rows += len(sent.targets)
        self._producer.flush()
        tell(len(piece))

    def _match(self, sent: _Sent, outbox: int, targets: list[tuple[int, int]]) -> None:
        """The records of an event in one partition of the outbox."""
        starts = range(0, len(targets), OUTBOX_RECORD_TARGETS_MAX)
        for start in starts:
            more = start != starts[-1]
            own = HEAD.pack(OutboxKind.EVENT, more, self._run, self._generation, sent.source, sent.offset)
            own += EVENT.pack(sent.stored_us)
            own += b"".join(TARGET.pack(*one) for one in targets[start : start + OUTBOX_RECORD_TARGETS_MAX])
            self._producer.send(
                "outbox", outbox, KafkaRecord(None, sent.record.value, [(HEADER, own), *sent.record.headers])
            )

    def _say(self, header: bytes) -> None:
        """A record without an event, in every partition of the outbox."""
        for outbox in range(self._outboxes):
            self._producer.send("outbox", outbox, KafkaRecord(None, None, [(HEADER, header)]))


def _produced(batch: pa.RecordBatch, row: int) -> str | None:
    found: str | None = batch.column(_PRODUCED)[row].as_py() if _PRODUCED >= 0 else None
    return found
