"""Is the data directory its user's alone, also one that was open before, and is nothing else touched?"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headgate.server import datadir
from headgate.settings import Settings


def modes(folder: Path) -> dict[str, int]:
    """Modes of a directory and all below it."""
    return {
        str(path.relative_to(folder.parent)): stat.S_IMODE(path.stat().st_mode)
        for path in (folder, *sorted(folder.rglob("*")))
    }


@pytest.fixture(autouse=True)
def open_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_what_a_server_makes_is_for_its_user_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with capture_logs() as told, datadir.owned(Settings(data=data)):
        (data / "log" / "0").mkdir(parents=True)
        (data / "log" / "0" / "1.seg").write_bytes(b"x")
    assert modes(data) == {
        "data": 0o700,
        "data/lock": 0o600,
        "data/log": 0o700,
        "data/log/0": 0o700,
        "data/log/0/1.seg": 0o600,
        "data/run": 0o700,
        "data/run/metrics": 0o700,
        "data/version": 0o600,
    }
    assert told == []
    (tmp_path / "after").touch()
    assert modes(tmp_path / "after") == {"after": 0o644}, "the umask is the block's"


def test_what_was_open_to_others_is_closed_with_one_warning(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "dispatcher" / "0" / "outbox").mkdir(parents=True)
    (data / "dispatcher" / "0" / "outbox" / "1.seg").write_bytes(b"x")
    (data / "control.db").write_bytes(b"x")
    with capture_logs() as told, datadir.owned(Settings(data=data)):
        assert set(modes(data).values()) == {0o700, 0o600}
    (line,) = told
    assert (line["log_level"], line["count"]) == ("warning", 6)
    with capture_logs() as told, datadir.owned(Settings(data=data)):
        pass
    assert told == []


def test_other_files_beside_ours_keep_their_modes(tmp_path: Path) -> None:
    data = tmp_path / "home"
    data.mkdir()
    (data / "letter.txt").write_text("x")
    (data / "elsewhere").write_text("x")
    (data / "control.db").write_text("x")
    (data / "log").mkdir()
    (data / "log" / "link").symlink_to(data / "elsewhere")
    with capture_logs() as told, datadir.owned(Settings(data=data)):
        found = modes(data)
    assert [found[f"home{name}"] for name in ("", "/letter.txt", "/elsewhere")] == [0o755, 0o644, 0o644]
    assert [found[f"home{name}"] for name in ("/control.db", "/log", "/lock")] == [0o600, 0o700, 0o600]
    assert [line["log_level"] for line in told] == ["warning", "warning"]
