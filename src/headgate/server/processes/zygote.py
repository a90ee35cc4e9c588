"""The zygote: the process that the parts of a server are forked from, so that what they import is in memory once.

It starts no thread. The supervisor sends it the name of a part with the end of a pipe; it forks twice, so that the part
becomes a child of the supervisor, the subreaper, and answers with the part's process id.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from headgate.backend.config import ClusterConfig
from headgate.server import child, parts
from headgate.server.parts import Role, ServerPart
from headgate.settings import Settings
from headgate_api import limits

_NAME_BYTES_MAX: Final = 64
_PID_BYTES_MAX: Final = 16
_PR_SET_CHILD_SUBREAPER: Final = 36
_TITLE_PADDING: Final = "-" * _NAME_BYTES_MAX
"""Makes room for the command line of each part, which is written over that of the zygote."""
_ARG_START: Final = 45
"""Place of the command line's begin in /proc/PID/stat, behind the process's name; its end follows."""
_UNKNOWN_STATUS: Final = 255
_THREADLESS: Final = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""One thread of those before a fork goes on behind it: PyArrow would begin one for an allocator that nobody uses."""


# --- the supervisor's end -------------------------------------------------------------------------


class ForkedPart:
    """A running part, like `asyncio.subprocess.Process`: a `returncode` below 0 is the signal that ended it."""

    def __init__(self, pid: int, lifeline: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._handle = os.pidfd_open(pid)
        self._lifeline = lifeline
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._handle, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        try:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # somebody else has waited for it
            self.returncode = _UNKNOWN_STATUS
        os.close(self._handle)
        os.close(self._lifeline)
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Zygote:
    """Starts parts, one at a time, on the supervisor's loop; `settings` may be replaced before the first start."""

    def __init__(self, settings: Settings, token: bytes, cluster: ClusterConfig | None) -> None:
        self.settings = settings
        self._token = token
        self._cluster = cluster
        self._process: asyncio.subprocess.Process | None = None
        self._way: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self, part: ServerPart) -> ForkedPart:
        """A process of `part`; OSError where there is none: no memory, no files, or a failed zygote, made anew."""
        try:
            return await self._fork(part)
        except TimeoutError as error:
            await self.close()
            raise OSError(f"the process that parts are forked from was silent for {limits.FORK_S_MAX:g} s") from error
        except BaseException:
            await self.close()
            raise

    async def _fork(self, part: ServerPart) -> ForkedPart:
        way = self._way or await self._begin()
        loop = asyncio.get_running_loop()
        reading, lifeline = os.pipe()  # the part ends when nobody holds the other end any more: see `child.on_stop`
        try:
            socket.send_fds(way, [part.name.encode()], [reading])
            async with asyncio.timeout(limits.FORK_S_MAX):
                answer = await loop.sock_recv(way, _PID_BYTES_MAX)
            if not answer:
                raise OSError("the process that parts are forked from has ended, or cannot fork")
            return ForkedPart(int(answer), lifeline)
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(reading)

    async def _begin(self) -> socket.socket:
        become_subreaper()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)
            self._way = ours
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headgate.server.processes.zygote",
                _TITLE_PADDING,
                stdin=theirs.fileno(),
                env={**_THREADLESS, **child.environment(self.settings, self._token, self._cluster)},
            )
        return ours

    def give_up(self) -> None:
        """A start that is under way fails, if it still waits for the zygote."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        """End it; the parts live on."""
        if self._way is not None:
            self._way.close()
            self._way = None
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def become_subreaper() -> None:
    """Orphans among our descendants become our children, not those of the first process of the system."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def reap_orphans(known: frozenset[int]) -> None:
    """Lets those of our children go that have ended and that nobody waits for: what a killed part had started."""
    states = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, states)) is not None and ended.si_pid not in known:
            os.waitpid(ended.si_pid, 0)


# --- the process itself ---------------------------------------------------------------------------


def main() -> None:
    """Forks parts until the supervisor is gone; a part goes on as `python -m headgate.server PART` does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    way = socket.socket(fileno=os.dup(0))
    import_parts(child.settings())
    gc.collect()
    gc.freeze()  # the collector would write to every object, and each part would get pages of its own
    if (name := _next_part(way)) is None:
        return
    way.close()
    sys.argv = ["headgate.server", name]
    show_title(f"{sys.executable}\0-m\0headgate.server\0{name}\0")
    importlib.import_module("headgate.server.__main__").main()


def import_parts(settings: Settings) -> None:
    """Imports the modules of all parts but the matcher's, whose PySpark nobody else needs."""
    importlib.import_module("headgate.server.__main__")
    for part in parts.of_server(settings):
        if part.role is not Role.MATCHER:
            importlib.import_module(parts.module_of(settings, part))


def _next_part(way: socket.socket) -> str | None:
    """Returns in each forked process, with the name of its part; in the zygote at its end, with None."""
    while True:
        name, files, _, _ = socket.recv_fds(way, _NAME_BYTES_MAX, 1)
        if not name:
            return None
        reading, writing = os.pipe()
        between = os.fork()
        if between:
            os.close(writing)  # else its end would not be seen where nothing was written: no process was left
            os.waitpid(between, 0)  # from here on the part is the supervisor's child, who can wait for it
            way.send(os.read(reading, _PID_BYTES_MAX))
            for file in (*files, reading):
                os.close(file)
            continue
        pid = os.fork()
        if pid:
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.dup2(files[0], 0)
        for file in (*files, reading, writing):
            os.close(file)
        return name.decode()


def show_title(title: str) -> None:
    """Writes another command line over our own, for people and for what looks for processes; as much as fits."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
        ctypes.memmove(start, title.encode()[: end - start].ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
