"""Counters of triggers, asked of the dispatchers that deliver for them; a path that no front passes on.

POST /target-stats   {"names": ["shop/gold", ...]}: the counters of these
POST /backlog        what each namespace's triggers have in memory
POST /matches        how many matches of each target have ended
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import httptools
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.control.bodies import decode_as
from headgate.control.http import JSON, read_body
from headgate.delivery.events import Events
from headgate.delivery.scheduler import Scheduler
from headgate.delivery.targets import TargetState
from headgate.errors import HeadgateError
from headgate.event import rfc3339
from headgate.limits import STATS_ANSWER_S_MAX
from headgate.server.local_http import requested

STATS_PATH: Final = "/target-stats"
BACKLOG_PATH: Final = "/backlog"
MATCHES_PATH: Final = "/matches"
_TYPES: Final = frozenset({JSON})


class StatsQuestion(msgspec.Struct, frozen=True):
    """Whose counters are wanted: triggers `namespace/name`."""

    names: frozenset[str]


class TargetStats(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The counters of one trigger since `since`; see `delivery.counts.TargetCounts`.

    Attributes:
        rate: Deliveries a second in the last minute.
        backlog: Deliveries in memory that have not ended.
        lagging: Whether there is more in the outbox.
        circuit: `closed` or `open`.
        since: When the dispatcher began to count, RFC 3339.
        oldest_undelivered: When the oldest event in memory was stored, RFC 3339; empty without one.
    """

    delivered: int
    failed: int
    filtered: int
    filter_errors: int
    attempts_failed: int
    rate: float
    backlog: int
    lagging: bool
    circuit: str
    since: str
    oldest_undelivered: str = ""


class StatsReply(msgspec.Struct, frozen=True):
    """The counters of those that a dispatcher has had events for, and since when it counts (RFC 3339)."""

    since: str
    items: dict[str, TargetStats]


class BacklogCount(msgspec.Struct, rename="camel"):
    """What the triggers of a namespace, or of a server, have not delivered.

    Attributes:
        deliveries: In memory.
        lagging: Triggers that have more in the outbox.
        circuits_open: Triggers whose subscriber is not asked now.
    """

    deliveries: int = 0
    lagging: int = 0
    circuits_open: int = 0

    def add(self, other: BacklogCount) -> None:
        """These as well."""
        self.deliveries += other.deliveries
        self.lagging += other.lagging
        self.circuits_open += other.circuits_open


class MatchCount(NamedTuple):
    """Matches of a trigger since its dispatcher began.

    Attributes:
        ended: Those that were delivered or given up.
        waits: Whether there are others.
    """

    ended: int
    waits: bool


class TargetStatsApi:
    """The handlers, in a dispatcher.

    Args:
        scheduler: The deliveries.
        events: The log, for the age of what waits.
    """

    def __init__(
        self, scheduler: Scheduler, events: Events, clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000
    ) -> None:
        self._scheduler = scheduler
        self._events = events
        self._since = rfc3339.text(clock_us())

    def routes(self) -> Iterator[Route]:
        """Where they answer."""
        yield Route(STATS_PATH, self._stats, methods=["POST"])
        yield Route(BACKLOG_PATH, self._backlog, methods=["POST"])
        yield Route(MATCHES_PATH, self._matches, methods=["POST"])

    async def _stats(self, request: Request) -> Response:
        wanted = decode_as(await read_body(request, _TYPES), StatsQuestion, "the question")
        reply = await stats_of(self._scheduler, self._events, wanted.names, self._since)
        return Response(msgspec.json.encode(reply), media_type=JSON)

    async def _backlog(self, _: Request) -> Response:
        found: dict[str, BacklogCount] = defaultdict(BacklogCount)
        for state in self._scheduler.behind:
            opened = state.subscriber.circuit.opened
            found[state.target.namespace].add(
                BacklogCount(len(state.deliveries.live), int(state.lag is not None), int(opened))
            )
        return Response(msgspec.json.encode(found), media_type=JSON)

    async def _matches(self, _: Request) -> Response:
        found = {
            state.target.id: MatchCount(
                state.counts.delivered + state.counts.failed, bool(state.deliveries.live) or state.lag is not None
            )
            for state in self._scheduler.states
        }
        return Response(msgspec.json.encode(found), media_type=JSON)


async def stats_of(scheduler: Scheduler, events: Events, names: Container[str], since: str) -> StatsReply:
    """The counters of triggers.

    Args:
        scheduler: Their deliveries.
        events: The log, for the age of what waits.
        names: Of the triggers, `namespace/name`.
        since: When the counting began, RFC 3339.
    """
    now = asyncio.get_running_loop().time()
    items = {}
    for name, state in scheduler.states_of(names).items():
        counts = state.counts
        items[name] = TargetStats(
            delivered=counts.delivered,
            failed=counts.failed,
            filtered=counts.filtered,
            filter_errors=counts.filter_errors,
            attempts_failed=counts.attempts_failed,
            rate=round(counts.rate.per_s(now), 3),
            backlog=len(state.deliveries.live),
            lagging=state.lag is not None,
            circuit="open" if state.subscriber.circuit.opened else "closed",
            since=since,
            oldest_undelivered=await _oldest(state, events),
        )
    return StatsReply(since, items)


async def _oldest(state: TargetState, events: Events) -> str:
    delivery = state.oldest
    if delivery is None:
        return ""
    try:
        event = await events.load(delivery.partition, delivery.offset)
    except HeadgateError:  # gone or damaged: nobody can tell its age
        return ""
    return rfc3339.text(event.append_time_us)


def completed(names: Iterable[str], reply: StatsReply) -> dict[str, TargetStats]:
    """The counters of triggers of one dispatcher that has answered: who has had no event has those of nothing."""
    return dict.fromkeys(names, TargetStats(0, 0, 0, 0, 0, 0.0, 0, False, "closed", reply.since)) | reply.items


class TriggerCounters(Protocol):
    """Knows the counters of triggers, wherever their dispatchers are."""

    async def stats(self, names: frozenset[str]) -> dict[str, TargetStats]:
        """The counters of triggers `namespace/name`; nothing of those whose dispatcher is away."""
        ...


class TargetStatsReader:
    """Asks all dispatchers of this server; see `TriggerCounters`.

    Args:
        sockets: Theirs.
    """

    def __init__(self, sockets: Sequence[Path]) -> None:
        self._sockets = sockets

    async def stats(self, names: frozenset[str]) -> dict[str, TargetStats]:
        """See `TriggerCounters`."""
        if not names:
            return {}
        body = msgspec.json.encode(StatsQuestion(names))
        answers = await asyncio.gather(*(_asked(one, b"POST", STATS_PATH, body) for one in self._sockets))
        replies = [msgspec.json.decode(answer, type=StatsReply) for answer in answers if answer]
        items: dict[str, TargetStats] = {}
        for reply in replies:
            items |= reply.items
        # Its dispatcher is one of those that have answered, unless one is away: then nothing is said of it.
        is_whole = len(replies) == len(self._sockets)
        return completed(names if is_whole else (), StatsReply(max((one.since for one in replies), default=""), items))

    async def matches(self) -> dict[int, MatchCount] | None:
        """How many matches of triggers have ended, by target; who has had none is left out.

        Returns:
            None where a dispatcher is away.
        """
        answers = await asyncio.gather(*(_asked(one, b"POST", MATCHES_PATH, b"") for one in self._sockets))
        found: dict[int, MatchCount] = {}
        for answer in answers:
            if not answer:
                return None
            found |= msgspec.json.decode(answer, type=dict[int, MatchCount])
        return found

    async def backlog(self, namespace: str | None) -> BacklogCount:
        """What a namespace's triggers have not delivered; None for all."""
        answers = await asyncio.gather(*(_asked(one, b"POST", BACKLOG_PATH, b"") for one in self._sockets))
        total = BacklogCount()
        for answer in answers:
            counts = msgspec.json.decode(answer, type=dict[str, BacklogCount]) if answer else {}
            for name, count in counts.items():
                if namespace in (None, name):
                    total.add(count)
        return total


async def _asked(socket: Path, method: bytes, path: str, body: bytes) -> bytes:
    """A dispatcher's answer; empty when there is none."""
    headers = [(b"content-type", JSON.encode())] if body else []
    try:
        async with (
            asyncio.timeout(STATS_ANSWER_S_MAX),
            requested(socket, method, path.encode(), body, headers) as response,
        ):
            status = await response.head()
            answer = b"".join([piece async for piece in response.pieces()])
    except (OSError, EOFError, httptools.HttpParserError):  # a TimeoutError is an OSError
        return b""
    return answer if status == 200 else b""
