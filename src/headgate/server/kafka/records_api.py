"""What the owner of an outbox partition answers of an event: its records, on the paths of `why` and `trace`.

Who asks it is the control process of a server of the deployment (`asked_records.py`), for a client and by his rights.
The query names a place in the topic `events`: the event there must be one of the broker that the path is about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.control.http import JSON
from headgate.delivery.events import Events
from headgate.errors import InvalidInputError, NotFoundError, UnavailableError
from headgate.inspect.api import OF_BROKERS, WHY_TRIGGER
from headgate.log import positions
from headgate.server.routing_cache import RoutingStore
from headgate.store.kafka.partition_views import OutboxLookups, PartitionRecords

PLACE = "place"
"""The query's parameter: PARTITION:OFFSET."""


class NoSuchEventError(NotFoundError):
    """The place holds no event of the broker."""

    code = "no-such-event"


class PartitionRecordsApi:
    """The handlers.

    Args:
        records: Of the partition.
        lookups: Of the process.
        events: The topic, by places.
        store: Routing.
    """

    def __init__(self, records: PartitionRecords, lookups: OutboxLookups, events: Events, store: RoutingStore) -> None:
        self._records = records
        self._lookups = lookups
        self._events = events
        self._store = store

    def routes(self) -> Iterator[Route]:
        """Where they answer."""
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
