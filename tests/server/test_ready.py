"""Do the files under run/ say which part works, which one hangs, and why?"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.types import Message

from headgate.server import health, parts, ready
from headgate.server.parts import Role, ServerPart
from headgate.server.processes.supervisor import Beats
from headgate.server.ready import PartReport, PartState
from headgate.settings import Settings
from headgate_api import limits

MATCHER = ServerPart(Role.MATCHER)


def get(app: Starlette, path: str, query: str = "") -> tuple[int, str]:
    """Status and body of a GET."""
    said: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        said.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": []}
    asyncio.run(app(scope, receive, send))
    return said[0]["status"], b"".join(message.get("body", b"") for message in said[1:]).decode()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "run").mkdir()
    return Settings(data=tmp_path)


def test_a_part_is_what_it_says_of_itself(settings: Settings) -> None:
    assert ready.states(settings) == dict.fromkeys(parts.of_server(settings), PartState(False))
    report = PartReport(settings.run_directory, "matcher")
    report.note("Spark starts")
    report.beat()
    assert ready.states(settings)[MATCHER] == PartState(False, "Spark starts")
    report.ready(True)
    report.note("generation 3 in force")
    assert ready.states(settings)[MATCHER] == PartState(True, "generation 3 in force")
    ready.ended(settings.run_directory, "matcher", "ended with status -9")
    assert ready.states(settings)[MATCHER] == PartState(False, "ended with status -9")


def test_a_part_that_lives_and_hangs_is_not_ready(settings: Settings) -> None:
    dispatcher = ServerPart(Role.DISPATCHER, 0)
    report = PartReport(settings.run_directory, dispatcher.name)
    report.ready(True)
    report.beat()
    assert ready.parts_ready(settings)[dispatcher]
    long_ago = time.time() - limits.SILENT_S_MAX - 5
    os.utime(settings.run_directory / "dispatcher-0.beat", (long_ago, long_ago))
    state = ready.states(settings)[dispatcher]
    assert not state.ready
    assert state.note.startswith("silent for 3")


def test_nobody_reads_half_of_a_note(settings: Settings) -> None:
    report = PartReport(settings.run_directory, "matcher")
    report.note("Spark starts")
    with (settings.run_directory / "matcher.note").open() as reader:
        report.note("generation 3 in force")
        assert reader.read() == "Spark starts"


def test_a_mark_that_the_disk_does_not_take_is_made_later(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "HEARTBEAT_S", 0.0)
    directory = settings.run_directory
    report = PartReport(directory, "matcher")
    directory.rmdir()
    report.ready(True)
    report.note("generation 1 in force")
    report.beat()
    ready.ended(directory, "reader", "ended with status 1")
    directory.mkdir()
    report.beat()
    assert ready.states(settings)[MATCHER] == PartState(True, "generation 1 in force")
    (directory / "matcher.ready").unlink()
    report.beat()
    assert not ready.states(settings)[MATCHER].ready, "what has been said is not said again"


def test_what_the_disk_did_not_take_is_forgotten_for_what_was_said_since(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready, "HEARTBEAT_S", 0.0)
    directory = settings.run_directory
    report = PartReport(directory, "matcher")
    (directory / "matcher.ready").mkdir()  # neither to be written nor to be removed as a file
    report.ready(True)
    report.ready(False)
    report.beat()
    (directory / "matcher.ready").rmdir()
    report.beat()
    assert not ready.states(settings)[MATCHER].ready


def test_only_a_process_that_has_begun_to_beat_can_hang() -> None:
    beats = Beats()
    for now in range(0, 10_000, 10):
        assert not beats.hangs("matcher", None, now), "Spark may take its time to start"
    assert not beats.hangs("matcher", 1.0, 10_000)
    assert not beats.hangs("matcher", 1.0, 10_000 + limits.HUNG_S_MAX)
    assert beats.hangs("matcher", 1.0, 10_001 + limits.HUNG_S_MAX)
    assert not beats.hangs("matcher", 1.0, 10_002 + limits.HUNG_S_MAX), "said once"
    beats = Beats()
    for now in range(10_000):
        assert not beats.hangs("matcher", float(now // 100), now)


def test_readyz_names_each_part_and_why(settings: Settings) -> None:
    problems = {"log": ""}
    checks = {name: (lambda name=name: problems[name]) for name in problems}
    app = Starlette(routes=health.routes(settings, checks))  # type: ignore[arg-type]
    for part in parts.of_server(settings):
        PartReport(settings.run_directory, part.name).ready(True)
    PartReport(settings.run_directory, "matcher").note("generation 3 in force by run 7")
    assert get(app, "/livez") == (200, "ok")
    status, text = get(app, "/readyz")
    assert (status, json.loads(text)) == (
        200,
        dict.fromkeys(["control", "front-0", "dispatcher-0", "reader", "matcher", "log"], True),
    )
    problems["log"] = "no space left on device"
    status, text = get(app, "/readyz", "verbose")
    assert status == 503
    assert text.splitlines() == [
        "[+]control ok",
        "[+]front-0 ok",
        "[+]dispatcher-0 ok",
        "[+]reader ok",
        "[+]matcher ok: generation 3 in force by run 7",
        "[-]log failed: no space left on device",
        "readyz check failed",
    ]


def test_metrics_can_be_switched_off(settings: Settings) -> None:
    status, text = get(Starlette(routes=health.routes(settings.model_copy(update={"metrics": False}), {})), "/metrics")
    assert status == 404
    assert "HEADGATE_METRICS" in text
