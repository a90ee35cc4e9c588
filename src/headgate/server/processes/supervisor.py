"""The supervisor: starts the processes in order, restarts each alone, drains them in order."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from headgate.backend.config import ClusterConfig
from headgate.observe import logs, metrics
from headgate.observe.exposition import Publisher
from headgate.observe.logs import Recurring
from headgate.server import child, datadir, parts, preflight, ready
from headgate.server.parts import Role, ServerPart
from headgate.server.peers import instance
from headgate.server.processes.zygote import ForkedPart, Zygote, reap_orphans
from headgate.settings import Settings
from headgate_api import limits

_log = structlog.get_logger()

DRAIN: Final = (
    (frozenset({Role.CONTROL, Role.OBJECTS, Role.READER}), 5.0),
    (frozenset({Role.MATCHER, Role.SOURCE}), 8.0),
    (frozenset({Role.DISPATCHER}), 10.0),
    (frozenset({Role.FRONT}), 7.0),
)
"""Roles in the order in which they stop, with the seconds of each, DRAIN_S_MAX in all; what one leaves the next has.
Fronts end last, and take nothing from outside meanwhile: answers to deliveries may be events to be stored."""


class Supervisor:
    """Runs the server's processes until it is told to stop; `on_ready` gets the seconds until every part was ready."""

    def __init__(
        self, settings: Settings, on_ready: Callable[[float], None], cluster: ClusterConfig | None = None
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._on_ready = on_ready
        self._zygote = Zygote(settings, secrets.token_bytes(32), cluster)
        self._processes: dict[ServerPart, ForkedPart] = {}
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._starting = asyncio.Lock()
        """Held while a process is being started, so that a stop misses none that is there and not known yet."""

    async def run(self) -> int:
        """Runs until SIGTERM or SIGINT; returns 0 after an orderly drain, else 1. FatalError: a part cannot work."""
        loop = asyncio.get_running_loop()
        with datadir.owned(self._settings):
            logs.keep(self._settings.data)
            # Before signals are caught: it may last, and may be broken off at any instant.
            if self._cluster is None:
                preflight.check_files(self._settings)
                self._settings = self._zygote.settings = preflight.arrange_dispatchers(self._settings)
            else:
                instance.make_name(self._settings.data)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stopping.set)
            publisher = Publisher(self._settings.metrics_directory, "supervisor")
            if self._settings.metrics:
                publisher.start()
            keepers = [self._task(self._keep(part)) for part in parts.of_server(self._settings)]
            others = [self._task(self._announce()), self._task(self._watch()), self._task(self._measure_disk())]
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

    async def _keep(self, part: ServerPart) -> None:
        """Starts the process of `part` again whenever it ends, after a pause that grows while it keeps failing."""
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
                    raise ready.refusal(self._settings.run_directory, part.name)
                why = f"ended with status {status}"
            ready.ended(self._settings.run_directory, part.name, f"{why}, is started again")
            if self._stopping.is_set():
                return
            lived_s = time.monotonic() - started
            pause_s = limits.RESTART_PAUSE_S_MIN if lived_s > limits.RESTART_PAUSE_S_MAX else pause_s * 2
            pause_s = min(pause_s, limits.RESTART_PAUSE_S_MAX)
            metrics.RESTARTS.labels(part.name).inc()
            _log.error("process ended, restarting", part=part.name, why=why, lived_s=round(lived_s, 1), pause_s=pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _start(self, part: ServerPart) -> ForkedPart | None:
        """None when it is too late for one."""
        async with self._starting:
            if self._stopping.is_set():
                return None
            process = self._processes[part] = await self._zygote.start(part)
            return process

    async def _watch(self) -> None:
        """Counts the parts that work, and kills a process that lives and hangs; its keeper starts it again."""
        beats = Beats()
        while True:
            await asyncio.sleep(limits.HEARTBEAT_S)
            if not self._starting.locked():  # else it may be a part that is not known yet
                pids = (self._zygote.pid, *(process.pid for process in self._processes.values()))
                reap_orphans(frozenset(filter(None, pids)))
            for part, is_ready in ready.parts_ready(self._settings).items():
                metrics.READY.labels(part.name).set(is_ready)
            for part, process in list(self._processes.items()):
                beat_at = ready.beat_at(self._settings.run_directory, part.name)
                if beats.hangs(part.name, beat_at, time.monotonic()) and process.returncode is None:
                    _log.error("process hangs, killed", part=part.name, silent_s=limits.HUNG_S_MAX)
                    await _kill(process)

    async def _measure_disk(self) -> None:
        """Apart from `_watch`, as a disk may not answer."""
        measures = Recurring(_log, "the disk cannot be measured", OSError)
        while True:
            with measures.attempt():
                usage = await asyncio.to_thread(shutil.disk_usage, self._settings.data)
                metrics.DISK_BYTES.labels("free").set(usage.free)
                metrics.DISK_BYTES.labels("total").set(usage.total)
                logs.rotate(self._settings.data)
            await asyncio.sleep(limits.HEARTBEAT_S)

    async def _announce(self) -> None:
        started = time.monotonic()
        while not all(ready.parts_ready(self._settings).values()):
            await asyncio.sleep(0.05)
        self._on_ready(time.monotonic() - started)

    async def _drain(self) -> bool:
        """True when each ended by itself in its time, see `DRAIN`."""
        giving_up = asyncio.get_running_loop().call_later(limits.FORK_AT_STOP_S_MAX, self._zygote.give_up)
        async with self._starting:  # the process that was just being started is known now, and no other follows
            giving_up.cancel()
            await self._zygote.close()
        for process in self._alive(frozenset({Role.FRONT})).values():
            process.send_signal(signal.SIGUSR1)
        clean, deadline = True, time.monotonic()
        for roles, share_s in DRAIN:
            deadline += share_s
            stops = [_stop(part, process, deadline) for part, process in self._alive(roles).items()]
            clean &= all(await asyncio.gather(*stops))
        return clean

    def _alive(self, roles: frozenset[Role]) -> dict[ServerPart, ForkedPart]:
        return {
            part: process
            for part, process in self._processes.items()
            if part.role in roles and process.returncode is None
        }


async def _stop(part: ServerPart, process: ForkedPart, deadline: float) -> bool:
    """Stops a process; False when it did not end by itself before `deadline`, in monotonic seconds."""
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), deadline - time.monotonic())
    except TimeoutError:
        _log.error("process did not stop in time, killed", part=part.name)
        await _kill(process)
        return False
    return True


async def _kill(process: ForkedPart) -> None:
    """Ends a process that hangs; its last words say where each of its threads stands."""
    process.send_signal(child.STACKS_SIGNAL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), limits.STACKS_S)
    process.kill()


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
