"""Is a database that is damaged, newer or missing named with a remedy, and never the reason of a restart loop?"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.deadletters.store import DeadLetterStore
from headgate.delivery.cursors import CursorStore
from headgate.objects.store.rows import KnownObjects
from headgate.objects.store.store import Store
from headgate.replay.store import ReplayStore
from headgate.server import datadir, preflight
from headgate.settings import ACCEPTABLE_LOSSES, Settings
from headgate.storage import sqlite
from headgate.storage.commit import record_path
from headgate.storage.sqlite import LOSSES, DatabaseDamagedError, DatabaseMissingError, DatabaseNewerError, examine
from headgate.subscriptions.store import SubscriptionStore
from headgate.testing.server import free_port
from headgate_api.objects.kinds import Kind
from tests.commands import refused, serve
from tests.match.events import append, event, writing

HEADGATE = Path(sys.executable).with_name("headgate")
OPEN: dict[str, Callable[[Path], contextlib.AbstractContextManager[object]]] = {
    "control.db": lambda path: contextlib.closing(Store.open(path)),
    "dispatcher/0/dispatch.db": lambda path: contextlib.closing(CursorStore(path)),
    "dispatcher/0/deadletters.db": lambda path: contextlib.closing(DeadLetterStore(path)),
    "dispatcher/0/replays.db": lambda path: contextlib.closing(ReplayStore(path)),
    "dispatcher/0/subscriptions.db": lambda path: contextlib.closing(SubscriptionStore(path)),
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with all databases."""
    folder = tmp_path / "data"
    folder.mkdir()
    datadir.arrange(folder, 1, lambda *_: None)
    for name, opened in OPEN.items():
        with opened(folder / name):
            pass
    return folder


def execute(path: Path, statement: str, *parameters: object) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, parameters)
    record_path(path).unlink(missing_ok=True)  # whoever else writes a file keeps no record


def test_every_file_is_known() -> None:
    assert LOSSES.keys() == {Path(name).name for name in OPEN} == {*ACCEPTABLE_LOSSES}


@pytest.mark.parametrize("name", OPEN)
def test_a_newer_file_is_named(data: Path, name: str) -> None:
    execute(data / name, "PRAGMA user_version = 99")
    with (
        pytest.raises(DatabaseNewerError, match=f"{data / name} was written by a newer Headgate"),
        OPEN[name](data / name),
    ):
        pass


@pytest.mark.parametrize("name", OPEN)
def test_a_damaged_file_is_found_and_named(data: Path, name: str) -> None:
    examine(data)
    (data / name).write_bytes(b"not a database" * 1_000)
    with pytest.raises(sqlite3.DatabaseError) as failure, OPEN[name](data / name):
        pass
    assert sqlite.tells_damage(failure.value)
    with pytest.raises(DatabaseDamagedError, match=f"{data / name} is damaged") as found:
        examine(data)
    assert LOSSES[Path(name).name] in found.value.hint
    assert f"--accept-lost {Path(name).name}" in found.value.hint


def test_a_page_that_is_damaged_is_found(data: Path) -> None:
    path = data / "control.db"
    content = bytearray(path.read_bytes())
    content[4096:4200] = b"x" * 104
    path.write_bytes(content)
    with pytest.raises(DatabaseDamagedError, match=str(path)):
        examine(data)


def test_a_row_that_nobody_has_written_is_named(data: Path) -> None:
    execute(data / "dispatcher/0/dispatch.db", "INSERT INTO targets VALUES (1, NULL, x'0102', x'')")
    execute(data / "dispatcher/0/subscriptions.db", "INSERT INTO subscriptions VALUES (1, x'ff')")
    execute(data / "control.db", "INSERT INTO objects VALUES ('Broker', 'a', 'b', 1, '{}', x'ff')")
    with (
        pytest.raises(DatabaseDamagedError, match=r"dispatch\.db"),
        contextlib.closing(CursorStore(data / "dispatcher/0/dispatch.db")) as cursors,
    ):
        cursors.load()
    with (
        pytest.raises(DatabaseDamagedError, match=r"subscriptions\.db"),
        contextlib.closing(SubscriptionStore(data / "dispatcher/0/subscriptions.db")) as pulls,
    ):
        pulls.load()
    with (
        pytest.raises(DatabaseDamagedError, match=r"control\.db"),
        contextlib.closing(Store.open(data / "control.db")) as store,
    ):
        store.refresh(KnownObjects(Kind.BROKER))


@pytest.mark.parametrize("lost", ["removed", "empty"])
@pytest.mark.parametrize(
    ("name", "beside"), [("control.db", "log/0"), ("dispatcher/0/dispatch.db", "dispatcher/0/outbox")]
)
def test_a_file_that_is_gone_beside_data_is_refused_until_that_is_accepted(
    data: Path, name: str, beside: str, lost: str
) -> None:
    settings = Settings(data=data)
    for path in (data / name, record_path(data / name)):
        path.unlink()
    if lost == "empty":
        (data / name).touch()
    preflight.check_files(settings)  # a new server
    (data / beside).mkdir(parents=True)
    (data / beside / f"{0:020d}.seg").touch()
    with pytest.raises(DatabaseMissingError, match=f"{data / name} is missing") as failure:
        preflight.check_files(settings)
    lost_name = Path(name).name
    assert f"--accept-lost {lost_name}" in failure.value.hint
    preflight.check_files(Settings(data=data, accept_lost=f" {lost_name}"))


def test_deliveries_of_lost_triggers_are_never_those_of_new_ones(data: Path) -> None:
    with writing(data / "log") as writer:
        append(writer, [event(1)])
    (data / "control.db").unlink()
    preflight.check_files(Settings(data=data, accept_lost="control.db"))
    with contextlib.closing(Store.open(data / "control.db")) as store:
        assert store.counters.all()["target"] > 200_000_000
        assert store.counters.all()["target"] < 1 << 31


JAVA = """#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "17.0.1"' >&2 && exit
exec sleep 600
"""
"""A Java whose machine is as slow to start as can be: what ends before Spark starts needs none."""


def ended(data: Path, *arguments: str) -> list[str]:
    """What a real `headgate serve` says before it ends by itself, but for lines of its log."""
    java = data.parent / "java-home" / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(JAVA)
    java.chmod(0o755)
    environment = os.environ | {"JAVA_HOME": str(java.parent.parent)}
    listen = f"127.0.0.1:{free_port()}"
    command = [str(HEADGATE), "serve", "--data", str(data), "--listen", listen, "--grpc", "off", *arguments]
    log = data.parent / "server.log"  # no pipe: the Java would hold it open
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stderr=stderr, env=environment, start_new_session=True) as server,
    ):
        try:
            assert server.wait(120) == 78
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
    said = log.read_text()
    assert "Traceback" not in said
    return [line for line in said.splitlines() if not line.startswith("{")]


def refusal(data: Path) -> tuple[str, str]:
    """The error and the hint of `headgate serve`."""
    status, lines = serve(data)
    assert status == 78
    return refused(lines)


@pytest.mark.system
def test_a_server_with_a_damaged_file_ends(data: Path) -> None:
    (data / "control.db").write_bytes(b"not a database" * 1_000)
    error, hint = ended(data)
    assert error == f"error: {data}/control.db is damaged: file is not a database"
    assert hint.startswith("hint: stop the server and restore it from a copy")


@pytest.mark.parametrize("name", [name for name in OPEN if name != "control.db"])
def test_a_damaged_file_of_a_dispatcher_is_named_with_a_remedy(data: Path, name: str) -> None:
    (data / name).write_bytes(b"not a database" * 1_000)
    error, hint = refusal(data)
    assert error == f"error: {data / name} is damaged: file is not a database"
    assert hint.startswith("hint: stop the server and restore it from a copy")


def test_a_newer_file_is_named_at_start(data: Path) -> None:
    execute(data / "dispatcher/0/dispatch.db", "PRAGMA user_version = 2")
    error, _ = refusal(data)
    assert error.startswith(f"error: {data}/dispatcher/0/dispatch.db was written by a newer Headgate")


def test_objects_that_are_gone_are_named_at_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with writing(data / "log") as writer:
        append(writer, [event(1)])
    error, hint = refusal(data)
    assert error == f"error: {data}/control.db is missing, but {data}/log has data"
    assert "--accept-lost control.db" in hint


@pytest.mark.system
def test_a_server_with_a_manifest_that_is_refused_ends(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "broker.yaml").write_text("apiVersion: eventing.knative.dev/v1\nkind: Broken\n")
    error, *_ = ended(tmp_path / "data", "--manifests", str(manifests))
    assert error.startswith(f"error: {manifests}/broker.yaml")
