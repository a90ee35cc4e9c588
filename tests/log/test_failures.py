"""A disk that refuses: the writer refuses too, keeps nothing half-written, and goes on by itself once the disk does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headgate.log import writer as writer_module
from headgate.log.directory import Partition
from headgate.log.errors import LogUnavailableError
from headgate.log.reader import PartitionReader
from headgate.log.recovery import list_segments
from headgate.log.verify import inspect
from headgate_api.errors import UnavailableError
from tests.log.support import FaultyFiles, append, last_segment, open_writer, read_all
from tests.support import small_disk


@pytest.fixture
def files():
    return FaultyFiles()


@pytest.fixture
def writer(tmp_path, files):
    """A writer with records 0..3 in two chunks."""
    with open_writer(tmp_path, files=files) as writer:
        append(writer, 2)
        append(writer, 2)
        yield writer


def refused(writer, count=1) -> LogUnavailableError:
    with pytest.raises(LogUnavailableError) as error:
        append(writer, count)
    assert error.value.retriable
    assert isinstance(error.value, UnavailableError)
    assert writer.next_offset == 4
    assert read_all(writer.directory) == [0, 1, 2, 3]
    return error.value


def test_disk_full_at_every_byte_of_a_chunk(writer, files):
    size = last_segment(writer.directory).stat().st_size
    for room in range(0, 800, 13):
        files.write_bytes_max = room
        refused(writer, 60)
        assert last_segment(writer.directory).stat().st_size == size
    files.heal()
    assert append(writer, 3) == 4
    assert read_all(writer.directory) == list(range(7))
    assert len(list_segments(writer.directory)) == 1


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
def test_failed_operation_is_refused_and_forgotten(writer, files, operation, code):
    files.fail(operation, code=code)
    for _ in range(3):
        assert os.strerror(code) in refused(writer).message
    files.heal()
    assert append(writer, 2) == 4
    assert append(writer, 1) == 6
    assert read_all(writer.directory) == list(range(7))


def test_failed_sync_is_followed_by_a_look_at_the_disk_and_a_new_segment(writer, files, monkeypatch):
    looked = []
    monkeypatch.setattr(writer_module, "walk", lambda *args: looked.append(args) or real_walk(*args))
    files.fail("fdatasync")
    refused(writer)
    assert not looked
    files.heal()
    files.calls.clear()
    append(writer, 1)
    assert len(looked) == 1
    assert files.calls["fsync"] == 3  # the cut segment, the new one, its name
    assert [first for first, _ in list_segments(writer.directory)] == [0, 4]
    append(writer, 1)
    assert len(looked) == 1
    assert read_all(writer.directory) == list(range(6))


real_walk = writer_module.walk


def test_failed_sync_that_lost_durable_records_ends_the_writer(writer, files):
    files.fail("fdatasync")
    refused(writer)
    files.heal()
    path = last_segment(writer.directory)
    data = bytearray(path.read_bytes())
    data[-9] ^= 1  # the disk wrote the shared page badly
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(LogUnavailableError, match=r"lost records from 2 on.*headgate log verify") as error:
            append(writer, 1)
        assert error.value.message == "the log is damaged and takes nothing"


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
def test_interrupted_append_leaves_nothing(writer, files, operation):
    def interrupt():
        raise KeyboardInterrupt

    files.faults[operation] = interrupt
    with pytest.raises(KeyboardInterrupt):
        append(writer, 50)
    files.heal()
    assert append(writer, 1) == 4
    assert inspect(writer.directory, bodies=True).tail_bytes == 0
    assert read_all(writer.directory) == list(range(5))


@pytest.mark.parametrize("first_fault", ["pwritev", "fdatasync"])
@pytest.mark.parametrize("second_fault", ["ftruncate", "open", "fsync", "close"])
def test_failing_repair_is_tried_again(writer, files, first_fault, second_fault):
    files.fail(first_fault, "ftruncate")
    with pytest.raises(LogUnavailableError):
        append(writer, 1)
    files.heal()
    files.fail(second_fault)
    if second_fault != "close":  # what close() says of a synced file concerns nobody
        for _ in range(3):
            with pytest.raises(LogUnavailableError):
                append(writer, 1)
    files.heal()
    assert append(writer, 2) == 4
    assert read_all(writer.directory) == list(range(6))


def test_torn_bytes_that_could_not_be_cut_are_never_read(writer, files):
    """The chunk is whole in the file, but nobody has been told that it is durable."""
    files.fail("fdatasync", "ftruncate")
    with pytest.raises(LogUnavailableError):
        append(writer, 5)
    assert read_all(writer.directory) == [0, 1, 2, 3]
    writer.close()
    with open_writer(writer.directory) as again:
        # It was whole after all: kept, as a writer that died before it could answer would have left it.
        assert again.next_offset == 9


@pytest.mark.parametrize("operation", ["open", "pwritev", "fsync"])
def test_segment_that_cannot_be_started_is_tried_again(tmp_path, files, operation):
    with open_writer(tmp_path, files=files, segment_bytes_max=1) as writer:
        append(writer, 1)
        files.fail(operation)
        for _ in range(2):
            with pytest.raises(LogUnavailableError):
                append(writer, 1)
            assert len(list_segments(tmp_path)) == 1
        files.heal()
        assert append(writer, 1) == 1
    assert read_all(tmp_path) == [0, 1]


def test_unfinished_segment_that_cannot_be_removed_does_no_harm(tmp_path, files):
    with open_writer(tmp_path, files=files, segment_bytes_max=1) as writer:
        append(writer, 1)
        files.fail("fsync", "unlink")
        with pytest.raises(LogUnavailableError):
            append(writer, 1)
        assert len(list_segments(tmp_path)) == 2
        assert read_all(tmp_path) == [0]
        files.heal()
        assert append(writer, 1) == 1
    assert read_all(tmp_path) == [0, 1]


def test_first_append_that_cannot_open_its_segment_is_tried_again(tmp_path, files):
    with open_writer(tmp_path) as writer:
        append(writer, 1)
    with open_writer(tmp_path, files=files) as writer:
        files.fail("open", code=errno.EMFILE)
        with pytest.raises(LogUnavailableError):
            append(writer, 1)
        files.heal()
        assert append(writer, 1) == 1


def test_directory_that_cannot_be_made_is_unavailable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LogUnavailableError, match="cannot be opened"):
        open_writer(tmp_path / "file" / "0")


def test_readers_go_on_while_the_disk_refuses(writer, files):
    with PartitionReader(Partition(writer.directory, "stop"), start=0) as reader:
        assert reader.read().first_offset == 0
        files.fail("fdatasync", "ftruncate")
        with pytest.raises(LogUnavailableError):
            append(writer, 1)
        assert reader.read().first_offset == 2
        assert reader.read() is None
        files.heal()
        append(writer, 1)
        assert reader.read().batch.column("n").to_pylist() == [4]


@pytest.fixture
def tiny_disk(tmp_path):
    with small_disk(tmp_path / "tiny", kb=256) as mount:
        yield mount


def append_for_ever(writer):
    while True:
        append(writer, 100, text="x" * 50)


def test_really_full_disk(tiny_disk: Path):
    directory = tiny_disk / "0"
    with open_writer(directory, segment_bytes_max=50_000) as writer:
        with pytest.raises(LogUnavailableError, match="No space left"):
            append_for_ever(writer)
        end = writer.next_offset
        assert end > 1_000
        for _ in range(5):
            with pytest.raises(LogUnavailableError):
                append(writer, 100, text="x" * 50)
        assert read_all(directory) == list(range(end))
        list_segments(directory)[0][1].unlink()  # somebody makes room
        first = list_segments(directory)[0][0]
        writer.publish_first_offset(first)
        assert append(writer, 100, text="x" * 50) == end
        assert read_all(directory) == list(range(first, end + 100))


def test_writer_opens_and_serves_on_a_full_disk(tiny_disk: Path):
    with open_writer(tiny_disk / "0") as writer:
        append(writer, 10)
    with pytest.raises(OSError, match="No space left"):
        (tiny_disk / "ballast").write_bytes(bytes(1 << 20))
    with open_writer(tiny_disk / "0") as writer:
        assert writer.next_offset == 10
        with pytest.raises(LogUnavailableError):
            append(writer, 1000, text="x" * 50)
        (tiny_disk / "ballast").unlink()
        assert append(writer, 1000, text="x" * 50) == 10
    assert read_all(tiny_disk / "0") == list(range(1010))


def test_a_probe_tells_a_full_disk_from_one_with_room(tiny_disk: Path, monkeypatch):
    monkeypatch.setattr(writer_module, "LOG_PROBE_BYTES", 64_000)
    with open_writer(tiny_disk / "0") as writer:
        append(writer, 10)
        with pytest.raises(OSError, match="No space left"):
            (tiny_disk / "ballast").write_bytes(bytes(1 << 20))
        with pytest.raises(LogUnavailableError, match="No space left"):
            writer.probe()
        (tiny_disk / "ballast").unlink()
        writer.probe()
        assert append(writer, 10) == 10
    assert read_all(tiny_disk / "0") == list(range(20))


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync", "ftruncate"])
def test_a_probe_that_fails_leaves_nothing_behind(writer, files, operation):
    files.fail(operation)
    try:
        writer.probe()
    except LogUnavailableError:
        assert operation != "ftruncate"
    files.heal()
    assert append(writer, 2) == 4
    assert read_all(writer.directory) == list(range(6))
