"""Questions about outbox partitions: their owners are asked, and answer, for `why` and `trace`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.control.http import ERROR_HANDLERS, JSON
from headgate.delivery.events import Events
from headgate.inspect.api import OF_BROKERS, WHY_TRIGGER
from headgate.inspect.find import EventRecords, FoundEvent, InspectedLog, KnownEvent, asked_for
from headgate.server.dispatcher_group import DispatcherAnswer, DispatcherQuestion, DispatcherReach
from headgate.server.proxy import PartUnavailableError, sent_path
from headgate.server.routing_cache import RoutingStore
from headgate.store.kafka.partition_views import OutboxLookups, PartitionRecords
from headgate_api import positions
from headgate_api.errors import HeadgateError, InvalidInputError, NotFoundError, UnavailableError

# --- records api ----------------------------------------------------------------------------------
# What the owner of an outbox partition answers of an event: its records, on the paths of `why` and `trace`.
#
# Who asks it is the control process of a server of the deployment, for a client and by his rights.
# The query names a place in the topic `events`: the event there must be one of the broker that the path is about.

PLACE = "place"
"""The query's parameter: PARTITION:OFFSET."""


class NoSuchEventError(NotFoundError):
    """The place holds no event of the broker."""

    code = "no-such-event"


class PartitionRecordsApi:
    """The handlers."""

    def __init__(self, records: PartitionRecords, lookups: OutboxLookups, events: Events, store: RoutingStore) -> None:
        self._records = records
        self._lookups = lookups
        self._events = events
        self._store = store

    def routes(self) -> Iterator[Route]:
        yield Route(WHY_TRIGGER, self._of_trigger, methods=["GET"])
        for path in OF_BROKERS:
            yield Route(path, self._of_broker, methods=["GET"])

    async def _of_trigger(self, request: Request) -> Response:
        table, name = await asyncio.to_thread(self._store.snapshot), _named(request)
        target = next((one for one in table.targets if one.name == name and one.pull is None), None)
        if target is None:
            raise UnavailableError(
                f"the dispatcher does not know the trigger {name}", hint="try again in a few seconds"
            )
        return await self._answer(request, target.broker, target.id)

    async def _of_broker(self, request: Request) -> Response:
        served = await asyncio.to_thread(self._store.served, _named(request))
        if served is None:
            raise UnavailableError(
                f"the dispatcher does not know the broker {_named(request)}", hint="try again in a few seconds"
            )
        return await self._answer(request, served.identity, None)

    async def _answer(self, request: Request, broker: str, target: int | None) -> Response:
        places = positions.parse(request.query_params.get(PLACE, ""))
        if len(places) != 1:
            raise InvalidInputError(f"the query names no place: ?{PLACE}=PARTITION:OFFSET")
        ((source, offset),) = places.items()
        if (await self._events.load(source, offset)).broker != broker:
            raise NoSuchEventError("there is no event of this broker")
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._lookups.thread, self._records.of_event, source, offset, target)
        return Response(msgspec.json.encode(found), media_type=JSON)


def _named(request: Request) -> str:
    """What the path is about: `namespace/name`."""
    return f"{request.path_params['namespace']}/{request.path_params['name']}"


_decode: Final = msgspec.json.Decoder(EventRecords).decode


class OwnerRefusedError(UnavailableError):
    """The owner of a partition cannot say what became of an event."""

    code = "owner-refused"


class RemoteRecords:
    """See `headgate.inspect.find.Records`; of one request, made on the event loop, used in other threads.

    The request's client must have the right to it at every owner.
    """

    log: InspectedLog

    def __init__(self, log: InspectedLog, reach: DispatcherReach, client: Request) -> None:
        self.log = log
        self._reach = reach
        self._client = client
        self._loop = asyncio.get_running_loop()

    def of_event(self, found: FoundEvent, target: int | None = None) -> KnownEvent:
        """See `Records`; UnavailableError when an owner does not answer, or cannot say it."""
        return asyncio.run_coroutine_threadsafe(self._ask(found, target), self._loop).result()

    async def _ask(self, found: FoundEvent, target: int | None) -> KnownEvent:
        place = urlencode({PLACE: positions.write({found.partition: found.offset})})
        question = DispatcherQuestion.of(self._client, target=f"{sent_path(self._client.scope)}?{place}")
        numbers = asked_for(target, self._reach.count)
        answers = await asyncio.gather(*(self._reach.ask(number, question) for number in numbers))
        records = {number: _records(number, answer) for number, answer in zip(numbers, answers, strict=True)}
        return KnownEvent(records, self._reach.count)


def _records(number: int, answer: DispatcherAnswer) -> EventRecords:
    if answer.is_good:
        return _decode(answer.body)
    status: Any = answer.content
    raise OwnerRefusedError(f"partition {number} of the outbox: {status.get('message') or answer.status}")


# --- partition api --------------------------------------------------------------------------------
# What a dispatcher on Kafka answers on its socket: questions about one of its partitions, `/partitions/N/...`.
#
# Behind the prefix are the paths that a dispatcher of one machine has. A partition that is not here, or not yet, is
# answered with 421 (Misdirected Request): nothing was done, and who asks looks for its owner anew.

MISDIRECTED: Final = 421
PARTITION: Final = b"headgate-partition"
"""A header of a question that another server has passed on, and metadata of a call: the partition that it is about."""
_PREFIX: Final = "/partitions/"


class PartitionElsewhereError(HeadgateError):
    """The process does not own the partition that it is asked about."""

    code = "partition-elsewhere"
    http_status = MISDIRECTED


class AnsweringPartition(Protocol):
    """A partition that this process owns."""

    @property
    def api(self) -> ASGIApp | None:
        """Answers questions; None before its state is read and once it goes."""
        ...


def partition_path(partition: int, target: str) -> str:
    """Path and query of a question about a partition."""
    return f"{_PREFIX}{partition}{target}"


def partitions_api(partitions: Mapping[int, AnsweringPartition]) -> Starlette:
    """Answers about the partitions that a process has at the time."""

    class Questions:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            number = scope["path_params"]["number"]
            partition = partitions.get(number)
            api = partition.api if partition is not None else None
            if api is None:
                raise PartitionElsewhereError(f"partition {number} of the outbox is not here")
            prefix = f"{_PREFIX}{number}"
            path, raw = scope["path"].removeprefix(prefix), scope["raw_path"].removeprefix(prefix.encode())
            try:
                await api({**scope, "path": path, "raw_path": raw}, receive, send)
            except HeadgateError:
                raise
            except Exception as error:
                if partition is partitions.get(number) and partition is not None and partition.api is api:
                    raise
                raise PartUnavailableError from error  # it went under way, and with it its files and threads

    route = Route(f"{_PREFIX}{{number:int}}/{{rest:path}}", Questions())
    return Starlette(routes=[route], exception_handlers=ERROR_HANDLERS)
