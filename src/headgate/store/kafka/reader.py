"""Reading one partition of the topic `events`, by offset.

Batches are read once their transaction is committed (`read_committed`). Kafka numbers the ends of transactions, too,
and what was aborted keeps its numbers: offsets are left out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headgate.errors import UnavailableError
from headgate.limits import KAFKA_READ_S_MAX
from headgate.store.config import KafkaConfig
from headgate.store.events import EventPage
from headgate.store.kafka.consumers import committed_reader, watermarks
from headgate.store.kafka.library import Faults, library, translated
from headgate.store.kafka.lost_topics import ends_before
from headgate.store.kafka.pages import PageBuilder, Passes, offset_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_POLL_S: Final = 0.5
_DOING: Final = "events cannot be read"


class KafkaReader:
    """Reads one partition; see `EventReader`.

    Args:
        config: Of the deployment.
        partition: Its number.
        start: First offset to read.
        passes: Called for a record that Headgate has not stored so, with its offset; reading goes on behind it. None:
            reading stops at it.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(
        self,
        config: KafkaConfig,
        partition: int,
        start: int = 0,
        *,
        passes: Passes | None = None,
    ) -> None:
        self._config = config
        self._topic = config.topic("events")
        self._partition = partition
        self._passes = passes
        self._faults = Faults()
        self._consumer: Consumer = committed_reader(config, self._faults)
        self._closed = False
        self._held: Message | None = None  # came, and did not fit into the page before
        self.seek(start)

    @property
    def position(self) -> int:
        """See `EventReader.position`."""
        return self._position

    def seek(self, offset: int) -> None:
        """See `EventReader.seek`."""
        self._position = offset
        self._held = None
        self._consumer.assign([library().TopicPartition(self._topic, self._partition, offset)])

    def read(self) -> EventPage | None:
        """See `EventReader.read`; at most KAFKA_READ_EVENTS events.

        Raises:
            RecordError: The record at `position` is none of ours, and there is no `passes`.
        """
        while (message := self._first()) is not None:
            if (page := self._page(message)) is not None:
                return page
        return None

    def _page(self, message: Message | None) -> EventPage | None:
        """This record's event and those that have come behind it; None where all of them were passed over."""
        builder = PageBuilder(f"{self._topic}/{self._partition}", self._passes)
        while message is not None:
            self._held = message  # stays, where it is none of this page's
            if not builder.add(message):
                break
            self._held = None
            self._position = offset_of(message) + 1
            message = self._next(0)
        return builder.page()

    def _first(self) -> Message | None:
        """The next record; None when there is none below the end."""
        if (message := self._next(0)) is not None:
            return message
        end = self.end_offset()
        deadline = time.monotonic() + KAFKA_READ_S_MAX
        while self._position < end:
            if (message := self._next(_POLL_S)) is not None:
                return message
            if time.monotonic() > deadline:
                raise UnavailableError(f"{_DOING}: {self._topic}/{self._partition} does not answer")
        return None

    def _next(self, timeout_s: float) -> Message | None:
        """The next record that is there within this time. Moves `position` over what the end of the partition tells."""
        if self._held is not None:
            held, self._held = self._held, None
            return held
        kafka = library()
        message = self._consumer.poll(timeout_s)
        error = None if message is None else message.error()
        if message is None or error is None:
            return message
        if error.code() == kafka.KafkaError._PARTITION_EOF:
            self._position = max(self._position, offset_of(message))
        elif error.code() in (kafka.KafkaError.OFFSET_OUT_OF_RANGE, kafka.KafkaError._AUTO_OFFSET_RESET):
            self._pass_over_removed()
        elif not error.retriable():
            raise translated(self._faults.cause(error), _DOING, self._config)
        return None

    def _pass_over_removed(self) -> None:
        """Retention has removed what stood here; behind the end, it is waited for."""
        first = self.first_offset()
        if self._position < first:
            self.seek(first)
        else:
            raise ends_before(_DOING, self._topic, self._partition, self._position)

    def first_offset(self) -> int:
        """See `EventReader.first_offset`."""
        return self._watermarks()[0]

    def end_offset(self) -> int:
        """See `EventReader.end_offset`."""
        return self._watermarks()[1]

    def _watermarks(self) -> tuple[int, int]:
        place = library().TopicPartition(self._topic, self._partition)
        return watermarks(self._consumer, place, self._config, self._faults, _DOING)

    def close(self) -> None:
        """See `EventReader.close`."""
        if not self._closed:
            self._closed = True
            self._consumer.close()
