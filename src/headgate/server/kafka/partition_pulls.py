"""The subscriptions of one outbox partition: what consumers pull there, for as long as this process owns it.

The parts are those of one machine (`subscriptions/`). Where consumers stand goes to the changelog; rows come from the
topic `outbox`. When the partition goes, answers under way are broken off before anything else: an acknowledgement that
is not stored must not be answered, and who is not answered asks again, at the next owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import grpc
import structlog
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.observe.logs import Recurring
from headgate.rpc.service import SUBSCRIPTIONS, CallContext, ServiceCalls, headers_of
from headgate.server.kafka.partition_questions import PARTITION, PartitionElsewhereError
from headgate.server.proxy import PartUnavailableError
from headgate.storage.commit import Committer
from headgate.subscriptions.api import SubscriptionsApi
from headgate.subscriptions.rpc import SubscriptionsRpc
from headgate.subscriptions.service import Subscriptions
from headgate.subscriptions.sources import SubscriptionResources
from headgate.subscriptions.store import SubscriptionStore
from headgate_api import limits
from headgate_api.errors import HeadgateError, UnavailableError

_log = structlog.get_logger(__name__)


class PartitionPulls:
    """The subscriptions of a partition. Lives on one event loop. Its file holds what the changelog has."""

    def __init__(self, path: Path, resources: SubscriptionResources, committer: Committer) -> None:
        self._store = SubscriptionStore(path, committer)
        self.subscriptions = Subscriptions(self._store, resources)
        self._calls = SubscriptionsRpc(self.subscriptions).service()
        self._under_way: set[asyncio.Future[None]] = set()
        self._is_going = False

    def routes(self) -> Iterator[Route]:
        for route in SubscriptionsApi(self.subscriptions).routes():
            yield Route(route.path, self._guarded(route.app), methods=list(route.methods or ()))

    async def answer(self, details: grpc.HandlerCallDetails, context: CallContext) -> None:
        """Answers a call of the service `Subscriptions`; PartUnavailableError where the partition goes meanwhile."""
        handler = self._calls.service(details)
        if handler is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")
        await self._during(lambda: cast(Any, handler).stream_stream(None, context))

    async def tend(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.subscriptions.tend())
            group.create_task(self._pass_others())

    async def _pass_others(self) -> None:
        """Keeps cursors near the rows that are read now: retention must not pass those that nobody pulls from."""
        turns = Recurring(_log, "cursors of subscriptions cannot be moved on", HeadgateError)
        while True:
            with turns.attempt():
                await self.subscriptions.pass_others()
            await asyncio.sleep(limits.BACKLOG_SWEEP_S)

    async def break_off(self) -> None:
        """Answers nobody any more; returns when nothing is under way.

        What is being sent to a client that does not take it is not waited for: behind it nothing is sent any more.
        """
        self._is_going = True
        for one in self._under_way:
            one.cancel()
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=limits.PULL_BREAK_OFF_S_MAX)

    async def close(self) -> None:
        """Stores where consumers stand, and closes the file."""
        try:
            await self.subscriptions.flush()
        except UnavailableError as error:  # what was acknowledged is stored; the rest is handed out again
            _log.error("cursors of subscriptions cannot be stored", error=str(error))
        finally:
            self._store.close()

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


class PullingPartition(Protocol):
    """A partition that this process owns."""

    @property
    def pulls(self) -> PartitionPulls | None:
        """Its subscriptions; None before its state is read and once it goes."""
        ...


class PartitionCalls(ServiceCalls):
    """The service `Subscriptions` of a process: a call names its partition by the metadata PARTITION."""

    def __init__(self, partitions: Mapping[int, PullingPartition]) -> None:
        super().__init__(SUBSCRIPTIONS)
        self._partitions = partitions

    async def answer(self, details: grpc.HandlerCallDetails, context: CallContext) -> None:
        named = dict(headers_of(context)).get(PARTITION, b"")
        partition = self._partitions.get(int(named)) if named.isdigit() else None
        pulls = partition.pulls if partition is not None else None
        if pulls is None:
            raise PartitionElsewhereError(f"partition {named[:8].decode('latin-1')} of the outbox is not here")
        await pulls.answer(details, context)
