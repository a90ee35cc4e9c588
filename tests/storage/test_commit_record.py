"""Is anything that was committed to a database ever missing without a word, whatever happens to one of its files?"""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.store.store import Store
from headgate.server import datadir, preflight
from headgate.settings import ACCEPTABLE_LOSSES, Settings
from headgate.storage import commit, sqlite
from headgate.storage.commit import read_record, record_path, wal_path
from headgate.storage.sqlite import (
    DatabaseChangedError,
    DatabaseMissingError,
    DatabaseRolledBackError,
    StoreFile,
    check_commits,
)
from headgate_api.errors import FatalError
from headgate_api.objects.kinds import Kind
from tests.objects.support import broker, stored_brokers

PAGE = 4096
SCHEMA = "CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT"
NAMES = [name for name in ACCEPTABLE_LOSSES if name != "control.db"]


class Rows(StoreFile):
    """A file of rows, as those of a dispatcher are."""

    def __init__(self, path: Path, *, synced: bool = True) -> None:
        super().__init__(path, SCHEMA, clock=None if synced else time.monotonic)

    def put(self, *ids: int) -> None:
        with self._transaction() as connection:
            for id_ in ids:
                connection.execute("REPLACE INTO rows VALUES (?, ?)", (id_, f"row {id_} " * 60))

    def ids(self) -> list[int]:
        return [id_ for (id_,) in self._connection.execute("SELECT id FROM rows ORDER BY id")]


def content(data: Path) -> dict[str, list[str]]:
    """All rows of all databases."""
    found = {}
    for path in sqlite.databases(data):
        if not path.exists():
            continue
        with contextlib.closing(sqlite3.connect(path)) as connection:
            found[path.name] = [line for line in connection.iterdump() if commit.TABLE not in line]
    return found


def filled(data: Path, first: int, brokers: range) -> None:
    """Commits something to every database, and leaves each with a checkpoint behind it."""
    with contextlib.closing(Store.open(data / "control.db")) as store:
        for number in brokers:
            Admission(store).create(Kind.BROKER, broker(f"b{number}"))
    for name in NAMES:
        with contextlib.closing(Rows(data / "dispatcher/0" / name)) as rows:
            rows.put(*range(first, first + 20))


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A data directory as it was earlier, of a server that was killed, and of one that was stopped."""
    folder = tmp_path_factory.mktemp("moments")
    data = folder / "data"
    data.mkdir()
    datadir.arrange(data, 1, lambda *_: None)
    filled(data, 0, range(5))
    shutil.copytree(data, folder / "earlier")
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(Store.open(data / "control.db")))
        for number in range(5, 8):
            Admission(store).create(Kind.BROKER, broker(f"b{number}"))
        for name in NAMES:
            stack.enter_context(contextlib.closing(Rows(data / "dispatcher/0" / name))).put(*range(20, 35))
        shutil.copytree(data, folder / "killed", ignore=shutil.ignore_patterns("*-shm"))
    shutil.copytree(data, folder / "stopped")
    return {path.name: path for path in folder.iterdir()}


def files(data: Path) -> list[Path]:
    """Those of the databases."""
    return sorted(path.relative_to(data) for path in data.rglob("*.db*") if path.stat().st_size)


def damages(path: Path, earlier: Path) -> Iterator[tuple[str, bytes | None]]:
    """What may become of a file; None where it is gone."""
    whole = path.read_bytes()
    for start in range(0, len(whole), PAGE):
        at = min(start + start // PAGE * 997 % PAGE, len(whole) - 1)  # headers, rows, and room between them
        yield f"flipped at {at}", whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
    for end in {0, 1, len(whole) // 2, len(whole) - 1, len(whole) // PAGE // 2 * PAGE}:
        yield f"cut at {end}", whole[:end]
    yield "gone", None
    yield "earlier", earlier.read_bytes() if earlier.exists() else None


@pytest.mark.parametrize("moment", ["killed", pytest.param("stopped", marks=pytest.mark.slow)])
def test_a_start_names_what_is_missing_or_misses_nothing(moments: dict[str, Path], tmp_path: Path, moment: str) -> None:
    source, told, whole = moments[moment], 0, 0
    wanted = content(shutil.copytree(source, tmp_path / "wanted"))
    assert [name for name in wanted if len(wanted[name]) > 5] == [path.name for path in sqlite.databases(source)]
    data = tmp_path / "data"
    for name in files(source):
        database = name.name.partition(".db")[0] + ".db"
        for damage, now in damages(source / name, moments["earlier"] / name):
            (data / name).parent.mkdir(parents=True)
            for path in source.glob(f"{name.parent}/{database}*"):
                shutil.copy(path, data / name.parent)
            (data / name).unlink()
            if now is not None:
                (data / name).write_bytes(now)
            error = refused(data)
            if error is None:
                assert content(data)[database] == wanted[database], (name, damage)
                whole += 1
            else:
                assert str(data / name).partition(".db")[0] in error.message, (name, damage)
                assert f"--accept-lost {database}" in error.hint
                told += 1
            shutil.rmtree(data)
    print(f"{moment}: {told} told, {whole} whole")
    assert told > 40
    assert whole > 20, "damage of what no commit is in stops no start"


def refused(data: Path) -> FatalError | None:
    """What a start says, and a look at the directory before it."""
    found = []
    for look in (lambda: [look_at(path) for path in sqlite.databases(data)], lambda: start(data)):
        try:
            look()
        except FatalError as error:
            found.append(error)
        else:
            found.append(None)
    assert type(found[0]) is type(found[1])
    return found[1]


def look_at(path: Path) -> None:
    with sqlite.damage_named(path):
        check_commits(path, is_at_rest=True)


def start(data: Path, accept_lost: str = "") -> None:
    preflight.check_files(Settings(data=data, accept_lost=accept_lost))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def test_a_look_changes_nothing(moments: dict[str, Path], tmp_path: Path) -> None:
    data = Path(shutil.copytree(moments["killed"], tmp_path / "data"))
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for path in sqlite.databases(data):
        look_at(path)
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_a_refused_start_leaves_everything_as_it_was(moments: dict[str, Path], tmp_path: Path) -> None:
    data = Path(shutil.copytree(moments["killed"], tmp_path / "data"))
    wal = wal_path(data / "control.db")
    flip(wal, 5_000)
    for opened in (lambda: start(data), lambda: Store.open(data / "control.db")):
        with pytest.raises(DatabaseRolledBackError, match=r"control\.db has lost \d+ commits"):
            opened()
    flip(wal, 5_000)  # the disk is good again
    start(data)
    with contextlib.closing(Store.open(data / "control.db")) as store:
        assert len(stored_brokers(store)) == 9


@pytest.mark.parametrize("damage", ["wal flipped", "wal gone", "page changed", "gone"])
def test_an_accepted_loss_goes_on_with_what_there_is(moments: dict[str, Path], tmp_path: Path, damage: str) -> None:
    moment = "stopped" if damage == "page changed" else "killed"
    data = Path(shutil.copytree(moments[moment], tmp_path / "data"))
    control = data / "control.db"
    match damage:
        case "wal flipped":
            flip(wal_path(control), 5_000)
        case "wal gone":
            wal_path(control).unlink()
        case "page changed":
            page = control.read_bytes().rindex(b"b4")
            flip(control, page)
        case "gone":
            control.unlink()
    with pytest.raises(FatalError):
        start(data)
    with pytest.raises(FatalError):
        start(data, "dispatch.db")
    start(data, "control.db")
    with contextlib.closing(Store.open(control)) as store:
        assert store.counters.all()["target"] > 200_000_000, "no new trigger gets the number of a lost one"
        Admission(store).create(Kind.BROKER, broker("new"))
    start(data)


def test_an_older_number_is_no_alarm(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.db"
    with contextlib.closing(Rows(path)) as rows:
        rows.put(1)
        record = record_path(path).read_bytes()
        rows.put(2)
        rows.put(3)
    record_path(path).write_bytes(record)  # a power cut took the rest
    check_commits(path, is_at_rest=True)


def test_commits_that_are_not_synced_are_not_promised(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.db"
    with contextlib.closing(Rows(path, synced=False)) as rows:
        assert rows.is_synced, "its tables are"
        promised = read_record(path)
        rows.put(2)
        assert not rows.is_synced
        assert read_record(path) == promised
    closed = read_record(path)
    assert promised is not None
    assert closed is not None
    assert closed.number > promised.number


@pytest.mark.parametrize("synced", [True, False])
def test_what_is_promised_is_synced(tmp_path: Path, synced: bool) -> None:
    """No test can take the power away: SQLite syncs its log with each commit by FULL alone, which is 2."""
    with contextlib.closing(Rows(tmp_path / "deadletters.db", synced=synced)) as rows:
        for id_ in range(3):
            rows.put(id_)
            (mode,) = rows._connection.execute("PRAGMA synchronous").fetchone()
            assert (mode == 2) is rows.is_synced is synced


def test_a_checkpoint_that_was_broken_off_is_no_alarm(tmp_path: Path) -> None:
    """Any of the pages of the log may be in the file, the log is there, and the seal is that before."""
    path = tmp_path / "a" / "deadletters.db"
    with contextlib.closing(Rows(path)) as rows:
        rows.put(*range(100))
    with contextlib.closing(Rows(path)) as rows:
        rows.put(*range(50, 150))
        shutil.copytree(path.parent, tmp_path / "b", ignore=shutil.ignore_patterns("*-shm"))
    old, new = (tmp_path / "b" / path.name).read_bytes(), path.read_bytes()
    changed = [at for at in range(0, len(new), PAGE) if old[at : at + PAGE] != new[at : at + PAGE]]
    assert 5 < len(changed) < len(new) // PAGE
    broken = tmp_path / "b" / path.name
    for count in range(len(changed) + 1):
        pages = bytearray(old)
        for at in changed[:count]:
            pages[at : at + PAGE] = new[at : at + PAGE]
        broken.write_bytes(pages)
        check_commits(broken, is_at_rest=True)
    whole = next(at for at in range(0, len(old), PAGE) if at not in changed)
    broken.write_bytes(old)
    flip(broken, whole + 2_000)
    with pytest.raises(DatabaseChangedError, match=f"page {whole // PAGE + 1} "):
        check_commits(broken, is_at_rest=True)


def test_a_large_log_is_brought_into_its_file_and_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "WAL_FRAMES_MAX", 25)
    path = tmp_path / "deadletters.db"
    with contextlib.closing(Rows(path)) as rows:
        for start in range(0, 2_000, 100):
            rows.put(*range(start, start + 100))
            assert wal_path(path).stat().st_size < 300_000
        with sqlite.read_only(path) as reader:  # a checkpoint that cannot end waits for nobody
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM rows").fetchone()
            rows.put(*range(1_000))
            rows.put(*range(100))
        rows.put(*range(1_000))
        rows.put(1)  # the log begins anew, and has few pages
        found = read_record(path)
        shutil.copytree(tmp_path, tmp_path / "killed", ignore=shutil.ignore_patterns("killed", "*-shm"))
    assert found is not None
    assert found.seal is not None
    killed = tmp_path / "killed" / path.name
    check_commits(killed, is_at_rest=True)
    flip(killed, 100 * PAGE + 7)
    with pytest.raises(DatabaseChangedError, match="page 101 at byte 409600"):
        check_commits(killed, is_at_rest=True)


@pytest.mark.parametrize("seed", range(5))
def test_what_two_processes_write_by_turns_is_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """As control and the dispatchers write control.db: any of them may bring the log into the file."""
    monkeypatch.setattr(commit, "WAL_FRAMES_MAX", 25)
    chance, path = random.Random(seed), tmp_path / "at work" / "deadletters.db"
    with contextlib.closing(Rows(path)) as one, contextlib.closing(Rows(path)) as other:
        for turn in range(60):
            first = chance.randrange(400)
            chance.choice((one, other)).put(*range(first, first + chance.randrange(1, 120)))
            killed = tmp_path / str(turn)
            shutil.copytree(path.parent, killed, ignore=shutil.ignore_patterns("*-shm"))
            check_commits(killed / path.name, is_at_rest=True)


WRITER = """
import pathlib, random, sys
from tests.storage import test_commit_record as tests
tests.commit.WAL_FRAMES_MAX = 25
rows, chance = tests.Rows(pathlib.Path(sys.argv[1])), random.Random(sys.argv[2])
print("writes", flush=True)
while True:
    first = chance.randrange(400)
    rows.put(*range(first, first + chance.randrange(1, 120)))
"""


def test_what_two_processes_write_at_once_is_no_alarm_when_they_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "deadletters.db"
    Rows(path).close()
    for number in range(8):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, path, f"{number} {one}"], stdout=subprocess.PIPE)
            for one in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writes\n"
        time.sleep(0.1 + number * 0.05)  # a moment of any kind
        for writer in writers:
            writer.kill()
        for writer in writers:
            writer.communicate()
        check_commits(path, is_at_rest=True)


def test_a_file_that_is_gone_is_missed_where_no_event_stands_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "replays.db"
    with contextlib.closing(Rows(path)) as rows:
        rows.put(1)
    path.unlink()
    with pytest.raises(DatabaseMissingError, match=r"replays\.db is missing, but \d commits were made to it"):
        Rows(path)
