"""What the owner of an outbox partition answers of the counters of its triggers, on the paths of these.

Who asks it is the control process of a server of the deployment (`asked_stats.py`), for a client and by his rights. The
query names targets; of those that the path is not about nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.control.http import JSON
from headgate.control.objects import Kind
from headgate.delivery.events import Events
from headgate.delivery.scheduler import Scheduler
from headgate.errors import InvalidInputError
from headgate.event import rfc3339
from headgate.limits import STATS_PAGE_MAX
from headgate.server.object_stats import stats_paths
from headgate.server.target_stats import stats_of

TARGETS: Final = "targets"
"""The query's parameter: ids of targets, separated by commas."""
_DIGITS_MAX: Final = 10


class PartitionStatsApi:
    """The handlers.

    Args:
        scheduler: The deliveries of the partition.
        events: The topic, for the age of what waits.
        clock_us: Microseconds since 1970 UTC.
    """

    def __init__(self, scheduler: Scheduler, events: Events, clock_us: Callable[[], int]) -> None:
        self._scheduler = scheduler
        self._events = events
        self._since = rfc3339.text(clock_us())

    def routes(self) -> Iterator[Route]:
        """Where they answer."""
        for path in stats_paths(Kind.TRIGGER):
            yield Route(path, self._stats, methods=["GET"])

    async def _stats(self, request: Request) -> Response:
        given = request.path_params
        within = f"{given['namespace']}/" if "namespace" in given else ""
        names = set()
        for number in _targets(request.query_params.get(TARGETS, "")):
            target = self._scheduler.find(number)
            if target is not None and target.name.startswith(within):
                names.add(target.name)
        if "name" in given:
            names &= {f"{within}{given['name']}"}
        reply = await stats_of(self._scheduler, self._events, names, self._since)
        return Response(msgspec.json.encode(reply), media_type=JSON)


def _targets(text: str) -> list[int]:
    words = text.split(",", STATS_PAGE_MAX)
    if len(words) > STATS_PAGE_MAX or not all(word.isdigit() and len(word) <= _DIGITS_MAX for word in words):
        raise InvalidInputError(f"the query names no targets: ?{TARGETS}=ID,ID, at most {STATS_PAGE_MAX}")
    return [int(word) for word in words]
