"""All readers of a log, over HTTP and gRPC: their number, their brokers and their threads."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from headgate.control.errors import UnknownBrokerError
from headgate.control.log_spec import ServedBroker
from headgate.control.quota_rules import READERS
from headgate.control.shared_quotas import SharedQuotas
from headgate.errors import OverloadedError
from headgate.event.identity import namespace_of, path_of
from headgate.limits import READ_PROGRESS_S, READ_THREADS, READERS_MAX
from headgate.rpc.credits import Credits
from headgate.scan.counting import EventCounter, LogCounter
from headgate.scan.pages import LogScanner, Scanner
from headgate.scan.source import ReadableLog
from headgate.stream.follow import Turn, turns
from headgate.stream.growth import LogGrowth
from headgate.stream.request import ReadRequest


class ReadersOverloadError(OverloadedError):
    """READERS_MAX readers are at work."""

    code = "readers"


class ReadersQuotaError(OverloadedError):
    """As many readers of a namespace's brokers are at work as its quota allows."""

    code = "readers-quota"


class Readers:
    """All readers of a log.

    Args:
        log: What they read; closed with this object.
        served: The broker "namespace/name", None when there is none that accepts events; may block.
        quotas: How many readers the brokers of a namespace may have; None: any number.
    """

    def __init__(
        self, log: ReadableLog, served: Callable[[str], ServedBroker | None], quotas: SharedQuotas | None = None
    ) -> None:
        self._quotas = quotas
        self._by_namespace = Counter[str]()
        if quotas is not None:
            quotas.count(READERS, self._by_namespace.__getitem__)
        self._log = log
        self._served = served
        self._threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="read")
        self._growth = LogGrowth(log)
        self._followed: dict[str, tuple[float, str]] = {}
        """By path of a broker that is followed: when it was last looked up, and its identity then."""
        self._count = 0
        self.scanner: Scanner = LogScanner(log, self._threads)
        """Scans the log in the readers' threads."""
        self.counter: EventCounter = LogCounter(log, self._threads)
        """Counts in them."""

    async def close(self) -> None:
        """Wait for the threads, and close the log; readers have been closed."""
        await self._growth.close()
        self._threads.shutdown(wait=True)
        self._log.close()

    async def broker(self, path: str) -> ServedBroker:
        """The broker "namespace/name" as it is in the store now, so that a deletion or creation is seen at once.

        Raises:
            UnknownBrokerError: There is none.
        """
        broker = await asyncio.to_thread(self._served, path)
        if broker is None:
            raise UnknownBrokerError(f"there is no broker {path!r}", hint="headgate get brokers -A lists them")
        return broker

    def check_room(self) -> None:
        """Raises ReadersOverloadError when there are enough."""
        if self._count >= READERS_MAX:
            raise ReadersOverloadError(f"{READERS_MAX} readers are at work", hint="try again later")

    async def reading(self, wanted: ReadRequest, credits: Credits | None = None) -> AsyncGenerator[Turn, None]:
        """One reader's turns, see `follow.turns`.

        Raises:
            UnknownBrokerError: The broker has been deleted, and nothing more comes.
            ReadersQuotaError: Its namespace has as many as it may have.
        """
        namespace = namespace_of(wanted.query.broker)
        self._check_quota(namespace)
        self._by_namespace[namespace] += 1
        self._count += 1
        try:
            pages = turns(self._log, wanted, self._threads, self._growth, credits)
            async with aclosing(pages) as reading:
                async for turn in reading:
                    if not turn.pieces and wanted.follow:
                        await self._check_broker(wanted.query.broker)
                    yield turn
        finally:
            self._count -= 1
            self._by_namespace[namespace] -= 1
            if not self._by_namespace[namespace]:
                del self._by_namespace[namespace]

    def _check_quota(self, namespace: str) -> None:
        if self._quotas is not None and self._quotas.is_used_up(READERS, namespace):
            limit = self._quotas.limit(READERS, namespace)
            raise ReadersQuotaError(
                f"the namespace {namespace!r} has exceeded its quota: {READERS} is limited to {limit}",
                hint="close a reader, or ask for a larger quota: kubectl describe quota shows the limits",
            )

    async def _check_broker(self, identity: str) -> None:
        path, now_s = path_of(identity), time.monotonic()
        seen_s, found = self._followed.get(path, (0.0, ""))
        if not seen_s or now_s - seen_s >= READ_PROGRESS_S:  # one look-up for all that follow it
            found = (await self.broker(path)).identity
            self._followed[path] = now_s, found
        if found != identity:
            raise UnknownBrokerError(f"the broker {path!r} has been made anew", hint="read again, from earliest")
