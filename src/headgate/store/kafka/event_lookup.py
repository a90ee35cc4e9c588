"""Events of the topic `events` for deliveries: those that came with their matches, and any other by its offset.

To go to a place of a topic takes Kafka milliseconds, to read on takes microseconds. So events that are asked for while
others are read are read together, in the order of their offsets: a target that fails and needs its events again and
again does not hold those of the others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import TYPE_CHECKING, Final

from headgate.delivery.events import EventCache, SharedEvent
from headgate.errors import UnavailableError
from headgate.event.arrow import StoredEvent
from headgate.event.hops import place_root, root_of
from headgate.limits import KAFKA_READ_S_MAX
from headgate.outbox.errors import EventGoneError
from headgate.store.config import KafkaConfig
from headgate.store.kafka.consumers import committed_reader, watermarks
from headgate.store.kafka.library import Faults, library, translated
from headgate.store.kafka.pages import headers_of, offset_of
from headgate.store.kafka.records import RecordError, decode_stored

if TYPE_CHECKING:
    from confluent_kafka import Message

_POLL_S: Final = 0.5
_RECORDS_A_TIME: Final = 500
_PASSED_MAX: Final = 1_000
"""Records that are read for nothing rather than to go to a place behind them."""
_NO_OFFSET: Final = 1 << 62
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
        self._asked: dict[tuple[int, int], asyncio.Future[SharedEvent]] = {}
        self._reading: set[tuple[int, int]] = set()
        self._loop = asyncio.get_running_loop()

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
        if event is not None:
            return event
        asked = self._asked.get((partition, offset))
        if asked is None:
            asked = self._asked[partition, offset] = self._loop.create_future()
            asked.add_done_callback(_seen)
            if not self._reading:
                self._loop.call_soon(self._read)
        return await asyncio.shield(asked)  # others may wait for it, too

    def close(self) -> None:
        """Gives everything back; blocks."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._consumer.close()

    # --- on the event loop ------------------------------------------------------------------------------

    def _read(self) -> None:
        """Reads everything that was asked for until now, and then what was asked for meanwhile."""
        if self._reading or not self._asked:
            return
        self._reading = set(self._asked)
        done = self._thread.submit(self._find, sorted(self._reading))
        done.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._found, done))

    def _found(self, done: Future[dict[tuple[int, int], SharedEvent | EventGoneError]]) -> None:
        error = done.exception()
        found = done.result() if error is None else {}
        for place in sorted(self._reading):
            asked, event = self._asked.pop(place), found.get(place, error)
            if isinstance(event, SharedEvent):
                self.keep(*place, event)
                asked.set_result(event)
            else:
                assert event is not None, "every place has an answer"
                asked.set_exception(event)
        self._reading = set()
        self._read()

    # --- in the thread ----------------------------------------------------------------------------------

    def _find(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], SharedEvent | EventGoneError]:
        """The events at places, which are in order."""
        found: dict[tuple[int, int], SharedEvent | EventGoneError] = {}
        for partition, group in groupby(places, key=lambda place: place[0]):
            waiting = deque(offset for _, offset in group)
            while waiting:
                self._read_on(partition, waiting, found)
        return found

    def _read_on(
        self, partition: int, waiting: deque[int], found: dict[tuple[int, int], SharedEvent | EventGoneError]
    ) -> None:
        """Goes to the first of the offsets, and reads on as long as the next one is near."""
        position = waiting[0]
        self._consumer.assign([library().TopicPartition(self._topic, partition, position)])
        deadline = time.monotonic() + KAFKA_READ_S_MAX
        while waiting and waiting[0] <= position + _PASSED_MAX:
            if time.monotonic() > deadline:
                raise UnavailableError(f"{_DOING}: {self._topic}/{partition} does not answer")
            for message in self._next():
                position = self._position(message, partition, waiting[0] if waiting else 0)
                while waiting and waiting[0] < position:
                    offset = waiting.popleft()
                    found[partition, offset] = self._event(message, partition, offset)

    def _next(self) -> list[Message]:
        first = self._consumer.poll(_POLL_S)
        return [] if first is None else [first, *self._consumer.consume(_RECORDS_A_TIME, 0)]

    def _position(self, message: Message, partition: int, asked: int) -> int:
        """Everything below it has come with this message, or is not there; 0 where the message says nothing."""
        kafka, error = library().KafkaError, message.error()
        if error is None:
            return offset_of(message) + 1
        if error.code() == kafka._PARTITION_EOF:
            return _NO_OFFSET
        if error.code() in (kafka.OFFSET_OUT_OF_RANGE, kafka._AUTO_OFFSET_RESET):
            place = library().TopicPartition(self._topic, partition)
            first, _ = watermarks(self._consumer, place, self._config, self._faults, _DOING)
            return first if asked < first else _NO_OFFSET  # removed, or behind the end
        if error.retriable():
            return 0
        raise translated(self._faults.cause(error), _DOING, self._config)

    def _event(self, message: Message, partition: int, offset: int) -> SharedEvent | EventGoneError:
        """The event of a message where it is the one at this offset."""
        if message.error() is not None or offset_of(message) != offset:
            return EventGoneError(f"{self._topic}/{partition} has no event at offset {offset} any more")
        try:
            stored, _ = decode_stored(headers_of(message), message.value())
        except RecordError as error:
            return EventGoneError(error.message)
        return shared_event(stored, partition, offset, message.timestamp()[1] * 1_000)


def _seen(asked: asyncio.Future[SharedEvent]) -> None:
    """Its error is everybody's who waits, of whom there may be none any more."""
    if not asked.cancelled():
        asked.exception()
