"""The tree of an event: what it descends from, and what has come of it, by replies and by forwarding to brokers."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headgate.event.arrow import EVENT_SCHEMA
from headgate.event.hops import ROOT, place_root, root_of
from headgate.inspect.find import FoundEvent, InspectedLog, LogPage
from headgate.limits import TREE_BYTES_MAX, TREE_EVENTS_MAX, TREE_SECONDS_MAX

_EXTENSIONS: Final = EVENT_SCHEMA.get_field_index("extensions")
_PLACE: Final = re.compile(r"([0-9]{1,4})-([0-9]{1,19})-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class EventTree:
    """An event's relatives in its broker, itself left out.

    Attributes:
        events: The root first, then in the order of storing; at most TREE_EVENTS_MAX.
        complete: Whether the log was searched to its end.
    """

    events: tuple[FoundEvent, ...]
    complete: bool


def tree_of(log: InspectedLog, found: FoundEvent) -> EventTree:
    """The tree that an event belongs to: a bounded search, forward from its root.

    Args:
        log: What is searched.
        found: The event.
    """
    event = found.stored.event
    root = root_of(event) or place_root(event, found.partition, found.offset)
    first = _root(log, root, found)
    since_us = found.append_time_us if first is None else first.append_time_us
    events = [] if first is None else [first]
    written = f'"{ROOT}":"{root}"'
    ends_s, left_bytes = time.monotonic() + TREE_SECONDS_MAX, TREE_BYTES_MAX
    complete = True
    for page in log.descendants(root, since_us):
        events += _related(page, written, found)
        left_bytes -= page.size_bytes
        if left_bytes <= 0 or len(events) >= TREE_EVENTS_MAX or time.monotonic() > ends_s:
            complete = False
            break
    events.sort(key=lambda one: (one is not first, one.append_time_us, one.partition, one.offset))
    return EventTree(tuple(events[:TREE_EVENTS_MAX]), complete)


def _root(log: InspectedLog, root: str, found: FoundEvent) -> FoundEvent | None:
    """The root, where it is another event than the one that is traced and still in the log of its broker."""
    place = _PLACE.fullmatch(root)
    if place is None:
        return None
    partition, offset = int(place[1]), int(place[2])
    if (partition, offset) == (found.partition, found.offset):
        return None
    first = log.at(partition, offset)
    if first is None or first.stored.broker != found.stored.broker:
        return None
    return first if place_root(first.stored.event, partition, offset) == root else None


def _related(page: LogPage, written: str, found: FoundEvent) -> list[FoundEvent]:
    """The events of a page that carry the root, but for the one that is traced."""
    extensions: pa.Array = page.batch.column(_EXTENSIONS)
    if extensions.null_count == len(extensions):
        return []
    related = map(page.event, pc.indices_nonzero(pc.match_substring(extensions, written)).to_pylist())
    itself, broker = (found.partition, found.offset), found.stored.broker
    return [one for one in related if (one.partition, one.offset) != itself and one.stored.broker == broker]
