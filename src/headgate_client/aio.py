"""The client for programs with asyncio: everything that goes over gRPC."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, Unpack

import grpc

from headgate_api.bearer import TokenSource
from headgate_api.errors import InvalidInputError, OverloadedError
from headgate_api.event.model import Event
from headgate_api.event.names import full_name
from headgate_api.kubeconfig import KubeContext, read_context
from headgate_api.limits import CLIENT_PATIENCE_S_DEFAULT, CLIENT_PRODUCERS_MAX, CLIENT_WINDOW_DEFAULT
from headgate_api.rpc import headgate_pb2 as pb
from headgate_client.connection import Connection, Stream, address_of, channel_credentials
from headgate_client.consumer import AsyncConsumer
from headgate_client.producer import AsyncProducer
from headgate_client.reader import AsyncReader, ReadOptions
from headgate_client.values import (
    Analysis,
    Filter,
    Place,
    SeekProgress,
    SeekResult,
    Single,
    Stats,
    condition_text,
    filter_message,
    place_text,
)

_consumers: Final = itertools.count(1)


@dataclass(eq=False, slots=True)
class _Shared:
    """The producer of all calls that publish to one broker, and how many of them are under way."""

    producer: AsyncProducer
    calls: int = 0


class AsyncClient:
    """A server, as a program with asyncio sees it; an async context manager.

    Brokers and subscriptions are named "namespace/name"; without a slash the namespace is `default`. Whatever lasts
    (producers, readers, consumers) survives a restart of the server.

    Args:
        target: HOST:PORT of the server's gRPC, with `https://` before it where it speaks TLS.
        cacert: PEM file of the CAs that sign the server's certificate, for TLS; without it HEADGATE_CACERT names one.
        client_cert: PEM file of the certificate to show; without it HEADGATE_CLIENT_CERT names one.
        client_key: PEM file of its key; without it HEADGATE_CLIENT_KEY names one.
        credentials: For TLS, instead of files.
        token: The token to show.
        token_file: File of the token to show, read again when it changes; without it HEADGATE_TOKEN_FILE names one.
        context: Context of the kubeconfig (KUBECONFIG) that says what the others do not, but for the target.
        patience_s: How long a connection that was there is tried again before an error is raised.
    """

    def __init__(
        self,
        target: str,
        *,
        cacert: str | Path = "",
        client_cert: str | Path = "",
        client_key: str | Path = "",
        credentials: grpc.ChannelCredentials | None = None,
        token: str = "",
        token_file: str | Path = "",
        context: str = "",
        patience_s: float = CLIENT_PATIENCE_S_DEFAULT,
    ) -> None:
        files = {"cacert": cacert, "client_cert": client_cert, "client_key": client_key, "token_file": token_file}
        known = KubeContext("", token=token, **{name: str(path) for name, path in files.items()})
        environment = KubeContext("", token_file=os.environ.get("HEADGATE_TOKEN_FILE", ""))
        known = known.or_else(read_context(context) if context else environment)
        has_files = bool(known.cacert or known.client_cert or known.client_key)
        address, is_tls = address_of(target, is_tls=has_files or credentials is not None)
        if is_tls and credentials is None:
            credentials = channel_credentials(known.cacert, known.client_cert, known.client_key)
        self._connection = Connection(address, credentials, patience_s, TokenSource(known.token, known.token_file))
        self._shared: dict[str, _Shared] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends every stream and the connection; idempotent."""
        while self._shared:
            await self._shared.popitem()[1].producer.stop()
        await self._connection.close()

    async def publish(self, broker: str, events: Event | Iterable[Event], *, filter_value: str = "") -> None:
        """Publishes one event or any number; returns when all of them are on disk.

        What is on its way when the connection breaks is sent again, so it may be stored twice: a `producer` with a name
        is idempotent. `filter_value` is what readers skip chunks by; by default the broker's own rule says it.

        Raises:
            RefusedError: The server will never store them.
            OverloadedError: Calls to CLIENT_PRODUCERS_MAX other brokers are under way.
            HeadgateError: There is no such broker, or no server.
        """
        name = full_name(broker)
        shared, retired = self._shared.get(name), None
        if shared is None or shared.producer.error is not None:
            if shared is None and len(self._shared) >= CLIENT_PRODUCERS_MAX:
                retired = self._retire()
            shared = self._shared[name] = _Shared(AsyncProducer(self._connection, name))
        # Nothing was awaited since the look-up: else two calls would each make a producer.
        shared.calls += 1
        try:
            if retired is not None:
                await retired.stop()
            await shared.producer.publish(events, filter_value=filter_value)
        finally:
            shared.calls -= 1

    def producer(self, broker: str, *, name: str = "", first: int | None = None) -> AsyncProducer:
        """A stream of events to a broker: many on their way at a time, idempotent if it has a name.

        Args:
            broker: "name" or "namespace/name".
            name: Who publishes; one process at a time.
            first: Sequence of the first event, where the program numbers events; None: behind the newest stored one.
        """
        return AsyncProducer(self._connection, full_name(broker), name, first)

    def read(self, broker: str, **options: Unpack[ReadOptions]) -> AsyncReader:
        """A reader of a broker's log; what it reads is said by `ReadOptions`."""
        return AsyncReader(self._connection, full_name(broker), **options)

    def subscribe(
        self, subscription: str, *, consumer: str | None = None, window: int = CLIENT_WINDOW_DEFAULT
    ) -> AsyncConsumer:
        """A consumer of a durable subscription.

        Args:
            subscription: "name" or "namespace/name".
            consumer: The consumer's name, each its own; by default of this host and process, and a number.
            window: Events that may be on their way. Small: consumers share evenly; large: they wait less.
        """
        name = f"{socket.gethostname()}-{os.getpid()}-{next(_consumers)}" if consumer is None else consumer
        return AsyncConsumer(self._connection, full_name(subscription), name, window=window)

    async def seek(
        self,
        subscription: str,
        to: Place = "earliest",
        *,
        first: Single | None = None,
        last: Single | None = None,
        after: bool = False,
        on_progress: Callable[[SeekProgress], None] | None = None,
    ) -> SeekResult:
        """Moves a subscription, for all its consumers. Cancelled, it moves nothing.

        Args:
            subscription: Which one.
            to: The place; with `first` where the search begins.
            first: CEL, or what `headgate.expr` builds: at the first event from there on of which it is true.
            last: The same: at the last event of which it is true.
            after: Behind that event instead of at it.
            on_progress: Called with the progress of the search; what it raises cancels the seek.

        Raises:
            ConflictError: Another seek is under way.
            HeadgateError: There is no such subscription or place, or the connection broke: then it may have moved.
        """
        result: SeekResult | None = None
        async for step in self.seeking(subscription, to, first=first, last=last, after=after):
            if isinstance(step, SeekResult):
                result = step
            elif on_progress is not None:
                on_progress(step)
        assert result is not None
        return result

    async def seeking(
        self, subscription: str, to: Place, *, first: Single | None, last: Single | None, after: bool
    ) -> AsyncGenerator[SeekProgress | SeekResult, None]:
        """As `seek`: its progress, again and again, then where the subscription goes on."""
        if first is not None and last is not None:
            raise InvalidInputError("a seek goes to the first or to the last such event, not to both")
        request = pb.SeekRequest(subscription=full_name(subscription), to=place_text(to), after=after)
        if first is not None:
            request.first = condition_text(first)
        if last is not None:
            request.last = condition_text(last)
        stream: Stream[pb.SeekRequest, pb.SeekResponse] = self._connection.stream("Subscriptions/Seek", pb.SeekResponse)
        try:
            await stream.write(request)
            while not (response := await stream.must_read()).done:
                yield SeekProgress(response.events_scanned, response.events_total)
            yield SeekResult(response.position, response.epoch)
        finally:
            stream.cancel()

    async def stats(self, subscription: str) -> Stats:
        """Where a subscription stands."""
        request = pb.StatsRequest(subscription=full_name(subscription))
        found = await self._connection.call("Subscriptions/Stats", request, pb.StatsResponse)
        numbers = {field.name: getattr(found, field.name) for field in pb.StatsResponse.DESCRIPTOR.fields}
        numbers["oldest_unacknowledged"] = found.oldest_unacknowledged or None
        numbers["consumer"] = found.consumer or None
        return Stats(**numbers)

    async def analyze(self, subscription: str, filter: Filter) -> Analysis:
        """How many events of a subscription's backlog a filter would accept; nothing is consumed."""
        request = pb.AnalyzeRequest(subscription=full_name(subscription), filter=filter_message(filter))
        found = await self._connection.call("Subscriptions/Analyze", request, pb.AnalyzeResponse)
        return Analysis(found.events, found.accepted, found.rejected, found.errors, found.complete)

    def _retire(self) -> AsyncProducer:
        """Takes out a producer that no call uses now; the caller stops it."""
        for name, shared in self._shared.items():
            # A call that still opens the stream has given no event; a cancelled one has left its events.
            if not shared.calls and not shared.producer.unacknowledged:
                del self._shared[name]
                return shared.producer
        raise OverloadedError(
            f"events are on their way to {CLIENT_PRODUCERS_MAX} brokers (CLIENT_PRODUCERS_MAX)",
            hint="publish with producers of your own: client.producer(...)",
        )
