"""What happened to an event? Its whole way, from the files alone: stored, matched, every attempt. For people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.compute as pc

from headgate.control.facts import target_names
from headgate.dispatch.journal import DIRECTORY, Entry, entries
from headgate.dispatch.outbox import decode_chunk
from headgate.dispatch.storefile import read_only
from headgate.event.arrow import EVENT_SCHEMA, from_batch
from headgate.event.identity import path_of
from headgate.event.model import Event
from headgate.filter.plan import Verdict
from headgate.limits import CLOCK_SLACK_S
from headgate.log.reader import PartitionReader
from headgate.log.search import newest_of_all

_ID: Final = EVENT_SCHEMA.get_field_index("id")
_CLOCK_SLACK_US: Final = int(CLOCK_SLACK_S * 1_000_000)


@dataclass(frozen=True, slots=True)
class Hit:
    """Where an event is stored.

    Attributes:
        partition: Of the log.
        offset: The event's.
        first_offset: Of its chunk.
        record_count: Of its chunk.
        append_time_us: When the chunk was written, microseconds since 1970 UTC.
    """

    partition: int
    offset: int
    first_offset: int
    record_count: int
    append_time_us: int


@dataclass(frozen=True, slots=True)
class Match:
    """A row of the outbox.

    Attributes:
        position: In the outbox.
        time_us: When it was written, microseconds since 1970 UTC.
        generation: Of the filters that matched it.
        target: The trigger's id.
        trigger: `namespace/name`; empty when it is deleted.
        verdict: The matcher's, in small letters.
        attempts: What is still known of them, the oldest first; ends among them.
    """

    position: int
    time_us: int
    generation: int
    target: int
    trigger: str
    verdict: str
    attempts: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that is known of one stored event.

    Attributes:
        broker: `namespace/name`.
        event: As it was accepted.
        hit: Where it is stored.
        evaluated: Whether the matcher has passed it.
        matches: Every trigger that it was matched for, in order.
    """

    broker: str
    event: Event
    hit: Hit
    evaluated: bool
    matches: tuple[Match, ...]


def stories(data: Path, event_id: str, *, source: str = "", start_time_us: int = 0) -> Iterator[Story]:
    """Every stored event with this id, the newest first; an id is unique within a source, and may be sent twice.

    Args:
        data: The server's data directory; it may run.
        event_id: What is looked for.
        source: Only events of this source; empty for every source.
        start_time_us: Only events stored since.
    """
    names = _names(data / "control.db")
    for partition, chunk in newest_of_all(data / "log", before={}, not_before_us=start_time_us):
        for row in reversed(pc.indices_nonzero(pc.equal(chunk.batch.column(_ID), event_id)).to_pylist()):
            stored = from_batch(chunk.batch, row)
            if source and stored.event.source != source:
                continue
            first = chunk.first_offset
            hit = Hit(partition, first + row, first, chunk.record_count, chunk.append_time_us)
            known = tuple(entries(data / DIRECTORY, hit.partition, hit.offset))
            evaluated, found = _matches(data / "outbox" / "0", hit, names, known)
            yield Story(path_of(stored.broker), stored.event, hit, evaluated, tuple(found))


def _matches(outbox: Path, hit: Hit, names: dict[int, str], known: tuple[Entry, ...]) -> tuple[bool, list[Match]]:
    found: list[Match] = []
    if not outbox.is_dir():
        return False, found
    with PartitionReader.open(outbox, start=0) as reader:
        while (chunk := reader.read()) is not None:
            if chunk.append_time_us < hit.append_time_us - _CLOCK_SLACK_US:
                continue  # what was written before the event cannot be about it
            durable = decode_chunk(chunk.first_offset, chunk.batch)
            position = durable.first_position
            for segment in durable.segments:
                for offset, target, verdict in segment.rows:
                    if offset == hit.offset and segment.partition == hit.partition:
                        attempts = tuple(entry for entry in known if entry.target == target)
                        found.append(
                            Match(
                                position,
                                chunk.append_time_us,
                                segment.generation,
                                target,
                                names.get(target, ""),
                                Verdict(verdict).name.lower(),
                                attempts,
                            )
                        )
                    position += 1
            if durable.watermarks.get(hit.partition, 0) > hit.offset:
                return True, found
    return bool(found), found


def _names(database: Path) -> dict[int, str]:
    if not database.exists():
        return {}
    with read_only(database) as connection:
        return target_names(connection)
