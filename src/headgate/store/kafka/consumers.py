"""What the clients of topics share: a consumer of committed records outside of a group, and questions to Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from headgate.errors import UnavailableError
from headgate.limits import (
    KAFKA_ADMIN_S_MAX,
    KAFKA_FETCH_BYTES_MAX,
    KAFKA_FETCH_PAUSE_MS,
    KAFKA_READ_S_MAX,
    KAFKA_RECORD_BYTES_MAX,
)
from headgate.store.config import KafkaConfig
from headgate.store.kafka.library import Faults, library, made_client, translated

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer, TopicPartition

_T = TypeVar("_T")

BOUNDED_FETCH: Final[Mapping[str, int]] = MappingProxyType(
    {
        "fetch.message.max.bytes": KAFKA_RECORD_BYTES_MAX,
        "queued.max.messages.kbytes": KAFKA_FETCH_BYTES_MAX >> 10,
        "fetch.queue.backoff.ms": KAFKA_FETCH_PAUSE_MS,
    }
)
"""Options of a consumer: what it fetches ahead."""
ELECTION_S: Final = 0.1
"""Pause before a group or partition is asked again whose leader is being elected: nothing tells when there is one."""
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
