"""Which records have this value in a column? A scan of one column, for people who ask about a record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headgate.log.reader import PartitionReader


class Hit(NamedTuple):
    """A record: row `row` of `batch`.

    Attributes:
        partition: Number of the partition's directory.
        offset: The record's.
        first_offset: Of its chunk.
        record_count: Of its chunk.
        append_time_us: When the chunk was written, microseconds since 1970 UTC.
        batch: The chunk's records.
        row: The record's place in them.
    """

    partition: int
    offset: int
    first_offset: int
    record_count: int
    append_time_us: int
    batch: pa.RecordBatch
    row: int


def find_equal(root: Path, column: str, value: str, *, start_time_us: int = 0) -> Iterator[Hit]:
    """Records whose text in `column` is `value`, partition by partition, in order; safe beside a running writer.

    Args:
        root: Directory of the partitions, named by their numbers.
        column: Of the schema; a partition written by a schema without it is passed over.
        value: What is looked for.
        start_time_us: Chunks written before are not looked at.

    Raises:
        CorruptChunkError: A chunk is damaged.
    """
    numbers = sorted(int(path.name) for path in root.iterdir() if path.name.isdigit()) if root.is_dir() else []
    for partition in numbers:
        with PartitionReader.open(root / str(partition), start=0) as reader:
            while (chunk := reader.read()) is not None:
                if chunk.append_time_us < start_time_us:
                    continue
                batch = chunk.batch
                at = batch.schema.get_field_index(column)
                if at < 0:
                    continue
                for row in pc.indices_nonzero(pc.equal(batch.column(at), value)).to_pylist():
                    offset = chunk.first_offset + row
                    yield Hit(
                        partition, offset, chunk.first_offset, chunk.record_count, chunk.append_time_us, batch, row
                    )
