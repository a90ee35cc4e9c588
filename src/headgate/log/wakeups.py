"""Wake-ups of readers that wait at the end of a partition, in other processes (docs/spec/log-format.md).

A reader with nothing left to read sends the end that it has seen, and gets a byte as soon as the partition is longer.
Only time depends on it: a reader that is not told looks by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import structlog

from headgate_api.limits import LOG_WAITERS_MAX

_END: Final = struct.Struct("<q")
_GROWN: Final = b"\x01"
_ACCEPT_AGAIN_S: Final = 1.0
"""Until further readers are taken where one could not be."""
_log = structlog.get_logger(__name__)


class Wakeups:
    """The readers of one partition. Its writer's thread calls `grown`, an event loop everything else."""

    def __init__(self) -> None:
        self._end = 0
        self._open: set[socket.socket] = set()
        self._waiting: dict[socket.socket, int] = {}
        """Readers that have asked and were not told yet, with the end that they have seen."""
        self._lock = threading.Lock()
        """Held while somebody is told and while a socket is closed: else its number may be another one's by then."""

    def grown(self, end: int) -> None:
        """Tells those that wait that the partition ends at `end` now; from any thread."""
        self._end = end
        if self._waiting:
            self._tell()

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Takes questions while the block lasts, at a socket that replaces `path`. If it cannot, readers just look."""
        try:
            listener = _listener(path)
        except OSError as error:
            _log.warning("readers at the end of a partition are not woken", path=str(path), error=str(error))
            yield
            return
        loop = asyncio.get_running_loop()
        with listener:
            loop.add_reader(listener, self._accept, listener)
            try:
                yield
            finally:
                loop.remove_reader(listener)
                for reader in list(self._open):
                    self._drop(reader)

    def _accept(self, listener: socket.socket) -> None:
        try:
            reader, _ = listener.accept()
        except BlockingIOError:  # it is gone already
            return
        except OSError as error:  # the process has no file left: it would be told of the same reader again and again
            _log.warning("a reader at the end of a partition is not heard", error=str(error))
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(_ACCEPT_AGAIN_S, self._resume, listener)
            return
        if len(self._open) >= LOG_WAITERS_MAX:
            _log.warning("too many readers wait at the end of a partition", most=LOG_WAITERS_MAX)
            reader.close()
            return
        reader.setblocking(False)
        self._open.add(reader)
        asyncio.get_running_loop().add_reader(reader, self._hear, reader)

    def _resume(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _hear(self, reader: socket.socket) -> None:
        try:
            question = reader.recv(_END.size)
        except BlockingIOError:
            return
        except OSError:
            question = b""
        if len(question) != _END.size:  # its end, or no question
            self._drop(reader)
            return
        # First it waits, then the end is looked at: the writer does it the other way round, so one of them sees both.
        with self._lock:
            (self._waiting[reader],) = _END.unpack(question)
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            for reader in [reader for reader, seen in self._waiting.items() if seen < self._end]:
                del self._waiting[reader]
                with contextlib.suppress(OSError):  # it has ended, or has not read what it was told before
                    reader.send(_GROWN)

    def _drop(self, reader: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(reader)
        self._open.discard(reader)
        with self._lock:
            self._waiting.pop(reader, None)
            reader.close()


def _listener(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(LOG_WAITERS_MAX)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
