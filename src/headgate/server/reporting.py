"""Reports of filter errors, of subscribers in trouble and of dropped events, for the status of their triggers."""

from __future__ import annotations

import asyncio

import structlog

from headgate import limits
from headgate.delivery.verdicts import FilterErrors
from headgate.errors import UnavailableError
from headgate.observe.logs import tell_failure
from headgate.server.routing_cache import TargetReports

_log = structlog.get_logger(__name__)


class TargetReporter:
    """Tells what was seen of targets, every REPORT_S_MIN at most.

    Args:
        store: Where they are told.
        errors: What was seen.
    """

    def __init__(self, store: TargetReports, errors: FilterErrors) -> None:
        self._store = store
        self._errors = errors
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """There may be something to report."""
        if self._errors and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(limits.REPORT_S_MIN, self._start)

    async def close(self) -> None:
        """Report what is left."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._errors:
            await self._report()

    def _start(self) -> None:
        self._writing = asyncio.create_task(self._report())
        self._writing.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._timer = self._writing = None
        self.wake()
        tell_failure(task, "reporting on targets failed")

    async def _report(self) -> None:
        reports = self._errors.take()
        try:
            await asyncio.to_thread(self._store.report, reports)
        except UnavailableError as error:  # numbers for people: worth a line, not a restart
            _log.warning("reports on targets were not written", error=str(error), targets=len(reports))
            self._errors.untold(reports)
