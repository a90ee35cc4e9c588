"""How much may a client send before its request begins? uvicorn's HTTP protocol with a bound on the request's head.

The parser collects headers without any limit, so one connection that never ends its headers would take all memory.
"""

from __future__ import annotations

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headgate.limits import FRONT_DRAIN_S_MAX, REQUEST_HEAD_BYTES_MAX

_TOO_LARGE = STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n"


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers 431 and closes when a request's head is larger than REQUEST_HEAD_BYTES_MAX.

    Give it to uvicorn as `http`. Bytes are counted as they arrive, so the bound is exact to one read of the socket.
    """

    _head_bytes = 0
    _in_body = False

    def data_received(self, data: bytes) -> None:
        """Counts bytes of an unfinished head, and parses."""
        if not self._in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_body and self._head_bytes > REQUEST_HEAD_BYTES_MAX and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """The head is whole: what follows is the body's."""
        self._in_body = True
        self._head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next byte begins another head."""
        self._in_body = False
        super().on_message_complete()


def http_config(app: ASGIApp, host: str, port: int) -> Config:
    """How uvicorn serves ingress: nothing per request but the protocol and the application."""
    return Config(
        app,
        host=host,
        port=port,
        loop="none",
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=FRONT_DRAIN_S_MAX,
    )
