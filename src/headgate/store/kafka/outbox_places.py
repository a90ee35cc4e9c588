"""Where the next run must begin: from what the dispatchers have committed of the outbox.

A commit of the group `dispatchers` has the takeover's state beside the offset, and with it W of each source partition.
It is a lower bound of the W that the reader will have at the next record of the log: W never falls, and the log alone
decides it. A run that starts at or below W is never refused; what it has below W does not count. So the committed W is
enough to begin at, and dispatchers need not say it a second time. What a late commit costs is work, not correctness:
the events between the committed W and the true one are matched once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headgate.store.config import KafkaConfig
from headgate.store.kafka.consumers import committed_places, partition_count, watermarks
from headgate.store.kafka.library import Faults, library, made_client
from headgate.store.kafka.outbox_state import OutboxState, decode_state

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_DOING: Final = "the place to match from cannot be found"


def lowest_watermarks(states: Sequence[OutboxState | None], sources: int) -> dict[int, int]:
    """The lowest W of all outbox partitions, for each source partition. Pure.

    Args:
        states: What is committed of each outbox partition; None where nothing is: there W may be any.
        sources: How many source partitions there are.

    Returns:
        By source partition; 0 where one is unknown.
    """

    def watermark(state: OutboxState | None, source: int) -> int:
        known = None if state is None else state.takeover.partitions.get(source)
        return 0 if known is None else known.watermark

    return {source: min((watermark(state, source) for state in states), default=0) for source in range(sources)}


class OutboxPlaces:
    """What the dispatchers have committed, seen from outside of their group; blocking, for one thread.

    Args:
        config: Of the deployment.

    Attributes:
        sources: How many partitions the topic `events` has.
        partitions: How many the topic `outbox` has.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
        UnavailableError: Kafka does not answer, or a topic is not there.
    """

    def __init__(self, config: KafkaConfig) -> None:
        kafka = library()
        self._config = config
        self._events, self._outbox = config.topic("events"), config.topic("outbox")
        self._faults = Faults()
        own = {"group.id": config.topic("dispatchers"), "enable.auto.commit": False}
        self._consumer: Consumer = made_client(kafka.Consumer, config, self._faults, own)
        try:
            self.sources = partition_count(self._consumer, self._events, config, self._faults, _DOING)
            self.partitions = partition_count(self._consumer, self._outbox, config, self._faults, _DOING)
        except BaseException:
            self.close()
            raise

    def starts(self, earlier: int = 0) -> dict[int, int]:
        """The first offset of each source partition for a run that begins now: the lowest W, if it is still there.

        Args:
            earlier: So many offsets before it, as far as they are still there.

        Raises:
            UnavailableError: Kafka does not answer.
            RecordError: A commit is none of ours.
        """
        lowest = lowest_watermarks(self._states(), self.sources)
        return {source: max(offset - earlier, self._bounds(source)[0]) for source, offset in lowest.items()}

    def newest(self, count: int) -> dict[int, int]:
        """Of each source partition an offset that so many offsets at most follow; empty where no partition has any.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        bounds = {source: self._bounds(source) for source in range(self.sources)}
        if all(first == end for first, end in bounds.values()):
            return {}
        return {source: max(first, end - count) for source, (first, end) in bounds.items()}

    def newest_run(self) -> int:
        """The highest number of a run that a committed state knows; 0 without one.

        Raises:
            UnavailableError: Kafka does not answer.
            RecordError: A commit is none of ours.
        """
        return max((state.newest_run for state in self._states() if state is not None), default=0)

    def _states(self) -> list[OutboxState | None]:
        kafka = library()
        places = [kafka.TopicPartition(self._outbox, number) for number in range(self.partitions)]
        found = committed_places(self._consumer, places, self._config, self._faults, _DOING)
        return [decode_state(place.metadata or "") if place.offset >= 0 else None for place in found]

    def _bounds(self, source: int) -> tuple[int, int]:
        """The first offset of a source partition, and its end."""
        place = library().TopicPartition(self._events, source)
        return watermarks(self._consumer, place, self._config, self._faults, _DOING)

    def close(self) -> None:
        """Gives everything back; idempotent."""
        with suppress(RuntimeError):  # closed already
            self._consumer.close()
