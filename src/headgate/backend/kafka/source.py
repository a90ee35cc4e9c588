"""Sources: topics into which any producer writes CloudEvents, admitted to a broker exactly once.

The processes of a source are a consumer group. Each writes what records become, and commits how far it has read, in one
transaction, so its topics are in the deployment's own Kafka. A process that lost a partition cannot commit: Kafka
compares its generation of the group.

Where their broker stores an event once, the owners of partitions store what records become, and each partition of a
topic is a numbered producer, whose numbers are offsets: what is read again is known by them.
docs/adr/0044-who-stores-once-has-fenced-and-read.md has the reasons.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from headgate.auth.user import source_sender
from headgate.backend.config import KafkaConfig, SourceConfig
from headgate.backend.kafka.client import BOUNDED_FETCH, Came, GroupConsumer, KafkaAdmin, library, offset_of
from headgate.backend.kafka.events import headers_of
from headgate.backend.kafka.producer_numbers import producer_name, read_numbers
from headgate.backend.kafka.records import KafkaRecord, RecordError, encode_record
from headgate.backend.kafka.transactions import ANY_PARTITION, FencedName, FencedWriter, NameTakenError, name_taken
from headgate.event.hops import forgery
from headgate.event.kafka import BROKER, Header, decode_record
from headgate.ingress.encode import Entries, encode
from headgate.ingress.event_gate import EventGate
from headgate.ingress.partitions import key_of, partition_of_key
from headgate.ingress.publish_quota import PublishQuotas
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded, Numbers
from headgate.objects.kinds.specs import ServedBroker
from headgate.objects.store.store import Store
from headgate.objects.views.copies import EventPolicyCopy
from headgate_api.errors import EventTooLargeError, HeadgateError, InvalidInputError, UnavailableError
from headgate_api.event.model import Event
from headgate_api.event.names import namespace_of
from headgate_api.limits import (
    KAFKA_READ_S_MAX,
    KAFKA_RECORD_BYTES_MAX,
    KAFKA_TRANSACTION_S_MAX,
    SOURCE_BYTES_MAX,
    SOURCE_RECORDS,
    SOURCE_RETRY_S,
    SOURCE_SESSION_S,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition


# --- source gate ----------------------------------------------------------------------------------
# A source sends as a service account of the namespace whose broker gets its events, `source-NAME`. Who runs the
# deployment names its topics, so it needs no role. Its share of a publish quota is that of a front.


class OpenGates:
    """Sources may admit everything. Called by their threads."""

    def wait_s(self, source: SourceConfig) -> float:
        """Seconds until its namespace may store more, at least about; 0 for at once."""
        return 0.0

    def check(self, source: SourceConfig, event: Event) -> None:
        """Lets an event pass, or raises the HeadgateError why the source may not send it."""

    def stored(self, source: SourceConfig, events: int, size_bytes: int) -> None:
        """So much is stored now."""


class SourceGates(OpenGates):
    """What all sources of a server may admit, as new as its copy of the objects.

    Without `policies` everybody may send everything. `sharers` counts the fronts and sources that share the quotas.
    """

    def __init__(
        self,
        store: Store,
        policies: EventPolicyCopy | None,
        sharers: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._policies = policies
        self._clock_s = clock_s
        self._quotas = PublishQuotas(store, sharers, clock_s)
        self._events = EventGate(policies.authority) if policies is not None else None
        self._version: int | None = None
        self._using = threading.Lock()
        """Held while quotas are read or used: they belong to one thread at a time."""

    def wait_s(self, source: SourceConfig) -> float:
        """See `OpenGates`. Reads what has changed of the objects."""
        with self._using:
            version = self._store.data_version()
            if version != self._version:
                self._quotas.refresh()
                if self._policies is not None:
                    self._policies.refresh()
                self._version = version
            quota = self._quotas.get(source.broker)
            return quota.wait_s(self._clock_s()) if quota is not None else 0.0

    def check(self, source: SourceConfig, event: Event) -> None:
        if self._events is not None:
            self._events.check(source_sender(namespace_of(source.broker), source.name), source.broker, event)

    def stored(self, source: SourceConfig, events: int, size_bytes: int) -> None:
        with self._using:
            quota = self._quotas.get(source.broker)
            if quota is not None:
                quota.take(events, size_bytes)
                quota.stored(events, size_bytes)


# --- source records -------------------------------------------------------------------------------
# A record is decoded by the CloudEvents Kafka binding alone, as strictly as HTTP. It goes to the partition of its
# event's partition key, else of the record's key, else of its own partition: either way what was in order stays in
# order. Of a broker that stores an event once it goes where every event of its source and id goes.
# docs/spec/kafka-records.md has the headers of a refused record, which stand behind those that it had.

TOPIC: Final = "headgate_topic"
PARTITION: Final = "headgate_partition"
OFFSET: Final = "headgate_offset"
REASON: Final = "headgate_reason"
DROPPED: Final = "headgate_dropped"
_OURS: Final = frozenset({TOPIC, PARTITION, OFFSET, REASON, DROPPED, BROKER})
_REASON_BYTES_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class ForeignRecord:
    """A record of a topic that others write; `headers` in order, None where a name is no UTF-8."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] | None


@dataclass(frozen=True, slots=True)
class AdmittedRecord:
    """A record that becomes an event, in a partition of the topic `events`; `record` is the one there."""

    partition: int
    event: Event
    record: KafkaRecord


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that is no valid event, or one that the source may not send."""

    record: KafkaRecord
    reason: str


def admit(
    found: ForeignRecord, broker: ServedBroker, partitions: int, check: Callable[[Event], None] = lambda _: None
) -> AdmittedRecord | RefusedRecord:
    """What becomes of a record on its way to a broker; `partitions` are those of the topic `events`.

    `check` raises HeadgateError for an event that the source may not send.
    """
    try:
        if found.headers is None:
            raise HeadgateError("the name of a header is no UTF-8")
        event = decode_record(found.headers, found.value)
        if (forged := forgery(event)) is not None:
            raise forged
        check(event)
        record = encode_record(broker.identity, event)
        if record.size_bytes > KAFKA_RECORD_BYTES_MAX:
            raise EventTooLargeError(f"a stored event must not be larger than {KAFKA_RECORD_BYTES_MAX} bytes")
    except HeadgateError as error:
        return RefusedRecord(_refused(found, broker.identity, error.message), error.message)
    key = key_of(broker.rule, event) or found.key or f"{found.topic}/{found.partition}"
    return AdmittedRecord(partition_of_key(key, partitions), event, record)


def _refused(found: ForeignRecord, broker: str, reason: str) -> KafkaRecord:
    place = [
        (TOPIC, found.topic.encode()),
        (PARTITION, b"%d" % found.partition),
        (OFFSET, b"%d" % found.offset),
        (BROKER, broker.encode()),
        (REASON, reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore").encode()),
    ]
    own = [(name, value) for name, value in found.headers or () if name not in _OURS]
    lost = [] if found.headers is not None else ["headers"]
    for dropped in (lost, [*lost, "value"], ["value", "headers"]):
        record = KafkaRecord(
            found.key if found.key is None or len(found.key) < KAFKA_RECORD_BYTES_MAX // 2 else None,
            None if "value" in dropped else found.value,
            [
                *((name, value or b"") for name, value in own if "headers" not in dropped),
                *place,
                *([(DROPPED, ",".join(dropped).encode())] if dropped else []),
            ],
        )
        if record.size_bytes <= KAFKA_RECORD_BYTES_MAX:
            break
    return record


# --- stored once ----------------------------------------------------------------------------------

StoreOnce: TypeAlias = "Callable[[Mapping[int, Encoded]], Sequence[int | Sifted]]"
"""Has the owners of partitions store chunks; blocking. After an error some may be stored."""


class NumberedRecords:
    """Records that owners of partitions store, of one source; blocking, for one thread.

    A process has one batch of a partition under way, and reads on when all of it is stored. So what is stored of the
    records that go to a partition of `events` are always the first ones, and one number says which. Who has lost a
    partition of the topic, and stores something still, stores what the next one would have stored.
    """

    def __init__(self, config: KafkaConfig, group: str, store: StoreOnce) -> None:
        self._config = config
        self._group = group
        self._store = store
        self._topics: dict[str, str] = {}
        self._newest: dict[tuple[str, str], dict[int, int]] = {}
        """Of producers of brokers, by their identities, the newest numbers that are stored, by partition."""

    @cached_property
    def _admin(self) -> KafkaAdmin:
        return KafkaAdmin(self._config, _DOING)

    def forget(self) -> None:
        """Another process may store records, or the topics are others."""
        self._topics.clear()
        self._newest.clear()

    def store(self, broker: ServedBroker, found: Iterable[tuple[ForeignRecord, AdmittedRecord]]) -> int:
        """Stores what is not stored yet; how many events of it the broker had.

        Raises UnavailableError, OverloadedError or NumbersMovedError where it is not known whether all are stored.
        """
        events = defaultdict[tuple[int, str], list[Event]](list)
        last: dict[tuple[int, str], int] = {}
        for record, admitted in found:
            producer = self._producer(record)
            if record.offset > self._known(broker.identity, producer).get(admitted.partition, -1):
                events[admitted.partition, producer].append(admitted.event)
                last[admitted.partition, producer] = record.offset
        parts = defaultdict[int, list[Entries]](list)
        for (partition, producer), own in events.items():
            after = self._known(broker.identity, producer).get(partition, -1)
            numbers = Numbers(broker.identity, producer, 0, after, last[partition, producer])
            parts[partition].append(Entries(broker.identity, broker.rule, own, numbers=[numbers]))
        stored = self._store({partition: encode(entries) for partition, entries in parts.items()}) if parts else ()
        for (partition, producer), number in last.items():
            self._newest[broker.identity, producer][partition] = number
        return sum(sum(one.was_there) for one in stored if isinstance(one, Sifted))

    def _producer(self, record: ForeignRecord) -> str:
        """The name of a partition as a producer, which no client can have; a topic that was made anew has another."""
        if record.topic not in self._topics:
            self._topics[record.topic] = self._admin.topic_id(record.topic)
        return f"source\0{self._group}\0{self._topics[record.topic]}\0{record.partition}"

    def _known(self, broker: str, producer: str) -> Mapping[int, int]:
        if (broker, producer) not in self._newest:
            found = read_numbers(self._admin, producer_name(broker, producer))
            self._newest[broker, producer] = {partition: number for partition, (number, _) in found.items()}
        return self._newest[broker, producer]


# --- source ---------------------------------------------------------------------------------------

_DOING: Final = "records of a source cannot be admitted"
_POLL_S: Final = 0.2
"""How long a poll waits: a stop is noticed so late."""
_SETTLED_S_MAX: Final = KAFKA_READ_S_MAX + KAFKA_TRANSACTION_S_MAX
"""How long commits are waited for, which may be part of a transaction that is being committed."""
_log = structlog.get_logger(__name__)


class SourceReader:
    """One process of a source. Blocking; for one thread.

    `instance` names the process, the same after a restart and no other one's: a transaction that a crash left open is
    ended by the next process of that name, instead of after KAFKA_TRANSACTION_S_MAX. `served` gives the broker
    `NAMESPACE/NAME`, None when there is none now; it may block. `store` is for brokers that store an event once.
    `on_admitted` is called after each transaction with how many records were admitted, without those whose events the
    broker had, and how many refused. `problem` is why nothing is admitted now; empty while all is well.
    """

    def __init__(
        self,
        config: KafkaConfig,
        source: SourceConfig,
        instance: str,
        served: Callable[[str], ServedBroker | None],
        store: StoreOnce,
        on_admitted: Callable[[int, int], object] = lambda _admitted, _refused: None,
        gates: OpenGates | None = None,
    ) -> None:
        self.problem = ""
        self._config = config
        self._source = source
        self._served = served
        self._numbered = NumberedRecords(config, source.group_in(config), store)
        self._on_admitted = on_admitted
        self._gates = gates or OpenGates()
        self._is_held = False  # its namespace is over its quota
        self._name = FencedName("events", f"source-{source.name}-{instance}", _DOING, "", name_taken(_DOING))
        self._writer: FencedWriter | None = None
        self._is_leaving = False
        self._found: list[Message] = []

    def run(self, stop: threading.Event) -> None:
        """Admits records until told to stop. After a failure, which loses nothing, everything is begun anew.

        Raises InvalidInputError when no further try helps: the library is missing, or an option is none of its own.
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

    def _broker(self) -> ServedBroker:
        """The broker that gets the events now: one that was made anew has another identity."""
        found = self._served(self._source.broker)
        if found is None:
            raise UnavailableError(
                f"source {self._source.name}: there is no broker {self._source.broker}",
                hint="records wait in their topics until it is created",
            )
        return found

    def _run(self, stop: threading.Event) -> None:
        kafka = library()
        # No static member: one that dies between the two halves of a cooperative rebalance is given what the first
        # half left it when it comes back, and nobody gets the rest.
        own = {
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            **BOUNDED_FETCH,
            "topic.metadata.refresh.interval.ms": 30_000,  # new partitions are found so late
        }
        consumer = GroupConsumer(self._config, _DOING, self._source.group_in(self._config), SOURCE_SESSION_S, own)
        self._is_held, self._is_leaving = False, False
        self._numbered.forget()
        try:
            self._writer = FencedWriter(self._config, self._name)
            consumer.raw.subscribe(
                list(self._source.topics),
                on_assign=lambda _, places: self._on_assign(consumer, places),
                on_revoke=self._on_revoke,
            )
            while not stop.is_set():
                self._hold(consumer.raw)
                messages, broker = self._read(consumer), self._broker()
                if consumer.raw.assignment():
                    namespace = namespace_of(self._source.broker)
                    held = f"source {self._source.name}: waits, as the namespace {namespace} has exceeded its quota"
                    self.problem = held if self._is_held else ""
                if messages:
                    self._admit(consumer, messages, broker)
        except kafka.KafkaException as error:
            raise consumer.error(error.args[0]) from error
        except SystemError as error:  # how the library tells a fatal error where it meets a callback
            raise UnavailableError(f"{_DOING}: a client for Kafka has failed", hint=str(error)) from error
        finally:
            self._is_leaving = True
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            with suppress(kafka.KafkaException, SystemError):
                consumer.close()

    def _hold(self, consumer: Consumer) -> None:
        """Reads nothing while the namespace is over its quota: records wait in their topic, and rebalances go on."""
        is_held = self._gates.wait_s(self._source) > 0
        if is_held and consumer.assignment():
            consumer.pause(consumer.assignment())  # those too that have come since
        elif self._is_held and not is_held:
            consumer.resume(consumer.assignment())
        self._is_held = is_held

    def _read(self, consumer: GroupConsumer) -> list[Message]:
        """Records that have come, of partitions that are ours now: a further poll may tell that some are not."""
        self._found.clear()
        for message in consumer.batch(_POLL_S, SOURCE_RECORDS, SOURCE_BYTES_MAX):
            if message.error() is None:
                self._found.append(message)
            else:
                self._pass(consumer, message)
        return self._found

    def _pass(self, consumer: GroupConsumer, message: Message) -> None:
        error, topic, partition = message.error(), message.topic(), message.partition()
        if error is not None and error.code() == library().KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise UnavailableError(
                f"source {self._source.name}: there is no topic {topic}", hint="who writes the events creates it"
            )
        is_gone = consumer.came(message) is Came.REMOVED
        if is_gone and topic is not None and partition is not None:
            self._numbered.forget()
            first, _ = consumer.bounds(topic, partition)
            _log.error("records of a source went before they were read", source=self._source.name, topic=topic)
            consumer.restart(topic, partition, first)

    def _on_assign(self, consumer: GroupConsumer, partitions: list[TopicPartition]) -> None:
        if self._is_leaving:  # they came behind the last read: a consumer that closes is told of no commit any more
            return
        with consumer.calling_back(), consumer.errors():
            consumer.raw.incremental_assign(self._begun(consumer, partitions))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """What was read of them and not admitted is another process's."""
        self._numbered.forget()
        lost = {(place.topic, place.partition) for place in partitions}
        self._found[:] = [message for message in self._found if (message.topic(), message.partition()) not in lost]
        consumer.incremental_unassign(partitions)

    def _begun(self, consumer: GroupConsumer, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Where each is read on: what the group has committed, else where the source begins, which is committed."""
        begun, new = [], []
        for place in consumer.commits(partitions, _SETTLED_S_MAX):
            if place.offset < 0:
                first, end = consumer.bounds(place.topic, place.partition)
                is_known = self._source.initial == "earliest" or self._knows(consumer, place.topic)
                place = library().TopicPartition(place.topic, place.partition, first if is_known else end)
                new.append(place)
            begun.append(place)
        if new:
            consumer.raw.commit(offsets=new, asynchronous=False)
        return begun

    def _knows(self, consumer: GroupConsumer, topic: str) -> bool:
        """Whether the group has read the topic before: then a partition that it does not know has come since."""
        places = [library().TopicPartition(topic, number) for number in range(consumer.partition_count(topic))]
        return any(place.offset >= 0 for place in consumer.commits(places, _SETTLED_S_MAX))

    def _admit(self, consumer: GroupConsumer, messages: Sequence[Message], broker: ServedBroker) -> None:
        """Writes what records become, and how far the group has read, in one transaction; after a failure, again.

        Where the broker stores an event once, it has them before, and only what is refused is in the transaction.
        """
        kafka, partitions = library(), self._config.topics.events.partitions
        check = partial(self._gates.check, self._source)
        found = [_foreign(message) for message in messages]
        outcomes = [admit(one, broker, partitions, check) for one in found]
        known = 0
        if broker.rule.window_us:
            pairs = zip(found, outcomes, strict=True)
            known = self._numbered.store(broker, [(one, a) for one, a in pairs if isinstance(a, AdmittedRecord)])
        behind = {(message.topic(), message.partition()): offset_of(message) + 1 for message in messages}
        members = consumer.raw.consumer_group_metadata()
        places = [kafka.TopicPartition(*place, offset) for place, offset in behind.items()]
        assert self._writer is not None, "it is there while records are read"
        try:
            self._writer.send_records(
                ("events", outcome.partition, outcome.record)
                if isinstance(outcome, AdmittedRecord)
                else ("refused", ANY_PARTITION, outcome.record)
                for outcome in outcomes
                if isinstance(outcome, RefusedRecord) or not broker.rule.window_us
            )
            self._writer.add_places(places, members)
        except NameTakenError:
            raise
        except UnavailableError as error:
            _log.info("a transaction of a source is given up", source=self._source.name, error=error.message)
            self._writer.close()
            self._writer = FencedWriter(self._config, self._name)  # which ends it
            _rewind(consumer.raw, messages)
            return
        self._writer.commit()
        admitted = [outcome.record.size_bytes for outcome in outcomes if isinstance(outcome, AdmittedRecord)]
        self._gates.stored(self._source, len(admitted) - known, sum(admitted))
        refused = [outcome.reason for outcome in outcomes if isinstance(outcome, RefusedRecord)]
        if refused:
            _log.warning("records refused", source=self._source.name, count=len(refused), first=refused[0])
        self._on_admitted(len(admitted) - known, len(refused))


def _rewind(consumer: Consumer, messages: Sequence[Message]) -> None:
    """Reads the messages again, of partitions that are still ours: most often a rebalance is under way."""
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
