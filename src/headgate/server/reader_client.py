"""Scans of the log for the dispatcher, by the process that reads.

A page of a scan is one request on the reader's Unix socket, which the front does not pass on. A reader that restarts is
waited for: pages know nothing of each other, the next one goes on where the last one ended.
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
from headgate.limits import READER_RETRIES_MAX, READER_RETRY_S
from headgate.scan.pages import Scanner, ScanPage, ScanRequest
from headgate.server.local_http import requested

PATH: Final = "/scan"
_OK: Final = 200


class ReaderError(HeadgateError):
    """The reader cannot look through the log."""

    code = "reader"


class ReaderUnavailableError(UnavailableError):
    """The reader does not answer."""

    code = "reader-unavailable"


class ReaderScanner:
    """Pages that the reader scans.

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
                async with requested(self._socket, b"POST", PATH.encode(), body) as response:
                    status = await response.head()
                    answer = b"".join([piece async for piece in response.pieces()])
            except (OSError, EOFError, httptools.HttpParserError):
                await asyncio.sleep(READER_RETRY_S)
                continue
            if status == _OK:
                return msgspec.json.decode(answer, type=ScanPage)
            raise ReaderError(f"the log cannot be read: {_message(answer)}")
        raise ReaderUnavailableError("the process that reads the log does not answer", hint="try again later")


def scan_route(scanner: Scanner) -> Route:
    """Where the reader takes such requests."""

    async def scan_page(request: Request) -> Response:
        wanted = msgspec.json.decode(await request.body(), type=ScanRequest)
        return Response(msgspec.json.encode(await scanner.scan_page(wanted)), media_type=JSON)

    return Route(PATH, scan_page, methods=["POST"])


def _message(answer: bytes) -> str:
    try:
        return str(msgspec.json.decode(answer, type=dict[str, object])["message"])
    except (msgspec.DecodeError, KeyError):
        return "no reason given"
