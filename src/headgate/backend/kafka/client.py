"""Kafka's library, an optional dependency: its errors in our words, and its clients with what all of them need.

A consumer, a producer or an admin client of librdkafka says little of why something failed: its connections report that
in the background. So each stands together with those reports, and with what fails by its errors. Whoever makes a
client, also as a part of something else, raises what `KafkaClient` does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from enum import Enum, auto
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from headgate.backend.config import KafkaConfig, resolved
from headgate_api import DISTRIBUTION
from headgate_api.errors import HeadgateError, InvalidInputError, TooLargeError, UnavailableError
from headgate_api.limits import (
    KAFKA_ADMIN_S_MAX,
    KAFKA_FETCH_BYTES_MAX,
    KAFKA_FETCH_PAUSE_MS,
    KAFKA_READ_S_MAX,
    KAFKA_RECORD_BYTES_MAX,
    KAFKA_RECORDS_WAITING_MAX,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

    from headgate.backend.kafka.records import KafkaRecord


# --- library --------------------------------------------------------------------------------------

ClientT = TypeVar("ClientT", bound="Consumer | Producer | AdminClient")
_RECENT_S: Final = 60.0
"""A fault that was reported longer ago explains nothing any more."""


class KafkaUnreachableError(UnavailableError):
    """No broker answers."""

    code = "kafka-unreachable"


class KafkaDeniedError(HeadgateError):
    """The cluster refuses who we are, or what we may."""

    code = "kafka-denied"


def library() -> ModuleType:
    """The package `confluent_kafka`; InvalidInputError when it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise InvalidInputError(
            "the Kafka library is not installed", hint=f"pip install '{DISTRIBUTION}[cluster]'", detail=str(error)
        ) from error
    return confluent_kafka


class Faults:
    """What a client's connections report: a call says "timed out", `error_cb` that the password was wrong."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[float, KafkaError]] = {}
        self._lock = threading.Lock()

    def __call__(self, error: KafkaError) -> None:
        with self._lock:
            self._newest[error.code()] = time.monotonic(), error

    def cause(self, error: KafkaError) -> KafkaError:
        """Why nothing was answered, where that is all that a call's error says; else the error."""
        kafka = library().KafkaError
        if error.code() not in (kafka._TIMED_OUT, kafka._MSG_TIMED_OUT, kafka._TRANSPORT, kafka._ALL_BROKERS_DOWN):
            return error
        for code in (kafka._AUTHENTICATION, kafka._SSL, kafka._RESOLVE, kafka._TRANSPORT):
            if (reported := self._reported(code)) is not None:
                return reported
        return error

    def _reported(self, code: int) -> KafkaError | None:
        with self._lock:
            at, error = self._newest.get(code, (-_RECENT_S, None))
        return error if time.monotonic() - at < _RECENT_S else None


def made_client(
    kind: Callable[[dict[str, Any]], ClientT], config: KafkaConfig, faults: Faults, own: Mapping[str, object]
) -> ClientT:
    """A client of librdkafka; InvalidInputError names a wrong option, never its value. What the caller sets wins."""
    common = {
        "bootstrap.servers": config.bootstrap,
        "error_cb": faults,
        "log_level": 0,  # what it would write to standard error comes by error_cb
    }
    try:
        return kind({**resolved(config.options), **common, **own})
    except library().KafkaException as error:
        raise InvalidInputError(
            f"kafka.options: {_short(error.args[0].str())}",
            hint="the names are those of librdkafka's CONFIGURATION.md",
        ) from None  # the cause's frames hold the options


def translated(error: KafkaError, doing: str, config: KafkaConfig) -> HeadgateError:
    """An error of librdkafka or of a broker as one of ours; `doing` is what failed, as the beginning of a sentence."""
    kafka = library().KafkaError
    code, said = error.code(), _short(error.str())
    if code in (kafka._AUTHENTICATION, kafka.SASL_AUTHENTICATION_FAILED):
        hint = "check sasl.mechanism, sasl.username and the file of sasl.password_file in kafka.options"
        return KafkaDeniedError(f"{doing}: Kafka does not accept our credentials: {said}", hint=hint)
    if code in (
        kafka.TOPIC_AUTHORIZATION_FAILED,
        kafka.CLUSTER_AUTHORIZATION_FAILED,
        kafka.GROUP_AUTHORIZATION_FAILED,
        kafka.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ):
        hint = "an administrator of Kafka must give our user the right (ACL); docs/howto/kafka.md lists them"
        return KafkaDeniedError(f"{doing}: our user may not do that: {said}", hint=hint)
    if code == kafka._SSL:
        hint = "check security.protocol, ssl.ca.location and the listener's port"
        return KafkaUnreachableError(f"{doing}: TLS with {config.bootstrap} fails: {said}", hint=hint)
    silent = (kafka._TRANSPORT, kafka._RESOLVE, kafka._ALL_BROKERS_DOWN, kafka._TIMED_OUT, kafka._MSG_TIMED_OUT)
    if code in silent:
        hint = "check kafka.bootstrap, that the brokers run, and that security.protocol is that of the listener"
        return KafkaUnreachableError(f"{doing}: no answer from {config.bootstrap}: {said}", hint=hint)
    if code in (
        kafka.INVALID_CONFIG,
        kafka.INVALID_REPLICATION_FACTOR,
        kafka.INVALID_PARTITIONS,
        kafka.POLICY_VIOLATION,
    ):
        return InvalidInputError(f"{doing}: {said}", hint="change kafka.topics in the configuration file")
    if code in (kafka.MSG_SIZE_TOO_LARGE, kafka.RECORD_LIST_TOO_LARGE):
        return TooLargeError(f"{doing}: {said}", hint="headgate cluster check compares max.message.bytes")
    if code in (kafka.UNKNOWN_TOPIC_OR_PART, kafka._UNKNOWN_TOPIC, kafka._UNKNOWN_PARTITION):
        return UnavailableError(f"{doing}: {said}", hint="headgate cluster init makes the topics")
    return UnavailableError(f"{doing}: {said}")


def _short(text: str, characters_max: int = 500) -> str:
    return text if len(text) <= characters_max else text[:characters_max] + "..."


# --- clients --------------------------------------------------------------------------------------

_T = TypeVar("_T")

BOUNDED_FETCH: Final[Mapping[str, int]] = MappingProxyType(
    {
        "fetch.message.max.bytes": KAFKA_RECORD_BYTES_MAX,
        "queued.max.messages.kbytes": KAFKA_FETCH_BYTES_MAX >> 10,
        "fetch.queue.backoff.ms": KAFKA_FETCH_PAUSE_MS,
    }
)
"""Options of a consumer: what it fetches ahead."""
BOUNDED_SEND: Final[Mapping[str, object]] = MappingProxyType(
    {"message.max.bytes": KAFKA_RECORD_BYTES_MAX, "queue.buffering.max.messages": KAFKA_RECORDS_WAITING_MAX}
)
"""Options of a producer of events and state: how large a record is, and how many wait."""
ELECTION_S: Final = 0.1
"""Pause before a group or partition is asked again whose leader is being elected: nothing tells when there is one."""
MADE_ANEW: Final = "was the topic deleted and created again?"
_RECORDS_A_TIME: Final = 500
_FETCH_WAIT_MS: Final = 50
"""How long a broker keeps a fetch that finds nothing new: behind a transaction, an end is known so late."""
_ROOM_S: Final = 0.1
"""How long a producer whose queue is full waits for acknowledgements, which make room, before it tries again."""


class KafkaClient(Generic[ClientT]):
    """A client of librdkafka with what its connections report; its errors say what it was `doing`, as in `translated`.

    Making one raises InvalidInputError when the library is missing, or an option is none of its own.
    """

    def __init__(
        self, kind: Callable[[dict[str, Any]], ClientT], config: KafkaConfig, doing: str, own: Mapping[str, object]
    ) -> None:
        self.config: Final = config
        self.doing: Final = doing
        self.faults: Final = Faults()
        self.raw: ClientT = made_client(kind, config, self.faults, own)

    def error(self, error: KafkaError, doing: str = "") -> HeadgateError:
        """An error of its own as one of ours; see `translated`."""
        return translated(self.faults.cause(error), doing or self.doing, self.config)

    @contextmanager
    def errors(self, doing: str = "") -> Iterator[None]:
        """Turns the errors of what it is asked in the block into ours."""
        try:
            yield
        except library().KafkaException as error:
            raise self.error(error.args[0], doing) from error

    def once_elected(self, ask: Callable[[], _T], within_s: float = KAFKA_READ_S_MAX) -> _T:
        """What a question answers; blocking. Asks again, for `within_s`, while those who know are being elected."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                with self.errors():
                    return ask()
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(ELECTION_S)

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; blocking. UnavailableError when there is no such topic."""
        with self.errors():
            found = self.raw.list_topics(topic, timeout=KAFKA_ADMIN_S_MAX).topics[topic]
        if found.error is not None:
            raise self.error(found.error)
        return len(found.partitions)


class KafkaAdmin(KafkaClient["AdminClient"]):
    """A client that asks about topics and groups, and changes them."""

    def __init__(self, config: KafkaConfig, doing: str, own: Mapping[str, object] = MappingProxyType({})) -> None:
        library()
        from confluent_kafka.admin import AdminClient

        super().__init__(AdminClient, config, doing, own)

    def error(self, error: KafkaError, doing: str = "") -> HeadgateError:
        self.raw.poll(0)  # brings what the connections report
        return super().error(error, doing)

    def offsets(self, topic: str, partitions: Iterable[int], at: int | Literal["earliest", "latest"]) -> dict[int, int]:
        """The first committed offset by partition, the end, or that of a time in ms since 1970, which may be negative.

        Asks again while a leader is elected.
        """
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.for_timestamp(at) if isinstance(at, int) else getattr(OffsetSpec, at)()
        asked = {library().TopicPartition(topic, partition): spec for partition in partitions}

        def ask() -> dict[int, int]:
            answers = self.raw.list_offsets(
                asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=KAFKA_READ_S_MAX
            )
            found = {place.partition: answer.result().offset for place, answer in answers.items()}
            if library().OFFSET_INVALID in found.values():  # of a topic that was just made, instead of an error
                raise UnavailableError(f"{self.doing}: {topic} does not say yet which offsets it has")
            return found

        return self.once_elected(ask)

    def commits(self, group: str, topic: str, partitions: Iterable[int]) -> dict[int, str]:
        """The metadata of what a group has committed, by partition; blocking. Waits for transactions under way."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        places = [library().TopicPartition(topic, partition) for partition in partitions]
        asked = ConsumerGroupTopicPartitions(group, places)

        def ask() -> dict[int, str]:
            answers = self.raw.list_consumer_group_offsets(
                [asked], require_stable=True, request_timeout=KAFKA_READ_S_MAX
            )
            found = answers[group].result().topic_partitions
            for place in found:
                if place.error is not None:
                    raise library().KafkaException(place.error)
            return {place.partition: place.metadata for place in found if place.offset >= 0}

        return self.once_elected(ask)

    def topic_id(self, topic: str) -> str:
        """Tells a topic from one of the same name that was made anew; UnavailableError where there is none."""
        asked = self.raw.describe_topics(library().TopicCollection([topic]), request_timeout=KAFKA_ADMIN_S_MAX)
        with self.errors():
            return str(asked[topic].result().topic_id)


# --- consumers ------------------------------------------------------------------------------------


class Came(Enum):
    """What a poll has brought."""

    RECORD = auto()
    END = auto()
    """Of the partition, at the message's offset."""
    REMOVED = auto()
    """There is no record where reading goes on: retention has removed it, or the partition ends before."""
    NOTHING = auto()
    """A trouble that passes."""


class TopicConsumer(KafkaClient["Consumer"]):
    """A consumer; blocking, for one thread at a time. Every reader of topics polls and asks by one."""

    def __init__(self, config: KafkaConfig, doing: str, own: Mapping[str, object]) -> None:
        super().__init__(library().Consumer, config, doing, {"enable.auto.commit": False, **own})

    @classmethod
    def committed(
        cls, config: KafkaConfig, doing: str, group: str = "reader", *, fetch_wait_ms: int = _FETCH_WAIT_MS
    ) -> TopicConsumer:
        """One that reads committed records, tells a partition's end, joins no group, and can ask for its commits."""
        own = {
            "group.id": config.topic(group),  # demanded by the library; no group is joined, nothing is committed
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": fetch_wait_ms,
            "fetch.max.bytes": KAFKA_FETCH_BYTES_MAX,
            **BOUNDED_FETCH,
        }
        return cls(config, doing, own)

    def go(self, topic: str, partition: int, offset: int) -> None:
        """Reads this partition alone, on from an offset."""
        self.raw.assign([library().TopicPartition(topic, partition, offset)])

    def came(self, message: Message) -> Came:
        """What a message says; raises an error that does not pass."""
        error = message.error()
        if error is None:
            return Came.RECORD
        kafka, code = library().KafkaError, error.code()
        if code == kafka._PARTITION_EOF:
            return Came.END
        if code in (kafka.OFFSET_OUT_OF_RANGE, kafka._AUTO_OFFSET_RESET):
            return Came.REMOVED
        if error.retriable() or code == kafka._MAX_POLL_EXCEEDED:  # the latter: partitions are lost next
            return Came.NOTHING
        raise self.error(error)

    def polled(self, timeout_s: float) -> list[tuple[Came, Message]]:
        """The next message within the time, and what has come with it."""
        first = self.raw.poll(timeout_s)
        # `consume` alone would wait for as many as it may take.
        messages = [] if first is None else [first, *self.raw.consume(_RECORDS_A_TIME, 0)]
        found = [(self.came(message), message) for message in messages]
        return [one for one in found if one[0] is not Came.NOTHING]

    def answers(self, place: str, poll_s: float) -> Iterator[list[tuple[Came, Message]]]:
        """What each poll brings, if anything, until the caller has enough; UnavailableError names the place."""
        deadline = time.monotonic() + KAFKA_READ_S_MAX
        while time.monotonic() <= deadline:
            yield self.polled(poll_s)
        raise UnavailableError(f"{self.doing}: {place} does not answer")

    @classmethod
    def very_end(cls, config: KafkaConfig, doing: str, topic: str, partition: int) -> int:
        """The end of a partition with what is not committed yet, or what Kafka has still to mark as committed."""
        own = {"group.id": config.topic("reader"), "isolation.level": "read_uncommitted"}
        with closing(cls(config, doing, own)) as every:
            return every.bounds(topic, partition)[1]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that a partition still has, and its end."""
        place = library().TopicPartition(topic, partition)

        def ask() -> tuple[int, int]:
            found: tuple[int, int] | None = self.raw.get_watermark_offsets(place, timeout=KAFKA_READ_S_MAX)
            if found is None:
                raise UnavailableError(f"{self.doing}: {topic}/{partition} does not answer")
            return found

        return self.once_elected(ask)

    def ends_before(self, topic: str, partition: int, offset: int) -> UnavailableError:
        """The error of a reader that has come further than the partition goes now."""
        return UnavailableError(
            f"{self.doing}: {topic}/{partition} ends before offset {offset}",
            hint=f"acknowledged records are gone: {MADE_ANEW}",
        )

    def commits(self, places: Sequence[TopicPartition], within_s: float = KAFKA_READ_S_MAX) -> list[TopicPartition]:
        """Where the group goes on, with the metadata; a negative offset without a commit. It need not be a member."""

        def ask() -> list[TopicPartition]:
            found = self.raw.committed(list(places), timeout=KAFKA_READ_S_MAX)
            for place in found:
                if place.error is not None:
                    raise library().KafkaException(place.error)
            return found

        return self.once_elected(ask, within_s)

    def close(self) -> None:
        """Gives everything back; idempotent."""
        with suppress(RuntimeError):  # closed already
            self.raw.close()


class GroupConsumer(TopicConsumer):
    """A member of a group in which partitions move one by one, and the others go on (cooperative-sticky).

    `heartbeats` come in each session of `session_s`. The group knows the member by `name` (`client.id`); empty: by the
    library's own.
    """

    def __init__(
        self,
        config: KafkaConfig,
        doing: str,
        group: str,
        session_s: float,
        own: Mapping[str, object],
        *,
        heartbeats: int = 4,
        name: str = "",
    ) -> None:
        self._problem: BaseException | None = None
        common = {
            "group.id": group,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": round(session_s * 1_000),
            "heartbeat.interval.ms": round(session_s * 1_000 / heartbeats),
            "enable.auto.offset.store": False,
            **({"client.id": name} if name else {}),
        }
        super().__init__(config, doing, {**common, **own})

    @contextmanager
    def calling_back(self) -> Iterator[None]:
        """Keeps an error of a callback, which the library would print, for `raise_problem`."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - whoever polls raises it
            self._problem = error

    def raise_problem(self) -> None:
        """Raises what a callback has failed with."""
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem

    def next(self, timeout_s: float) -> Message | None:
        """The next message within the time. Callbacks run meanwhile, and their errors are raised."""
        message = self.raw.poll(timeout_s)
        self.raise_problem()
        return message

    def batch(self, timeout_s: float, count_max: int, bytes_max: int) -> Iterator[Message]:
        """What has come, the first message within the time, until there are so many or so many bytes. See `next`."""
        count = size_bytes = 0
        message = self.next(timeout_s)
        while message is not None:
            yield message
            count, size_bytes = count + 1, size_bytes + (len(message) if message.error() is None else 0)
            message = self.next(0) if count < count_max and size_bytes < bytes_max else None

    def restart(self, topic: str, partition: int, offset: int) -> None:
        """Reads on at an offset: after an error there is nothing that could be sought in."""
        there = [library().TopicPartition(topic, partition, offset)]
        self.raw.incremental_unassign(there)
        self.raw.incremental_assign(there)


def offset_of(message: Message) -> int:
    """The offset of a record that was read."""
    offset = message.offset()
    assert offset is not None, "a record that was read has an offset"
    return offset


def unfinished_partitions(places: Iterable[tuple[str, int]], config: KafkaConfig, doing: str) -> list[tuple[str, int]]:
    """Those of some partitions in which a transaction is open; blocking."""
    own = {"group.id": config.topic("reader"), "isolation.level": "read_uncommitted"}
    with ExitStack() as stack:
        committed = stack.enter_context(closing(TopicConsumer.committed(config, doing)))
        all_ = stack.enter_context(closing(TopicConsumer(config, doing, own)))
        # The end of all first: what comes between the two questions must not pass for unfinished.
        return [place for place in places if all_.bounds(*place)[1] > committed.bounds(*place)[1]]


# --- producers ------------------------------------------------------------------------------------


class Delivered:
    """What became of some records: their offsets, of one partition in order, and the first error."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Takes the report on one record; librdkafka's callback."""
        if error is not None:
            self.error = self.error or error
        else:
            self.offsets.append(offset_of(message))


class TopicProducer(KafkaClient["Producer"]):
    """A producer: each record once and in order, and answered for when every in-sync copy has it."""

    def __init__(self, config: KafkaConfig, doing: str, own: Mapping[str, object]) -> None:
        super().__init__(
            library().Producer, config, doing, {"enable.idempotence": True, "acks": "all", "linger.ms": 0, **own}
        )

    def offer(
        self,
        topic: str,
        partition: int,
        record: KafkaRecord,
        on_delivery: Callable[[KafkaError | None, Message], None],
    ) -> None:
        """Hands a record over; `partition` is negative where its key decides.

        `on_delivery` is called by whatever serves callbacks, once the record is stored or that is not known. Where
        Kafka names no offset it is not known: a broker to which a producer is new takes whichever batch comes first,
        and once the library hears of one it takes those before it for stored, also one that was refused.

        Raises BufferError when the queue is full, KafkaException when it takes nothing more, or no such record.
        """

        def told(error: KafkaError | None, message: Message) -> None:
            kafka = library().KafkaError
            if error is None and message.offset() is None:
                error = kafka(kafka._FAIL, "it is not known where a record is stored, and whether it is")
            on_delivery(error, message)

        self.raw.produce(topic, record.value, record.key, partition, on_delivery=told, headers=list(record.headers))

    def send(self, topic: str, partition: int, record: KafkaRecord, done: Delivered) -> None:
        """Hands a record over, and waits while the queue is full; raises KafkaException."""
        while True:
            try:
                self.offer(topic, partition, record, done)
                return
            except BufferError:
                self.raw.poll(_ROOM_S)

    def flush(self, timeout_s: float, reports: Iterable[Delivered]) -> KafkaError | None:
        """Waits until Kafka has answered for everything that was sent; the error where not all of it is stored.

        A negative time waits until each record's own one is over.
        """
        left = self.raw.flush(timeout_s)
        error = next((report.error for report in reports if report.error is not None), None)
        kafka = library().KafkaError
        return kafka(kafka._TIMED_OUT) if error is None and left else error
