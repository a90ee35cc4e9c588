"""The owners of the outbox's partitions, as a front asks them: processes of this server, or of another one.

A dispatcher gives its group the URLs of its server as its name, so Kafka alone says where a partition is; a front keeps
that until a server says that it has the partition no more. Another server judges a question as any of the client's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import grpc
import msgspec
from grpc import aio
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.auth.authorizer import NOTHING
from headgate.auth.context import USER, current_user
from headgate.auth.routes import EventAccess, events_by_request
from headgate.auth.user import ANONYMOUS
from headgate.inspect.find import EventRecords, FoundEvent, InspectedLog, KnownEvent, asked_for
from headgate.rpc.service import NO_MESSAGE, SUBSCRIPTIONS, CallContext, headers_of
from headgate.server.peers import instance, local_http
from headgate.server.peers.dispatcher_group import DispatcherGroup, DispatcherQuestion, DispatcherReach, asked
from headgate.server.peers.local_grpc import ForwardedCalls, Metadata, aborted, is_gone, relayed, user_metadata
from headgate.server.peers.local_http import (
    FORWARDED,
    Header,
    PartUnavailableError,
    PeerAddress,
    WholeAnswer,
    WholeRequest,
)
from headgate.server.peers.servers import PeerServers, while_owner
from headgate.settings import Settings
from headgate_api import positions
from headgate_api.errors import HeadgateError, InvalidInputError, UnavailableError
from headgate_api.limits import PARTITION_OWNER_S_MAX
from headgate_api.objects.kinds import Kind
from headgate_api.rpc.errors import ERROR, ProtocolError

MISDIRECTED: Final = 421
PARTITION: Final = b"headgate-partition"
"""A header of a question that another server has passed on, and metadata of a call: the partition that it is about."""
_PREFIX: Final = "/partitions/"
PLACE: Final = "place"
"""A parameter of a query about an event: PARTITION:OFFSET."""
_DIGITS_MAX: Final = 5
_ELSEWHERE: Final = WholeAnswer(MISDIRECTED, b"{}")
_HIDDEN: Final = WholeAnswer(403, b"{}")
"""To whoever may know of no event here, as the gate says."""
_LOOK_S: Final = 0.25
"""Between two looks for the owner of a partition that moves."""
_P = TypeVar("_P")
_T = TypeVar("_T")


class PartitionElsewhereError(HeadgateError):
    """The process does not own the partition that it is asked about."""

    code = "partition-elsewhere"
    http_status = MISDIRECTED


class PartitionWithoutOwnerError(UnavailableError):
    """A partition of the outbox has no dispatcher that answers now."""

    code = "partition-without-owner"

    def __init__(self, partition: int) -> None:
        super().__init__(
            f"no dispatcher answers for partition {partition} of the outbox now",
            hint="try again in a few seconds; a deployment needs a server with --role front,dispatcher",
        )


class ClientNotPassedOnError(UnavailableError):
    """A question cannot be passed on to another server on behalf of its client."""

    code = "client-not-passed-on"

    def __init__(self, url: str) -> None:
        super().__init__(
            f"a part of the answer is at {url}, to which this server cannot show its client's certificate",
            hint="authenticate with a token, which can be forwarded",
        )


class KnownOwners:
    """The owners of a topic's partitions, as they were when somebody last looked.

    `look` says the name of each partition's owner now, and may block: the URL of its server and, behind a comma,
    whatever else is to be known to ask it. `nobody` makes the error where no owner answers.
    """

    def __init__(
        self, look: Callable[[], Mapping[int, str]], own_url: str, nobody: Callable[[int], HeadgateError]
    ) -> None:
        self._read = look
        self._own_url = own_url
        self._nobody = nobody
        self._owners: dict[int, str] = {}
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()

    async def reached(
        self, number: int, here: Callable[[], Awaitable[_T | None]], there: Callable[[str, str], Awaitable[_T | None]]
    ) -> _T:
        """What the owner of a partition answers; waits PARTITION_OWNER_S_MAX for one of a partition that moves.

        `here` asks this server, `there` another one by its URL and what stands behind it; None from one that is the
        owner no more. After PartUnavailableError, what was asked may have been done.
        """
        deadline = time.monotonic() + PARTITION_OWNER_S_MAX
        while True:
            asked_at, owner = time.monotonic(), self._owners.get(number)
            if owner is not None:
                try:
                    url, more = instance.urls_of_name(owner)
                    asking = here() if url == self._own_url else there(url, more)
                    is_owner = partial(self._is_owner, number, owner)
                    answer = await while_owner(asking, PARTITION_OWNER_S_MAX, is_owner)
                except PartUnavailableError:
                    self._owners.pop(number, None)  # it may have died: the next question looks for another one
                    raise
                if answer is not None:
                    return answer
            if time.monotonic() > deadline:
                raise self._nobody(number)
            await self._look(asked_at)
            if self._owners.get(number) in (None, owner):
                await asyncio.sleep(_LOOK_S)

    async def _is_owner(self, number: int, owner: str) -> bool:
        with suppress(HeadgateError):  # Kafka does not tell: nobody takes a partition over then
            await self._look(time.monotonic() - PARTITION_OWNER_S_MAX)
        return self._owners.get(number, owner) == owner

    async def _look(self, asked_at: float) -> None:
        async with self._looking:
            if self._looked_at <= asked_at:
                self._owners = dict(await asyncio.to_thread(self._read))
                self._looked_at = time.monotonic()


class PartitionOwners(KnownOwners):
    """Each partition of the outbox is a dispatcher, wherever it is; see `DispatcherReach`.

    `look` says the `instance.advertised_name` of each partition's owner now, and may block.
    """

    def __init__(
        self, settings: Settings, count: int, look: Callable[[], Mapping[int, str]], peers: PeerServers
    ) -> None:
        super().__init__(look, peers.own_url, PartitionWithoutOwnerError)
        self.count = count
        self.sockets = [settings.dispatcher_socket(number) for number in range(settings.dispatchers)]
        self._peers = peers

    async def ask(self, number: int, question: DispatcherQuestion) -> WholeAnswer:
        """As `DispatcherReach` says; what another server has passed on is asked here, or it is MISDIRECTED."""
        scope = question.client.scope
        if (passed_on := partition_of(scope["headers"], self.count)) is not None:
            return await self.ask_here(passed_on, question) or _ELSEWHERE

        async def there(url: str, _: str) -> WholeAnswer | None:
            return await _asked(self._peers.place(url), question, self.passed_on(url, number, self._peers.shown(scope)))

        return await self.reached(number, lambda: self.ask_here(number, question), there)

    def routes(self, routes: Sequence[Route]) -> list[Route]:
        """See `DispatcherReach.routes`: what another server has passed on is asked here alone."""
        return [Route(one.path, _PassedOn(self, one.app), methods=list(one.methods or ())) for one in routes]

    def subscriptions(self, group: DispatcherGroup) -> ASGIApp:
        return _SubscriptionOwner(self, group)

    async def ask_here(self, number: int, question: DispatcherQuestion) -> WholeAnswer | None:
        """What the owner of a partition answers where it is a process of this server; None where it is not."""
        path = partition_path(number, question.target)
        local = DispatcherQuestion(question.method, path, question.body, question.client)
        return await asked_in_turn(self.sockets, lambda socket: _asked(socket, local, local.user))

    @staticmethod
    def passed_on(url: str, number: int, shown: list[Header] | None) -> list[Header]:
        """The headers by which another server judges a client, and knows the partition; see `PeerServers.shown`."""
        if shown is None:
            raise ClientNotPassedOnError(url)
        return [*shown, (FORWARDED, b"1"), (PARTITION, str(number).encode())]

    # --- answers that are passed on as they come --------------------------------------------------------

    async def stream(self, number: int, request: WholeRequest, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on to the owner of a partition, and its answer as it comes; raises as `reached` does."""

        async def there(url: str, _: str) -> bool | None:
            headers = (*request.headers, *self.passed_on(url, number, self._peers.shown(scope)))
            return await _streamed(self._peers.place(url), replace(request, headers=headers), receive, send)

        await self.reached(number, lambda: self.stream_here(number, request, receive, send), there)

    async def stream_here(self, number: int, request: WholeRequest, receive: Receive, send: Send) -> bool | None:
        """The same where the owner is a process of this server; None where it is not."""
        target = partition_path(number, request.target.decode("latin-1")).encode("latin-1")
        local = replace(request, target=target)
        return await asked_in_turn(self.sockets, lambda socket: _streamed(socket, local, receive, send))


def partition_path(partition: int | str, target: str) -> str:
    """Path and query of a question about a partition."""
    return f"{_PREFIX}{partition}{target}"


async def asked_in_turn(places: Iterable[_P], ask: Callable[[_P], Awaitable[_T | None]]) -> _T | None:
    """What the one of several processes that owns a partition answers; None where none of them does.

    `ask` has None of one that is not the owner, and has done nothing. Raises where one that may be the owner is silent.
    """
    failed: PartUnavailableError | None = None
    for place in places:
        try:
            answer = await ask(place)
        except PartUnavailableError as error:
            failed = error
            continue
        if answer is not None:
            return answer
    if failed is not None:
        raise failed
    return None


async def _asked(
    place: Path | PeerAddress, question: DispatcherQuestion, headers: Sequence[Header]
) -> WholeAnswer | None:
    answer = await asked(place, question, headers)
    return answer if answer.status != MISDIRECTED else None


class _MisdirectedError(Exception):
    """An answer that is not passed on."""


async def _streamed(place: Path | PeerAddress, request: WholeRequest, receive: Receive, send: Send) -> bool | None:
    """Passes a request on; None where the answer is MISDIRECTED, of which the client gets nothing."""

    async def look(response: local_http.LocalResponse) -> None:
        if await response.head() == MISDIRECTED:
            raise _MisdirectedError

    try:
        await local_http.pass_on(place, request, receive, send, look)
    except _MisdirectedError:
        return None
    return True


def partition_of(given: Iterable[Header], count: int) -> int | None:
    """The partition that a request is about which another server has passed on; None for a client's own."""
    headers = dict(given)
    if FORWARDED not in headers or PARTITION not in headers:
        return None
    named: bytes = headers[PARTITION]
    if not (named.isdigit() and len(named) <= _DIGITS_MAX and int(named) < count):
        raise InvalidInputError(f"the header {PARTITION.decode()} names no partition of the outbox")
    return int(named)


class _PassedOn:
    """An ASGI application before another one: answers what a server has passed on to this one."""

    def __init__(self, owners: PartitionOwners, app: ASGIApp) -> None:
        self._owners = owners
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (number := partition_of(scope["headers"], self._owners.count)) is None:
            await self._app(scope, receive, send)
            return
        if (request := await local_http.whole_request(scope, receive)) is None:
            return
        if scope.get(USER, ANONYMOUS).ceiling == NOTHING and not _looks_at_each(scope):
            await _HIDDEN.response()(scope, receive, send)  # a client may name any target, by the headers of a server
            return
        target = request.target.decode("latin-1")
        question = DispatcherQuestion(request.method.decode(), target, request.body, Request(scope))
        answer = await self._owners.ask_here(number, question) or _ELSEWHERE
        await answer.response()(scope, receive, send)


def _looks_at_each(scope: Scope) -> bool:
    """Whether who answers asks himself for the user's rights, and not the control process alone."""
    return events_by_request(scope["method"], scope["path"]) is EventAccess.EACH


class _SubscriptionOwner:
    """An ASGI application: requests about a subscription, passed on to the owner of its partition."""

    def __init__(self, owners: PartitionOwners, group: DispatcherGroup) -> None:
        self._owners = owners
        self._group = group

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        here = partition_of(scope["headers"], self._owners.count)
        if (request := await local_http.whole_request(scope, receive)) is None:
            return
        if here is not None:
            if not await self._owners.stream_here(here, request, receive, send):
                await _ELSEWHERE.response()(scope, receive, send)
            return
        named = scope["path_params"]
        number = await self._group.owner(Kind.SUBSCRIPTION, named["namespace"], named["name"])
        await self._owners.stream(number, request, scope, receive, send)


# --- calls ----------------------------------------------------------------------------------------
# The first message of a call names the subscription. Further ones are passed on once the owner has answered the first:
# an owner that does not have the partition any more has got nothing else then, and the next one gets the same call.
# Later the call ends with an error that the client can retry.


class PeerWithoutCallsError(UnavailableError):
    """The server of a partition's owner has no gRPC address."""

    code = "peer-without-calls"

    def __init__(self, url: str) -> None:
        super().__init__(
            f"the subscription is at {url}, which takes no calls",
            hint="pull over HTTP, or start that server with --grpc HOST:PORT",
        )


class SubscriptionCalls(ForwardedCalls):
    """The service `Subscriptions` of a front on Kafka."""

    def __init__(self, settings: Settings, owners: PartitionOwners, group: DispatcherGroup, peers: PeerServers) -> None:
        super().__init__(SUBSCRIPTIONS, [settings.dispatcher_rpc(number) for number in range(settings.dispatchers)])
        self._owners = owners
        self._group = group
        self._peers = peers

    async def answer(self, details: grpc.HandlerCallDetails, context: CallContext) -> None:
        method, headers = details.method, headers_of(context)
        here = partition_of(headers, self._owners.count)
        first: object = await context.read()
        if not isinstance(first, bytes):
            raise ProtocolError(NO_MESSAGE)
        if here is not None:
            if not await self._ask_here(here, method, context, first):
                raise PartitionElsewhereError(f"partition {here} of the outbox is not here")
            return
        number = await self._group.owner_of_call(method, first)

        async def there(url: str, calls: str) -> bool | None:
            if not calls:
                raise PeerWithoutCallsError(url)
            shown = self._owners.passed_on(url, number, self._peers.shown_by(current_user.get(), headers))
            metadata = tuple((name.decode(), value.decode("latin-1")) for name, value in shown)
            with self._peers.channel(calls) as channel:
                return await _called(channel, method, context, first, metadata)

        await self._owners.reached(number, lambda: self._ask_here(number, method, context, first), there)

    async def _ask_here(self, number: int, method: str, context: CallContext, first: bytes) -> bool | None:
        metadata = (*user_metadata(), (PARTITION.decode(), str(number)))
        own = range(self.count)
        return await asked_in_turn(own, lambda one: _called(self.channel(one), method, context, first, metadata))


async def _called(
    channel: aio.Channel, method: str, context: CallContext, first: bytes, metadata: Metadata
) -> bool | None:
    """Forwards a call; None where the partition is not there, of which the client has heard nothing."""
    with ExitStack() as stack:
        call: aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(method)(
            timeout=context.time_remaining(), metadata=metadata
        )
        stack.callback(call.cancel)
        with suppress(aio.AioRpcError, aio.UsageError, asyncio.InvalidStateError):  # `read` says why it has ended
            await call.write(first)
        try:
            answer = await call.read()
        except aio.AioRpcError as error:
            if is_gone(error):
                raise PartUnavailableError from error
            if (ERROR, PartitionElsewhereError.code) in tuple(error.trailing_metadata() or ()):
                return None
            await aborted(context, error)
            return True
        if isinstance(answer, bytes):
            await context.write(answer)
            await relayed(call, context)
    return True


# --- records of events ----------------------------------------------------------------------------


class OwnerRefusedError(UnavailableError):
    """The owner of a partition cannot say what became of an event."""

    code = "owner-refused"


class RemoteRecords:
    """See `Records`; of one request, made on the event loop, used in other threads. Every owner judges its client."""

    log: InspectedLog

    def __init__(self, log: InspectedLog, reach: DispatcherReach, client: Request) -> None:
        self.log = log
        self._reach = reach
        self._client = client
        self._loop = asyncio.get_running_loop()

    def of_event(self, found: FoundEvent, target: int | None = None) -> KnownEvent:
        """UnavailableError when an owner does not answer, or cannot say it."""
        return asyncio.run_coroutine_threadsafe(self._ask(found, target), self._loop).result()

    async def _ask(self, found: FoundEvent, target: int | None) -> KnownEvent:
        place = urlencode({PLACE: positions.write({found.partition: found.offset})})
        question = DispatcherQuestion.of(self._client, target=f"{local_http.sent_path(self._client.scope)}?{place}")
        numbers = asked_for(target, self._reach.count)
        answers = await asyncio.gather(*(self._reach.ask(number, question) for number in numbers))
        records = {number: _records(number, answer) for number, answer in zip(numbers, answers, strict=True)}
        return KnownEvent(records, self._reach.count)


def _records(number: int, answer: WholeAnswer) -> EventRecords:
    if answer.is_good:
        return msgspec.json.decode(answer.body, type=EventRecords)
    status: Any = answer.content
    raise OwnerRefusedError(f"partition {number} of the outbox: {status.get('message') or answer.status}")
