"""The supervisor: starts the processes in order, restarts each alone, drains them in order."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from headgate import limits
from headgate.observe import metrics
from headgate.observe.exposition import Publisher
from headgate.server import child, datadir, preflight, ready
from headgate.settings import Settings

_log = structlog.get_logger()

DRAIN_S: Final = {"reader": 3.0, "matcher": 8.0, "dispatcher": 12.0, "front": 7.0}
"""The parts in the order in which they stop, with the seconds that each may take, DRAIN_S_MAX in all. Before that front
takes nothing more from outside. It ends last: what is delivered meanwhile may be answered with events to be stored."""


class Supervisor:
    """Runs the server's processes until it is told to stop.

    Args:
        settings: The server's settings.
        on_ready: Called once, when every part is ready for the first time, with the seconds that it took.
    """

    def __init__(self, settings: Settings, on_ready: Callable[[float], None]) -> None:
        self._settings = settings
        self._on_ready = on_ready
        self._token = secrets.token_bytes(32)
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._starting = asyncio.Lock()
        """Held while a process is being started, so that a stop misses none that is there and not known yet."""

    async def run(self) -> int:
        """Runs until SIGTERM or SIGINT; returns the exit status, 0 after an orderly drain.

        Raises:
            FatalError: A part cannot work, and starting it again does not help; the others have been stopped.
            HeadgateError: The data directory cannot be had.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        with datadir.owned(self._settings):
            preflight.check_files(self._settings)
            publisher = Publisher(self._settings.metrics_directory, "supervisor")
            if self._settings.metrics:
                publisher.start()
            keepers = [self._task(self._keep(part)) for part in ready.PARTS]
            others = [self._task(self._announce()), self._task(self._watch())]
            await self._stopping.wait()
            for task in others:
                task.cancel()
            clean = await self._drain()
            await asyncio.wait([*keepers, *others])
            if self._settings.metrics:
                publisher.close()
        if self._failure is not None:
            raise self._failure
        return 0 if clean else 1

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose error ends the server: nobody would do its work from then on."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._stopping.set()

    async def _keep(self, part: str) -> None:
        """Starts the process of `part` again whenever it ends, after a pause that grows while it keeps failing.

        Raises:
            FatalError: It said that starting it again does not help.
        """
        pause_s = limits.RESTART_PAUSE_S_MIN
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                process = await self._start(part)
            except OSError as error:  # no memory or no process is left: perhaps there is later
                why = f"cannot be started: {error}"
            else:
                if process is None:
                    return
                status = await process.wait()
                if status == child.FATAL_STATUS and not self._stopping.is_set():
                    raise ready.refusal(self._settings.run_directory, part)
                why = f"ended with status {status}"
            ready.ended(self._settings.run_directory, part, f"{why}, is started again")
            if self._stopping.is_set():
                return
            lived_s = time.monotonic() - started
            pause_s = limits.RESTART_PAUSE_S_MIN if lived_s > limits.RESTART_PAUSE_S_MAX else pause_s * 2
            pause_s = min(pause_s, limits.RESTART_PAUSE_S_MAX)
            metrics.RESTARTS.labels(part).inc()
            _log.error("process ended, restarting", part=part, why=why, lived_s=round(lived_s, 1), pause_s=pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _start(self, part: str) -> asyncio.subprocess.Process | None:
        """The process of `part`; None when it is too late for one."""
        async with self._starting:
            if self._stopping.is_set():
                return None
            process = self._processes[part] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headgate.server",
                part,
                stdin=asyncio.subprocess.PIPE,
                env=child.environment(self._settings, self._token),
            )
            return process

    async def _watch(self) -> None:
        """Kills a process that lives and hangs; its keeper starts it again."""
        beats = Beats()
        while True:
            await asyncio.sleep(limits.HEARTBEAT_S)
            for part, process in self._processes.items():
                beat_at = ready.beat_at(self._settings.run_directory, part)
                if beats.hangs(part, beat_at, time.monotonic()) and process.returncode is None:
                    _log.error("process hangs, killed", part=part, silent_s=limits.HUNG_S_MAX)
                    process.kill()

    async def _announce(self) -> None:
        started = time.monotonic()
        while not all(ready.parts_ready(self._settings.run_directory).values()):
            await asyncio.sleep(0.05)
        self._on_ready(time.monotonic() - started)

    async def _drain(self) -> bool:
        """Stops the parts one after the other; True when each ended by itself within its share of the time."""
        clean = True
        async with self._starting:
            pass  # the process that was just being started is known now, and no other follows
        front = self._processes.get("front")
        if front is not None and front.returncode is None:
            front.send_signal(signal.SIGUSR1)
        for part, seconds_max in DRAIN_S.items():
            process = self._processes.get(part)
            if process is None or process.returncode is not None:
                continue
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), seconds_max)
            except TimeoutError:
                _log.error("process did not stop in time, killed", part=part)
                process.kill()
                clean = False
        return clean


class Beats:
    """Tells which process has not turned its loop for HUNG_S_MAX, by a clock that sleeps with the machine."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float | None, float]] = {}

    def hangs(self, part: str, beat_at: float | None, now: float) -> bool:
        """Look at a part's last beat; a part that has not begun to beat is starting, which may take its time."""
        last, since = self._seen.get(part, (None, now))
        if beat_at is None or beat_at != last:
            self._seen[part] = (beat_at, now)
            return False
        if now - since <= limits.HUNG_S_MAX:
            return False
        self._seen[part] = (None, now)  # said once; its successor begins anew
        return True
