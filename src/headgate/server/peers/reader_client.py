"""Scans and counts of the log for other processes, by the one that reads: a page is a request on its Unix socket.

A reader that restarts is waited for: pages know nothing of each other, the next one goes on where the last one ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.objects.api.http import JSON
from headgate.scan.counting import CountPage, CountRequest
from headgate.scan.pages import Scanner, ScanPage, ScanRequest
from headgate.server.peers.local_http import ask
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.limits import READER_RETRIES_MAX, READER_RETRY_S

SCAN_PATH: Final = "/scan"
COUNT_PATH: Final = "/count"
_Asked = TypeVar("_Asked", ScanRequest, CountRequest)


class ReaderError(HeadgateError):
    """The reader cannot look through the log."""

    code = "reader"


class ReaderUnavailableError(UnavailableError):
    """The reader does not answer."""

    code = "reader-unavailable"


class ReaderScanner:
    """Pages that the reader scans or counts. ReaderError: it cannot; ReaderUnavailableError: it is long silent."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def scan_page(self, wanted: ScanRequest) -> ScanPage:
        return msgspec.json.decode(await self._answer(SCAN_PATH, wanted), type=ScanPage)

    async def count_page(self, request: CountRequest) -> CountPage:
        return msgspec.json.decode(await self._answer(COUNT_PATH, request), type=CountPage)

    async def _answer(self, path: str, wanted: msgspec.Struct) -> bytes:
        body = msgspec.json.encode(wanted)
        for _ in range(READER_RETRIES_MAX):
            try:
                answer = await ask(self._socket, "POST", path, body)
            except OSError:
                await asyncio.sleep(READER_RETRY_S)
                continue
            if answer.is_good:
                return answer.body
            raise ReaderError(f"the log cannot be read: {_message(answer.body)}")
        raise ReaderUnavailableError("the process that reads the log does not answer", hint="try again later")


def scan_route(scanner: Scanner) -> Route:
    """Where the reader takes requests to scan."""
    return _route(SCAN_PATH, ScanRequest, scanner.scan_page)


def count_route(counter: Scanner) -> Route:
    """Where the reader takes requests to count."""
    return _route(COUNT_PATH, CountRequest, counter.count_page)


def _route(path: str, asked: type[_Asked], page: Callable[[_Asked], Awaitable[msgspec.Struct]]) -> Route:
    async def answer(request: Request) -> Response:
        wanted = msgspec.json.decode(await request.body(), type=asked)
        return Response(msgspec.json.encode(await page(wanted)), media_type=JSON)

    return Route(path, answer, methods=["POST"])


def _message(answer: bytes) -> str:
    try:
        return str(msgspec.json.decode(answer, type=dict[str, object])["message"])
    except (msgspec.DecodeError, KeyError):
        return "no reason given"
