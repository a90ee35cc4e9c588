"""Events of the log, decoded and encoded for HTTP once for all their targets."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Literal, Protocol

import msgspec

from headgate.event.arrow import from_batch_all
from headgate.event.hops import HOPS_HEADER, ROOT_HEADER, hops_of, place_root, root_of, with_lineage
from headgate.event.trace import TRACEPARENT, Context, context_of
from headgate.filter.cel.evaluate import EventView
from headgate.log.directory import LogDirectory
from headgate.log.errors import CorruptChunkError, OffsetNotKeptError
from headgate.log.reader import RecordLookup
from headgate.storage.threads import Threads
from headgate_api import limits
from headgate_api.errors import UnavailableError
from headgate_api.event.http import BATCH_JSON, STRUCTURED_JSON, canonical, encode_binary
from headgate_api.event.json_format import encode_batch, encode_event
from headgate_api.event.model import Event, holds_map

Headers = list[tuple[str, str]]
Wire = tuple[Headers, bytes]
"""Headers and body of a POST."""

_REPLY: Final = ("prefer", "reply")


def binary(event: Event, root: str, *, reply: bool = True) -> Wire:
    """Binary mode; the data byte for byte. An event that has no binary mode goes out in structured mode."""
    if holds_map(event):
        return structured(event, root, reply=reply)
    headers, body = encode_binary(with_lineage(event, 0))
    headers += _lineage(event, root)
    if TRACEPARENT in event.extensions:
        headers += context_of(event).items()
    if reply:
        headers.append(_REPLY)
    return headers, body


def structured(event: Event, root: str, *, reply: bool = True) -> Wire:
    """Structured mode (JSON)."""
    headers = [("content-type", STRUCTURED_JSON), *_lineage(event, root), *context_of(event).items()]
    return ([*headers, _REPLY] if reply else headers), encode_event(with_lineage(event, 0))


def batched(events: Sequence[Event], furthest: Event, root: str, *, reply: bool = True) -> Wire:
    """Batched mode; its lineage is that of the event that has been through most brokers."""
    headers = [("content-type", BATCH_JSON), *_lineage(furthest, root)]
    return ([*headers, _REPLY] if reply else headers), encode_batch([with_lineage(event, 0) for event in events])


def _lineage(event: Event, root: str) -> Headers:
    return [(HOPS_HEADER, str(hops_of(event) + 1)), (ROOT_HEADER, root)]


def traced(headers: list[tuple[str, str]], trace: Context) -> list[tuple[str, str]]:
    """The headers of this hop: its own context in the place of the one that the event carries."""
    return [header for header in headers if header[0] not in trace] + list(trace.items())


def as_dead_letter(event: Event, destination: str, code: int, data: bytes) -> Event:
    """The event with what went wrong, as Knative names it; of `data` so much that its Base64 has 1,024 characters."""
    text = base64.b64encode(data[: limits.ERROR_BODY_BYTES_MAX]).decode()
    extensions = {**event.extensions, "knativeerrordest": destination, "knativeerrorcode": code}
    extensions.pop("knativeerrordata", None)
    if text:
        extensions["knativeerrordata"] = text
    return msgspec.structs.replace(event, extensions=extensions)


def encoded(event: Event, root: str, format_: Literal["binary", "json", "batch"], *, reply: bool) -> Wire:
    """One event in a target's format; a batch of one is a batch."""
    match format_:
        case "binary":
            return binary(event, root, reply=reply)
        case "json":
            return structured(event, root, reply=reply)
        case "batch":
            return batched([event], event, root, reply=reply)


# --- events ---------------------------------------------------------------------------------------

_OVERHEAD_BYTES: Final = 2_048
_NEIGHBOURS: Final = 16
_NEIGHBOUR_BYTES_MAX: Final = 4_096


class EventGoneError(UnavailableError):
    """The log no longer holds an event that the outbox names (retention took it, or it is damaged and passed over)."""

    code = "event-gone"
    retriable = False


class SharedEvent:
    """An event on its way to any number of targets; `broker` is an identity, `root` its ancestor, or itself.

    `original` is as it was stored, where `event` was made of that.
    """

    __slots__ = ("_json", "_wire", "append_time_us", "broker", "event", "original", "root", "size_bytes")

    def __init__(
        self, broker: str, event: Event, append_time_us: int, root: str = "", original: Event | None = None
    ) -> None:
        self.broker = broker
        self.root = root
        self.event = event
        self.original = original if original is not None else event
        self.append_time_us = append_time_us
        texts = [event.id, event.source, event.type, event.subject or "", event.dataschema or ""]
        if event.extensions:
            texts += map(canonical, event.extensions.values())
        self.size_bytes = _OVERHEAD_BYTES + len(event.data or b"") + len("".join(texts))
        self._wire: Wire | None = None
        self._json: Wire | None = None

    @property
    def wire(self) -> Wire:
        if self._wire is None:
            self._wire = binary(self.event, self.root)
        return self._wire

    @property
    def wire_json(self) -> Wire:
        if self._json is None:
            self._json = structured(self.event, self.root)
        return self._json

    @property
    def key(self) -> str:
        """Its partition key; empty without one."""
        return canonical(self.event.extensions.get("partitionkey", ""))

    @property
    def view(self) -> EventView:
        """The event as filters see it: kept for the rows of an event, which come one after the other."""
        is_large = len(self.event.data or b"") > limits.VIEW_KEPT_BYTES_MAX
        return _large_view(self) if is_large else _view(self)


def _view_of(shared: SharedEvent) -> EventView:
    return EventView(shared.event, shared.append_time_us)


_view = lru_cache(limits.VIEWS_KEPT_MAX)(_view_of)
_large_view = lru_cache(1)(_view_of)


class Events(Protocol):
    """What the scheduler needs of the log. `LogEvents` has it, and `backend/kafka/events.py`."""

    def recent(self, partition: int, offset: int) -> SharedEvent | None:
        """An event just stored, where that is quick enough for the event loop. Raises EventGoneError."""

    def kept(self, partition: int, offset: int) -> SharedEvent | None:
        """The event when it is in memory."""

    async def load(self, partition: int, offset: int) -> SharedEvent:
        """Any event, perhaps from the disk. Raises EventGoneError."""


async def load_or_none(events: Events, partition: int, offset: int) -> SharedEvent | None:
    """Any event, perhaps from the disk; None when it is gone."""
    try:
        return await events.load(partition, offset)
    except EventGoneError:
        return None


class EventCache:
    """Events that were needed a moment ago, first in, first out: targets of one event stand together."""

    def __init__(self) -> None:
        self._events: OrderedDict[tuple[int, int], SharedEvent] = OrderedDict()
        self._bytes = 0

    def get(self, partition: int, offset: int) -> SharedEvent | None:
        return self._events.get((partition, offset))

    def keep(self, partition: int, found: Iterable[tuple[int, SharedEvent]]) -> None:
        """Keeps events of a partition, by offset; the last of them in any case."""
        events = self._events
        for offset, event in found:
            if (partition, offset) not in events:
                events[partition, offset] = event
                self._bytes += event.size_bytes
        while self._bytes > limits.EVENT_CACHE_BYTES_MAX and len(events) > 1:
            self._bytes -= events.popitem(last=False)[1].size_bytes


class LogEvents:
    """Events of a log."""

    def __init__(self, log: LogDirectory) -> None:
        # Two lookups, because one is not for two threads: the loop's meets hot chunks only, the thread's may wait.
        self._hot = RecordLookup(log)
        self._cold = RecordLookup(log, cache_bytes_max=limits.LOOKUP_CACHE_BYTES_MAX // 4)
        self._thread = Threads("events")
        self._cache = EventCache()

    def recent(self, partition: int, offset: int) -> SharedEvent:
        return self.kept(partition, offset) or self._keep(partition, offset, _read(self._hot, partition, offset))

    def kept(self, partition: int, offset: int) -> SharedEvent | None:
        return self._cache.get(partition, offset)

    async def load(self, partition: int, offset: int) -> SharedEvent:
        event = self.kept(partition, offset)
        if event is None:
            found = await self._thread.run(_read, self._cold, partition, offset)
            event = self._keep(partition, offset, found)
        return event

    def close(self) -> None:
        self._thread.close()
        self._hot.close()
        self._cold.close()

    def _keep(self, partition: int, offset: int, found: list[tuple[int, SharedEvent]]) -> SharedEvent:
        self._cache.keep(partition, found)
        return next(event for at, event in found if at == offset)


def _read(lookup: RecordLookup, partition: int, offset: int) -> list[tuple[int, SharedEvent]]:
    """The event with its neighbours of the same chunk, if small: 16 decode in 1.5 times one's time."""
    try:
        chunk = lookup.chunk(partition, offset)
    except OffsetNotKeptError as error:
        raise EventGoneError(error.message) from error
    except CorruptChunkError as error:
        lookup.log.partition(partition).pass_over(error, offset, offset + 1)
        raise EventGoneError(error.message) from error
    row, count = offset - chunk.first_offset, 1
    if chunk.size_bytes <= chunk.record_count * _NEIGHBOUR_BYTES_MAX:
        row, count = row - row % _NEIGHBOURS, _NEIGHBOURS
    first = chunk.first_offset + row
    found: list[tuple[int, SharedEvent]] = []
    batch = chunk.batch.slice(row, count) if count < chunk.record_count else chunk.batch
    for at, stored in enumerate(from_batch_all(batch), start=first):
        root = root_of(stored.event) or place_root(stored.event, partition, at)
        found.append((at, SharedEvent(stored.broker, stored.event, chunk.append_time_us, root)))
    return found
