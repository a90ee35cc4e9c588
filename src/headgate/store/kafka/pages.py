"""Pages of stored events, made of a partition's records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.event.arrow import StoredEvent, to_batch
from headgate.limits import COMMIT_BATCH_BYTES_MAX, KAFKA_READ_EVENTS
from headgate.store.events import EventPage
from headgate.store.kafka.records import RecordError, decode_stored

if TYPE_CHECKING:
    from confluent_kafka import Message

Passes = Callable[[int, RecordError], object]
"""Called for a record that Headgate has not stored so, with its offset; reading goes on behind it."""


class PageBuilder:
    """Collects the records of a page, in order.

    Args:
        place: TOPIC/PARTITION, for errors.
        passes: None: no page goes over a record that is none of ours.
    """

    def __init__(self, place: str, passes: Passes | None) -> None:
        self._place = place
        self._passes = passes
        self._offsets: list[int] = []
        self._times_us: list[int] = []
        self._events: list[StoredEvent] = []
        self._numbers: list[str | None] = []
        self._size_bytes = 0
        self._next_offset = 0

    def add(self, message: Message) -> bool:
        """Takes a record; False: the page ends before it.

        Raises:
            RecordError: The page would begin with it, and it is none of ours.
        """
        is_begun, size_bytes = bool(self._offsets), self._size_bytes + len(message)
        if is_begun and (len(self._offsets) == KAFKA_READ_EVENTS or size_bytes > COMMIT_BATCH_BYTES_MAX):
            return False
        offset = offset_of(message)
        try:
            stored, produced = decode_stored(headers_of(message), message.value())
        except RecordError as error:
            if self._passes is None and is_begun:
                return False
            if self._passes is None:
                raise RecordError(f"{self._place} at offset {offset}: {error.message}") from error
            self._passes(offset, error)
        else:
            self._offsets.append(offset)
            self._times_us.append(message.timestamp()[1] * 1_000)
            self._events.append(stored)
            self._numbers.append(produced)
        self._size_bytes = size_bytes
        self._next_offset = offset + 1
        return True

    def page(self) -> EventPage | None:
        """What was taken; None where all of it was passed over."""
        if not self._events:
            return None
        return EventPage(self._offsets, self._times_us, to_batch(self._events, self._numbers), self._next_offset)


def offset_of(message: Message) -> int:
    """The offset of a record that was read."""
    offset = message.offset()
    assert offset is not None, "a record that was read has an offset"
    return offset


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """The headers of a record that was read, in order.

    Raises:
        RecordError: A name is no UTF-8.
    """
    try:
        headers = message.headers()
    except UnicodeDecodeError as error:
        raise RecordError(f"the name of a header is no UTF-8: {error.reason}") from error
    return headers or []  # type: ignore[return-value] # a list of pairs, as documented
