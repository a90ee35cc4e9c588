"""Sources: topics into which any producer writes CloudEvents, admitted to a broker exactly once.

The processes of a source are a consumer group. Each reads records, writes what they become, and commits how far it has
read, in one transaction: a record is in `events` or in `refused` once for its (topic, partition, offset), whenever a
process dies. Partitions change hands between transactions only, and a process that lost them cannot commit: Kafka
compares its generation of the group. A transaction stays within one Kafka, so a source's topics are in the deployment's
own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from headgate.errors import HeadgateError, InvalidInputError, UnavailableError
from headgate.event.identity import namespace_of
from headgate.limits import (
    KAFKA_READ_S_MAX,
    KAFKA_RECORD_BYTES_MAX,
    KAFKA_TRANSACTION_S_MAX,
    SOURCE_BYTES_MAX,
    SOURCE_RECORDS,
    SOURCE_RETRY_S,
    SOURCE_SESSION_S,
)
from headgate.store.config import KafkaConfig, SourceConfig
from headgate.store.kafka.consumers import BOUNDED_FETCH, ELECTION_S, watermarks
from headgate.store.kafka.library import Faults, library, made_client, translated
from headgate.store.kafka.pages import headers_of, offset_of
from headgate.store.kafka.records import KafkaRecord, RecordError
from headgate.store.kafka.source_gate import OpenGate, SourceGate
from headgate.store.kafka.source_records import AdmittedRecord, ForeignRecord, RefusedRecord, admit

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

_DOING: Final = "records of a source cannot be admitted"
_ANY_PARTITION: Final = -1
"""Of the topic `refused`: the record's key decides."""
_POLL_S: Final = 0.2
"""How long a poll waits: a stop is noticed so late."""
_log = structlog.get_logger(__name__)


class SourceReader:
    """One process of a source. Blocking; for one thread.

    Args:
        config: Of the deployment.
        source: What is read.
        identity: The identity of the broker `NAMESPACE/NAME` that gets the events; None when there is none now. It may
            block.
        instance: Name of this process, the same after a restart and no other one's: a transaction that a crash left
            open is ended by the next process of that name, instead of after KAFKA_TRANSACTION_S_MAX.
        on_admitted: Called after each transaction with how many records were admitted and how many refused.
        gate: Says what the source may admit; None: everything.

    Attributes:
        problem: Why nothing is admitted now; empty while all is well.
    """

    def __init__(
        self,
        config: KafkaConfig,
        source: SourceConfig,
        instance: str,
        identity: Callable[[str], str | None],
        on_admitted: Callable[[int, int], object] = lambda _admitted, _refused: None,
        gate: SourceGate | None = None,
    ) -> None:
        self.problem = ""
        self._config = config
        self._source = source
        self._instance = instance
        self._identity = identity
        self._on_admitted = on_admitted
        self._gate = gate or OpenGate()
        self._is_held = False  # its namespace is over its quota
        self._faults = Faults()
        self._failure: HeadgateError | None = None  # of a callback: the library would print it
        self._is_leaving = False
        self._found: list[Message] = []

    def run(self, stop: threading.Event) -> None:
        """Admits records until told to stop. A failure is logged, and everything begun anew: nothing is lost by it.

        Raises:
            InvalidInputError: The library is missing, or an option is none of its own: no further try helps.
        """
        while not stop.is_set():
            try:
                self._broker()
                self._run(stop)
            except InvalidInputError:
                raise
            except HeadgateError as error:
                if error.message != self.problem:
                    _log.error("a source begins anew", source=self._source.name, error=error.message, hint=error.hint)
                self.problem = error.message
                stop.wait(SOURCE_RETRY_S)

    def _broker(self) -> str:
        """The identity of the broker that gets the events now: one that was made anew has another.

        Raises:
            UnavailableError: There is none: records wait in their topic.
        """
        found = self._identity(self._source.broker)
        if found is None:
            raise UnavailableError(
                f"source {self._source.name}: there is no broker {self._source.broker}",
                hint="records wait in their topics until it is created",
            )
        return found

    def _run(self, stop: threading.Event) -> None:
        kafka = library()
        producer, consumer = self._producer(), self._consumer()
        self._failure, self._is_held, self._is_leaving = None, False, False
        try:
            producer.init_transactions(KAFKA_TRANSACTION_S_MAX)
            consumer.subscribe(list(self._source.topics), on_assign=self._on_assign, on_revoke=self._on_revoke)
            while not stop.is_set():
                self._hold(consumer)
                messages, broker = self._read(consumer), self._broker()
                if consumer.assignment():
                    self.problem = self._waiting if self._is_held else ""
                if messages:
                    self._admit(consumer, producer, messages, broker)
        except kafka.KafkaException as error:
            with suppress(kafka.KafkaException, SystemError):  # a fatal error once more
                producer.poll(0)  # brings what the connections report
            raise translated(self._faults.cause(error.args[0]), _DOING, self._config) from error
        except SystemError as error:  # how the library tells a fatal error where it meets a callback
            raise UnavailableError(f"{_DOING}: a client for Kafka has failed", hint=str(error)) from error
        finally:
            self._is_leaving = True
            producer.purge()
            with suppress(kafka.KafkaException, SystemError):
                consumer.close()

    def _hold(self, consumer: Consumer) -> None:
        """Reads nothing while the namespace is over its quota: records wait in their topic, and rebalances go on."""
        is_held = self._gate.wait_s() > 0
        if is_held and consumer.assignment():
            consumer.pause(consumer.assignment())  # those too that have come since
        elif self._is_held and not is_held:
            consumer.resume(consumer.assignment())
        self._is_held = is_held

    @property
    def _waiting(self) -> str:
        namespace = namespace_of(self._source.broker)
        return f"source {self._source.name}: waits, as the namespace {namespace} has exceeded its quota"

    # --- reading ---------------------------------------------------------------------------------------

    def _read(self, consumer: Consumer) -> list[Message]:
        """Records that have come, of partitions that are ours now."""
        self._found.clear()
        size_bytes = 0
        message = consumer.poll(_POLL_S)
        while message is not None:
            error = message.error()
            if error is None:
                self._found.append(message)
                size_bytes += len(message)
            else:
                self._pass(consumer, message, error)
            if len(self._found) >= SOURCE_RECORDS or size_bytes >= SOURCE_BYTES_MAX:
                break
            message = consumer.poll(0)  # it may call back that some of them are no longer ours
        if self._failure is not None:
            raise self._failure
        return self._found

    def _pass(self, consumer: Consumer, message: Message, error: KafkaError) -> None:
        kafka = library()
        topic, partition = message.topic(), message.partition()
        is_gone = error.code() in (kafka.KafkaError.OFFSET_OUT_OF_RANGE, kafka.KafkaError._AUTO_OFFSET_RESET)
        if is_gone and topic is not None and partition is not None:
            place = kafka.TopicPartition(topic, partition)
            first, _ = watermarks(consumer, place, self._config, self._faults, _DOING)
            _log.error("records of a source went before they were read", source=self._source.name, topic=topic)
            consumer.incremental_unassign([place])
            consumer.incremental_assign([kafka.TopicPartition(topic, partition, first)])
        elif error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise UnavailableError(
                f"source {self._source.name}: there is no topic {topic}", hint="who writes the events creates it"
            )
        elif not error.retriable():
            raise translated(self._faults.cause(error), _DOING, self._config)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._is_leaving:  # they came behind the last read: a consumer that closes is told of no commit any more
            return
        try:
            consumer.incremental_assign(self._begun(consumer, partitions))
        except HeadgateError as error:
            self._failure = error
        except library().KafkaException as error:
            self._failure = translated(self._faults.cause(error.args[0]), _DOING, self._config)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """What was read of them and not admitted is another process's."""
        lost = {(place.topic, place.partition) for place in partitions}
        self._found[:] = [message for message in self._found if (message.topic(), message.partition()) not in lost]
        consumer.incremental_unassign(partitions)

    def _begun(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Where each is read on: what the group has committed, else where the source begins, which is committed."""
        kafka = library()
        begun, new = [], []
        for place in _committed(consumer, partitions):
            if place.offset < 0:
                first, end = watermarks(consumer, place, self._config, self._faults, _DOING)
                is_known = self._source.initial == "earliest" or self._knows(consumer, place.topic)
                place = kafka.TopicPartition(place.topic, place.partition, first if is_known else end)
                new.append(place)
            begun.append(place)
        if new:
            consumer.commit(offsets=new, asynchronous=False)
        return begun

    def _knows(self, consumer: Consumer, topic: str) -> bool:
        """Whether the group has read the topic before: then a partition that it does not know has come since."""
        numbers = consumer.list_topics(topic, timeout=KAFKA_READ_S_MAX).topics[topic].partitions
        places = [library().TopicPartition(topic, number) for number in numbers]
        return any(place.offset >= 0 for place in _committed(consumer, places))

    # --- admitting -------------------------------------------------------------------------------------

    def _admit(self, consumer: Consumer, producer: Producer, messages: Sequence[Message], broker: str) -> None:
        """Writes what the records become, and how far the group has read, in one transaction."""
        kafka, partitions = library(), self._config.topics.events.partitions
        outcomes = [admit(_foreign(message), broker, partitions, self._gate.check) for message in messages]
        behind = {(message.topic(), message.partition()): offset_of(message) + 1 for message in messages}
        members = consumer.consumer_group_metadata()
        places = [kafka.TopicPartition(*place, offset) for place, offset in behind.items()]
        producer.begin_transaction()
        try:
            for outcome in outcomes:
                if isinstance(outcome, AdmittedRecord):
                    self._produce(producer, "events", outcome.record, outcome.partition)
                else:
                    self._produce(producer, "refused", outcome.record)
            producer.send_offsets_to_transaction(places, members, KAFKA_TRANSACTION_S_MAX)
            producer.commit_transaction(KAFKA_TRANSACTION_S_MAX)
        except kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            _log.info("a transaction of a source was given up", source=self._source.name, error=error.args[0].str())
            producer.abort_transaction(KAFKA_TRANSACTION_S_MAX)
            _rewind(consumer, messages)
            return
        admitted = [outcome.record.size_bytes for outcome in outcomes if isinstance(outcome, AdmittedRecord)]
        self._gate.stored(len(admitted), sum(admitted))
        refused = [outcome.reason for outcome in outcomes if isinstance(outcome, RefusedRecord)]
        if refused:
            _log.warning("records refused", source=self._source.name, count=len(refused), first=refused[0])
        self._on_admitted(len(outcomes) - len(refused), len(refused))

    def _produce(self, producer: Producer, role: str, record: KafkaRecord, partition: int = _ANY_PARTITION) -> None:
        topic = self._config.topic(role)
        while True:
            try:
                producer.produce(topic, record.value, record.key, partition, headers=record.headers)  # type: ignore[arg-type]
                break
            except BufferError:  # its queue is full: acknowledgements make room
                producer.poll(_POLL_S)
        producer.poll(0)

    # --- clients ---------------------------------------------------------------------------------------

    def _consumer(self) -> Consumer:
        own = {
            "group.id": self._source.group_in(self._config),
            # No static member: one that dies between the two halves of a cooperative rebalance is given what the first
            # half left it when it comes back, and nobody gets the rest.
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": round(SOURCE_SESSION_S * 1_000),
            "heartbeat.interval.ms": round(SOURCE_SESSION_S * 1_000 / 4),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            **BOUNDED_FETCH,
            "topic.metadata.refresh.interval.ms": 30_000,  # new partitions are found so late
        }
        consumer: Consumer = made_client(library().Consumer, self._config, self._faults, own)
        return consumer

    def _producer(self) -> Producer:
        timeout_ms = round(KAFKA_TRANSACTION_S_MAX * 1_000)
        own = {
            "transactional.id": self._config.topic(f"source-{self._source.name}-{self._instance}"),
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "message.max.bytes": KAFKA_RECORD_BYTES_MAX,
        }
        producer: Producer = made_client(library().Producer, self._config, self._faults, own)
        return producer


def _committed(consumer: Consumer, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """What the group has committed; waits for transactions that are being committed.

    Raises:
        UnavailableError: Kafka does not answer.
    """
    kafka = library()
    deadline = time.monotonic() + KAFKA_READ_S_MAX + KAFKA_TRANSACTION_S_MAX
    while True:
        try:
            found = consumer.committed(list(partitions), timeout=KAFKA_READ_S_MAX)
            if all(place.error is None for place in found):
                return found
            problem = next(place.error for place in found if place.error is not None)
        except kafka.KafkaException as error:
            problem = error.args[0]
        if time.monotonic() > deadline:
            raise UnavailableError(f"{_DOING}: {problem.str()}")
        time.sleep(ELECTION_S)


def _rewind(consumer: Consumer, messages: Sequence[Message]) -> None:
    """Reads the messages again, of partitions that are still ours.

    Most often a rebalance is under way: who gets a partition by it begins at what the group has committed.
    """
    first = {(message.topic(), message.partition()): offset_of(message) for message in reversed(messages)}
    for place in consumer.assignment():
        offset = first.get((place.topic, place.partition))
        if offset is not None:
            consumer.seek(library().TopicPartition(place.topic, place.partition, offset))


def _foreign(message: Message) -> ForeignRecord:
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    try:
        headers = headers_of(message)
    except RecordError:
        headers = None
    return ForeignRecord(topic, partition, offset_of(message), message.key(), message.value(), headers)
