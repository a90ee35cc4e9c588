"""Wake-ups of readers that wait at the end of a partition, in other processes (docs/spec/log-format.md).

A reader gets a byte whenever the partition has grown, as long as its socket has room for one: a reader that takes what
is there, then looks, and then waits for the next byte misses nothing. Nobody asks, so that the event loop of a busy
writer is left alone. Only time depends on it: a reader that is not told looks by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import structlog

from headgate_api.limits import LOG_WAITERS_MAX

_GROWN: Final = b"\x01"
_ACCEPT_AGAIN_S: Final = 1.0
"""Until further readers are taken where one could not be."""
_log = structlog.get_logger(__name__)


class Wakeups:
    """The readers of one partition. Its writer's thread calls `grown`, an event loop everything else."""

    def __init__(self) -> None:
        self._readers: set[socket.socket] = set()
        self._lock = threading.Lock()
        """Held while somebody is told and while a socket is closed: else its number may be another one's by then."""

    def grown(self) -> None:
        """Tells every reader that the partition is longer than before; from any thread."""
        with self._lock:
            for reader in self._readers:
                _tell(reader)

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Takes readers while the block lasts, at a socket that replaces `path`. If it cannot, they just look."""
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
                for reader in list(self._readers):
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
        if len(self._readers) >= LOG_WAITERS_MAX:
            _log.warning("too many readers wait at the end of a partition", most=LOG_WAITERS_MAX)
            reader.close()
            return
        reader.setblocking(False)
        with self._lock:
            self._readers.add(reader)
            _tell(reader)  # of what came before it was one of them
        asyncio.get_running_loop().add_reader(reader, self._drop, reader)  # it sends nothing before its end

    def _resume(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _drop(self, reader: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(reader)
        with self._lock:
            self._readers.discard(reader)
            reader.close()


def _tell(reader: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended, or has not read what it was told before
        reader.send(_GROWN)


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
