"""Topics of state, which are compacted: written behind a fence, read to their end, and followed into the objects."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from headgate.control.database import NotLeaderError
from headgate.errors import HeadgateError, UnavailableError
from headgate.limits import (
    KAFKA_ADMIN_S_MAX,
    KAFKA_READ_S_MAX,
    KAFKA_RECORD_BYTES_MAX,
    KAFKA_RECORDS_WAITING_MAX,
    KAFKA_TRANSACTION_S_MAX,
    OBJECT_RECORDS_BYTES_MAX,
)
from headgate.store.config import KafkaConfig
from headgate.store.kafka.client import (
    Faults,
    admin_client,
    committed_reader,
    library,
    made_client,
    translated,
    watermarks,
)
from headgate.store.kafka.records import KafkaRecord

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition


# --- state record ---------------------------------------------------------------------------------
# A record on its way to a topic of state, which is compacted. Pure.


@dataclass(frozen=True, slots=True)
class StateRecord:
    """One of them; `value` is None where what the key names is gone."""

    key: bytes
    value: bytes | None


# --- state reader ---------------------------------------------------------------------------------
# Reading a topic of state: records of committed transactions, up to the end that is known when reading begins.

_RECORDS_A_TIME: Final = 500
_POLL_S: Final = 0.5


class StateTopicReader:
    """Reads one partition of a topic; blocking, for one thread at a time.

    An end is always the end of a transaction: Kafka shows no reader of committed records the place behind an open one.

    Args:
        config: Of the deployment.
        topic: By its name in `TopicsConfig`.
        lost: Makes the error where the topic ends before what was read: of the topic's name in Kafka and a reason.
        partition: Of the topic.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(
        self, config: KafkaConfig, topic: str, lost: Callable[[str, str], HeadgateError], partition: int = 0
    ) -> None:
        self._config = config
        self._partition = partition
        self._topic = config.topic(topic)
        self._doing = f"{topic} cannot be read"
        self._lost = lost
        self._faults = Faults()
        self._held: deque[Message] = deque()
        self._closed = False
        self._from = 0  # records below it were handed out or passed over
        self._next = -1  # records below it are held, if there are any; negative before the first question
        self._consumer: Consumer = committed_reader(config, self._faults)

    def topic_id(self) -> str:
        """Kafka's id of the topic.

        Raises:
            UnavailableError: Kafka does not answer, or has no such topic.
        """
        kafka = library()
        admin = admin_client(self._config, self._faults)
        try:
            asked = admin.describe_topics(kafka.TopicCollection([self._topic]), request_timeout=KAFKA_ADMIN_S_MAX)
            return str(asked[self._topic].result().topic_id)
        except kafka.KafkaException as error:
            admin.poll(0)
            raise self._translated(error.args[0]) from error

    def end(self) -> int:
        """The end of the last transaction that has ended.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        place = library().TopicPartition(self._topic, self._partition)
        return watermarks(self._consumer, place, self._config, self._faults, self._doing)[1]

    def comes(self, start: int, timeout_s: float) -> bool:
        """Whether there is a record at `start` or behind it, now or within the time."""
        self._go(start)
        deadline = time.monotonic() + timeout_s
        while not self._held and (left_s := deadline - time.monotonic()) > 0:
            self._take(left_s)
            self._drop(start)
        return bool(self._held)

    def has_record(self, start: int, end: int) -> bool:
        """Whether there is a record from one offset up to another.

        Args:
            start: The first offset.
            end: What `end()` said.

        Raises:
            UnavailableError: Kafka does not answer.
            HeadgateError: What `lost` makes: the topic ends before `start`.
        """
        self._go(start)
        deadline = time.monotonic() + KAFKA_READ_S_MAX
        while not self._held and self._next < end:
            if time.monotonic() > deadline:
                raise self._silent()
            self._take(_POLL_S)
            self._drop(start)
        return bool(self._held) and _offset(self._held[0]) < end

    def records(self, start: int, end: int) -> Iterator[Message]:
        """Those records, in order; see `has_record`."""
        while self.has_record(start, end):
            message = self._held.popleft()
            self._from = start = _offset(message) + 1
            yield message

    def _go(self, start: int) -> None:
        """Reading goes on at `start`, by passing over records; only a way back asks Kafka anew."""
        if start < self._from or self._next < 0:
            self._held.clear()
            self._from = self._next = start
            self._consumer.assign([library().TopicPartition(self._topic, self._partition, start)])
        self._drop(start)

    def _drop(self, start: int) -> None:
        while self._held and _offset(self._held[0]) < start:
            self._from = _offset(self._held.popleft()) + 1

    def _take(self, timeout_s: float) -> None:
        """Waits for a record, and takes what has come with it. Moves `_next` over what the partition's end tells."""
        kafka = library()
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        for message in [first, *self._consumer.consume(_RECORDS_A_TIME, 0)]:
            error = message.error()
            if error is None:
                self._held.append(message)
                self._next = _offset(message) + 1
            elif error.code() == kafka.KafkaError._PARTITION_EOF:
                self._next = max(self._next, _offset(message))
            elif error.code() in (kafka.KafkaError.OFFSET_OUT_OF_RANGE, kafka.KafkaError._AUTO_OFFSET_RESET):
                raise self._lost(self._topic, f"it ends before offset {self._next}, up to which it was read")
            elif not error.retriable():
                raise self._translated(error)

    def _translated(self, error: KafkaError) -> Exception:
        return translated(self._faults.cause(error), self._doing, self._config)

    def _silent(self) -> UnavailableError:
        return UnavailableError(f"{self._doing}: {self._topic} does not answer")

    def close(self) -> None:
        """Gives everything back; idempotent."""
        if not self._closed:
            self._closed = True
            self._consumer.close()


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "a record that was read has an offset"
    return offset


# --- fenced writer --------------------------------------------------------------------------------
# Writing a topic of state: a transactional producer that a newer one of the deployment fences.

_ANSWER_POLL_S: Final = 0.1


class _Delivered:
    """What became of a transaction's records: the highest offset, and the first error."""

    def __init__(self) -> None:
        self.last = -1
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Takes the report on one record; librdkafka's callback."""
        offset = message.offset()
        if error is not None:
            self.error = self.error or error
        elif offset is not None:
            self.last = max(self.last, offset)


@dataclass(frozen=True, slots=True)
class Office:
    """What only the newest writer may write.

    Attributes:
        topic: By its name in `TopicsConfig`.
        name: The `transactional.id`, without the prefix of topics.
        doing: What fails, as the beginning of a sentence.
        unsure: What to do where it is not known whether a transaction is stored.
        fenced: Makes the error of a writer that is not the newest; takes a hint, which may be empty.
        headers: Of every record.
        partition: Of the topic.
    """

    topic: str
    name: str
    doing: str
    unsure: str
    fenced: Callable[[str], HeadgateError]
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int = 0


class FencedWriter:
    """The one writer of a partition until a newer one is made, in whichever process; blocking, one thread at a time.

    `transactional.id` is that of its office. Making a writer ends what an earlier one left open: when it is made,
    everything that was ever committed can be read. After an error of Kafka a writer is used no more: what is on its
    way could come into a later transaction of it.

    Args:
        config: Of the deployment.
        office: What it writes.

    Attributes:
        is_failed: Whether an error of Kafka has ended its use.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
        UnavailableError: Kafka does not answer.
    """

    def __init__(self, config: KafkaConfig, office: Office) -> None:
        kafka = library()
        self._config = config
        self._office = office
        self._topic = config.topic(office.topic)
        self._faults = Faults()
        self.is_failed = False
        timeout_ms = round(KAFKA_TRANSACTION_S_MAX * 1_000)
        own = {
            "transactional.id": config.topic(office.name),
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "enable.idempotence": True,
            "acks": "all",
            "message.max.bytes": KAFKA_RECORD_BYTES_MAX,
            "queue.buffering.max.messages": KAFKA_RECORDS_WAITING_MAX,
            "queue.buffering.max.kbytes": OBJECT_RECORDS_BYTES_MAX >> 10,
            "linger.ms": 0,
        }
        self._producer: Producer = made_client(kafka.Producer, config, self._faults, own)
        with self._errors():
            self._producer.init_transactions(KAFKA_TRANSACTION_S_MAX)

    def send(self, records: Iterable[StateRecord], copies: Iterable[tuple[str, StateRecord]] = ()) -> int:
        """Begins a transaction and sends its records; every in-sync copy has them when this returns.

        What `records` raises aborts the transaction and is raised here; the writer goes on.

        Args:
            records: The records.
            copies: Further ones, for the first partition of other topics, by their names in `TopicsConfig`.

        Returns:
            The offset of the last of `records`; -1 without one.

        Raises:
            HeadgateError: What `Office.fenced` makes: a newer writer was made; nothing is stored.
            UnavailableError: Kafka did not take them; nothing is stored.
        """
        done, copied = _Delivered(), _Delivered()

        def produce() -> None:
            headers = self._office.headers
            for record in records:
                self._produce(record, headers, done, self._topic, self._office.partition)
            for topic, record in copies:
                self._produce(record, headers, copied, self._config.topic(topic), 0)

        self._send(produce, done, copied)
        return done.last

    def send_events(self, parts: Mapping[int, Iterable[KafkaRecord]]) -> None:
        """Does the same with records that have headers of their own; raises as `send` does.

        Args:
            parts: By partition of the office's topic, in order.
        """
        done = _Delivered()

        def produce() -> None:
            for partition, records in parts.items():
                for record in records:
                    self._produce(record, record.headers, done, self._topic, partition)

        self._send(produce, done)

    def _send(self, produce: Callable[[], None], *reports: _Delivered) -> None:
        kafka = library()
        with self._errors():
            self._producer.begin_transaction()
            try:
                produce()
            except kafka.KafkaException:
                raise
            except BaseException:
                self._producer.abort_transaction(KAFKA_TRANSACTION_S_MAX)
                raise
            left = self._producer.flush(KAFKA_TRANSACTION_S_MAX)
        error = next((report.error for report in reports if report.error is not None), None)
        if left or error is not None:
            raise self._failed(error or kafka.KafkaError(kafka.KafkaError._TIMED_OUT))

    def _produce(
        self,
        record: StateRecord | KafkaRecord,
        headers: Iterable[tuple[str, bytes]],
        done: _Delivered,
        topic: str,
        partition: int,
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    topic,
                    record.value,
                    record.key,
                    partition,
                    on_delivery=done,
                    headers=list(headers),
                )
                break
            except BufferError:  # its queue is full: acknowledgements make room
                self._producer.poll(_ANSWER_POLL_S)
        self._producer.poll(0)

    def add_places(self, places: Sequence[TopicPartition], group: object) -> None:
        """Makes commits of a consumer group part of the transaction that is open.

        Args:
            places: Partitions, offsets and metadata.
            group: What a consumer of the group says that it is (`consumer_group_metadata`).

        Raises:
            HeadgateError: What `Office.fenced` makes: a newer writer was made; nothing is stored.
            UnavailableError: Kafka did not take them; nothing is stored.
        """
        with self._errors():
            self._producer.send_offsets_to_transaction(list(places), group, KAFKA_TRANSACTION_S_MAX)

    def commit(self) -> None:
        """Makes the records of the transaction readable, all of them or none.

        Raises:
            HeadgateError: What `Office.fenced` makes: a newer writer was made; whether they are stored is not known.
            UnavailableError: Kafka did not answer; whether they are stored is not known.
        """
        with self._errors(self._office.unsure):
            self._producer.commit_transaction(KAFKA_TRANSACTION_S_MAX)

    def abort(self) -> None:
        """Gives the records of the transaction up.

        Raises:
            HeadgateError: What `Office.fenced` makes: a newer writer was made.
            UnavailableError: Kafka did not answer.
        """
        with self._errors():
            self._producer.abort_transaction(KAFKA_TRANSACTION_S_MAX)

    @contextmanager
    def _errors(self, hint: str = "") -> Iterator[None]:
        """Turns the library's errors into ours. A fatal one, such as a fence, may come out of a callback of ours."""
        kafka = library()
        try:
            yield
        except kafka.KafkaException as error:
            raise self._failed(error.args[0], hint) from error
        except SystemError as error:
            # The library loses a fatal error that meets a callback, and says it again when it is asked.
            self.is_failed = True
            try:
                self._producer.abort_transaction(KAFKA_TRANSACTION_S_MAX)
            except kafka.KafkaException as fatal:
                raise self._failed(fatal.args[0], hint) from error
            raise

    def _failed(self, error: KafkaError, hint: str = "") -> HeadgateError:
        kafka = library().KafkaError
        self.is_failed = True
        with suppress(library().KafkaException, SystemError):  # the fatal error once more
            self._producer.poll(0)  # brings what the connections report
        if error.code() in (kafka._FENCED, kafka.PRODUCER_FENCED, kafka.INVALID_PRODUCER_EPOCH):
            return self._office.fenced(hint)
        problem = translated(self._faults.cause(error), self._office.doing, self._config)
        if hint and isinstance(problem, UnavailableError):
            return type(problem)(problem.message, hint=hint)
        return problem

    def close(self) -> None:
        """Drops what was not sent. An open transaction ends with the next writer, or with its own time."""
        with suppress(library().KafkaException):
            self._producer.purge()


# --- state follower -------------------------------------------------------------------------------
# Following a topic of state into the objects: what the control process that leads writes down of other processes.

_WAIT_S: Final = 0.5
"""A stop is noticed so late."""
_RETRY_S: Final = 1.0
"""Between two tries of a process that does not lead, or that Kafka does not answer."""
_log = structlog.get_logger(__name__)


def follow_state(
    config: KafkaConfig,
    topic: str,
    lost: Callable[[str, str], HeadgateError],
    take: Callable[[Message], object],
    write: Callable[[], bool],
    stop: threading.Event,
) -> None:
    """Reads a topic from its start, and writes what it says, until told to stop; blocking, for a thread of its own.

    Every control process may run it: one that does not lead tries again, and writes the newest when it leads.

    Args:
        config: Of the deployment.
        topic: By its name in `TopicsConfig`.
        lost: Makes the error where the topic ends before what was read: of the topic's name in Kafka and a reason.
        take: Takes each record, once.
        write: Writes what is not written yet; False where that must wait.
        stop: Ends it.

    Raises:
        HeadgateError: What `lost` makes; or the library is missing, or an option is none of its own.
    """
    reader = StateTopicReader(config, topic, lost)
    try:
        at, is_written = 0, True
        while not stop.is_set():
            try:
                if reader.comes(at, _WAIT_S if is_written else 0.0):
                    end = reader.end()
                    for record in reader.records(at, end):
                        take(record)
                        at = (record.offset() or 0) + 1
                    at, is_written = max(at, end), False
                if not is_written:
                    is_written = write()
                    if not is_written:
                        stop.wait(_WAIT_S)
            except NotLeaderError:
                stop.wait(_RETRY_S)
            except UnavailableError as error:
                what = f"what the topic {topic} says is not written now"
                _log.warning(what, error=error.message, hint=error.hint)
                stop.wait(_RETRY_S)
    finally:
        reader.close()
