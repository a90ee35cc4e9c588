"""verify finds every damaged place and goes on behind it; dump and stats say what is there."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headgate.cli.log import app
from headgate.log.directory import Partition
from headgate.log.format import CHUNK_HEADER_BYTES
from headgate.log.recovery import list_segments
from headgate.log.retention import retain
from headgate.log.verify import inspect, partitions, records
from headgate.log.writer import Encoded, PartitionWriter
from headgate_api.errors import NotFoundError
from tests.log.support import NoSync, append, last_segment, open_writer


@pytest.fixture
def partition(tmp_path):
    """Three segments with two chunks of two records each; returns the directory."""
    directory = tmp_path / "log" / "0"
    with open_writer(directory, clock_us=lambda: 1_767_225_600_000_000) as writer:
        for number in range(6):
            if number % 2 == 0 and number:
                writer._roll()
            append(writer, 2, value=None if number == 5 else "v")
    return directory


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def damage(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def starts(path):
    """Where the two chunks of a segment start."""
    data = path.read_bytes()
    first = data.index(b"HGC1")
    return first, data.find(b"HGC1", first + 4)


def test_whole_partition(partition):
    report = inspect(partition, bodies=True)
    assert report.problems == []
    assert (report.first_offset, report.next_offset, report.records, report.chunks, report.segments) == (
        0,
        12,
        12,
        6,
        3,
    )
    assert report.chunks_without_filter == 1
    assert report.codecs == {"none": 6}
    assert report.bytes == sum(path.stat().st_size for _, path in list_segments(partition))
    headers = inspect(partition, bodies=False)
    assert headers == report


def test_every_damaged_place_is_found_at_once(partition):
    (_, one), (_, two), (_, three) = list_segments(partition)
    damage(one, starts(one)[0] + 20)  # a chunk header
    damage(two, starts(two)[1] + CHUNK_HEADER_BYTES + 3)  # a filter
    damage(three, 3)  # a segment header
    report = inspect(partition, bodies=True)
    assert [(p.path, p.byte) for p in report.problems] == [(one, starts(one)[0]), (two, starts(two)[1]), (three, 0)]
    assert report.records == 8


def test_a_missing_oldest_segment_is_found_and_one_that_retention_took_is_not(partition):
    (_, one), (first, two), _ = list_segments(partition)
    with open_writer(partition) as writer:
        writer.publish_first_offset(first)
        assert inspect(partition, bodies=True).problems == []  # the file itself goes later
        one.unlink()
        assert inspect(partition, bodies=True).problems == []
        writer.publish_first_offset(0)
        (problem,) = inspect(partition, bodies=True).problems
    assert (problem.path, problem.byte) == (two, 0)
    assert "from 0 on" in problem.reason


def test_headers_only_does_not_see_bodies(partition):
    damage(last_segment(partition), -20)
    assert inspect(partition, bodies=False).problems == []
    assert len(inspect(partition, bodies=True).problems) == 1


def test_missing_segment_and_missing_end(partition):
    segments = list_segments(partition)
    segments[1][1].unlink()
    [problem] = inspect(partition, bodies=True).problems
    assert problem.path == segments[2][1]
    assert "starts at 8, and none before it holds the records from 4 on" in problem.reason
    path = last_segment(partition)
    path.write_bytes(path.read_bytes()[: starts(path)[1]])
    assert "ends at record 10, but 12 was published" in inspect(partition, bodies=True).problems[-1].reason
    path.write_bytes(path.read_bytes()[: starts(path)[0] + 100])
    assert "cut off" in inspect(partition, bodies=True).problems[1].reason


def test_tail_is_no_damage(partition):
    path = last_segment(partition)
    path.write_bytes(path.read_bytes() + b"HGC1 and then the power went")
    assert inspect(partition, bodies=True).tail_bytes == 28
    assert inspect(partition, bodies=True).problems == []
    (partition / "committed").unlink()  # as in a copy of the segments
    assert inspect(partition, bodies=True).tail_bytes == 28
    assert inspect(partition, bodies=True).problems == []
    assert inspect(partition, bodies=True).next_offset == 12
    path.write_bytes(path.read_bytes()[:-100])
    assert inspect(partition, bodies=True).problems == []
    assert inspect(partition, bodies=True).next_offset == 10


def test_decreasing_append_time_is_found(tmp_path):
    for name, time_us in (("a", 500), ("b", 100)):
        with open_writer(tmp_path / name, clock_us=lambda time_us=time_us: time_us, segment_bytes_max=1) as writer:
            append(writer, 2)
            append(writer, 2)
    shutil.copy(list_segments(tmp_path / "b")[1][1], list_segments(tmp_path / "a")[1][1])
    [problem] = inspect(tmp_path / "a", bodies=True).problems
    assert "append time 100" in problem.reason


def test_text_that_is_no_utf8_is_found(tmp_path):
    schema = pa.schema([("text", pa.utf8())])
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xff"))
    with PartitionWriter(Partition(tmp_path, "stop"), schema, files=NoSync()) as writer:
        writer.append(Encoded(pa.record_batch([broken], schema=schema), ["v"]))
    [problem] = inspect(tmp_path, bodies=True).problems
    assert "schema" in problem.reason


def test_partition_with_retention_is_whole(tmp_path):
    with open_writer(tmp_path, segment_bytes_max=1) as writer:
        for _ in range(4):
            append(writer, 2)
        retain(writer, now_us=0, floor_offset=5, bytes_max=0)
        report = inspect(tmp_path, bodies=True)
    assert report.problems == []
    assert (report.first_offset, report.next_offset, report.records) == (4, 8, 4)


def test_empty_partition_is_whole(tmp_path):
    open_writer(tmp_path).close()
    report = inspect(tmp_path, bodies=True)
    assert (report.problems, report.next_offset, report.append_time_us) == ([], 0, None)


def test_paths(tmp_path):
    for number in (10, 2, 0):
        open_writer(tmp_path / "data" / "log" / str(number)).close()
    names = ["0", "2", "10"]
    assert [p.name for p in partitions(tmp_path / "data")] == names
    assert [p.name for p in partitions(tmp_path / "data" / "log")] == names
    assert [p.name for p in partitions(tmp_path / "data" / "log" / "2")] == ["2"]
    with pytest.raises(NotFoundError):
        partitions(tmp_path)


def test_records_from_and_limit(partition):
    assert [r.columns["n"] for r in records(partition)] == list(range(12))
    assert [r.offset for r in records(partition, start=3, limit=4)] == [3, 4, 5, 6]
    assert list(records(partition, limit=0)) == []
    assert next(records(partition)).columns == {"n": 0, "text": "text"}


# --- the commands ------------------------------------------------------------------------------------


def test_verify_command(partition):
    done = run("verify", partition.parent.parent)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "ok, 12 records (0 to 12) in 6 chunks, 3 segments" in done.stdout
    path = last_segment(partition)
    damage(path, -20)
    done = run("verify", partition.parent.parent)
    assert done.exit_code == 1
    assert f"{path}: byte {starts(path)[1]}: the checksum" in done.stdout
    assert "DAMAGED" in done.stdout
    assert done.stderr.startswith("hint: ")
    report = json.loads(run("verify", partition, "--json").stdout)
    assert report["ok"] is False
    assert report["problems"] == [
        {"file": str(path), "byte": starts(path)[1], "reason": "the checksum of filter and records is wrong"}
    ]


def test_stats_command(partition):
    done = run("stats", partition.parent)
    assert done.exit_code == 0
    heads, row = done.stdout.splitlines()[:2]
    assert heads.split()[:4] == ["PARTITION", "FIRST", "NEXT", "CHUNKS"]
    assert row.split()[:5] == ["0", "0", "12", "6", "3"]
    assert "2026-01-01T00:00" in row
    assert json.loads(run("stats", partition, "--json").stdout)["records"] == 12


def test_dump_command(partition):
    done = run("dump", partition, "--from", 5, "--limit", 2)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        '0:5 2026-01-01T00:00:00.000000Z n=5 text="text"',
        '0:6 2026-01-01T00:00:00.000000Z n=6 text="text"',
    ]
    lines = run("dump", partition.parent, "--json", "--from", 11).stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "partition": "0",
            "offset": 11,
            "append_time_us": 1_767_225_600_000_000,
            "record": {"n": 11, "text": "text"},
        }
    ]


def test_dump_shows_bytes_and_no_control_characters(tmp_path):
    schema = pa.schema([("data", pa.binary()), ("text", pa.utf8())])
    with PartitionWriter(Partition(tmp_path, "stop"), schema, files=NoSync(), clock_us=lambda: (1 << 63) - 1) as writer:
        writer.append(Encoded(pa.record_batch([[b"\xff\0", b"{}"], ["\x1b[2J", None]], schema=schema), [None, None]))
    lines = run("dump", tmp_path).stdout.splitlines()
    assert "\\u001b[2J" in lines[0]
    assert '{"base64": "/wA="}' in lines[0]
    assert lines[1].endswith('data="{}"')
    assert json.loads(run("dump", tmp_path, "--json").stdout.splitlines()[0])["record"]["data"] == {"base64": "/wA="}


def test_commands_say_what_is_wrong(tmp_path, partition):
    for command in ("verify", "stats", "chunks", "dump"):
        done = run(command, tmp_path / "absent")
        assert done.exit_code == 2
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert "\nhint: " in done.stderr
    damage(list_segments(partition)[0][1], starts(list_segments(partition)[0][1])[0] + 70)
    done = run("dump", partition)
    assert done.exit_code == 2
    assert "damaged at byte" in done.stderr


@pytest.mark.parametrize("command", ["verify", "stats", "chunks", "dump"])
def test_help_has_examples(command):
    done = run(command, "--help")
    assert done.exit_code == 0
    assert f"headgate log {command} " in done.stdout
