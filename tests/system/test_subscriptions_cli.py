"""What does a person see of subscriptions? `headgate consume`, `seek` and `subscription`, on a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.server import Server, free_port
from tests import commands
from tests.commands import headgate
from tests.support import eventually
from tests.system.publishing import Publisher

pytestmark = pytest.mark.system

SECONDS_MAX = 120.0
EVENTS = 12
FIRST = 'ce.type == "cli-job" && data.n == 7'
"""A seek looks through all events of the broker, and other tests have some, too."""
HEADGATE = str(Path(sys.executable).with_name("headgate"))


@pytest.fixture(scope="module")
def jobs(server: Server) -> Iterator[Server]:
    """The session's server with a subscription `cli-jobs` that has EVENTS events."""
    spec = {"broker": "default", "filter": {"expression": 'ce.type == "cli-job"'}, "type": "shared"}
    server.create("subscriptions", "default", "cli-jobs", spec)
    server.wait_object_ready("subscriptions", "default", "cli-jobs", seconds=SECONDS_MAX)
    publisher = Publisher(server)
    for number in range(EVENTS):
        assert publisher.publish(f"c{number}", "cli-job", {"n": number}, partitionkey="one") == 202
    eventually(lambda: described(server)["backlog"] >= EVENTS)
    yield server
    server.delete("subscriptions", "default", "cli-jobs")


def told(server: Server, *words: str) -> str:
    return commands.told(*words, "--server", server.url)


def described(server: Server) -> dict[str, Any]:
    return json.loads(told(server, "subscription", "describe", "cli-jobs", "--json"))  # type: ignore[no-any-return]


def seek(server: Server, *words: str) -> str:
    return told(server, "seek", "cli-jobs", *words)


def consumed(server: Server, *words: str) -> list[int]:
    lines = told(server, "consume", "cli-jobs", "--no-follow", *words).splitlines()
    return [json.loads(line)["data"]["n"] for line in lines]


def test_consume_prints_events_and_acknowledges_what_it_has_printed(jobs: Server) -> None:
    seek(jobs, "--to", "earliest")
    assert consumed(jobs, "--no-ack") == list(range(EVENTS))
    assert consumed(jobs, "--limit", "5") == list(range(5))
    assert consumed(jobs) == list(range(5, EVENTS))
    assert consumed(jobs) == []
    line = told(jobs, "seek", "cli-jobs", "--to", "earliest")
    assert line.startswith("subscription default/cli-jobs moved to")
    assert consumed(jobs, "--limit", "1") == [0]


def test_seek_goes_to_the_first_event_of_which_something_is_true(jobs: Server) -> None:
    told_ = seek(jobs, "--to", "earliest", "--first", FIRST)
    assert "epoch" in told_
    assert consumed(jobs) == list(range(7, EVENTS))
    seek(jobs, "--to", "earliest", "--first", FIRST, "--after")
    assert consumed(jobs) == list(range(8, EVENTS))
    seek(jobs, "--to", "latest")
    assert consumed(jobs) == []


def test_describe_and_analyze_say_where_it_stands(jobs: Server) -> None:
    seek(jobs, "--to", "earliest")
    table = told(jobs, "subscription", "describe", "cli-jobs")
    rows = dict(line.split(maxsplit=1) for line in table.splitlines())
    assert (rows["backlog"], rows["unacknowledged"]) == (str(EVENTS), "0")
    numbers = described(jobs)
    assert (numbers["backlog"], numbers["unacknowledged"]) == (EVENTS, 0)
    assert numbers["oldestUnacknowledged"]
    expected = f"4 of {EVENTS} events; {EVENTS - 4} rejected, 0 errors"
    assert told(jobs, "subscription", "analyze", "cli-jobs", "--filter", "data.n < 4").strip() == expected
    dialect = '{"cesql": "id = \'c3\'"}'
    assert told(jobs, "subscription", "analyze", "cli-jobs", "--filter", dialect).startswith(f"1 of {EVENTS}")
    assert described(jobs)["backlog"] == EVENTS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("consume", "cli-nosuch", "--no-follow"), "cli-nosuch"),
        (("seek", "cli-nosuch", "--to", "earliest"), "cli-nosuch"),
        (("seek", "cli-jobs", "--to", "yesterday"), "yesterday"),
        (("seek", "cli-jobs", "--to", "earliest", "--first", "data.n =="), "ends too early"),
        (("subscription", "describe", "cli-nosuch"), "cli-nosuch"),
        (("subscription", "analyze", "cli-jobs", "--filter", "data.n <"), "ends too early"),
        (("subscription", "analyze", "cli-jobs", "--filter", '{"cesql": }'), "hint: CEL needs no braces"),
    ],
)
def test_what_is_wrong_is_said_on_stderr(jobs: Server, words: tuple[str, ...], message: str) -> None:
    done = headgate(*words, "--server", jobs.url)
    assert done.exit_code != 0
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr


@pytest.mark.parametrize(
    "words", [("consume", "a"), ("seek", "a", "--to", "latest"), ("subscription", "describe", "a")]
)
def test_without_a_server_the_hint_says_how_to_start_one(words: tuple[str, ...]) -> None:
    done = headgate(*words, "--server", f"http://127.0.0.1:{free_port()}")
    assert done.exit_code != 0
    assert "error: no server at" in done.stderr
    assert "hint: start one with `headgate serve`" in done.stderr


def test_control_c_ends_consume_and_gives_back_what_was_not_printed(jobs: Server) -> None:
    seek(jobs, "--to", "earliest")
    words = [HEADGATE, "consume", "cli-jobs", "--consumer", "person", "--server", jobs.url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for number in range(EVENTS):
            assert json.loads(running.stdout.readline())["data"]["n"] == number
        eventually(lambda: not described(jobs)["backlog"])  # now it waits for more
        running.send_signal(signal.SIGINT)
        _, complaint = running.communicate(timeout=SECONDS_MAX)
    assert "Traceback" not in complaint
    assert running.returncode == 0
    assert described(jobs)["unacknowledged"] == 0
