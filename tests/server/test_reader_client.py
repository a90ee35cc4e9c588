"""Is a turn that another process does the same turn, and is a reader that restarts waited for?"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.applications import Starlette

from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.skipping.prune import filter_value_rule
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.scan import pages
from headgate.scan.chunks import ChunkLog
from headgate.scan.pages import LogScanner, Scanner, ScanPage, ScanRequest
from headgate.server.peers import reader_client
from headgate.server.peers.local_http import answering
from headgate.server.peers.reader_client import ReaderError, ReaderScanner, ReaderUnavailableError, scan_route
from headgate_api.event.model import DataKind, Event

BROKER = "ns/a"
REQUEST = ScanRequest(BROKER, filter_value_rule("type"), "data.n >= 3", {0: 1}, {0: 9}, 100)


def fill(directory: Path) -> None:
    events = [Event("1.0", f"e{n}", "/s", "t", data_kind=DataKind.JSON, data=b'{"n":%d}' % n) for n in range(10)]
    with PartitionWriter(Partition(directory / "0", "stop"), EVENT_SCHEMA) as writer:
        writer.append(Encoded(to_batch([StoredEvent(BROKER, one) for one in events]), ["t"] * 10))


class Damaged:
    """A reader whose log is damaged."""

    async def scan_page(self, wish: ScanRequest) -> ScanPage:
        raise ReaderError("byte 17 is not what was written")


def app(scanner: Scanner) -> Starlette:
    return Starlette(routes=[scan_route(scanner)], exception_handlers=ERROR_HANDLERS)


def test_a_turn_is_the_same_and_a_restart_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_client, "READER_RETRY_S", 0.01)
    for name in ("SCAN_TURN_S", "SCAN_REQUEST_TURN_S"):
        monkeypatch.setattr(pages, name, 60.0)  # a machine that stands still for a moment divides no turn
    fill(tmp_path)
    socket = tmp_path / "run" / "reader"

    async def work() -> None:
        with ThreadPoolExecutor(1) as threads:
            here, there = LogScanner(ChunkLog(LogDirectory(tmp_path, "stop")), threads), ReaderScanner(socket)
            expected = await here.scan_page(REQUEST)
            assert [place.offset for place in expected.found] == list(range(3, 9))
            early = asyncio.create_task(there.scan_page(REQUEST))
            await asyncio.sleep(0)
            for _ in range(2):
                async with answering(app(here), socket):
                    assert await early == expected
                    assert await there.scan_page(REQUEST) == expected
            async with answering(app(Damaged()), socket):
                with pytest.raises(ReaderError, match="byte 17"):
                    await there.scan_page(REQUEST)
            monkeypatch.setattr(reader_client, "READER_RETRIES_MAX", 2)
            with pytest.raises(ReaderUnavailableError):
                await there.scan_page(REQUEST)

    asyncio.run(work())
