"""Does every line say which process speaks, whatever context it is written in?"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from headgate.cli import serve, server_log
from headgate.observe import logs
from headgate.settings import Settings
from tests.commands import headgate, told


def test_every_line_is_a_fact_of_a_process() -> None:
    program = (
        "import contextvars, structlog; from headgate.observe import logs; logs.configure('front');"
        "log = structlog.get_logger(); log.info('one', count=1); contextvars.Context().run(log.warning, 'two')"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
    first, second = map(msgspec.json.decode, done.stderr.splitlines())
    assert first.pop("timestamp")
    assert first == {"process": "front", "event": "one", "level": "info", "count": 1}
    assert (second["process"], second["event"], second["level"]) == ("front", "two", "warning")


def test_what_libraries_say_is_a_fact_too() -> None:
    program = (
        "import logging, warnings; from headgate.observe import logs; logs.configure('front');"
        "logging.getLogger('asyncio').error('slow %s', 3, exc_info=ValueError('so'));"
        "warnings.warn('old', stacklevel=1)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
    first, second = map(msgspec.json.decode, done.stderr.splitlines())
    assert (first["process"], first["logger"], first["level"], first["event"]) == (
        "front",
        "asyncio",
        "error",
        "slow 3",
    )
    assert first["exception"].endswith("ValueError: so")
    assert (second["logger"], second["level"]) == ("py.warnings", "warning")
    assert "old" in second["event"]


def test_a_line_is_one_write_on_an_unbuffered_stderr_too() -> None:
    """Several processes write to one stderr: an end of line written by itself lands after another's line."""
    program = (
        "import structlog; from headgate.observe import logs; logs.configure('front');"
        "log = structlog.get_logger(); log.info('one'); log.info('two')"
    )
    reading, writing = os.pipe2(os.O_DIRECT)  # a pipe of packets: a read gives what one write wrote
    try:
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        subprocess.run([sys.executable, "-c", program], check=True, stderr=writing, env=environment, timeout=60)
        writes = [os.read(reading, 4096) for _ in range(2)]
    finally:
        os.close(reading)
        os.close(writing)
    assert [msgspec.json.decode(one)["event"] for one in writes] == ["one", "two"]
    assert all(one.endswith(b"\n") for one in writes)


@pytest.mark.parametrize("broken", ["full disk", "pipe without a reader"])
def test_a_line_that_is_lost_is_no_error(broken: str) -> None:
    program = (
        "import sys, logging, structlog; from headgate.observe import logs; logs.configure('front');"
        "log = structlog.get_logger(); log.error('one' * 20_000); log.error('two'); logging.error('three');"
        "print('four', file=sys.stderr, flush=True); print('done')"
    )
    if broken == "full disk":
        stderr = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, stderr = os.pipe()
        os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=False
        )
    finally:
        os.close(stderr)
    assert (done.returncode, done.stdout) == (0, b"done\n")


def _on_a_terminal(program: str) -> str:
    """What a program shows on a terminal, whose stderr is one."""
    shown, terminal = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", program], check=True, stderr=terminal, timeout=60)
        return os.read(shown, 65_536).decode()
    finally:
        os.close(shown)
        os.close(terminal)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [("", ["two"]), (", verbose=True", ["one", "two"]), (", form=logs.Form.JSON", ["one", "two"])],
)
def test_a_terminal_shows_what_it_is_asked_for_and_the_file_has_all(
    tmp_path: Path, options: str, wanted: list[str]
) -> None:
    options = options if "verbose" in options else f"{options}, verbose=False"
    program = (
        f"import structlog, pathlib; from headgate.observe import logs; logs.configure('front'{options});"
        f"logs.keep(pathlib.Path({str(tmp_path)!r}));"
        "log = structlog.get_logger(); log.info('it is one'); log.warning('it is two')"
    )
    shown = _on_a_terminal(program).splitlines()
    assert [line.partition("it is ")[2][:3] for line in shown] == wanted
    if "JSON" in options:
        assert [msgspec.json.decode(line)["process"] for line in shown] == ["front", "front"]
    kept = [msgspec.json.decode(line) for line in (tmp_path / logs.FILE).read_bytes().splitlines()]
    assert [(line["event"], line["level"]) for line in kept] == [("it is one", "info"), ("it is two", "warning")]
    assert all(line["timestamp"].endswith("Z") for line in kept)
    assert (tmp_path / logs.FILE).stat().st_mode & 0o777 == 0o600


def test_a_large_file_makes_room_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_FILE_BYTES_MAX", 10)
    logs.rotate(tmp_path)
    (tmp_path / logs.FILE).write_text("short\n")
    logs.rotate(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [logs.FILE]
    (tmp_path / logs.FILE).write_text("longer than that\n")
    logs.rotate(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{logs.FILE}.1"]


def test_what_a_program_says_is_a_fact_too() -> None:
    """As the JVM, which goes on after it was started, and as an error that nobody expects."""
    program = (
        "import os, subprocess, structlog; from headgate.observe import logs; logs.configure('matcher');\n"
        "with logs.heard('java', ('WARNING: known',)):\n"
        "    said = subprocess.Popen(['bash', '-c', 'read; echo WARNING: known >&2; echo so >&2'], stdin=-1)\n"
        "    structlog.get_logger().info('meanwhile')\n"
        "said.communicate(b'\\n')\n"
        "import time; time.sleep(0.5)\n"
        "raise ValueError('unexpected')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    meanwhile, said, error = map(msgspec.json.decode, done.stderr.splitlines())
    assert meanwhile["event"] == "meanwhile"
    assert (said["event"], said["logger"], said["process"]) == ("so", "java", "matcher")
    assert error["level"] == "critical"
    assert error["exception"].endswith("ValueError: unexpected")


def _line(number: int, level: str = "info") -> str:
    fact = {"process": "front-0", "event": f"line {number}", "level": level, "timestamp": "2026-01-02T03:04:05Z"}
    return msgspec.json.encode(fact).decode() + "\n"


def test_the_command_shows_the_last_lines_of_both_files(tmp_path: Path) -> None:
    (tmp_path / f"{logs.FILE}.1").write_text("".join(map(_line, range(3))))
    (tmp_path / logs.FILE).write_text(_line(3) + "cut by a full di\n" + _line(4, "error"))
    shown = told("logs", "--data", tmp_path, "--last", "4").splitlines()
    assert [line.partition("line ")[2][:1] for line in shown] == ["2", "3", "4"]
    assert all("front-0" in line for line in shown)
    (only,) = told("logs", "--data", tmp_path, "--warnings", "--json").splitlines()
    assert msgspec.json.decode(only)["event"] == "line 4"
    said = headgate("logs", "--data", tmp_path / "none")
    assert (said.exit_code, "there is no" in said.stderr) == (1, True)


def test_the_command_goes_on_in_the_file_that_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / logs.FILE
    path.write_text(_line(0))
    monkeypatch.setattr(server_log, "_POLL_S", 0.01)
    lines = server_log._lines(path, 10, follow=True)
    assert "line 0" in next(lines)
    with path.open("a") as file:
        file.write(_line(1))
    assert "line 1" in next(lines)
    path.replace(tmp_path / f"{logs.FILE}.1")
    path.write_text(_line(2))
    assert "line 2" in next(lines)


def test_a_person_is_told_in_four_lines_what_was_started() -> None:
    def told_of(**settings: object) -> list[str]:
        return list(serve.about(Settings.model_validate(settings)))

    assert told_of() == [
        "API       http://127.0.0.1:8080, gRPC on 127.0.0.1:8081",
        "console   http://127.0.0.1:8080/ui/",
        "data      headgate-data",
        "access    open: everybody on this machine may do everything",
    ]
    assert told_of(token_auth_file="tokens.csv")[-1] == "access    secured: users say who they are"
    opened = told_of(listen="0.0.0.0:8080", grpc="off", allow_anonymous=True)
    assert opened[0] == "API       http://127.0.0.1:8080"
    assert opened[-1].startswith("access    open: everybody who reaches 0.0.0.0:8080")
