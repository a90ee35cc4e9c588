"""A bound on how long a response is held for a client that does not read it."""

from __future__ import annotations

import asyncio
from fcntl import ioctl
from struct import unpack
from termios import TIOCOUTQ

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.limits import WRITE_STALLED_S_MAX


class WriteTimeoutProtocol(HttpToolsProtocol):
    """Breaks a connection off whose client takes nothing of an answer for WRITE_STALLED_S_MAX.

    A client that takes it slowly keeps it. An answer that fits into the sockets' buffers costs no timer.
    """

    _unread_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._unwatch_answer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More of the answer waits than the client takes."""
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        """The client has taken nearly all of it."""
        self._unwatch_answer()
        super().resume_writing()

    def _watch_answer(self) -> None:
        self._unread_timer = self.loop.call_later(WRITE_STALLED_S_MAX, self._look_at_answer, self._waiting_bytes())

    def _unwatch_answer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _look_at_answer(self, waiting_bytes: int) -> None:
        if self._waiting_bytes() < waiting_bytes:
            self._watch_answer()
        else:
            self.transport.abort()

    def _waiting_bytes(self) -> int:
        """What the client has not taken: also of the kernel's buffer, megabytes that a slow client is long about."""
        (sent_bytes,) = unpack("i", ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4)))
        return int(sent_bytes) + self.transport.get_write_buffer_size()
