"""Headers: what is packed is unpacked, and no changed bit passes."""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.log.bloom import build
from headgate.log.errors import LogSchemaError
from headgate.log.format import (
    CHUNK_HEADER_BYTES,
    NO_TIME_MAX,
    NO_TIME_MIN,
    Codec,
    FormatError,
    check_payload,
    check_schema,
    decode_body,
    encode_body,
    pack_chunk,
    pack_segment_header,
    segment_name,
    segment_offset,
    unpack_chunk_header,
    unpack_segment_header,
)
from tests.log.support import CODECS, SCHEMA, batch

I64 = st.integers(-(1 << 63), (1 << 63) - 1)


def chunk(values=("a", "b", None), size=16, codec=Codec.NONE, first=7, at=1_000, times=(1, 2)) -> bytes:
    body = encode_body(batch(range(len(values))), codec)
    head, body = pack_chunk(
        body,
        build(values, size),
        first_offset=first,
        record_count=len(values),
        append_time_us=at,
        time_range_us=times,
        codec=codec,
    )
    return head + body.to_pybytes()


@given(
    st.lists(st.sampled_from(["a", "b", "ü", None, ""]), min_size=1, max_size=9),
    st.integers(16, 255),
    st.sampled_from(CODECS),
    st.integers(0, (1 << 63) - 1),
    I64,
    st.none() | st.tuples(I64, I64),
)
def test_chunk_round_trip(values, size, codec, first, at, times):
    data = chunk(values, size, codec, first, at, times)
    header = unpack_chunk_header(data)
    assert header.chunk_bytes == len(data)
    assert len(data) % 8 == 0
    assert (header.first_offset, header.record_count, header.append_time_us) == (first, len(values), at)
    assert (header.time_us_min, header.time_us_max) == (times or (NO_TIME_MIN, NO_TIME_MAX))
    assert header.codec == codec
    payload = data[CHUNK_HEADER_BYTES:]
    check_payload(header, payload)
    body = pa.py_buffer(payload).slice(header.bloom_padded_bytes)
    assert decode_body(body, SCHEMA, len(values)).equals(batch(range(len(values))))


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_is_noticed(codec):
    good = chunk(codec=codec)
    for bit in range(len(good) * 8):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            check_payload(unpack_chunk_header(bytes(data)), bytes(data[CHUNK_HEADER_BYTES:]))


@pytest.mark.parametrize("size", [0, 1, 63])
def test_cut_header_is_noticed(size):
    with pytest.raises(FormatError, match="cut off"):
        unpack_chunk_header(chunk()[:size])


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (4, 65),  # header bytes
        (5, 15),  # Bloom bytes below 16
        (6, 0),  # a filter without hashes
        (6, 17),  # too many hashes
        (7, 2),  # an unknown flag
        (16, 0),  # record count 3 -> 0
        (15, 0x80),  # a negative first offset
        (20, 4),  # a body that is no multiple of 8
        (23, 0x7F),  # a body of 2 GB
        (48, 3),  # an unknown codec
        (49, 1),  # not zero
        (51, 1),
    ],
)
def test_values_outside_the_format_are_refused_with_a_right_checksum(at, value):
    data = bytearray(chunk())
    data[at] = value
    data[60:64] = struct.pack("<I", google_crc32c.value(bytes(data[:60])))
    with pytest.raises(FormatError):
        unpack_chunk_header(bytes(data))


def test_segment_header_round_trip():
    data = pack_segment_header(SCHEMA)
    assert len(data) % 64 == 0
    assert unpack_segment_header(data + b"chunks") == (SCHEMA, len(data))


def test_every_flipped_bit_of_a_segment_header_is_noticed():
    good = pack_segment_header(SCHEMA)
    for bit in range(len(good) * 8):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            unpack_segment_header(bytes(data))


def test_every_cut_of_a_segment_header_is_noticed():
    good = pack_segment_header(SCHEMA)
    for size in range(len(good)):
        with pytest.raises(FormatError):
            unpack_segment_header(good[:size])


def test_segment_names():
    assert segment_name(812345) == "00000000000000812345.seg"
    assert segment_offset(Path("x/00000000000000812345.seg")) == 812345
    for other in ("committed", "lock", "1.seg", "0000000000000081234x.seg", "00000000000000812345", "²" * 20 + ".seg"):
        assert segment_offset(Path(other)) is None


@pytest.mark.parametrize(
    "kind", [pa.dictionary(pa.int8(), pa.utf8()), pa.list_(pa.dictionary(pa.int8(), pa.utf8()))], ids=str
)
def test_dictionary_columns_are_refused(kind):
    with pytest.raises(LogSchemaError, match="dictionary"):
        check_schema(pa.schema([("a", kind)]))


def test_body_of_another_size_or_of_no_batch_is_refused():
    body = encode_body(batch([1, 2]), Codec.NONE)
    with pytest.raises(FormatError, match="2 rows"):
        decode_body(body, SCHEMA, 3)
    with pytest.raises(FormatError, match="cannot be read"):
        decode_body(pa.py_buffer(bytes(64)), SCHEMA, 1)
