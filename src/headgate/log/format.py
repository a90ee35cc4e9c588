"""The bytes of segments and chunks, as in docs/spec/log-format.md: little-endian, checksums are CRC-32C. Pure."""

from __future__ import annotations

import struct
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c
import pyarrow as pa

from headgate.log.bloom import Bloom
from headgate.log.errors import LogSchemaError
from headgate_api import limits

SEGMENT_VERSION: Final = 1
SEGMENT_MAGIC: Final = b"HGS%d" % SEGMENT_VERSION
CHUNK_MAGIC: Final = b"HGC1"
SEGMENT_FIXED_BYTES: Final = 16
SEGMENT_ALIGN: Final = 64
CHUNK_HEADER_BYTES: Final = 64
COMMITTED_BYTES: Final = 64
SEGMENT_SUFFIX: Final = ".seg"
COMMITTED_NAME: Final = "committed"
LOCK_NAME: Final = "lock"
FLAG_UNFILTERED: Final = 1
NO_TIME_MIN: Final = (1 << 63) - 1
NO_TIME_MAX: Final = -(1 << 63)
PREFIX_BYTES_MAX: Final = CHUNK_HEADER_BYTES + limits.BLOOM_BYTES_MAX
"""Header and largest Bloom filter: what one small read must fetch to decide whether to skip a chunk."""

_SEGMENT = struct.Struct("<4sII")
_CHUNK = struct.Struct("<4sBBBBqIIqqqB3sII")
_CRC = struct.Struct("<I")
_ZERO3: Final = bytes(3)


class FormatError(ValueError):
    """Bytes that break the format; the caller knows the file and the position."""


class NewerFormatError(Exception):
    """The file is of a version that is not known here, and no damaged one."""


class Codec(IntEnum):
    """Compression of the body's buffers (Arrow IPC buffer compression)."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class ChunkHeader(NamedTuple):
    """The 64 bytes before a chunk's payload, checked."""

    bloom_bytes: int  # 0 or 16..255
    hash_count: int  # k of the Bloom filter, 0 without one
    unfiltered: bool  # the chunk holds a record without filter value
    first_offset: int
    record_count: int
    body_bytes: int  # size of the Arrow message, a multiple of 8
    append_time_us: int
    time_us_min: int  # smallest event time; NO_TIME_MIN when no record has one
    time_us_max: int  # largest event time; NO_TIME_MAX when no record has one
    codec: int
    bloom_crc: int  # CRC-32C of the Bloom filter, 0 without one: who skips the chunk by it reads nothing else
    payload_crc: int  # CRC-32C of Bloom filter, padding and body

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.record_count

    @property
    def time_range_us(self) -> tuple[int, int] | None:
        """Smallest and largest event time; None when no record has one."""
        return None if self.time_us_min == NO_TIME_MIN else (self.time_us_min, self.time_us_max)

    @property
    def bloom_padded_bytes(self) -> int:
        """Bytes between header and body."""
        return (self.bloom_bytes + 7) & ~7

    @property
    def payload_bytes(self) -> int:
        return ((self.bloom_bytes + 7) & ~7) + self.body_bytes

    @property
    def chunk_bytes(self) -> int:
        return CHUNK_HEADER_BYTES + ((self.bloom_bytes + 7) & ~7) + self.body_bytes


def segment_name(first_offset: int) -> str:
    """File name of the segment whose first record has this offset."""
    return f"{first_offset:020d}{SEGMENT_SUFFIX}"


def segment_offset(path: Path) -> int | None:
    """The first offset that a file's name promises; None when the file is no segment."""
    digits = path.name.removesuffix(SEGMENT_SUFFIX)
    if len(digits) != 20 or path.name == digits or not (digits.isascii() and digits.isdecimal()):
        return None
    return int(digits)


def check_schema(schema: pa.Schema) -> None:
    """Refuse dictionary-encoded columns by LogSchemaError: dictionaries travel in messages of their own."""

    def has_dictionary(kind: pa.DataType) -> bool:
        if pa.types.is_dictionary(kind):
            return True
        return any(has_dictionary(kind.field(i).type) for i in range(kind.num_fields))

    for field in schema:
        if has_dictionary(field.type):
            raise LogSchemaError(
                f"column {field.name!r} is dictionary-encoded, which the log cannot store",
                hint="cast the column to its value type",
            )


def pack_segment_header(schema: pa.Schema) -> bytes:
    """The bytes before a segment's first chunk: a multiple of 64."""
    schema_bytes = schema.serialize().to_pybytes()
    head = _SEGMENT.pack(SEGMENT_MAGIC, len(schema_bytes), google_crc32c.value(schema_bytes))
    size = segment_header_bytes(len(schema_bytes))
    whole: bytes = (head + _CRC.pack(google_crc32c.value(head)) + schema_bytes).ljust(size, b"\0")
    return whole


def segment_header_bytes(schema_bytes: int) -> int:
    """Where the first chunk of a segment starts, from the size of its schema message."""
    return -(-(SEGMENT_FIXED_BYTES + schema_bytes) // SEGMENT_ALIGN) * SEGMENT_ALIGN


def unpack_segment_header(data: bytes) -> tuple[pa.Schema, int]:
    """The schema and the position of the first chunk, from at least the whole header of a file; raises FormatError."""
    size = segment_size_promised(data)
    if len(data) < size:
        raise FormatError("the segment header is cut off")
    _, schema_size, schema_crc = _SEGMENT.unpack_from(data)
    end = SEGMENT_FIXED_BYTES + schema_size
    schema_bytes = bytes(data[SEGMENT_FIXED_BYTES:end])
    if google_crc32c.value(schema_bytes) != schema_crc:
        raise FormatError("the schema's checksum is wrong")
    if any(data[end:size]):
        raise FormatError("the padding behind the schema is not zero")
    try:
        return pa.ipc.read_schema(pa.py_buffer(schema_bytes)), size
    except (pa.ArrowException, OSError, EOFError) as error:
        raise FormatError(f"the schema cannot be read: {error}") from error


def segment_size_promised(data: bytes) -> int:
    """Size of the whole segment header, from its first 16 bytes; FormatError, NewerFormatError for a later version."""
    if len(data) < SEGMENT_FIXED_BYTES:
        raise FormatError("the segment header is cut off")
    magic, schema_size, _ = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        if _is_newer(data):
            raise NewerFormatError(
                f"a newer Headgate wrote it (format {magic.decode()}, this one reads {SEGMENT_MAGIC.decode()})"
            )
        raise FormatError(f"the segment starts with {bytes(magic)!r}, not {SEGMENT_MAGIC!r}")
    if google_crc32c.value(bytes(data[:12])) != _CRC.unpack_from(data, 12)[0]:
        raise FormatError("the segment header's checksum is wrong")
    if schema_size > limits.SCHEMA_BYTES_MAX:
        raise FormatError(f"a schema of {schema_size} bytes is over {limits.SCHEMA_BYTES_MAX}")
    return segment_header_bytes(schema_size)


def segment_version(data: bytes) -> int | None:
    """The version of a segment, from its first 16 bytes; None when they are cut off or damaged."""
    if len(data) < SEGMENT_FIXED_BYTES or bytes(data[:3]) != SEGMENT_MAGIC[:3]:
        return None
    if bytes(data[:4]) == SEGMENT_MAGIC:
        return SEGMENT_VERSION
    return int(data[3:4]) if _is_newer(data) else None


def _is_newer(data: bytes) -> bool:
    """Whether a header has the magic of a version to come, by more than a damaged bit of today's."""
    version = bytes(data[3:4])
    if bytes(data[:3]) != SEGMENT_MAGIC[:3] or not version.isdigit() or version <= SEGMENT_MAGIC[3:]:
        return False
    todays = google_crc32c.value(SEGMENT_MAGIC + bytes(data[4:12]))
    return bool(todays != _CRC.unpack_from(data, 12)[0])


def pack_chunk(
    body: pa.Buffer,
    bloom: Bloom,
    *,
    first_offset: int,
    record_count: int,
    append_time_us: int,
    time_range_us: tuple[int, int] | None,
    codec: Codec,
) -> tuple[bytes, pa.Buffer]:
    """Header and Bloom filter with its padding, and the body, uncopied: one behind the other they are the chunk."""
    padded = bloom.bits.ljust((len(bloom.bits) + 7) & ~7, b"\0")
    low, high = time_range_us or (NO_TIME_MIN, NO_TIME_MAX)
    head = _CHUNK.pack(
        CHUNK_MAGIC,
        CHUNK_HEADER_BYTES,
        len(bloom.bits),
        bloom.hash_count,
        FLAG_UNFILTERED if bloom.unfiltered else 0,
        first_offset,
        record_count,
        body.size,
        append_time_us,
        low,
        high,
        codec,
        _ZERO3,
        google_crc32c.value(bloom.bits),
        google_crc32c.extend(google_crc32c.value(padded), body),
    )
    return head + _CRC.pack(google_crc32c.value(head)) + padded, body


def unpack_chunk_header(data: bytes) -> ChunkHeader:
    """Read and check a chunk header, from at least the chunk's first 64 bytes; raises FormatError."""
    head = data[:60]
    if len(data) < CHUNK_HEADER_BYTES:
        raise FormatError("the chunk header is cut off")
    magic, size, bloom, k, flags, first, count, body, at, low, high, codec, zero, bloom_crc, crc = _CHUNK.unpack(head)
    if magic != CHUNK_MAGIC:
        raise FormatError(f"the chunk starts with {magic!r}, not {CHUNK_MAGIC!r}")
    if google_crc32c.value(head) != _CRC.unpack_from(data, 60)[0]:
        raise FormatError("the chunk header's checksum is wrong")
    if size != CHUNK_HEADER_BYTES or flags & ~FLAG_UNFILTERED or codec > Codec.ZSTD or zero != _ZERO3:
        raise FormatError("the chunk header has fields of a later format")
    if (bloom and (bloom < limits.BLOOM_BYTES_MIN or not 1 <= k <= limits.BLOOM_HASHES_MAX)) or (not bloom and k):
        raise FormatError(f"a Bloom filter of {bloom} bytes with {k} hashes is not allowed")
    if not count or body % 8 or body > limits.CHUNK_BODY_BYTES_MAX or first < 0:
        raise FormatError(f"{count} records in {body} body bytes from offset {first} are not allowed")
    return ChunkHeader(bloom, k, bool(flags), first, count, body, at, low, high, codec, bloom_crc, crc)


def encode_body(batch: pa.RecordBatch, codec: Codec) -> pa.Buffer:
    """One encapsulated Arrow IPC record batch message, its size a multiple of 8."""
    if codec is Codec.NONE:
        return batch.serialize()
    # RecordBatch.serialize() takes no options, so a stream of one batch is written and its frame taken off:
    # the schema message before (8 bytes of prefix, then as many as it says) and the end mark behind (8 bytes).
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec.name.lower())
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    whole = sink.getvalue()
    start = 8 + int.from_bytes(whole.slice(4, 4), "little")
    return whole.slice(start, whole.size - start - 8)


def decode_body(body: pa.Buffer, schema: pa.Schema, record_count: int) -> pa.RecordBatch:
    """Read a chunk's body; FormatError when the message cannot be read or has another number of rows."""
    try:
        batch = pa.ipc.read_record_batch(body, schema)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise FormatError(f"the record batch cannot be read: {error}") from error
    if batch.num_rows != record_count:
        raise FormatError(f"the record batch has {batch.num_rows} rows, its header says {record_count}")
    return batch


def check_bloom(header: ChunkHeader, bits: bytes) -> None:
    """Compare a Bloom filter with its chunk's header; raises FormatError."""
    if google_crc32c.value(bits) != header.bloom_crc or len(bits) != header.bloom_bytes:
        raise FormatError("the checksum of the filter is wrong")


def check_payload(header: ChunkHeader, payload: bytes) -> None:
    """Compare a payload with its header; raises FormatError."""
    if len(payload) != header.payload_bytes:
        raise FormatError("the chunk is cut off")
    if google_crc32c.value(payload) != header.payload_crc:
        raise FormatError("the checksum of filter and records is wrong")
