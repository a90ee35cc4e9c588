"""How does the dispatcher have the log looked through without doing it itself? By asking the process that reads.

One turn is one request on the reader's Unix socket; its front does not hand such requests on. A reader that restarts
is waited for: turns know nothing of each other, the next one goes on where the last one ended.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import httptools
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.control.http import JSON
from headgate.errors import HeadgateError, UnavailableError
from headgate.limits import PROXY_PIECE_BYTES, READER_RETRIES_MAX, READER_RETRY_S
from headgate.scan.pages import Scanner, ScanPage, ScanRequest

PATH: Final = "/scan"
_OK: Final = 200


class ReaderError(HeadgateError):
    """The reader cannot look through the log."""

    code = "reader"


class ReaderUnavailableError(UnavailableError):
    """The reader does not answer."""

    code = "reader-unavailable"


class _Answer:
    def __init__(self) -> None:
        self.body = bytearray()
        self.ended = False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended = True


class ReaderScanner:
    """Turns that another process does.

    Args:
        socket: Of the reader.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def scan_page(self, wanted: ScanRequest) -> ScanPage:
        """See `scan.pages.Scanner`.

        Raises:
            ReaderError: It says that it cannot.
            ReaderUnavailableError: It does not answer for long.
        """
        body = msgspec.json.encode(wanted)
        for _ in range(READER_RETRIES_MAX):
            try:
                status, answer = await self._ask(body)
            except (OSError, EOFError, httptools.HttpParserError):
                await asyncio.sleep(READER_RETRY_S)
                continue
            if status == _OK:
                return msgspec.json.decode(answer, type=ScanPage)
            raise ReaderError(f"the log cannot be read: {_message(answer)}")
        raise ReaderUnavailableError("the process that reads the log does not answer", hint="try again later")

    async def _ask(self, body: bytes) -> tuple[int, bytes]:
        source, sink = await asyncio.open_unix_connection(str(self._socket), limit=PROXY_PIECE_BYTES)
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        try:
            head = f"POST {PATH} HTTP/1.1\r\nhost: headgate\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            sink.write(head.encode() + body)
            while not answer.ended:
                data = await source.read(PROXY_PIECE_BYTES)
                if not data:
                    raise EOFError
                parser.feed_data(data)
        finally:
            sink.close()
        return parser.get_status_code(), bytes(answer.body)


def scan_route(scanner: Scanner) -> Route:
    """Where the reader is asked."""

    async def scan_page(request: Request) -> Response:
        wanted = msgspec.json.decode(await request.body(), type=ScanRequest)
        return Response(msgspec.json.encode(await scanner.scan_page(wanted)), media_type=JSON)

    return Route(PATH, scan_page, methods=["POST"])


def _message(answer: bytes) -> str:
    try:
        return str(msgspec.json.decode(answer, type=dict[str, object])["message"])
    except (msgspec.DecodeError, KeyError):
        return "no reason given"
