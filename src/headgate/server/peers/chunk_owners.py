"""Chunks of events that a broker stores once, on their way to the front that writes their partition, wherever it is.

A chunk is one message of the link between fronts (`ingress/front_link.py`) as the body of a request. Who sends it has
judged its client already, so it shows that it is a server of the deployment (`backend/kafka/server_pass.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.ingress.front_link import (
    LENGTHS_BYTES,
    AppendChunk,
    FrontAnswer,
    FrontLinkError,
    FrontUnavailableError,
    answer_of,
    append_chunk,
    chunk_of,
    decode,
    decode_answer,
    encode,
    lengths,
    read_lengths,
    stored_of,
)
from headgate.ingress.producers import NumbersMovedError
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded
from headgate.server.peers.local_http import Header, PartUnavailableError, PeerAddress, ask
from headgate.server.peers.partition_owners import MISDIRECTED, KnownOwners, asked_in_turn
from headgate.server.peers.servers import PeerServers
from headgate.settings import Settings
from headgate_api.errors import HeadgateError, OverloadedError, TooLargeError, UnavailableError
from headgate_api.limits import FRONT_LINK_BYTES_MAX, FRONT_LINK_S_MAX, SERVER_PASS_CHECKS_MAX

if TYPE_CHECKING:
    from headgate.backend.kafka.server_pass import KnownPasses, OwnPass

PATH: Final = "/apis/headgate.dev/v1/appends"
PASS: Final = b"headgate-server"
_log = structlog.get_logger(__name__)
_BYTES: Final = "application/octet-stream"
_REFUSALS: Final = {error.http_status: error for error in (TooLargeError, OverloadedError, NumbersMovedError)}
Store = Callable[[int, Encoded, int], Awaitable[int | Sifted] | None]
"""Stores a chunk of so many bytes in a partition; None where that is not this process's."""


class NoWriterError(UnavailableError):
    """No front writes a partition now."""

    code = "partition-without-writer"

    def __init__(self, partition: int) -> None:
        super().__init__(f"no front stores events once in partition {partition} now", hint="try again in a few seconds")


class PassRefusedError(PartUnavailableError):
    """The other server does not know this one."""

    code = "pass-refused"


class ChunkOwners:
    """Has the owner of a partition store a chunk, and stores what is sent to this server.

    Args:
        number: This front's.
        look: Says for each partition the URL of its owner's server; may block.
        own: What this server shows others.
        others: What others show.
        store: Stores in this process.
    """

    def __init__(
        self,
        settings: Settings,
        number: int,
        look: Callable[[], Mapping[int, str]],
        peers: PeerServers,
        own: OwnPass,
        others: KnownPasses,
        store: Store,
    ) -> None:
        self._owners = KnownOwners(look, peers.own_url, NoWriterError)
        self._peers = peers
        self._pass = own
        self._passes = others
        self._siblings = [settings.front_socket(one) for one in range(settings.fronts) if one != number]
        self._store = store

    async def forward(self, partition: int, chunk: Encoded) -> int | Sifted:
        """Raises UnavailableError when it is not known to be stored, and the owner's errors of `_REFUSALS`."""
        message = _message(partition, chunk)

        async def here() -> FrontAnswer | None:
            return await self._stored(partition, chunk, message)

        async def there(url: str, _: str) -> FrontAnswer | None:
            shown = await asyncio.to_thread(self._pass.show)
            try:
                return await _asked(self._peers.place(url, as_itself=True), message, [(PASS, shown)])
            except PassRefusedError:
                self._pass.refused()
                raise
            except OSError as error:
                raise _silent(url, error) from error

        return stored_of(await self._owners.reached(partition, here, there))

    def door(self, app: ASGIApp) -> ASGIApp:
        """An application before another one: takes chunks of other servers, before anybody asks for a user."""
        return _Door(app, self._passes, self._take)

    def route(self) -> Route:
        """Where this process takes chunks from the other fronts of its server."""

        async def take(request: Request) -> Response:
            return await _answered(request, self._own)

        return Route(PATH, take, methods=["POST"])

    async def _take(self, request: Request) -> Response:
        return await _answered(request, self._stored)

    async def _stored(self, partition: int, chunk: Encoded, message: bytes) -> FrontAnswer | None:
        """Stores a chunk in whichever process of this server has the partition; None where none has."""
        stored = await self._own(partition, chunk, message)
        return stored or await asked_in_turn(self._siblings, lambda socket: _asked(socket, message))

    async def _own(self, partition: int, chunk: Encoded, message: bytes) -> FrontAnswer | None:
        storing = self._store(partition, chunk, len(message))
        return answer_of(await storing) if storing is not None else None


class _Door:
    def __init__(self, app: ASGIApp, passes: KnownPasses, take: Callable[[Request], Awaitable[Response]]) -> None:
        self._app = app
        self._passes = passes
        self._take = take
        self._checking = asyncio.Lock()
        self._checks = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        shown = [value for name, value in scope["headers"] if name == PASS]
        if len(shown) == 1 and await self._is_server(shown[0]):
            answer = await self._take(Request(scope, receive))
        else:
            answer = Response(status_code=HTTPStatus.FORBIDDEN)
        await answer(scope, receive, send)

    async def _is_server(self, shown: bytes) -> bool:
        if self._passes.is_known(shown):
            return True
        if self._checks >= SERVER_PASS_CHECKS_MAX:
            return False
        self._checks += 1
        try:
            async with self._checking:
                return await asyncio.to_thread(self._passes.check, shown)
        except HeadgateError as error:
            _log.warning("it cannot be found out whether a server asks", error=error.message)
            return False
        finally:
            self._checks -= 1


def _message(partition: int, chunk: Encoded) -> bytes:
    head, body = encode(append_chunk(chunk, partition)), memoryview(chunk.batch.serialize())
    return b"".join([lengths(len(head), body.nbytes), head, body])


def _read(message: bytes) -> tuple[int, Encoded]:
    """The partition and the chunk of a message; raises FrontLinkError."""
    try:
        size, _ = read_lengths(message[:LENGTHS_BYTES])
        head = decode(message[LENGTHS_BYTES : LENGTHS_BYTES + size])
        if not isinstance(head, AppendChunk):
            raise FrontLinkError("no chunk was sent")
        return head.partition, chunk_of(head, message[LENGTHS_BYTES + size :])
    except (msgspec.DecodeError, pa.ArrowInvalid, ValueError) as error:
        raise FrontLinkError(f"no chunk was sent: {error}") from error


async def _answered(
    request: Request, store: Callable[[int, Encoded, bytes], Awaitable[FrontAnswer | None]]
) -> Response:
    message = bytearray()
    try:
        async for piece in request.stream():
            message += piece
            if len(message) > FRONT_LINK_BYTES_MAX:
                return Response(status_code=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        partition, chunk = _read(bytes(message))
        answer = await store(partition, chunk, bytes(message))
    except ClientDisconnect:
        return Response(status_code=HTTPStatus.BAD_REQUEST)
    except HeadgateError as error:
        return Response(encode(FrontAnswer(error.message)), error.http_status, media_type=_BYTES)
    if answer is None:
        return Response(status_code=MISDIRECTED)
    return Response(encode(answer), media_type=_BYTES)


async def _asked(place: Path | PeerAddress, message: bytes, headers: list[Header] | None = None) -> FrontAnswer | None:
    """What a process answers that may have the partition; None where it has not."""
    try:
        answer = await ask(place, "POST", PATH, message, headers or [], within_s=FRONT_LINK_S_MAX)
    except OSError as error:
        raise _silent(place, error) from error
    if answer.status == MISDIRECTED:
        return None
    if answer.status == HTTPStatus.FORBIDDEN:
        raise PassRefusedError
    try:
        found = decode_answer(answer.body)
    except msgspec.DecodeError as error:
        raise PartUnavailableError from error
    if not answer.is_good:
        kind = _REFUSALS.get(answer.status, FrontUnavailableError)
        raise kind(found.problem, hint="try again in a few seconds" if kind.retriable else "")
    return found


def _silent(place: object, error: OSError) -> PartUnavailableError:
    """What the log shall say of a server that does not answer, such as a certificate that is not trusted."""
    silent = PartUnavailableError()
    silent.detail = f"{place}: {error}"
    return silent
