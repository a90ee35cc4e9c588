"""What the owner of an outbox partition answers, for as long as it owns it: `why` and `trace`, questions, and pulls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol, cast

import grpc
import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.auth.user import User
from headgate.backend.kafka.partition_views import OutboxLookups, PartitionRecords
from headgate.deadletters.own import OpaqueIds
from headgate.delivery.events import Events
from headgate.delivery.verdicts import gives
from headgate.inspect.api import OF_BROKERS, WHY_TRIGGER
from headgate.inspect.find import told_below
from headgate.objects.api.http import ERROR_HANDLERS, JSON
from headgate.objects.api.queries import path_named, user_of
from headgate.objects.store.store import Store
from headgate.observe.logs import Recurring
from headgate.rpc.service import SUBSCRIPTIONS, CallContext, ServiceCalls, headers_of
from headgate.server.peers.local_http import PartUnavailableError
from headgate.server.peers.partition_owners import PARTITION, PLACE, PartitionElsewhereError, partition_path
from headgate.subscriptions.api import SubscriptionsApi
from headgate.subscriptions.rpc import SubscriptionsRpc
from headgate.subscriptions.service import Subscriptions
from headgate_api import limits, positions
from headgate_api.errors import HeadgateError, InvalidInputError, NotFoundError, UnavailableError

# --- records --------------------------------------------------------------------------------------
# On the paths of `why` and `trace`, for the control process of a server, on behalf of a client and by his rights. The
# query names a place in the topic `events`: the event there must be one of the broker that the path is about.


class NoSuchEventError(NotFoundError):
    """The place holds no event of the broker."""

    code = "no-such-event"


class PartitionRecordsApi:
    """The handlers. `ids_below` gives the ids that a user below a ceiling knows dead letters by; may block."""

    def __init__(
        self,
        records: PartitionRecords,
        lookups: OutboxLookups,
        events: Events,
        store: Store,
        ids_below: Callable[[User], OpaqueIds | None] = lambda _: None,
    ) -> None:
        self._records = records
        self._lookups = lookups
        self._events = events
        self._store = store
        self._ids_below = ids_below

    def routes(self) -> Iterator[Route]:
        yield Route(WHY_TRIGGER, self._of_trigger, methods=["GET"])
        for path in OF_BROKERS:
            yield Route(path, self._of_broker, methods=["GET"])

    async def _of_trigger(self, request: Request) -> Response:
        table, name = await asyncio.to_thread(self._store.snapshot), path_named(request)
        target = table.trigger(name)
        if target is None:
            raise _unknown(f"trigger {name}")
        return await self._answer(request, target.broker, target.id)

    async def _of_broker(self, request: Request) -> Response:
        if (served := await asyncio.to_thread(self._store.served, path_named(request))) is None:
            raise _unknown(f"broker {path_named(request)}")
        return await self._answer(request, served.identity, None)

    async def _answer(self, request: Request, broker: str, target: int | None) -> Response:
        places = positions.parse(request.query_params.get(PLACE, ""))
        if len(places) != 1:
            raise InvalidInputError(f"the query names no place: ?{PLACE}=PARTITION:OFFSET")
        ((source, offset),) = places.items()
        event, ceiling = await self._events.load(source, offset), user_of(request).ceiling
        # A client may name any place, by the headers of another server.
        if event.broker != broker or not gives(ceiling, event):
            raise NoSuchEventError("there is no event of this broker")
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._lookups.thread, self._records.of_event, source, offset, target)
        if (ids := await asyncio.to_thread(self._ids_below, user_of(request))) is not None:
            found = told_below(found, ids)  # here: a client may ask for it by himself
        return Response(msgspec.json.encode(found), media_type=JSON)


def _unknown(what: str) -> UnavailableError:
    return UnavailableError(f"the dispatcher does not know the {what}", hint="try again in a few seconds")


# --- questions -----------------------------------------------------------------------------------
# On the socket of a dispatcher, `/partitions/N/...`: behind the prefix are the paths that one of one machine has. For a
# partition that is not here the answer is 421 (Misdirected Request): who asks looks for its owner anew.


class OwnedPartition(Protocol):
    """A partition that this process owns. Both are None before its state is read, and once it goes."""

    @property
    def api(self) -> ASGIApp | None:
        """Answers questions."""

    @property
    def pulls(self) -> PartitionPulls | None:
        """Its subscriptions."""


def partitions_api(partitions: Mapping[int, OwnedPartition]) -> Starlette:
    """Answers about the partitions that a process has at the time."""

    class Questions:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            number = scope["path_params"]["number"]
            partition = partitions.get(number)
            api = partition.api if partition is not None else None
            if api is None:
                raise PartitionElsewhereError(f"partition {number} of the outbox is not here")
            prefix = partition_path(number, "")
            path, raw = scope["path"].removeprefix(prefix), scope["raw_path"].removeprefix(prefix.encode())
            try:
                await api({**scope, "path": path, "raw_path": raw}, receive, send)
            except HeadgateError:
                raise
            except Exception as error:
                if partition is partitions.get(number) and partition is not None and partition.api is api:
                    raise
                raise PartUnavailableError from error  # it went under way, and with it its files and threads

    route = Route(partition_path("{number:int}", "/{rest:path}"), Questions())
    return Starlette(routes=[route], exception_handlers=ERROR_HANDLERS)


# --- pulls ----------------------------------------------------------------------------------------
# The parts are those of one machine (`subscriptions/`). Where consumers stand goes to the changelog; rows come from the
# topic `outbox`. When the partition goes, answers under way are broken off before anything else: an acknowledgement
# that is not stored must not be answered, and who is not answered asks again, at the next owner.

_log = structlog.get_logger(__name__)


class PartitionPulls:
    """What the subscriptions of a partition answer. Lives on one event loop."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self.subscriptions = subscriptions
        self._calls = SubscriptionsRpc(subscriptions).service()
        self._under_way: set[asyncio.Future[None]] = set()
        self._is_going = False

    def routes(self) -> Iterator[Route]:
        for route in SubscriptionsApi(self.subscriptions).routes():
            yield Route(route.path, self._guarded(route.app), methods=list(route.methods or ()))

    async def answer(self, details: grpc.HandlerCallDetails, context: CallContext) -> None:
        """PartUnavailableError where the partition goes meanwhile."""
        if (handler := self._calls.service(details)) is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")
        await self._during(lambda: cast(Any, handler).stream_stream(None, context))

    async def pass_others(self) -> None:
        """Keeps cursors near the rows that are read now: retention must not pass those that nobody pulls from."""
        turns = Recurring(_log, "cursors of subscriptions cannot be moved on", HeadgateError)
        while True:
            with turns.attempt():
                await self.subscriptions.pass_others()
            await asyncio.sleep(limits.BACKLOG_SWEEP_S)

    async def break_off(self) -> None:
        """Answers nobody any more; a client that does not take what is being sent is not waited for."""
        self._is_going = True
        for one in self._under_way:
            one.cancel()
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=limits.PULL_BREAK_OFF_S_MAX)

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        during = self._during

        class Guarded:
            """An application whose answers are broken off when the partition goes."""

            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                await during(lambda: app(scope, receive, send))

        return Guarded()

    async def _during(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._is_going:
            raise PartitionElsewhereError("the partition of the outbox goes to another dispatcher")
        answering = asyncio.ensure_future(work())
        self._under_way.add(answering)
        answering.add_done_callback(self._under_way.discard)
        try:
            await asyncio.wait([answering])
        finally:
            answering.cancel()
        if answering.cancelled():
            raise PartUnavailableError
        answering.result()


class PartitionCalls(ServiceCalls):
    """The service `Subscriptions` of a process: a call names its partition by the metadata PARTITION."""

    def __init__(self, partitions: Mapping[int, OwnedPartition]) -> None:
        super().__init__(SUBSCRIPTIONS)
        self._partitions = partitions

    async def answer(self, details: grpc.HandlerCallDetails, context: CallContext) -> None:
        named = dict(headers_of(context)).get(PARTITION, b"")
        partition = self._partitions.get(int(named)) if named.isdigit() else None
        pulls = partition.pulls if partition is not None else None
        if pulls is None:
            raise PartitionElsewhereError(f"partition {named[:8].decode('latin-1')} of the outbox is not here")
        await pulls.answer(details, context)
