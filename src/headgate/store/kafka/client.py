"""Kafka's library, an optional dependency: its errors in our words, consumers outside of groups, and questions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from enum import Enum, auto
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from headgate import DISTRIBUTION
from headgate.errors import FatalError, HeadgateError, InvalidInputError, TooLargeError, UnavailableError
from headgate.limits import (
    KAFKA_ADMIN_S_MAX,
    KAFKA_FETCH_BYTES_MAX,
    KAFKA_FETCH_PAUSE_MS,
    KAFKA_READ_S_MAX,
    KAFKA_RECORD_BYTES_MAX,
    KAFKA_RECORDS_WAITING_MAX,
)
from headgate.store.config import KafkaConfig, resolved

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient


# --- library --------------------------------------------------------------------------------------
# The Kafka library, which is an optional dependency, and its errors in our words.

ClientT = TypeVar("ClientT")
_RECENT_S: Final = 60.0
"""A fault that was reported longer ago explains nothing any more."""


class KafkaUnreachableError(UnavailableError):
    """No broker answers."""

    code = "kafka-unreachable"


class KafkaDeniedError(HeadgateError):
    """The cluster refuses who we are, or what we may."""

    code = "kafka-denied"


def library() -> ModuleType:
    """The package `confluent_kafka`.

    Raises:
        InvalidInputError: It is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as error:
        raise InvalidInputError(
            "the Kafka library is not installed", hint=f"pip install '{DISTRIBUTION}[cluster]'", detail=str(error)
        ) from error
    return confluent_kafka


class Faults:
    """What a client's connections report in the background, which its calls' errors leave out.

    A call says "timed out" where the cause was a wrong password: librdkafka tells the cause to `error_cb`.
    """

    def __init__(self) -> None:
        self._newest: dict[int, tuple[float, KafkaError]] = {}
        self._lock = threading.Lock()

    def __call__(self, error: KafkaError) -> None:
        """Takes an error; librdkafka's callback."""
        with self._lock:
            self._newest[error.code()] = time.monotonic(), error

    @property
    def denied(self) -> KafkaError | None:
        """That the cluster does not know us: trying again does not help."""
        return self._reported(library().KafkaError._AUTHENTICATION)

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


def options(config: KafkaConfig, faults: Faults, own: Mapping[str, object]) -> dict[str, Any]:
    """Everything that a client of librdkafka is made with; it may hold secrets.

    Args:
        config: Of the deployment.
        faults: Where its connections report.
        own: What the caller sets; it wins.
    """
    return {
        **resolved(config.options),
        "bootstrap.servers": config.bootstrap,
        "error_cb": faults,
        "log_level": 0,  # what it would write to standard error comes by error_cb
        **own,
    }


def made_client(
    kind: Callable[[dict[str, Any]], ClientT], config: KafkaConfig, faults: Faults, own: Mapping[str, object]
) -> ClientT:
    """A client of librdkafka.

    Args:
        kind: Its class.
        config: Of the deployment.
        faults: Where its connections report.
        own: See `options`.

    Raises:
        InvalidInputError: An option is none of its own: librdkafka names it, never its value's secret.
    """
    try:
        return kind(options(config, faults, own))
    except library().KafkaException as error:
        raise InvalidInputError(
            f"kafka.options: {_short(error.args[0].str())}",
            hint="the names are those of librdkafka's CONFIGURATION.md",
        ) from None  # the cause's frames hold the options


def admin_client(config: KafkaConfig, faults: Faults, own: Mapping[str, object] = MappingProxyType({})) -> AdminClient:
    """A client that asks about topics and groups, and changes them; see `made_client`.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """
    library()
    from confluent_kafka.admin import AdminClient

    return made_client(AdminClient, config, faults, own)


def translated(error: KafkaError, doing: str, config: KafkaConfig) -> HeadgateError:
    """An error of librdkafka or of a broker as one of ours.

    Args:
        error: The error.
        doing: What failed, as the beginning of a sentence: "the topic events cannot be made".
        config: Of the deployment.
    """
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


# --- consumers ------------------------------------------------------------------------------------
# What the clients of topics share: a consumer of committed records outside of a group, and questions to Kafka.

_T = TypeVar("_T")

BOUNDED_FETCH: Final[Mapping[str, int]] = MappingProxyType(
    {
        "fetch.message.max.bytes": KAFKA_RECORD_BYTES_MAX,
        "queued.max.messages.kbytes": KAFKA_FETCH_BYTES_MAX >> 10,
        "fetch.queue.backoff.ms": KAFKA_FETCH_PAUSE_MS,
    }
)
"""Options of a consumer: what it fetches ahead."""
ACKNOWLEDGED: Final[Mapping[str, object]] = MappingProxyType({"enable.idempotence": True, "acks": "all"})
"""Options of a producer: each record once and in order, and answered for when every in-sync copy has it."""
BOUNDED_SEND: Final[Mapping[str, object]] = MappingProxyType(
    {"message.max.bytes": KAFKA_RECORD_BYTES_MAX, "queue.buffering.max.messages": KAFKA_RECORDS_WAITING_MAX}
)
"""Options of a producer of events and state: how large a record is, and how many wait."""
ELECTION_S: Final = 0.1
"""Pause before a group or partition is asked again whose leader is being elected: nothing tells when there is one."""
_RECORDS_A_TIME: Final = 500
_FETCH_WAIT_MS: Final = 50
"""How long a broker keeps a fetch that finds nothing new: behind a transaction, the end of a partition is known so
late."""


def committed_reader(
    config: KafkaConfig, faults: Faults, group: str = "reader", *, fetch_wait_ms: int = _FETCH_WAIT_MS
) -> Consumer:
    """A consumer that reads committed records and tells the end of a partition; it joins no group.

    Args:
        config: Of the deployment.
        faults: Where its connections report.
        group: Whose commits it can be asked for.
        fetch_wait_ms: How long a broker keeps a fetch that finds nothing new.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """
    kafka = library()
    own = {
        "group.id": config.topic(group),  # demanded by the library; no group is joined, nothing is committed
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": fetch_wait_ms,
        "fetch.max.bytes": KAFKA_FETCH_BYTES_MAX,
        **BOUNDED_FETCH,
    }
    consumer: Consumer = made_client(kafka.Consumer, config, faults, own)
    return consumer


class Came(Enum):
    """What a poll has brought."""

    RECORD = auto()
    END = auto()
    """Of the partition, at the message's offset."""
    REMOVED = auto()
    """There is no record where reading goes on: retention has removed it, or the partition ends before."""
    NOTHING = auto()
    """A trouble that passes."""


def came(message: Message, config: KafkaConfig, faults: Faults, doing: str) -> Came:
    """What a message of a consumer says; every reader of topics asks here.

    Args:
        message: From a poll.
        config: Of the deployment.
        faults: Of the consumer.
        doing: What fails by an error that does not pass, as the beginning of a sentence.

    Raises:
        HeadgateError: That error.
    """
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
    raise translated(faults.cause(error), doing, config)


def polled(consumer: Consumer, timeout_s: float) -> list[Message]:
    """The next message within the time, and what has come with it: `consume` would wait for as many as it may take."""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(_RECORDS_A_TIME, 0)]


def offset_of(message: Message) -> int:
    """The offset of a record that was read."""
    offset = message.offset()
    assert offset is not None, "a record that was read has an offset"
    return offset


def once_elected(ask: Callable[[], _T], config: KafkaConfig, faults: Faults, doing: str) -> _T:
    """What a question answers; it is asked again while those who know are being elected, for KAFKA_READ_S_MAX.

    Args:
        ask: Raises what the library raises.
        config: Of the deployment.
        faults: Of the client that asks.
        doing: What fails without an answer, as the beginning of a sentence.

    Raises:
        UnavailableError: No answer in this time.
        KafkaDeniedError: We may not.
    """
    kafka = library()
    deadline = time.monotonic() + KAFKA_READ_S_MAX
    while True:
        try:
            return ask()
        except kafka.KafkaException as error:
            problem = translated(faults.cause(error.args[0]), doing, config)
            if not isinstance(problem, UnavailableError) or time.monotonic() > deadline:
                raise problem from error
        time.sleep(ELECTION_S)


def watermarks(
    consumer: Consumer, place: TopicPartition, config: KafkaConfig, faults: Faults, doing: str
) -> tuple[int, int]:
    """The first offset that a partition still has, and its end; blocking. Asks again while a leader is elected.

    Args:
        consumer: Asks.
        place: The partition.
        config: Of the deployment.
        faults: Of the consumer.
        doing: What fails without an answer, as the beginning of a sentence.

    Raises:
        UnavailableError: No answer within KAFKA_READ_S_MAX.
        KafkaDeniedError: We may not.
    """

    def ask() -> tuple[int, int]:
        found: tuple[int, int] | None = consumer.get_watermark_offsets(place, timeout=KAFKA_READ_S_MAX)
        if found is None:
            raise UnavailableError(f"{doing}: {place.topic}/{place.partition} does not answer")
        return found

    return once_elected(ask, config, faults, doing)


def unfinished_partitions(places: Iterable[tuple[str, int]], config: KafkaConfig, doing: str) -> list[tuple[str, int]]:
    """Those of some partitions in which a transaction is open; blocking, raises as `watermarks`.

    Args:
        places: Topics and their partitions.
        config: Of the deployment.
        doing: What fails without an answer, as the beginning of a sentence.
    """
    faults = Faults()
    own = {"group.id": config.topic("reader"), "enable.auto.commit": False, "isolation.level": "read_uncommitted"}

    def end(consumer: Consumer, topic: str, partition: int) -> int:
        return watermarks(consumer, library().TopicPartition(topic, partition), config, faults, doing)[1]

    with ExitStack() as stack:
        committed = stack.enter_context(closing(committed_reader(config, faults)))
        all_: Consumer = stack.enter_context(closing(made_client(library().Consumer, config, faults, own)))
        # The end of all first: what comes between the two questions must not pass for unfinished.
        return [place for place in places if end(all_, *place) > end(committed, *place)]


def committed_places(
    consumer: Consumer, places: Sequence[TopicPartition], config: KafkaConfig, faults: Faults, doing: str
) -> list[TopicPartition]:
    """Where the consumer's group goes on in these partitions, with what it has committed beside; blocking.

    Asks again while a coordinator is elected. A partition without a commit has a negative offset.

    Args:
        consumer: Names the group; it need not be a member.
        places: The partitions.
        config: Of the deployment.
        faults: Of the consumer.
        doing: What fails without an answer, as the beginning of a sentence.

    Raises:
        UnavailableError: No answer within KAFKA_READ_S_MAX.
        KafkaDeniedError: We may not.
    """

    def ask() -> list[TopicPartition]:
        found = consumer.committed(list(places), timeout=KAFKA_READ_S_MAX)
        for place in found:
            if place.error is not None:
                raise library().KafkaException(place.error)
        return found

    return once_elected(ask, config, faults, doing)


def partition_count(client: Consumer | Producer, topic: str, config: KafkaConfig, faults: Faults, doing: str) -> int:
    """How many partitions a topic has; blocking.

    Raises:
        KafkaUnreachableError: No broker answers.
        UnavailableError: There is no such topic.
    """
    kafka = library()
    try:
        found = client.list_topics(topic, timeout=KAFKA_ADMIN_S_MAX).topics[topic]
    except kafka.KafkaException as error:
        raise translated(faults.cause(error.args[0]), doing, config) from error
    if found.error is not None:
        raise translated(found.error, doing, config)
    return len(found.partitions)


# --- lost topics ----------------------------------------------------------------------------------
# What is said where a topic is no longer the one that was read.

_HINT: Final = "was the topic deleted and created again?"


class TopicLostError(FatalError):
    """A topic of state is not the one that was read, or has lost its end while it was read.

    Args:
        topic: Its name in Kafka.
        reason: What does not fit.
    """

    remedy: ClassVar[str] = ""

    def __init__(self, topic: str, reason: str) -> None:
        hint = f"{_HINT} {self.remedy}".rstrip()
        super().__init__(f"{topic} is not what this process has read: {reason}", hint=hint)


def ends_before(doing: str, topic: str, partition: int, offset: int) -> UnavailableError:
    """The error of a reader that has come further than the partition goes now."""
    return UnavailableError(
        f"{doing}: {topic}/{partition} ends before offset {offset}", hint=f"acknowledged records are gone: {_HINT}"
    )
