"""All readers of a log, over HTTP and gRPC: their number, their brokers and their threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from headgate.control.quotas import READERS
from headgate.control.shared_quotas import QuotaPlaces, SharedQuotas
from headgate.control.specs import ServedBroker
from headgate.rpc.service import Credits
from headgate.scan.counting import CountPage, CountRequest, LogCounter
from headgate.scan.pages import LogScanner, ScanPage, ScanRequest
from headgate.scan.source import ReadableLog
from headgate.shares import FairPlaces, FairThreads
from headgate.stream.follow import LogGrowth, Turn, turns
from headgate.stream.request import ReadRequest
from headgate_api.control.errors import UnknownBrokerError
from headgate_api.errors import OverloadedError
from headgate_api.event.names import namespace_of, path_of
from headgate_api.limits import READ_PROGRESS_S, READ_THREADS, READERS_MAX


class ReadersQuotaError(OverloadedError):
    """As many readers of a namespace's brokers are at work as its quota allows."""

    code = "readers-quota"


class Readers:
    """All readers of a log, which is closed with them; `served` gives the broker "namespace/name", and may block."""

    def __init__(
        self, log: ReadableLog, served: Callable[[str], ServedBroker | None], quotas: SharedQuotas | None = None
    ) -> None:
        self._quota = QuotaPlaces(quotas, READERS, ReadersQuotaError, "a reader")
        self._log = log
        self._served = served
        self._threads = FairThreads(READ_THREADS, "read")
        self._growth = LogGrowth(log)
        self._followed: dict[str, tuple[float, str]] = {}
        """By path of a broker that is followed: when it was last looked up, and its identity then."""
        self._places = FairPlaces("readers", "READERS_MAX", READERS_MAX)

    async def close(self) -> None:
        """Wait for the threads, and close the log; readers have been closed."""
        await self._growth.close()
        self._threads.shutdown()
        self._log.close()

    async def broker(self, path: str) -> ServedBroker:
        """The broker "namespace/name" as it is in the store now, so that a deletion or creation is seen at once."""
        broker = await asyncio.to_thread(self._served, path)
        if broker is None:
            raise UnknownBrokerError(f"there is no broker {path!r}", hint="headgate get brokers -A lists them")
        return broker

    async def scan_page(self, request: ScanRequest) -> ScanPage:
        threads = self._threads.of(namespace_of(request.broker), request.user)
        return await LogScanner(self._log, threads).scan_page(request)

    async def count_page(self, request: CountRequest) -> CountPage:
        threads = self._threads.of(namespace_of(request.broker), request.user)
        return await LogCounter(self._log, threads).count_page(request)

    async def reading(
        self, wanted: ReadRequest, credits: Credits | None = None, user: str = ""
    ) -> AsyncGenerator[Turn, None]:
        """One reader's turns, see `follow.turns`; UnknownBrokerError once the broker has been deleted."""
        namespace = namespace_of(wanted.query.broker)
        with self._quota.held(namespace), self._places.held(namespace, user):
            pages = turns(self._log, wanted, self._threads.of(namespace, user), self._growth, credits)
            async with aclosing(pages) as reading:
                async for turn in reading:
                    if not turn.pieces and wanted.follow:
                        await self._check_broker(wanted.query.broker)
                    yield turn

    async def _check_broker(self, identity: str) -> None:
        path, now_s = path_of(identity), time.monotonic()
        seen_s, found = self._followed.get(path, (0.0, ""))
        if not seen_s or now_s - seen_s >= READ_PROGRESS_S:  # one look-up for all that follow it
            found = (await self.broker(path)).identity
            self._followed[path] = now_s, found
        if found != identity:
            raise UnknownBrokerError(f"the broker {path!r} has been made anew", hint="read again, from earliest")
