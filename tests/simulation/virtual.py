"""A world in which time, disks and death are numbers: an event loop of virtual time, and executors and files on it.

Nothing waits: the loop jumps to its next timer, work of threads is done on the loop when its simulated disk has had its
time, and a process that is killed only finds that no write of it reaches the disk any more. One seed decides it all.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
import selectors
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from headgate.log.files import Bytes, FileOps

EPOCH_US = 1_700_000_000_000_000


class _Selector(selectors.SelectSelector):
    """Waits for nothing: time goes on at once."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits for ever")
        self.loop.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing can be done."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def _write_to_self(self) -> None:
        """There is one thread: nobody has to be woken."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        if executor is None:  # asyncio.to_thread
            return _done(self, func, *args)
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)


def _done(loop: asyncio.AbstractEventLoop, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
    future = loop.create_future()
    try:
        future.set_result(func(*args))
    except Exception as error:  # noqa: BLE001
        future.set_exception(error)
    return future


class Disk(FileOps):
    """One process's view of the disk: slow at times, full at times, and gone once the process is dead.

    Args:
        loop: Whose time it takes.
        rng: Decides how long things take.
    """

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.slow_s = 0.0
        self.full = False
        self.dead = False
        self.torn = False
        self.jobs: list[Job] = []

    def latency_s(self) -> float:
        return self.rng.uniform(0.0001, 0.002) + (self.rng.uniform(0.0, self.slow_s) if self.slow_s else 0.0)

    def check(self) -> None:
        """Raises OSError when nothing can be written now."""
        if self.dead:
            raise OSError(errno.EIO, "the process is dead")
        if self.full:
            raise OSError(errno.ENOSPC, "no space left on device")

    def pwritev(self, fd: int, parts: Sequence[Bytes], position: int) -> int:
        self.check()
        if self.torn:
            data = b"".join(bytes(memoryview(part)) for part in parts)
            super().pwritev(fd, [data[: self.rng.randrange(len(data))]], position)
            self.dead = True
            raise OSError(errno.EIO, "killed while writing")
        return super().pwritev(fd, parts, position)

    def fdatasync(self, fd: int) -> None:
        self.check()

    def fsync(self, fd: int) -> None:
        self.check()

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        if self.dead:
            raise OSError(errno.EIO, "the process is dead")
        super().ftruncate(fd, size_bytes)

    def open(self, path: Path, flags: int) -> int:
        return super().open(path, flags)

    def kill(self) -> None:
        """The process is killed: each write that was under way has happened, happened in part, or not."""
        for job in list(self.jobs):
            match self.rng.randrange(3):
                case 0:
                    job.finish()
                case 1:
                    self.torn = True
                    job.finish()
                    self.torn = False
                case _:
                    pass
            if self.dead:
                break
        self.dead = True


class Job:
    """Work that a thread of the process that asks for it would do."""

    def __init__(self, disk: Disk, work: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._process = contextvars.copy_context()
        self._disk = disk
        self._work = work
        disk.jobs.append(self)

    def finish(self) -> None:
        """Do it now, once."""
        if self in self._disk.jobs:
            self._disk.jobs.remove(self)
            self._process.run(self._do)

    def _do(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._work())
        except Exception as error:  # noqa: BLE001
            self.future.set_exception(error)


def executors(disk_of: Callable[[], Disk]) -> type:
    """A ThreadPoolExecutor that has no threads: each piece of work is done when the disk has had its time.

    Args:
        disk_of: The disk of the process that makes the executor.
    """

    class Executor:
        def __init__(self, *_: object, **__: object) -> None:
            self._disk = disk_of()
            self._free_at = 0.0
            self._mine: list[Job] = []

        def submit(self, func: Callable[..., Any], *args: Any) -> Future[Any]:
            disk = self._disk
            job = Job(disk, lambda: func(*args))
            self._mine.append(job)
            self._free_at = max(self._free_at, disk.loop.now) + disk.latency_s()
            disk.loop.call_at(self._free_at, self._finish, job)
            return job.future

        def _finish(self, job: Job) -> None:
            if job in self._mine:
                self._mine.remove(job)
            job.finish()

        def shutdown(self, wait: bool = True) -> None:
            while self._mine:
                self._mine.pop(0).finish()

    return Executor
