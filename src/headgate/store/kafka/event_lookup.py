"""Events of the topic `events` for deliveries: those that came with their matches, and any other by its offset."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headgate.delivery.events import EventCache, SharedEvent
from headgate.errors import UnavailableError
from headgate.event.arrow import StoredEvent
from headgate.event.hops import place_root, root_of
from headgate.limits import KAFKA_READ_S_MAX
from headgate.outbox.errors import EventGoneError
from headgate.store.config import KafkaConfig
from headgate.store.kafka.consumers import committed_reader
from headgate.store.kafka.library import Faults, library, translated
from headgate.store.kafka.reader import headers_of, offset_of
from headgate.store.kafka.records import RecordError, decode_stored

if TYPE_CHECKING:
    from confluent_kafka import Message

_POLL_S: Final = 0.5
_NEIGHBOURS: Final = 16
_DOING: Final = "an event cannot be read"


def shared_event(stored: StoredEvent, partition: int, offset: int, stored_us: int) -> SharedEvent:
    """An event on its way to its targets.

    Args:
        stored: As it was stored.
        partition: Of the topic `events`.
        offset: In that partition.
        stored_us: When, in microseconds since 1970 UTC.
    """
    root = root_of(stored.event) or place_root(stored.event, partition, offset)
    return SharedEvent(stored.broker, stored.event, stored_us, root)


class TopicEvents:
    """See `delivery.events.Events`; for all partitions of a process, on one event loop.

    Args:
        config: Of the deployment.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._topic = config.topic("events")
        self._faults = Faults()
        self._consumer = committed_reader(config, self._faults)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="events")
        self._cache = EventCache()

    def keep(self, partition: int, offset: int, event: SharedEvent) -> None:
        """An event came with a match."""
        self._cache.keep(partition, [(offset, event)])

    def recent(self, partition: int, offset: int) -> SharedEvent | None:
        """See `Events`: what came with its match is here, everything else takes waiting."""
        return self.kept(partition, offset)

    def kept(self, partition: int, offset: int) -> SharedEvent | None:
        """See `Events`."""
        return self._cache.get(partition, offset)

    async def load(self, partition: int, offset: int) -> SharedEvent:
        """See `Events`.

        Raises:
            EventGoneError: Retention took it, or it is no event that Headgate stored.
            UnavailableError: Kafka does not answer.
        """
        event = self.kept(partition, offset)
        if event is None:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, self._read, partition, offset)
            self._cache.keep(partition, found)
            event = found[0][1]
        return event

    def close(self) -> None:
        """Gives everything back; blocks."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._consumer.close()

    def _read(self, partition: int, offset: int) -> list[tuple[int, SharedEvent]]:
        """The event, first, with those behind it that have come with it."""
        self._consumer.assign([library().TopicPartition(self._topic, partition, offset)])
        message = self._first(partition, offset)
        if offset_of(message) != offset:
            raise self._gone(partition, offset)
        try:
            found = [self._event(partition, message)]
        except RecordError as error:
            raise EventGoneError(error.message) from error
        for further in self._consumer.consume(_NEIGHBOURS - 1, 0):
            with suppress(RecordError):  # whoever needs it asks for it
                if further.error() is None:
                    found.append(self._event(partition, further))
        return found

    def _first(self, partition: int, offset: int) -> Message:
        """The first record that comes."""
        kafka = library().KafkaError
        deadline = time.monotonic() + KAFKA_READ_S_MAX
        while time.monotonic() < deadline:
            message = self._consumer.poll(_POLL_S)
            error = None if message is None else message.error()
            if message is not None and error is None:
                return message
            if error is None or error.retriable():
                continue
            if error.code() in (kafka.OFFSET_OUT_OF_RANGE, kafka._AUTO_OFFSET_RESET, kafka._PARTITION_EOF):
                raise self._gone(partition, offset)
            raise translated(self._faults.cause(error), _DOING, self._config)
        raise UnavailableError(f"{_DOING}: {self._topic}/{partition} does not answer")

    def _event(self, partition: int, message: Message) -> tuple[int, SharedEvent]:
        stored, _ = decode_stored(headers_of(message), message.value())
        offset = offset_of(message)
        return offset, shared_event(stored, partition, offset, message.timestamp()[1] * 1_000)

    def _gone(self, partition: int, offset: int) -> EventGoneError:
        return EventGoneError(f"{self._topic}/{partition} has no event at offset {offset} any more")
