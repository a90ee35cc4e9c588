"""`headgate filter backtest --data`: the files of a data directory as what is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headgate.cli.backtest import AskPage
from headgate.control.object_reader import ObjectReader
from headgate.inspect.backtest import Backtests
from headgate.log.directory import LogDirectory
from headgate.scan.chunks import ChunkLog
from headgate.scan.counting import LogCounter


@contextlib.contextmanager
def asking(data: Path, broker: str) -> Iterator[AskPage]:
    """Asks the objects and the log of a data directory, which it only reads.

    Args:
        data: The data directory.
        broker: namespace/name.
    """
    objects = ObjectReader(data)
    with ThreadPoolExecutor(1) as threads, asyncio.Runner() as runner:
        log = ChunkLog(LogDirectory(data / "log", "stop"))
        backtests = Backtests(objects, log, LogCounter(log, threads))
        yield lambda asked: runner.run(backtests.page(broker, asked))
