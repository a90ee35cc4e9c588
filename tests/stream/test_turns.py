"""Readers with a dear filter of one team, and another team's `last=1`: measured in turns, not in seconds."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

import pytest

from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.encode import Entries, encode
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.scan.chunks import ChunkLog
from headgate.scan.scan import Piece, Scan
from headgate.scan.source import Query, ReadableLog
from headgate.stream.follow import Readers
from headgate.stream.request import read_request
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import READ_THREADS

READERS: Final = 20
LOUD, QUIET = ServedBroker("loud/b/1", DEFAULT_RULE), ServedBroker("quiet/b/1", DEFAULT_RULE)
DEAR: Final = "data.items.exists(x, data.items.exists(y, x + y == -1))"


def stored(directory: Path) -> ChunkLog:
    """Many events of the one, among them some of the other."""
    items = json.dumps({"items": list(range(60))}).encode()

    def events(count: int) -> Sequence[Event]:
        return [Event("1.0", str(n), "/s", "t", data_kind=DataKind.JSON, data=items) for n in range(count)]

    writer = PartitionWriter(Partition(directory / "0", "stop"), EVENT_SCHEMA)
    for broker, count in [(LOUD, 100), (QUIET, 1)] * 10:
        chunk = encode([Entries(broker.identity, DEFAULT_RULE, events(count))])
        writer.append(Encoded(chunk.batch, chunk.filter_values))
    writer.close()
    return ChunkLog(LogDirectory(directory, "stop"))


def test_dear_filters_of_one_team_keep_no_other_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Counter[str]()
    brokers: dict[int, str] = {}
    make, step = Scan.__init__, Scan.step

    def made(scan: Scan, log: ReadableLog, query: Query, *more: dict[int, int]) -> None:
        brokers[id(scan)] = query.broker
        make(scan, log, query, *more)

    def stepped(scan: Scan, count: int, until: float) -> list[Piece]:
        steps[brokers[id(scan)]] += 1
        return step(scan, count, until)

    monkeypatch.setattr(Scan, "__init__", made)
    monkeypatch.setattr(Scan, "step", stepped)

    async def work() -> None:
        readers = Readers(stored(tmp_path), {"loud/b": LOUD, "quiet/b": QUIET}.get)

        async def scan_on() -> None:
            while True:
                wanted = read_request(LOUD, [("filter", DEAR)], follow=False)
                async with aclosing(readers.reading(wanted, user="eve")) as reading:
                    async for _ in reading:
                        pass

        scans = [asyncio.create_task(scan_on()) for _ in range(READERS)]
        try:
            while steps[LOUD.identity] < 2 * READERS:
                await asyncio.sleep(0.01)
            steps.clear()
            wanted = read_request(QUIET, [("last", "1")], follow=False)
            async with aclosing(readers.reading(wanted, user="ann")) as reading:
                found = [piece async for turn in reading for piece in turn.pieces]
            assert len(found) == 1
            # By the order in which they come it would wait for a turn of each of the others, every time.
            assert steps[LOUD.identity] < steps[QUIET.identity] * (READERS - READ_THREADS), steps
        finally:
            for scan in scans:
                scan.cancel()
            await asyncio.gather(*scans, return_exceptions=True)
            await readers.close()

    asyncio.run(work())
