"""Backups without a server: what is in them, what damage does, where they are restored, and that nothing is changed."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import shutil
import sqlite3
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.backup import capture, restoring
from headgate.backup import writing as writing_module
from headgate.backup.capture import BackupFailedError
from headgate.backup.manifest import MANIFEST, BackupDamagedError, BackupNewerError, Manifest
from headgate.backup.restoring import examine, restore_backup
from headgate.backup.writing import BackupUnwritableError, write_backup
from headgate.deadletters.store import DeadLetterStore
from headgate.delivery.cursors import CursorChange, CursorStore
from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.log.retention import retain
from headgate.log.writer import PartitionWriter
from headgate.objects.store.store import Store
from headgate.server import datadir
from headgate.server.datadir import DataDirectoryError
from headgate.settings import Settings
from headgate.storage.commit import record_path
from headgate.storage.sqlite import DatabaseDamagedError, DatabaseMissingError, DatabaseNewerError
from headgate_api.errors import HeadgateError, InvalidInputError
from tests.match.events import append, event, writing


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a server that was stopped: objects, ten events, cursors, dead letters."""
    folder = tmp_path / "data"
    folder.mkdir()
    datadir.arrange(folder, 1, lambda *_: None)
    own = folder / "dispatcher" / "0"
    with (
        contextlib.closing(Store.open(folder / "control.db")),
        contextlib.closing(DeadLetterStore(own / "deadletters.db")),
    ):
        pass
    with contextlib.closing(CursorStore(own / "dispatch.db")) as cursors:
        cursors.flush(CursorChange(7, {0: 5}, [], []))
    with writing(folder / "log") as writer:
        for number in range(10):
            append(writer, [event(number)])
    (own / "attempts").mkdir()
    (own / "attempts" / "newer.bin").write_bytes(bytes(64))
    (folder / "lock").write_text("")
    (folder / "run").mkdir()
    (folder / "run" / "ready").write_text("x")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def events(log: Path) -> int:
    count = 0
    with PartitionReader(Partition(log, "stop"), start=0) as reader:
        while (chunk := reader.read()) is not None:
            count += chunk.record_count
    return count


def partition(data: Path) -> Path:
    (found,) = (data / "log").iterdir()
    return found


@pytest.mark.parametrize("name", ["backup", "backup.tar"])
def test_a_backup_is_restored_and_changes_nothing(data: Path, tmp_path: Path, name: str) -> None:
    before = contents(data)
    backup, restored = tmp_path / name, tmp_path / "restored"
    manifest = write_backup(data, str(backup))
    assert contents(data) == before, "who takes a backup leaves no trace"
    assert {one.path.split("/")[0] for one in manifest.files} == {"control.db", "dispatcher", "log"}, "no run/, no lock"
    assert examine(str(backup)) == manifest
    assert [one.name for one in tmp_path.iterdir() if "partial" in one.name] == []
    restore_backup(str(backup), restored)
    assert events(partition(restored)) == 10
    assert CursorStore.read(restored / "dispatcher" / "0" / "dispatch.db").position == 7
    assert (restored / "dispatcher" / "0" / "attempts" / "newer.bin").read_bytes() == bytes(64)
    assert {path.stat().st_mode & 0o077 for path in restored.rglob("*")} == {0}, "for its user alone"
    with contextlib.closing(Store.open(restored / "control.db")) as store:
        assert store.namespaces is not None
    with datadir.owned(Settings(data=restored)):
        pass


def test_what_comes_later_in_the_flow_is_taken_first(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    copy = capture.sqlite.copy

    def noted(path: Path, to: Path, *, is_at_rest: bool) -> None:
        taken.append(path.name)
        copy(path, to, is_at_rest=is_at_rest)

    monkeypatch.setattr(capture.sqlite, "copy", noted)
    write_backup(data, str(tmp_path / "backup"))
    assert taken == ["dispatch.db", "deadletters.db", "control.db"]


@pytest.mark.parametrize("name", ["backup", "backup.tar"])
def test_a_backup_is_on_disk_when_it_has_its_name(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    synced: set[int] = set()
    fsync, backup = os.fsync, tmp_path / name

    def noted(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(writing_module.os, "fsync", noted)
    write_backup(data, str(backup))
    assert {path.stat().st_ino for path in (tmp_path, backup, *backup.rglob("*"))} <= synced


def test_a_tar_goes_through_a_pipe(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))
    write_backup(data, "-")
    body = pipe.getvalue()
    for cut in (0, 600, len(body) // 2, body.rindex(MANIFEST.encode())):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body[:cut])))
        with pytest.raises(BackupDamagedError, match="standard input"):
            restore_backup("-", tmp_path / "restored")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
    restore_backup("-", tmp_path / "restored")
    assert events(partition(tmp_path / "restored")) == 10


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "control.db is damaged: its checksum": lambda backup: flip(backup / "control.db"),
    "dispatch.db is damaged: it has": lambda backup: (backup / "dispatcher/0/dispatch.db").write_bytes(b"x"),
    "dispatch.db is missing": lambda backup: (backup / "dispatcher/0/dispatch.db").unlink(),
    "'more.txt', which is no file of a data directory": lambda backup: (backup / "more.txt").write_text("x"),
    "log/9/committed is not in the manifest": lambda backup: (
        (backup / "log/9").mkdir(),
        (backup / "log/9/committed").write_bytes(bytes(64)),
    ),
    "control.db is no plain file": lambda backup: (
        (backup / "control.db").unlink(),
        (backup / "control.db").symlink_to("/etc/passwd"),
    ),
    "has no backup.json": lambda backup: (backup / MANIFEST).unlink(),
    "backup.json is damaged": lambda backup: flip(backup / MANIFEST),
}


@pytest.mark.parametrize("said", DAMAGES)
def test_a_damaged_backup_is_refused_and_the_file_is_named(data: Path, tmp_path: Path, said: str) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    write_backup(data, str(backup))
    DAMAGES[said](backup)
    for attempt in (lambda: examine(str(backup)), lambda: restore_backup(str(backup), restored)):
        with pytest.raises(BackupDamagedError) as caught:
            attempt()
        assert said in str(caught.value)
        assert caught.value.hint
    assert list(restored.iterdir()) == [], "empty again"


def test_every_bit_of_the_manifest_counts(data: Path, tmp_path: Path) -> None:
    manifest = write_backup(data, str(tmp_path / "backup"))
    body = manifest.encoded()
    for at in range(0, len(body), 7):
        changed = bytearray(body)
        changed[at] ^= 1
        try:
            assert Manifest.decode(bytes(changed), MANIFEST).files == manifest.files  # white space alone
            assert bytes(changed).split() == body.split() or not bytes(changed[at : at + 1]).strip()
        except (BackupDamagedError, BackupNewerError):
            pass


@pytest.mark.parametrize(
    "path", ["../evil", "/etc/passwd", "log/../../x", "log/0/x.seg", "lock", "run/ready", "control.db\n"]
)
def test_a_tar_writes_nowhere_else(tmp_path: Path, path: str) -> None:
    backup = tmp_path / "backup.tar"
    with tarfile.open(backup, "w") as tar:
        member = tarfile.TarInfo(path)
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(BackupDamagedError, match="no file of a data directory"):
        restore_backup(str(backup), tmp_path / "restored")
    assert list((tmp_path / "restored").iterdir()) == []


def test_a_link_in_a_tar_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "backup.tar", "w") as tar:
        member = tarfile.TarInfo("control.db")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(BackupDamagedError, match="no plain file"):
        examine(str(tmp_path / "backup.tar"))


def header(kind: bytes, size: int) -> bytes:
    """A member's header of a tar, as a whole block."""
    member = tarfile.TarInfo("control.db")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def with_holes(size: int) -> bytes:
    """The header of a file that is one hole, in GNU's old way."""
    block = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
    block[386:398] = block[398:410] = b"0" * 11 + b"\0"
    block[483:495] = b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    "head",
    [
        with_holes(1 << 31),
        header(tarfile.GNUTYPE_LONGNAME, 1 << 31),
        header(tarfile.XHDTYPE, 30) + b"30 GNU.sparse.size=no-number\n".ljust(512, b"\0"),
    ],
    ids=["holes", "long name", "extended header"],
)
def test_a_header_in_a_tar_takes_no_room_by_itself(tmp_path: Path, head: bytes) -> None:
    """A kilobyte would otherwise fill the disk, or the memory, or end with a traceback."""

    class Endless(io.RawIOBase):
        taken = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            piece = (head + bytes(2048))[self.taken :][: len(buffer)].ljust(len(buffer), b"\0")
            buffer[:] = piece
            self.taken += len(piece)
            assert self.taken < 1 << 20, "all that the header promises is read"
            return len(piece)

    with pytest.raises(BackupDamagedError, match="is no plain file"):
        list(restoring._of_tar(Endless()))  # type: ignore[arg-type]
    (tmp_path / "backup.tar").write_bytes(head + bytes(2048))
    with pytest.raises(BackupDamagedError, match="is no plain file"):
        restore_backup(str(tmp_path / "backup.tar"), tmp_path / "restored")


@pytest.mark.parametrize("packer", ["gzip", "bzip2", "xz"])
def test_who_gives_a_compressed_tar_is_told_how(data: Path, tmp_path: Path, packer: str) -> None:
    write_backup(data, str(tmp_path / "backup.tar"))
    packed = {"gzip": gzip, "bzip2": bz2, "xz": lzma}[packer].compress((tmp_path / "backup.tar").read_bytes())
    (tmp_path / "backup.tar.packed").write_bytes(packed)
    with pytest.raises(InvalidInputError, match=f"is compressed by {packer}") as caught:
        restore_backup(str(tmp_path / "backup.tar.packed"), tmp_path / "restored")
    assert f"{packer} -dc BACKUP | headgate" in caught.value.hint


def test_a_directory_that_holds_something_is_not_restored_into(data: Path, tmp_path: Path) -> None:
    write_backup(data, str(tmp_path / "backup"))
    with pytest.raises(InvalidInputError, match="is not empty: it holds control") as caught:
        restore_backup(str(tmp_path / "backup"), data)
    assert "--data" in caught.value.hint
    fresh = tmp_path / "disk"
    (fresh / "lost+found").mkdir(parents=True)
    restore_backup(str(tmp_path / "backup"), fresh)
    assert (fresh / "control.db").exists()


def test_a_server_refuses_a_restore_that_was_broken_off(data: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    (half / "restoring").mkdir(parents=True)
    with pytest.raises(DataDirectoryError, match="was broken off") as caught, datadir.owned(Settings(data=half)):
        pass
    assert "restore the backup again" in caught.value.hint
    write_backup(data, str(tmp_path / "backup"))
    with pytest.raises(InvalidInputError, match="is not empty"):
        restore_backup(str(tmp_path / "backup"), half)


def killed_at(instant: int, backup: Path, restored: Path, *, fails: bool) -> bool:
    """Restores in a process that is killed before its `instant`th change; whether it had so many."""
    if (child := os.fork()) == 0:
        changes = 0

        def change(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal changes
            if event in ("os.mkdir", "os.rename", "os.rmdir", "os.remove") or (
                event == "open" and str(arguments[0]).startswith(str(restored))
            ):
                changes += 1
                if changes == instant:
                    os._exit(9)
                if fails and event == "os.rename" and str(arguments[0]).endswith("log"):
                    raise OSError(28, "No space left on device")

        sys.addaudithook(change)
        with contextlib.suppress(HeadgateError):
            restore_backup(str(backup), restored)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("fails", [False, True], ids=["works", "fails"])
def test_a_restore_that_is_killed_at_any_instant_leaves_nothing_that_a_server_takes(
    data: Path, tmp_path: Path, fails: bool
) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    whole = {one.path for one in write_backup(data, str(backup)).files}
    taken, instant = [], 1
    while killed_at(instant, backup, restored, fails=fails):
        if restored.exists() and (there := set(contents(restored))):
            with contextlib.suppress(DataDirectoryError), datadir.owned(Settings(data=restored)):
                taken.append((instant, there - {"lock"}))
        shutil.rmtree(restored, ignore_errors=True)
        instant += 1
    assert instant > 20
    assert [there for _, there in taken if there != whole] == []
    assert bool(taken) is not fails
    assert not fails or contents(restored) == {}


def test_a_backup_that_fails_leaves_nothing(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "control.db").write_bytes(b"no database" * 1000)
    beside = sorted(tmp_path.iterdir())
    for name in ("backup", "backup.tar"):
        with pytest.raises(DatabaseDamagedError, match=r"control\.db is damaged"):
            write_backup(data, str(tmp_path / name))
    assert sorted(tmp_path.iterdir()) == beside


def test_a_full_disk_is_told(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing_module.DirectoryTarget, "add", full)
    with pytest.raises(BackupUnwritableError, match="No space left"):
        write_backup(data, str(tmp_path / "backup"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data"]


def test_a_backup_takes_nobodys_name(data: Path, tmp_path: Path) -> None:
    for name in ("backup", "backup.tar"):
        write_backup(data, str(tmp_path / name))
        with pytest.raises(InvalidInputError, match="is there already"):
            write_backup(data, str(tmp_path / name))
    (tmp_path / "other.partial").mkdir()
    with pytest.raises(InvalidInputError, match="another backup is being written"):
        write_backup(data, str(tmp_path / "other"))
    (tmp_path / "empty").mkdir()
    write_backup(data, str(tmp_path / "empty"))
    assert examine(str(tmp_path / "empty")).files


@pytest.mark.parametrize("name", ["backup", "backup.tar"])
def test_a_backup_that_came_first_stays(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Two commands at the same instant: neither has seen the other's file when it looks."""
    monkeypatch.setattr(writing_module, "_check", lambda *_: None)
    partial = tmp_path / f"{name}.partial"
    if name == "backup":
        partial.mkdir()
        (partial / "control.db").write_bytes(b"x")
    else:
        partial.write_bytes(b"x")
    before = contents(tmp_path)
    with pytest.raises(InvalidInputError, match="another backup is being written"):
        write_backup(data, str(tmp_path / name))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("beside", ["producers.new", "producers-0.new", "0.damaged/committed", "00/committed"])
def test_what_lies_beside_the_files_of_a_log_makes_no_backup_useless(data: Path, tmp_path: Path, beside: str) -> None:
    """A snapshot that is being written, or what a person has moved away."""
    (data / "log" / "producers-0").write_bytes(b"x")
    (data / "log" / beside).parent.mkdir(exist_ok=True)
    (data / "log" / beside).write_bytes(b"x")
    manifest = write_backup(data, str(tmp_path / "backup"))
    assert examine(str(tmp_path / "backup")) == manifest
    assert {one.path for one in manifest.files if one.path.startswith("log/p")} == {"log/producers-0"}


def test_a_name_of_another_archive_makes_no_directory(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="would be a directory") as caught:
        write_backup(data, str(tmp_path / "backup.tar.gz"))
    assert "gzip" in caught.value.hint
    assert list(tmp_path.iterdir()) == [data]


def test_what_is_no_data_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no control\.db"):
        write_backup(tmp_path / "nowhere", str(tmp_path / "backup"))
    kafka = tmp_path / "kafka"
    kafka.mkdir()
    (kafka / "control.db").write_bytes(b"x")
    (kafka / "instance").write_text("name")
    with pytest.raises(InvalidInputError, match="server on Kafka"):
        write_backup(kafka, str(tmp_path / "backup"))


def test_the_last_changes_of_a_killed_server_are_in_it(data: Path, tmp_path: Path) -> None:
    path = data / "dispatcher" / "0" / "dispatch.db"
    killed = tmp_path / "killed"
    with contextlib.closing(CursorStore(path)) as cursors:
        cursors.flush(CursorChange(99, {0: 9}, [], []))
        shutil.copytree(data, killed)  # with what SQLite keeps beside the file
    (killed / "dispatcher" / "0" / "dispatch.db-shm").unlink()
    before = contents(killed)
    write_backup(killed, str(tmp_path / "backup"))
    assert contents(killed) == before
    restore_backup(str(tmp_path / "backup"), tmp_path / "restored")
    assert CursorStore.read(tmp_path / "restored" / "dispatcher" / "0" / "dispatch.db").position == 99


def test_a_torn_tail_stays_behind(data: Path, tmp_path: Path) -> None:
    """What the writer is writing just now was not acknowledged."""
    (segment,) = partition(data).glob("*.seg")
    whole = segment.read_bytes()
    segment.write_bytes(whole + bytes(100))
    write_backup(data, str(tmp_path / "backup"))
    assert (tmp_path / "backup" / segment.relative_to(data)).read_bytes() == whole


@contextlib.contextmanager
def small_segments(data: Path) -> Iterator[PartitionWriter]:
    with writing(data / "log", segment_bytes_max=1) as writer:
        yield writer


def test_what_retention_removes_meanwhile_is_in_it(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cursors of the beginning may need it."""
    with small_segments(data) as writer:
        append(writer, [event(10)])
        copied = capture._of_dispatcher

        def remove(*given: object) -> Iterator[object]:
            assert retain(writer, now_us=0, floor_offset=1 << 40, bytes_max=0).segments_removed
            return copied(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(capture, "_of_dispatcher", remove)
        write_backup(data, str(tmp_path / "backup"))
    restore_backup(str(tmp_path / "backup"), tmp_path / "restored")
    assert events(partition(tmp_path / "restored")) == 11


def test_a_gap_is_never_taken_for_a_backup(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that came after the beginning and went before the end."""
    with small_segments(data) as writer:
        copied = capture._of_dispatcher

        def turn_over(*given: object) -> Iterator[object]:
            for number in range(5):
                append(writer, [event(number)])
            retain(writer, now_us=0, floor_offset=1 << 40, bytes_max=0)
            return copied(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(capture, "_of_dispatcher", turn_over)
        with pytest.raises(BackupFailedError, match="faster than a backup begins"):
            write_backup(data, str(tmp_path / "backup"))


def test_events_that_come_meanwhile_do_no_harm(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writing(data / "log") as writer:
        read = Manifest.encoded

        def store(manifest: Manifest) -> bytes:
            append(writer, [event(99)])
            return read(manifest)

        monkeypatch.setattr(Manifest, "encoded", store)
        write_backup(data, str(tmp_path / "backup"))
    assert events(partition(data)) == 11
    restore_backup(str(tmp_path / "backup"), tmp_path / "restored")
    assert events(partition(tmp_path / "restored")) == 10


def test_another_number_of_dispatchers_meanwhile_is_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = capture._of_dispatcher

    def change(*given: object) -> Iterator[object]:
        yield from copied(*given)  # type: ignore[arg-type]
        (data / "dispatcher").rename(data / "dispatcher.old")
        shutil.copytree(data / "dispatcher.old", data / "dispatcher")

    monkeypatch.setattr(capture, "_of_dispatcher", change)
    with pytest.raises(BackupFailedError, match="number of dispatchers"):
        write_backup(data, str(tmp_path / "backup"))


def test_a_backup_of_a_database_that_has_lost_commits_is_refused(data: Path, tmp_path: Path) -> None:
    (data / "control.db").unlink()
    (data / "control.db").write_bytes(b"")
    with pytest.raises(DatabaseMissingError, match=r"control\.db is missing, but \d+ commits were made to it"):
        write_backup(data, str(tmp_path / "backup"))
    assert not (tmp_path / "backup").exists()


def test_a_backup_of_a_newer_version_is_refused(data: Path, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(data / "control.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    record_path(data / "control.db").unlink()  # of a Headgate of which nothing is known
    write_backup(data, str(tmp_path / "backup"))
    with pytest.raises(DatabaseNewerError, match="99"):
        restore_backup(str(tmp_path / "backup"), tmp_path / "restored")
    assert list((tmp_path / "restored").iterdir()) == []
    newer = (tmp_path / "backup" / MANIFEST).read_text().replace('"form": 1', '"form": 2')
    (tmp_path / "backup" / MANIFEST).write_text(newer)
    with pytest.raises(BackupNewerError, match="its form is 2, this one knows 1"):
        examine(str(tmp_path / "backup"))


def test_a_backup_that_is_not_there_or_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeadgateError, match="cannot be read: No such file"):
        examine(str(tmp_path / "nowhere.tar"))

    def closed(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(InvalidInputError, match=r"cannot be read: .*Permission denied"):
        examine(str(tmp_path))
