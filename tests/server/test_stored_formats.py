"""Versions of a data directory: read without a change, refused where they are newer, planned where they are older."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import struct
from pathlib import Path

import google_crc32c
import pytest

from headgate.objects.store.schema import MIGRATIONS
from headgate.objects.store.store import Store
from headgate.server import datadir
from headgate.server.doctor import CheckVerdict, findings
from headgate.server.stored_formats import check_formats, formats, last_version, plan_upgrade
from headgate.settings import Settings
from headgate.storage.sqlite import DatabaseNewerError
from headgate_api import __version__
from headgate_api.errors import FatalError
from tests.backup.test_backup import contents
from tests.commands import headgate, refused, serve
from tests.match.events import append, event, writing
from tests.server.test_databases import data, execute

__all__ = ["data"]


def newer_segment(path: Path) -> None:
    """As a version to come would write the header."""
    body = bytearray(path.read_bytes())
    body[:4] = b"HGS2"
    body[12:16] = struct.pack("<I", google_crc32c.value(bytes(body[:12])))
    path.write_bytes(body)


def test_every_part_has_its_version(data: Path) -> None:
    with writing(data / "log") as writer:
        append(writer, [event(1)])
    before = contents(data)
    found = {one.part: (one.found, one.known) for one in formats(data)}
    assert found.pop("control.db") == (len(MIGRATIONS), len(MIGRATIONS))
    assert found.pop("log/0") == (1, 1)
    assert set(found) == {f"dispatcher/0/{name}.db" for name in ("dispatch", "deadletters", "replays", "subscriptions")}
    assert set(found.values()) == {(1, 1)}
    check_formats(data)
    plan_upgrade(data)
    assert contents(data) == before


def test_a_newer_database_is_refused_with_both_versions(data: Path) -> None:
    (data / "version").write_text("9.9.9\n")
    execute(data / "control.db", "PRAGMA user_version = 99")
    with pytest.raises(DatabaseNewerError) as caught, datadir.owned(Settings(data=data)):
        pass
    assert f"newer Headgate (9.9.9): its tables have version 99, this one ({__version__})" in caught.value.message
    assert caught.value.hint
    assert last_version(data) == "9.9.9", "who refuses changes nothing"
    status, lines = serve(data)
    error, _ = refused(lines)
    assert (status, "its tables have version 99" in error) == (78, True)
    found = {one.check: one for one in findings(Settings(data=data, listen="127.0.0.1:0", grpc="off"))}
    assert (found["data"].verdict, "version 99" in found["data"].message) == (CheckVerdict.FAILURE, True)


def test_newer_segments_are_refused(data: Path) -> None:
    with writing(data / "log") as writer:
        append(writer, [event(1)])
    (segment,) = (data / "log" / "0").glob("*.seg")
    newer_segment(segment)
    with pytest.raises(FatalError, match="segments have version 2, this one knows 1"):
        check_formats(data)


def test_a_damaged_file_is_left_to_who_opens_it(data: Path) -> None:
    (data / "dispatcher" / "0" / "replays.db").write_bytes(b"")
    (data / "dispatcher" / "0" / "dispatch.db").write_bytes(b"no database" * 100)
    (data / "log" / "0").mkdir(parents=True)
    (data / "log" / "0" / f"{0:020d}.seg").write_bytes(b"x")
    (data / "version").write_bytes(b"\xff")
    check_formats(data)
    assert last_version(data) == ""


def test_a_server_says_which_version_it_is(tmp_path: Path) -> None:
    with datadir.owned(Settings(data=tmp_path / "data")):
        assert last_version(tmp_path / "data") == __version__


def trigger(data: Path) -> None:
    """A trigger whose filter another compiler has compiled."""
    columns = (
        "INSERT INTO targets (id, kind, namespace, name, broker, subscriber_broker, subscriber, ordered, sink_broker,"
        " filter, compiler, needs, routing) VALUES (1, 'Trigger', 'd', 'd', 'd/d', '', '', 0, '', '{}', 0, 0, 0)"
    )
    execute(data / "control.db", columns)


def test_check_says_what_the_first_start_would_do(data: Path) -> None:
    trigger(data)
    before = contents(data)
    status, out, _ = headgate("upgrade", "--check", "--data", data, "--json")
    found = json.loads(out)
    assert (status, found["possible"], found["plans"], found["stale_plans"]) == (0, True, 1, 1)
    assert 0 < found["needed_bytes"] <= found["free_bytes"]
    status, out, _ = headgate("upgrade", "--check", "--data", data)
    assert status == 0
    assert "1 of 1 are compiled anew" in out
    assert re.search(rf"control\.db +{len(MIGRATIONS)} +{len(MIGRATIONS)} +stays as it is", out)
    assert contents(data) == before
    execute(data / "dispatcher" / "0" / "dispatch.db", "PRAGMA user_version = 7")
    status, out, _ = headgate("upgrade", "--check", "--data", data)
    assert (status, "refused: a newer Headgate wrote it" in out) == (1, True)


def test_check_knows_older_tables(tmp_path: Path) -> None:
    """A control.db of the first version, as its own migrations make it."""
    with contextlib.closing(sqlite3.connect(tmp_path / "control.db")) as connection, connection:
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 1")
    trigger(tmp_path)
    status, out, _ = headgate("upgrade", "--check", "--data", tmp_path, "--json")
    found = json.loads(out)
    assert (status, found["plans"], found["stale_plans"]) == (0, 1, 1)
    assert found["formats"] == [{"part": "control.db", "found": 1, "known": len(MIGRATIONS)}]
    assert found["needed_bytes"] > 0
    Store.open(tmp_path / "control.db").close()
    assert json.loads(headgate("upgrade", "--check", "--data", tmp_path, "--json")[1])["formats"][0]["found"] == len(
        MIGRATIONS
    )


@pytest.mark.parametrize("arguments", [("upgrade",), ("upgrade", "--check", "--data", "/nowhere")])
def test_what_cannot_be_checked_is_told(arguments: tuple[str, ...]) -> None:
    status, _, said = headgate(*arguments)
    assert (status, "hint: " in said) == (1, True)
