"""Does every line say which process speaks, whatever context it is written in?"""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest


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
