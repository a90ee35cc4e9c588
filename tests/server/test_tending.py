"""What works beside the requests goes on after errors that disks make, and ends its process by any other."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headgate.delivery import scheduler
from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.writer import PartitionWriter
from headgate.outbox.writer import OUTBOX_SCHEMA, encode_chunk
from headgate.retention.floor import REPORT, FloorFinder, RetentionFloor
from headgate.server import child, retention
from headgate.server.listening import AddressError
from headgate.server.parts import Role, ServerPart
from headgate.server.processes import front
from headgate.settings import Settings
from headgate.testing.server import free_port
from headgate_api import limits

WAIT_S_MAX = 20.0
FRONT = ServerPart(Role.FRONT, 0)
ERRORS = (
    CorruptChunkError(Path("outbox"), 0, "wrong checksum"),
    CorruptChunkError(Path("outbox"), 0, "wrong checksum"),
    sqlite3.DatabaseError("database disk image is malformed"),
    OSError("Input/output error"),
)


@pytest.mark.parametrize("log", [True, False])
def test_retention_goes_on_when_the_floor_cannot_be_read_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: bool
) -> None:
    looks: list[Exception | None] = []
    failing = list(ERRORS)

    def floor(*_: object) -> RetentionFloor:
        looks.append(error := failing.pop(0) if failing else None)
        if error is not None:
            raise error
        return RetentionFloor(position := writer.next_offset, {0: position})

    async def work() -> None:
        trim = retention.trim_log(settings, {0: writer}) if log else retention.trim_outbox(settings, 0, writer)
        task = asyncio.create_task(trim)
        async with asyncio.timeout(WAIT_S_MAX):
            while len(list(tmp_path.glob("*.seg"))) > 1 or not (log or reported()):
                await asyncio.sleep(0.01)
                assert not task.done()
        task.cancel()

    def reported() -> bool:
        return (settings.run_directory / REPORT.format(0)).exists()

    monkeypatch.setattr(retention, "RETENTION_EVERY_S", 0.0)
    monkeypatch.setattr(*((RetentionFloor, "reported") if log else (FloorFinder, "find")), floor)
    settings = Settings(data=tmp_path, retain_hours=0)
    settings.run_directory.mkdir()
    with (
        PartitionWriter(Partition(tmp_path, "stop"), OUTBOX_SCHEMA, segment_bytes_max=1) as writer,
        capture_logs() as told,
    ):
        for number in range(3):
            writer.append(encode_chunk([], {0: (number, 1)}))
        asyncio.run(work())
    assert tuple(looks[: len(ERRORS)]) == ERRORS
    assert [line["error"] for line in told if line["log_level"] == "error"] == [
        str(error) for error in (ERRORS[0], *ERRORS[2:])
    ]


def test_gauges_go_on_when_they_cannot_be_sampled_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    failing: list[Exception] = [OSError("Input/output error"), CorruptChunkError(Path("log"), 0, "wrong checksum")]
    sampled: list[bool] = []

    class Sick(scheduler.Gauges):
        def __init__(self) -> None:
            """With nothing to look at."""

        async def sample(self) -> None:
            if failing:
                raise failing.pop(0)
            sampled.append(True)

    async def work() -> None:
        task = asyncio.create_task(Sick().run())
        async with asyncio.timeout(WAIT_S_MAX):
            while not sampled:
                await asyncio.sleep(0.01)
                assert not task.done()
        task.cancel()

    monkeypatch.setattr(limits, "METRICS_WRITE_S", 0.0)
    asyncio.run(work())


def test_the_outbox_is_measured_while_retention_removes_segments(tmp_path: Path) -> None:
    (tmp_path / "1.seg").write_bytes(bytes(3))
    (tmp_path / "2.seg").symlink_to("removed")  # listed, and not there when it is looked at
    assert scheduler._bytes(tmp_path) == 3


def test_an_error_nobody_expected_ends_the_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def trim_log(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    for name in ("on_stop", "on_drain", "raise_file_limit"):
        monkeypatch.setattr(child, name, lambda _: None)
    monkeypatch.setattr(child, "spare_collector", lambda: None)
    monkeypatch.setattr(retention, "trim_log", trim_log)
    settings = Settings(data=tmp_path, listen=f"127.0.0.1:{free_port()}", grpc="off", metrics=False)
    settings.run_directory.mkdir()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(asyncio.wait_for(front._serve(child.Context(settings, bytes(32), FRONT)), WAIT_S_MAX))
    assert not (settings.run_directory / "front-0.ready").exists()


def test_a_front_whose_port_is_taken_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("on_stop", "on_drain", "raise_file_limit"):
        monkeypatch.setattr(child, name, lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(data=tmp_path, listen=f"127.0.0.1:{taken.getsockname()[1]}", grpc="off", metrics=False)
        with pytest.raises(AddressError, match="Address already in use"):
            asyncio.run(asyncio.wait_for(front._serve(child.Context(settings, bytes(32), FRONT)), WAIT_S_MAX))
    assert list(tmp_path.iterdir()) == [], "nothing has been begun"


@pytest.mark.parametrize("fails", ["task", "loop", ""])
def test_work_until_a_stop_ends_with_all_that_works_and_tells_what_failed(fails: str) -> None:
    ended: list[str] = []

    def loop(enough: threading.Event) -> None:
        if fails == "loop":
            raise OSError("the loop fails")
        another(enough)

    def another(enough: threading.Event) -> None:
        assert enough.wait(WAIT_S_MAX)
        ended.append("loop")

    async def task() -> None:
        if fails == "task":
            raise OSError("the task fails")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("task")

    async def work() -> None:
        stop = asyncio.Event()
        if not fails:
            asyncio.get_running_loop().call_soon(stop.set)
        await child.until_stopped(stop, [task()], [loop, another], lambda: ended.append("told"))

    if fails:
        with pytest.raises(OSError, match=f"the {fails} fails"):
            asyncio.run(asyncio.wait_for(work(), WAIT_S_MAX))
    else:
        asyncio.run(asyncio.wait_for(work(), WAIT_S_MAX))
    assert ended[0] == "told"
    assert (
        sorted(ended[1:]) == {"task": ["loop", "loop"], "loop": ["loop", "task"], "": ["loop", "loop", "task"]}[fails]
    )
