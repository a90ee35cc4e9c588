"""Which bytes must every reader of the chunk log understand? Writes tests/vectors/log, the same bytes each time.

    python -m tests.vectors.make

`log/<partition>/` are partitions as the writer leaves them; `log/expected.json` says what is in them:

* `xxh64`: values and their hashes, for the Bloom filter.
* `partitions.<n>`: `next_offset`, `first_offset` as published, `segments` (file, schema size, first chunk's byte), in
  each its `chunks`: `at` (byte), every header field, `bloom_hex`, `may_contain` (value -> the filter's answer) and
  `records` (column -> value; `data` in base64; null where the column is null).
* `corrupt`: partitions that no reader may accept: the file and byte of the bad chunk, records before it are good.

Partition 0: two segments, every codec, filters of 16 and 255 bytes, a chunk without filter, one with a record without
value. Partition 1: behind the published offset lie a whole chunk and half a chunk; readers must see neither.
Partition 2: retention has removed the first segment. Partition 3: the second chunk has one bit flipped in its body.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.event.arrow import EVENT_SCHEMA
from headgate.log.bloom import hash_value, might_contain
from headgate.log.directory import Partition
from headgate.log.format import CHUNK_HEADER_BYTES, Codec, decode_body, unpack_chunk_header, unpack_segment_header
from headgate.log.recovery import list_segments
from headgate.log.writer import Encoded, PartitionWriter

VECTORS = Path(__file__).resolve().parent / "log"
TIME_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
VALUES = [
    "com.example.order.created",
    "com.example.order.paid",
    "réservé.日本語.🚪",
    "absent",
    "x",
    "0",
    "4711",
    "tenant-7",
]


def event(number: int, kind: str, **columns: Any) -> dict[str, Any]:
    """One record; `number` makes it different from the others."""
    return {
        "broker": "default/main/6c5b2f7e-3d0c-4a55-9d8e-2f1a7c9b0e4d",
        "specversion": "1.0",
        "id": f"e-{number}",
        "source": "/shop/1",
        "type": kind,
        "subject": None,
        "time": None,
        "time_us": None,
        "datacontenttype": None,
        "dataschema": None,
        "extensions": None,
        "data_kind": 0,
        "data": None,
        "produced": None,
        **columns,
    }


FULL = {
    "subject": "größe/ünïcode 日本語 🚪",
    "time": "2026-01-01T01:00:00.000123+01:00",
    "time_us": TIME_US + 123,
    "datacontenttype": "application/json",
    "dataschema": "https://example.com/schema",
    "extensions": '{"n":7,"ok":true,"tenant":"tenant-7","word":"naïve"}',
    "data_kind": 1,
    "data": '{"user":{"tier":"gold","名":"é"},"n":[1,2.5,null]}'.encode(),
    "produced": "18446744073709551615:shop:größe",
}
CREATED, PAID, UNICODE = VALUES[:3]


def batch(records: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(records), schema=EVENT_SCHEMA)


def append(writer: PartitionWriter, records: Sequence[dict[str, Any]], values: Sequence[str | None]) -> None:
    times = [r["time_us"] for r in records if r["time_us"] is not None]
    writer.append(Encoded(batch(records), values, time_range_us=(min(times), max(times)) if times else None))


def write_everything(directory: Path) -> None:
    """Partition 0."""
    clock = count(TIME_US, 1_000_000)

    def writer(**options: Any) -> PartitionWriter:
        return PartitionWriter(Partition(directory, "stop"), EVENT_SCHEMA, clock_us=lambda: next(clock), **options)

    with writer() as log:
        append(log, [event(0, CREATED)], [CREATED])
        records = [event(1, CREATED, **FULL), event(2, PAID), event(3, UNICODE, **FULL, specversion="0.3")]
        append(log, records, [CREATED, PAID, UNICODE])
        append(log, [event(4, CREATED), event(5, PAID, time="1969-12-31T23:59:59Z", time_us=-1_000_000)], [None, PAID])
        append(log, [event(6, CREATED), event(7, PAID, data_kind=3, data=bytes(range(256)))], ["", None])
    with writer(bloom_bytes=255, codec=Codec.LZ4, segment_bytes_max=8192) as log:
        records = [event(n, f"type-{n % 5}", data_kind=2, data=b"lz4 " * 20 + str(n).encode()) for n in range(8, 40)]
        append(log, records, [r["type"] for r in records])
        append(log, [event(40, CREATED, **FULL)], [CREATED])
    with writer(codec=Codec.ZSTD, segment_bytes_max=8192) as log:
        records = [
            event(n, PAID, data_kind=0 if n % 3 else 2, data=None if n % 3 else b"zstd" * n) for n in range(41, 90)
        ]
        append(log, records, [r["id"] for r in records])
        append(log, [event(90, PAID, data_kind=2, data=b"")], ["tenant-7"])
    with writer(bloom_bytes=21, segment_bytes_max=8192) as log:
        append(log, [event(91, PAID), event(92, UNICODE, **FULL)], ["4711", UNICODE])


def write_tail(directory: Path) -> None:
    """Partition 1: what a reader sees while a writer is at work, or after its death."""
    with PartitionWriter(Partition(directory, "stop"), EVENT_SCHEMA, clock_us=lambda: TIME_US) as log:
        for number in range(4):
            append(log, [event(number, CREATED)], [CREATED])
    [(_, segment)] = list_segments(directory)
    segment.write_bytes(segment.read_bytes()[:-100])
    committed = directory / "committed"
    committed.write_bytes((2).to_bytes(8, "little") + committed.read_bytes()[8:])


def write_retained(directory: Path) -> None:
    """Partition 2: three segments of one chunk, the first removed."""
    with PartitionWriter(
        Partition(directory, "stop"), EVENT_SCHEMA, clock_us=lambda: TIME_US, segment_bytes_max=1
    ) as log:
        for number in range(3):
            append(log, [event(2 * number, CREATED), event(2 * number + 1, PAID)], [CREATED, PAID])
        first, second, _ = list_segments(directory)
        log.publish_first_offset(second[0])
        first[1].unlink()


def write_corrupt(directory: Path) -> None:
    """Partition 3."""
    with PartitionWriter(Partition(directory, "stop"), EVENT_SCHEMA, clock_us=lambda: TIME_US) as log:
        for number in range(3):
            append(log, [event(number, CREATED)], [CREATED])
    [(_, segment)] = list_segments(directory)
    data = bytearray(segment.read_bytes())
    second = list(chunks_of(bytes(data)))[1]
    data[second["at"] + CHUNK_HEADER_BYTES + 16 + 500] ^= 1
    segment.write_bytes(data)


def chunks_of(data: bytes) -> Iterator[dict[str, Any]]:
    """Every chunk of a segment with its header fields, as long as headers are whole."""
    schema, at = unpack_segment_header(data)
    while at < len(data):
        header = unpack_chunk_header(data[at : at + CHUNK_HEADER_BYTES])
        bloom = data[at + CHUNK_HEADER_BYTES :][: header.bloom_bytes]
        body = data[at + CHUNK_HEADER_BYTES + header.bloom_padded_bytes :][: header.body_bytes]
        if len(body) < header.body_bytes:
            return
        fields = header._asdict()
        rows = decode_body(pa.py_buffer(body), schema, header.record_count).to_pylist()
        for row in rows:
            if row["data"] is not None:
                row["data"] = base64.b64encode(row["data"]).decode()
        yield {
            "at": at,
            **fields,
            "bloom_hex": bloom.hex(),
            "may_contain": {v: might_contain(bloom, header.hash_count, [hash_value(v)]) for v in VALUES},
            "records": rows,
        }
        at += header.chunk_bytes


def expect(directory: Path) -> dict[str, Any]:
    """What a reader finds in a partition."""
    committed = (directory / "committed").read_bytes()
    next_offset, first_offset = (int.from_bytes(committed[i : i + 8], "little") for i in (0, 8))
    segments = []
    for _, path in list_segments(directory):
        data = path.read_bytes()
        chunks = [chunk for chunk in chunks_of(data) if chunk["first_offset"] < next_offset]
        segments.append(
            {
                "file": path.name,
                "schema_bytes": int.from_bytes(data[4:8], "little"),
                "data_start": unpack_segment_header(data)[1],
                "chunks": chunks,
            }
        )
    return {"next_offset": next_offset, "first_offset": first_offset, "segments": segments}


def make(root: Path) -> None:
    """Write all partitions and expected.json below `root`."""
    write_everything(root / "0")
    write_tail(root / "1")
    write_retained(root / "2")
    write_corrupt(root / "3")
    good = {"3": expect_corrupt(root / "3")}
    expected = {
        "xxh64": {value: f"{(p := hash_value(value)).b << 32 | p.a:016x}" for value in VALUES},
        "partitions": {name: expect(root / name) for name in ("0", "1", "2")},
        "corrupt": good,
    }
    text = json.dumps(expected, ensure_ascii=False, indent=1)
    (root / "expected.json").write_text(text + "\n", encoding="utf-8")
    for lock in root.glob("*/lock"):
        lock.unlink()  # holds a process id


def expect_corrupt(directory: Path) -> dict[str, Any]:
    """Where partition 3 is damaged."""
    [(_, path)] = list_segments(directory)
    data = path.read_bytes()
    _, start = unpack_segment_header(data)
    first = unpack_chunk_header(data[start : start + CHUNK_HEADER_BYTES])
    return {"file": path.name, "at": start + first.chunk_bytes, "good_records": first.record_count, "next_offset": 3}


def main() -> None:
    """Replace the committed vectors."""
    shutil.rmtree(VECTORS, ignore_errors=True)
    make(VECTORS)
    sys.stdout.write(f"wrote {VECTORS}\n")


if __name__ == "__main__":
    main()
