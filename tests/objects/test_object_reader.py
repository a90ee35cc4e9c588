"""Objects of a data directory are read without a trace in it, whoever owns it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.store.schema import MIGRATIONS
from headgate.objects.store.store import Store
from headgate.objects.views.object_reader import NoDataDirectoryError, ObjectReader
from headgate.storage.sqlite import DatabaseDamagedError, DatabaseNewerError, DatabaseOlderError
from headgate_api.objects.kinds import Kind
from tests.objects.support import broker


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """As a server leaves it that was stopped."""
    with closing(Store.open(tmp_path / "control.db")) as store:
        Admission(store).create(Kind.BROKER, broker("orders"))
    return tmp_path


def files(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in data.iterdir()}


def test_a_directory_is_as_it_was_after_it_was_read(data: Path) -> None:
    before = files(data)
    reader = ObjectReader(data)
    served = reader.served("default/orders")
    assert served is not None
    assert reader.snapshot().brokers["default/orders"] == served.identity
    assert reader.served("default/nosuch") is None
    assert files(data) == before


def test_what_a_running_server_writes_is_seen(data: Path) -> None:
    """Before it is in the file itself: it stands in the log beside it."""
    reader = ObjectReader(data)
    assert reader.served("default/late") is None
    with closing(Store.open(data / "control.db")) as store:
        Admission(store).create(Kind.BROKER, broker("late"))
        assert (data / "control.db-wal").stat().st_size > 0
        main = (data / "control.db").read_bytes()
        assert reader.served("default/late") is not None
        assert "default/late" in reader.snapshot().brokers
        assert (data / "control.db").read_bytes() == main
        Admission(store).create(Kind.BROKER, broker("later"))
        assert "default/later" in reader.snapshot().brokers
    assert reader.served("default/later") is not None


def test_what_a_killed_server_left_is_seen(data: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    with closing(Store.open(data / "control.db")) as store:
        Admission(store).create(Kind.BROKER, broker("late"))
        shutil.copytree(data, killed, ignore=shutil.ignore_patterns("killed"))
    main = (killed / "control.db").read_bytes()
    assert ObjectReader(killed).served("default/late") is not None
    assert (killed / "control.db").read_bytes() == main


@pytest.mark.parametrize(
    ("version", "error", "said"),
    [
        (len(MIGRATIONS) - 1, DatabaseOlderError, "written by an older Headgate"),
        (len(MIGRATIONS) + 1, DatabaseNewerError, "written by a newer Headgate"),
        (0, NoDataDirectoryError, "no tables of Headgate"),
    ],
)
def test_a_directory_of_another_version_is_refused_and_not_migrated(
    data: Path, version: int, error: type[Exception], said: str
) -> None:
    with closing(sqlite3.connect(data / "control.db")) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = files(data)
    reader = ObjectReader(data)
    for ask in (lambda: reader.served("default/orders"), reader.snapshot):
        with pytest.raises(error, match=said):
            ask()
    assert files(data) == before


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoDataDirectoryError, match=r"no data directory of Headgate: .*control\.db is missing"):
        ObjectReader(tmp_path)
    assert files(tmp_path) == {}
    (tmp_path / "control.db").write_bytes(b"")
    with pytest.raises(NoDataDirectoryError, match="no tables of Headgate"):
        ObjectReader(tmp_path).served("default/default")
    assert files(tmp_path) == {"control.db": b""}


def test_a_damaged_file_is_named(data: Path) -> None:
    (data / "control.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(DatabaseDamagedError, match=r"control\.db is damaged"):
        ObjectReader(data).served("default/orders")


@pytest.fixture
def starting(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Store]]:
    """A server starts while the file is read, the first time."""
    from headgate.objects.views import object_reader

    stores: list[Store] = []
    real = object_reader.broker_at

    def slow(connection: sqlite3.Connection, path: str) -> object:
        found = real(connection, path)
        if not stores:
            stores.append(Store.open(data / "control.db"))
            Admission(stores[0]).create(Kind.BROKER, broker("late"))
        return found

    monkeypatch.setattr(object_reader, "broker_at", slow)
    yield stores
    for store in stores:
        store.close()


def test_what_was_read_while_a_server_started_is_read_anew(data: Path, starting: list[Store]) -> None:
    assert ObjectReader(data).served("default/late") is not None
    assert len(starting) == 1
