"""The committed vectors are what the code writes, and what the reader reads."""

from __future__ import annotations

import base64
import json

import pytest

from headgate.log.bloom import hash_value, might_contain
from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.reader import PartitionReader
from tests.vectors.make import VECTORS, make

EXPECTED = json.loads((VECTORS / "expected.json").read_text(encoding="utf-8"))


def test_committed_bytes_are_what_the_code_writes(tmp_path):
    make(tmp_path)
    fresh = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    committed = {str(p.relative_to(VECTORS)): p.read_bytes() for p in VECTORS.rglob("*") if p.is_file()}
    assert fresh.keys() == committed.keys()
    assert [name for name, data in fresh.items() if committed[name] != data] == [], (
        "the format or a library changed: python -m tests.vectors.make, and think of readers in the field"
    )


@pytest.mark.parametrize("partition", EXPECTED["partitions"])
def test_reader_reads_the_vectors(partition):
    expected = EXPECTED["partitions"][partition]
    chunks = [(segment, chunk) for segment in expected["segments"] for chunk in segment["chunks"]]
    with PartitionReader(Partition(VECTORS / partition, "stop"), start=0) as reader:
        assert (reader.first_offset(), reader.committed_offset()) == (expected["first_offset"], expected["next_offset"])
        for segment, fields in chunks:
            chunk = reader.read()
            assert (chunk.path.name, chunk.byte) == (segment["file"], fields["at"])
            assert {name: value for name, value in fields.items() if name in chunk.header._fields} == (
                chunk.header._asdict()
            )
            rows = chunk.batch.to_pylist()
            for row in rows:
                if row["data"] is not None:
                    row["data"] = base64.b64encode(row["data"]).decode()
            assert rows == fields["records"]
        assert reader.read() is None
        assert reader.position == expected["next_offset"]


@pytest.mark.parametrize("value", EXPECTED["xxh64"])
def test_reader_skips_as_the_vectors_say(value):
    assert f"{hash_value(value).b << 32 | hash_value(value).a:016x}" == EXPECTED["xxh64"][value]
    for partition, expected in EXPECTED["partitions"].items():
        chunks = [chunk for segment in expected["segments"] for chunk in segment["chunks"]]
        for chunk in chunks:
            bits = bytes.fromhex(chunk["bloom_hex"])
            assert might_contain(bits, chunk["hash_count"], [hash_value(value)]) == chunk["may_contain"][value]
        for unfiltered in (False, True):
            wanted = [
                chunk["first_offset"]
                for chunk in chunks
                if chunk["may_contain"][value] or (unfiltered and chunk["unfiltered"])
            ]
            with PartitionReader(Partition(VECTORS / partition, "stop"), start=0) as reader:
                read = iter(lambda r=reader, u=unfiltered: r.read(wanted=[value], match_unfiltered=u), None)
                assert [chunk.first_offset for chunk in read] == wanted


def test_vectors_hold_what_they_promise():
    """Guard against vectors that prove little."""
    chunks = [c for s in EXPECTED["partitions"]["0"]["segments"] for c in s["chunks"]]
    assert {c["codec"] for c in chunks} == {0, 1, 2}
    assert {0, 16, 255} < {c["bloom_bytes"] for c in chunks}
    assert {(c["unfiltered"], bool(c["bloom_bytes"])) for c in chunks} == {(False, True), (True, True), (True, False)}
    assert len(EXPECTED["partitions"]["0"]["segments"]) == 2
    answers = [answer for c in chunks for answer in c["may_contain"].values()]
    assert answers.count(True) > 5 < answers.count(False)
    records = [r for c in chunks for r in c["records"]]
    assert any(not str(r["subject"]).isascii() for r in records)
    nullable = ("subject", "time", "time_us", "datacontenttype", "dataschema", "extensions", "data")
    assert all({r[column] is None for r in records} == {True, False} for column in nullable)
    assert {r["data_kind"] for r in records} == {0, 1, 2, 3}


@pytest.mark.parametrize("partition", EXPECTED["corrupt"])
def test_corrupt_vectors_are_refused(partition):
    expected = EXPECTED["corrupt"][partition]
    with PartitionReader(Partition(VECTORS / partition, "stop"), start=0) as reader:
        while reader.position < expected["good_records"]:
            assert reader.read() is not None
        with pytest.raises(CorruptChunkError) as error:
            reader.read()
    assert (error.value.path.name, error.value.byte) == (expected["file"], expected["at"])
