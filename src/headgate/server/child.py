"""What all supervised processes share: how they learn their settings, when they stop, and what ends them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvicorn

from headgate.server import parts
from headgate.server.parts import ServerPart
from headgate.settings import Settings
from headgate_api.limits import GC_GROWTH_BYTES, GC_WHOLE_GROWTH_BYTES, GC_YOUNG_OBJECTS

if TYPE_CHECKING:
    from headgate.backend.config import ClusterConfig

_log = structlog.get_logger(__name__)

SETTINGS_VARIABLE = "HEADGATE_CHILD_SETTINGS"
CLUSTER_VARIABLE = "HEADGATE_CHILD_CLUSTER"
TOKEN_VARIABLE = "HEADGATE_CHILD_TOKEN"
STACKS_SIGNAL: Final = signal.SIGUSR2
"""A part that gets it writes the stack of each of its threads to its standard error, whatever it is doing."""
FATAL_STATUS: Final = 78
"""Exit status of a part for which starting again does not help (EX_CONFIG of sysexits.h): `ready.refusal` says why."""


@dataclass(frozen=True)
class Context:
    """What the supervisor gives to a process; the random `token`, new at every start, is for the match link."""

    settings: Settings
    token: bytes
    part: ServerPart
    cluster: ClusterConfig | None = None

    @property
    def on_kafka(self) -> ClusterConfig:
        assert self.cluster is not None, "`parts.module_of` has looked"
        return self.cluster


def environment(settings: Settings, token: bytes, cluster: ClusterConfig | None = None) -> dict[str, str]:
    """The environment of a child: ours, the settings, the token, and the deployment on Kafka, which holds no secret."""
    return {
        "GRPC_VERBOSITY": "ERROR",  # else each client that fails in a handshake is a line
        **os.environ,
        SETTINGS_VARIABLE: settings.model_dump_json(),
        TOKEN_VARIABLE: token.hex(),
        **({} if cluster is None else {CLUSTER_VARIABLE: cluster.model_dump_json()}),
    }


def settings() -> Settings:
    """The server's settings, as the supervisor gave them to this process."""
    return Settings.model_validate_json(os.environ[SETTINGS_VARIABLE])


def context(name: str) -> Context:
    """What the supervisor gave to this process; UnknownPartError when the server has no part of that name."""
    given = settings()
    cluster = None
    if given.is_on_kafka:
        from headgate.backend.config import ClusterConfig  # imports that no other process needs

        cluster = ClusterConfig.model_validate_json(os.environ[CLUSTER_VARIABLE])
    return Context(given, bytes.fromhex(os.environ.pop(TOKEN_VARIABLE)), parts.named(given, name), cluster)


class UvicornServer(uvicorn.Server):
    """uvicorn that leaves signals to us, and sleeps until told to end: its own loop keeps a date header we have not."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._told = asyncio.Event()
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        return self._told.is_set()

    @should_exit.setter
    def should_exit(self, is_told: bool) -> None:
        if is_told:
            self._told.set()
        else:
            self._told.clear()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # sets the headers of every answer
        await self._told.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: `on_stop` handles them."""
        yield


def raise_file_limit(wanted: int) -> None:
    """Sockets are files: takes what the system allows without asking for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def spare_collector() -> None:
    """After the start: what it made lives as long as the process, so the collector need not look at it again.

    At what comes later it looks seldom: with caches of events each full look is a pause of the loop; see `Growth`.
    """
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)


class Growth:
    """Lets memory decide when the collector looks, beside the number of objects: few may hold much."""

    def __init__(self, used_bytes: Callable[[], int] | None = None) -> None:
        self._used_bytes = used_bytes or _resident_bytes
        self._young_bytes = self._whole_bytes = self._used_bytes()

    def look(self) -> None:
        """Collects where the process has grown by GC_GROWTH_BYTES since the last time; call it every second or so."""
        used = self._used_bytes()
        if used - self._whole_bytes >= GC_WHOLE_GROWTH_BYTES:
            gc.collect()
            self._whole_bytes = self._young_bytes = self._used_bytes()
        elif used - self._young_bytes >= GC_GROWTH_BYTES:
            gc.collect(1)
            self._young_bytes = self._used_bytes()
        else:  # what was given back may come again
            self._young_bytes = min(self._young_bytes, used)
            self._whole_bytes = min(self._whole_bytes, used)


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def setter(event: asyncio.Event) -> Callable[[], None]:
    """Sets an event of the running loop, from a signal or another thread."""
    loop = asyncio.get_running_loop()

    def set_event() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: what the process says last is not broken off
            loop.call_soon_threadsafe(event.set)

    return set_event


def on_drain(callback: Callable[[], object]) -> None:
    """Calls `callback` on SIGUSR1: take nothing more from outside, a stop follows."""
    signal.signal(signal.SIGUSR1, lambda *_: callback())


def on_stop(callback: Callable[[], object]) -> None:
    """Calls `callback` once, on SIGTERM or when the supervisor is gone (our standard input, a pipe from it, ends).

    The callback runs in a thread of its own. A signal's handler breaks into the main thread, which may hold the lock
    that the callback takes, as `threading.Event.wait` does for an instant. Nor does it wait for the main thread, which
    may be in a call that no signal breaks off: the interpreter itself writes each signal to the pipe `tell`, and the
    handler does so where an event loop has taken that over.
    """
    told, tell = os.pipe()
    os.set_blocking(tell, False)

    def watch() -> None:
        ends = select.poll()
        for end in (sys.stdin.fileno(), told):
            ends.register(end, select.POLLIN)
        is_told = False
        while not is_told:
            (end, _), *_ = ends.poll()
            found = os.read(end, 1)
            is_told = not found if end == sys.stdin.fileno() else found[0] == signal.SIGTERM
        callback()

    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: os.write(tell, bytes([signal.SIGTERM])))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides the order
    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


async def ended(*tending: asyncio.Task[None]) -> BaseException | None:
    """Cancels what works beside the requests, and waits for it; returns an error, which shall end the process."""
    for task in tending:
        task.cancel()
    ends = await asyncio.gather(*tending, return_exceptions=True)
    failures = [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)]
    for failure in failures:
        _log.error("the process fails", exc_info=failure)
    return failures[0] if failures else None


async def until_stopped(
    stop: asyncio.Event,
    works: Iterable[Coroutine[Any, Any, None]],
    loops: Sequence[Callable[[threading.Event], None]],
    on_end: Callable[[], None],
) -> None:
    """Works until told to stop, or until a work or a loop ends; raises the error of one that fails.

    Each of `loops` has a thread, and ends when its event is set; `on_end` is called before any of them is ended.
    """
    enough = threading.Event()
    tasks = [asyncio.create_task(work) for work in works]
    with ThreadPoolExecutor(max(1, len(loops))) as threads:
        apart = [asyncio.get_running_loop().run_in_executor(threads, one, enough) for one in loops]
        ends: list[asyncio.Future[Any]] = [*tasks, *apart, asyncio.create_task(stop.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            on_end()
            enough.set()
            failure = await ended(*tasks)
            if apart:
                await asyncio.wait(apart)
    for one in apart:
        one.result()
    if failure is not None:
        raise failure


async def lasting(work: Awaitable[object]) -> None:
    """Does a work once, and never ends, as the end of a task ends the process."""
    await work
    await asyncio.Event().wait()


@contextlib.contextmanager
def failing(stop: asyncio.Event, what: str) -> Iterator[None]:
    """What fails in the running loop and nobody awaits is logged as `what`, sets `stop`, and ends the block."""
    loop = asyncio.get_running_loop()
    failures: list[BaseException] = []

    def on_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        _log.error(what, reason=context.get("message"), exc_info=error)
        failures.append(error if isinstance(error, BaseException) else RuntimeError(context.get("message")))
        stop.set()

    loop.set_exception_handler(on_failure)
    try:
        yield
    finally:
        loop.set_exception_handler(None)
    if failures:
        raise failures[0]
