"""Small event logs for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.log.directory import Partition
from headgate.log.format import Codec
from headgate.log.writer import Encoded, PartitionWriter, wall_clock_us
from headgate_api.event.model import DataKind, Event


def event(number: int, kind: str = "test.created") -> StoredEvent:
    """An event with an awkward value in most columns, told apart by `number`."""
    return StoredEvent(
        "default/main/1",
        Event(
            specversion="1.0",
            id=f"id-{number}",
            source="/täst/🚪",
            type=kind,
            subject=None if number % 3 else f"subject {number}",
            time="2024-02-29T23:59:59.123456789Z" if number % 2 else None,
            datacontenttype="application/json",
            extensions={"count": number, "flag": True, "text": "ü"} if number % 5 else {},
            data_kind=DataKind.JSON,
            data=b'{"n":%d}' % number,
        ),
    )


def append(writer: PartitionWriter, entries: Sequence[StoredEvent]) -> int:
    """One chunk, filter value = type."""
    return writer.append(Encoded(to_batch(entries), [entry.event.type for entry in entries]))


@contextmanager
def writing(
    log: Path,
    partition: int = 0,
    *,
    segment_bytes_max: int = 1 << 28,
    codec: Codec = Codec.NONE,
    clock_us: Callable[[], int] = wall_clock_us,
) -> Iterator[PartitionWriter]:
    with PartitionWriter(
        Partition(log / str(partition), "stop"),
        EVENT_SCHEMA,
        segment_bytes_max=segment_bytes_max,
        codec=codec,
        clock_us=clock_us,
    ) as writer:
        yield writer
