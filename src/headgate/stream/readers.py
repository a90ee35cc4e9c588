"""How many read at the same time, of which broker, in which threads? What reading over HTTP and gRPC share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

from headgate.control.logrules import LogRule
from headgate.errors import NotFoundError, OverloadedError
from headgate.limits import READ_THREADS, READERS_MAX
from headgate.log.ends import partitions_of
from headgate.rpc.credits import Credits
from headgate.scan.turns import LogScanner, Scanner
from headgate.stream.follow import Turn, turns
from headgate.stream.growth import LogGrowth
from headgate.stream.request import ReadRequest


class BrokerNotFoundError(NotFoundError):
    """There is no such broker."""

    code = "unknown-broker"


class ReadersOverloadError(OverloadedError):
    """READERS_MAX readers are at work."""

    code = "readers"


class Readers:
    """All readers of a log.

    Args:
        directory: Directory of the log's partitions.
        log_rule: How the events of "namespace/name" are stored; None when there is no such broker.
    """

    def __init__(self, directory: Path, log_rule: Callable[[str], LogRule | None]) -> None:
        self._directory = directory
        self._log_rule = log_rule
        self._threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="read")
        self._growth = LogGrowth(directory)
        self._count = 0
        self.scanner: Scanner = LogScanner(directory, self._threads)
        """Looks through the log in the readers' threads."""

    async def close(self) -> None:
        """Wait for the threads; readers have been closed."""
        await self._growth.close()
        self._threads.shutdown(wait=True)

    def rule(self, broker: str) -> LogRule:
        """How the events of "namespace/name" are stored.

        Raises:
            BrokerNotFoundError: There is no such broker.
        """
        rule = self._log_rule(broker)
        if rule is None:
            raise BrokerNotFoundError(f"there is no broker {broker!r}", hint="headgate get brokers lists them")
        return rule

    def check_room(self) -> None:
        """Raises ReadersOverloadError when there are enough."""
        if self._count >= READERS_MAX:
            raise ReadersOverloadError(f"{READERS_MAX} readers are at work", hint="try again later")

    async def reading(self, wanted: ReadRequest, credits: Credits | None = None) -> AsyncGenerator[Turn, None]:
        """One reader's turns, see `follow.turns`."""
        partitions = partitions_of(self._directory)
        self._count += 1
        try:
            pages = turns(self._directory, partitions, wanted, self._threads, self._growth, credits)
            async with aclosing(pages) as reading:
                async for turn in reading:
                    yield turn
        finally:
            self._count -= 1
