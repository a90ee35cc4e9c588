"""Events of the topic `events` by their offsets, for deliveries."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import Came, TopicConsumer, offset_of
from headgate.backend.kafka.records import RecordError, decode_stored
from headgate.delivery.events import EventCache, EventGoneError, SharedEvent
from headgate.event.arrow import StoredEvent
from headgate.event.hops import place_root, root_of
from headgate.storage.threads import Threads
from headgate_api.errors import own_copy

if TYPE_CHECKING:
    from confluent_kafka import Message


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """The headers of a record that was read, in order; RecordError when a name is no UTF-8."""
    try:
        headers = message.headers()
    except UnicodeDecodeError as error:
        raise RecordError(f"the name of a header is no UTF-8: {error.reason}") from error
    return headers or []  # type: ignore[return-value] # a list of pairs, as documented


# --- event lookup ---------------------------------------------------------------------------------
# To go to a place of a topic takes Kafka milliseconds, to read on takes microseconds. So events that are asked for
# while others are read are read together, in the order of their offsets: a target that fails and needs its events again
# and again does not hold those of the others.

_PASSED_MAX: Final = 1_000
"""Records that are read for nothing rather than to go to a place behind them."""
_NO_OFFSET: Final = 1 << 62
_POLL_S: Final = 0.5


def shared_event(stored: StoredEvent, partition: int, offset: int, stored_us: int) -> SharedEvent:
    """An event of the topic `events` on its way to its targets; `stored_us` is in microseconds since 1970 UTC."""
    root = root_of(stored.event) or place_root(stored.event, partition, offset)
    return SharedEvent(stored.broker, stored.event, stored_us, root)


class TopicEvents:
    """The `Events` of all partitions of a process (`delivery/events.py`), on one event loop."""

    def __init__(self, config: KafkaConfig) -> None:
        self._topic = config.topic("events")
        self._consumer = TopicConsumer.committed(config, "an event cannot be read")
        self._thread = Threads("events")
        self._cache = EventCache()
        self._asked: dict[tuple[int, int], asyncio.Future[SharedEvent]] = {}
        self._reading: set[tuple[int, int]] = set()
        self._loop = asyncio.get_running_loop()

    def keep(self, partition: int, offset: int, event: SharedEvent) -> None:
        self._cache.keep(partition, [(offset, event)])

    def recent(self, partition: int, offset: int) -> SharedEvent | None:
        """What came with its match is here, everything else takes waiting."""
        return self.kept(partition, offset)

    def kept(self, partition: int, offset: int) -> SharedEvent | None:
        return self._cache.get(partition, offset)

    async def load(self, partition: int, offset: int) -> SharedEvent:
        """Raises EventGoneError also for a record that is no event that Headgate stored."""
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
        self._thread.close()
        self._consumer.close()

    # --- on the event loop ------------------------------------------------------------------------------

    def _read(self) -> None:
        """Reads everything that was asked for until now, and then what was asked for meanwhile."""
        if self._reading or not self._asked:
            return
        self._reading = set(self._asked)
        self._thread.begin(partial(self._find, sorted(self._reading)), self._found)

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
                asked.set_exception(own_copy(event))
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
        self._consumer.go(self._topic, partition, position)
        for came in self._consumer.answers(f"{self._topic}/{partition}", _POLL_S):
            for what, message in came:
                position = self._position(what, message, partition, waiting[0] if waiting else 0)
                while waiting and waiting[0] < position:
                    offset = waiting.popleft()
                    found[partition, offset] = self._event(message, partition, offset)
            if not waiting or waiting[0] > position + _PASSED_MAX:
                return

    def _position(self, what: Came, message: Message, partition: int, asked: int) -> int:
        """Everything below it has come with this message, or is not there."""
        if what is Came.RECORD:
            return offset_of(message) + 1
        if what is Came.END:
            return _NO_OFFSET
        first, _ = self._consumer.bounds(self._topic, partition)
        return first if asked < first else _NO_OFFSET  # removed, or behind the end

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
