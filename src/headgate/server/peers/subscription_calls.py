"""Calls about subscriptions, forwarded to the owner of the subscription's partition: here, or at another server.

The first message names the subscription. Further ones are passed on once the owner has answered the first: an owner
that does not have the partition any more has got nothing else then, and the next one gets the same call. Later the call
ends with an error that the client can retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import grpc
from grpc import aio

from headgate.auth.context import current_user
from headgate.rpc.service import SUBSCRIPTIONS, CallContext, ServiceCalls, headers_of
from headgate.server.peers.dispatcher_group import DispatcherGroup
from headgate.server.peers.forwarded_calls import (
    CHANNEL_OPTIONS,
    Metadata,
    aborted,
    is_gone,
    relayed,
    user_metadata,
)
from headgate.server.peers.local_http import PartUnavailableError
from headgate.server.peers.partition_owners import (
    PARTITION,
    PartitionElsewhereError,
    PartitionOwners,
    asked_in_turn,
    partition_of,
)
from headgate.server.peers.servers import PeerServers
from headgate.settings import Settings
from headgate_api.errors import UnavailableError
from headgate_api.rpc.errors import ERROR, ProtocolError


class PeerWithoutCallsError(UnavailableError):
    """The server of a partition's owner has no gRPC address."""

    code = "peer-without-calls"

    def __init__(self, url: str) -> None:
        super().__init__(
            f"the subscription is at {url}, which takes no calls",
            hint="pull over HTTP, or start that server with --grpc HOST:PORT",
        )


class SubscriptionCalls(ServiceCalls):
    """The service `Subscriptions` of a front on Kafka."""

    def __init__(self, settings: Settings, owners: PartitionOwners, group: DispatcherGroup, peers: PeerServers) -> None:
        super().__init__(SUBSCRIPTIONS)
        self._sockets = [settings.dispatcher_rpc(number) for number in range(settings.dispatchers)]
        self._channels: list[aio.Channel] = []
        self._owners = owners
        self._group = group
        self._peers = peers

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def answer(self, details: grpc.HandlerCallDetails, context: CallContext) -> None:
        method, headers = details.method, headers_of(context)
        here = partition_of(headers, self._owners.count)
        first: object = await context.read()
        if not isinstance(first, bytes):
            raise ProtocolError("the call ended before its first message")
        message = first
        if here is not None:
            if not await self._ask_here(here, method, context, message):
                raise PartitionElsewhereError(f"partition {here} of the outbox is not here")
            return
        number = await self._group.owner_of_call(method, message)

        async def there(url: str, calls: str) -> bool | None:
            if not calls:
                raise PeerWithoutCallsError(url)
            shown = self._owners.passed_on(url, number, self._peers.shown_by(current_user.get(), headers))
            metadata = tuple((name.decode(), value.decode("latin-1")) for name, value in shown)
            with self._peers.channel(calls) as channel:
                return await _ask(channel, method, context, message, metadata)

        await self._owners.reached(number, lambda: self._ask_here(number, method, context, message), there)

    async def _ask_here(self, number: int, method: str, context: CallContext, first: bytes) -> bool | None:
        """Asks the processes of this server; None where none of them has the partition."""
        metadata = (*user_metadata(), (PARTITION.decode(), str(number)))
        return await asked_in_turn(
            self._own_channels(), lambda channel: _ask(channel, method, context, first, metadata)
        )

    def _own_channels(self) -> Sequence[aio.Channel]:
        if not self._channels:  # not before: they belong to the loop that runs
            self._channels = [aio.insecure_channel(f"unix:{one}", options=CHANNEL_OPTIONS) for one in self._sockets]
        return self._channels


async def _ask(
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
