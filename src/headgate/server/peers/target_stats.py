"""What dispatchers count: the counters of triggers, and what is not delivered. They answer it, and are asked for it.

    GET .../triggerstats?targets=ID,ID    the counters of these targets, on any path about counters of triggers
    GET .../summary                       what is not delivered, and the dead letters; of a namespace, or of all
    POST /matches                         how many matches of each target have ended; for no client

The paths are those of the client's own question: another server judges by them whether the client may ask. Fronts pass
them on to the process of the objects, so no client's question comes here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.deadletters.api import CountsPage
from headgate.deadletters.store import counts_of
from headgate.delivery.events import Events
from headgate.delivery.recent import RecentAttempt, TargetCourse
from headgate.delivery.scheduler import Scheduler
from headgate.delivery.targets import TargetState
from headgate.objects.api.http import JSON, in_thread, json_response
from headgate.outbox.shards import dispatcher_of
from headgate.server.peers.dispatcher_group import DispatcherQuestion, DispatcherReach
from headgate.server.peers.local_http import ask, sent_path
from headgate_api.errors import HeadgateError, InvalidInputError, UnavailableError
from headgate_api.event import rfc3339
from headgate_api.event.names import path_of
from headgate_api.limits import STATS_ANSWER_S_MAX, STATS_PAGE_MAX
from headgate_api.objects.kinds import OWN_API_VERSION, Kind, ObjectKey

SUMMARY: Final = f"/apis/{OWN_API_VERSION}/summary"
SUMMARY_OF_NAMESPACE: Final = f"/apis/{OWN_API_VERSION}/namespaces/{{namespace}}/summary"
STATS_LISTS: Final = {Kind.TRIGGER: "triggerstats", Kind.BROKER: "brokerstats"}
MATCHES_PATH: Final = "/matches"
TARGETS: Final = "targets"
"""A parameter of the query: ids of targets, separated by commas."""
_DIGITS_MAX: Final = 10
_Answer = TypeVar("_Answer")
_log = structlog.get_logger(__name__)


def stats_paths(kind: Kind) -> tuple[str, ...]:
    """Where the counters of triggers or brokers are: of all namespaces, of one, of one object."""
    lists = (f"/apis/{OWN_API_VERSION}{place}/{STATS_LISTS[kind]}" for place in ("", "/namespaces/{namespace}"))
    return (*lists, f"{kind.root}/namespaces/{{namespace}}/{kind.plural}/{{name}}/stats")


class TargetStats(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The counters of one trigger since `since` (RFC 3339); see `delivery.counts.TargetCounts`.

    `rate` is deliveries a second in the last minute, `backlog` those in memory, `lagging` whether the outbox has more,
    `circuit` `closed` or `open`. `oldest_undelivered` is when the oldest event in memory was stored. The answer for one
    trigger alone has its last attempts, the newest first, and the course of its numbers.
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
    attempts: list[RecentAttempt] = []
    course: TargetCourse | None = None


class StatsReply(msgspec.Struct, frozen=True):
    """The counters of those that a dispatcher has had events for, and since when it counts (RFC 3339)."""

    since: str
    items: dict[str, TargetStats]


class BacklogCount(msgspec.Struct, rename="camel"):
    """What triggers have not delivered: in memory, and in the outbox of those that are `lagging`."""

    deliveries: int = 0
    lagging: int = 0
    circuits_open: int = 0

    def add(self, other: BacklogCount) -> None:
        self.deliveries += other.deliveries
        self.lagging += other.lagging
        self.circuits_open += other.circuits_open


class BacklogOf(msgspec.Struct, frozen=True):
    """What triggers of a broker `namespace/name` have not delivered, whose filters are below one ceiling."""

    broker: str
    ceiling: str
    count: BacklogCount


class MatchCount(NamedTuple):
    """Matches of a trigger since its dispatcher began: how many were delivered or given up, and whether others wait."""

    ended: int
    waits: bool


class Undelivered(msgspec.Struct, frozen=True):
    """What a dispatcher, or all of them, have not delivered."""

    backlogs: list[BacklogOf]
    letters: CountsPage


# --- answering ------------------------------------------------------------------------------------


class TargetStatsApi:
    """The handlers, in a dispatcher."""

    def __init__(self, scheduler: Scheduler, events: Events, dead_letters: Path, clock_us: Callable[[], int]) -> None:
        self._scheduler = scheduler
        self._events = events
        self._dead_letters = dead_letters
        self._clock_us = clock_us
        self._since = rfc3339.text(clock_us())

    def routes(self) -> Iterator[Route]:
        for path in stats_paths(Kind.TRIGGER):
            yield Route(path, self._stats, methods=["GET"])
        yield Route(SUMMARY, self._undelivered, methods=["GET"])
        yield Route(SUMMARY_OF_NAMESPACE, self._undelivered, methods=["GET"])
        yield Route(MATCHES_PATH, self._matches, methods=["POST"])

    async def _stats(self, request: Request) -> Response:
        given = request.path_params
        within = f"{given['namespace']}/" if "namespace" in given else ""
        found = map(self._scheduler.find, _targets(request.query_params.get(TARGETS, "")))
        names = {target.name for target in found if target is not None and target.name.startswith(within)}
        if "name" in given:
            names &= {f"{within}{given['name']}"}
        reply = await _stats_of(self._scheduler, self._events, names, self._since)
        return json_response(self._with_recent(reply) if "name" in given else reply)

    def _with_recent(self, reply: StatsReply) -> StatsReply:
        """With what is remembered of the triggers' attempts."""
        now_us = self._clock_us()
        items = dict(reply.items)
        for name, state in self._scheduler.states_of(reply.items).items():
            if (recent := state.recent) is not None:
                more = {"attempts": recent.attempts(), "course": recent.course(now_us)}
                items[name] = msgspec.structs.replace(items[name], **more)
        return StatsReply(reply.since, items)

    async def _undelivered(self, request: Request) -> Response:
        namespace: str | None = request.path_params.get("namespace")
        totals: defaultdict[tuple[str, str], BacklogCount] = defaultdict(BacklogCount)
        for state in self._scheduler.behind:
            target, opened = state.target, state.subscriber.circuit.opened
            if namespace in (None, target.namespace):
                count = BacklogCount(len(state.deliveries.live), int(state.lag is not None), int(opened))
                totals[path_of(target.broker), target.filter.ceiling].add(count)
        backlogs = [BacklogOf(*of, count) for of, count in totals.items()]
        letters = await in_thread(counts_of, [self._dead_letters], namespace)
        return json_response(Undelivered(backlogs, CountsPage.of(letters)))

    async def _matches(self, _: Request) -> Response:
        found = {
            state.target.id: MatchCount(
                state.counts.delivered + state.counts.failed, bool(state.deliveries.live) or state.lag is not None
            )
            for state in self._scheduler.states
        }
        return Response(msgspec.json.encode(found), media_type=JSON)


def _targets(text: str) -> list[int]:
    words = text.split(",", STATS_PAGE_MAX)
    if len(words) > STATS_PAGE_MAX or not all(word.isdigit() and len(word) <= _DIGITS_MAX for word in words):
        raise InvalidInputError(f"the query names no targets: ?{TARGETS}=ID,ID, at most {STATS_PAGE_MAX}")
    return [int(word) for word in words]


async def _stats_of(scheduler: Scheduler, events: Events, names: Container[str], since: str) -> StatsReply:
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


# --- asking ---------------------------------------------------------------------------------------


class RemoteStats:
    """The counters of triggers, wherever their dispatchers are; for one request, whose client every server judges."""

    def __init__(self, reach: DispatcherReach, target_id: Callable[[ObjectKey], int | None], client: Request) -> None:
        self._reach = reach
        self._target_id = target_id
        self._client = client

    async def stats(self, names: frozenset[str]) -> dict[str, TargetStats]:
        """Of triggers `namespace/name`; nothing of those whose dispatcher is away."""
        owned = await asyncio.to_thread(self._owned, names)
        found = await asyncio.gather(*(self._of_dispatcher(number, targets) for number, targets in owned.items()))
        return {name: stats for one in found for name, stats in one.items()}

    def _owned(self, names: frozenset[str]) -> dict[int, dict[str, int]]:
        owned: defaultdict[int, dict[str, int]] = defaultdict(dict)
        for path in names:
            namespace, _, name = path.partition("/")
            target = self._target_id(ObjectKey(Kind.TRIGGER, namespace, name))
            if target is not None:  # else it has just been deleted
                owned[dispatcher_of(target, self._reach.count)][path] = target
        return owned

    async def _of_dispatcher(self, number: int, targets: dict[str, int]) -> dict[str, TargetStats]:
        query = urlencode({TARGETS: ",".join(map(str, targets.values()))}, safe=",")
        question = DispatcherQuestion("GET", f"{sent_path(self._client.scope)}?{query}", b"", self._client)
        if (reply := await _answer(self._reach, number, question, StatsReply)) is None:
            return {}
        # Who has had no event has the counters of nothing.
        return dict.fromkeys(targets, TargetStats(0, 0, 0, 0, 0, 0.0, 0, False, "closed", reply.since)) | reply.items


async def undelivered(reach: DispatcherReach, client: Request, files: Sequence[Path] = ()) -> Undelivered:
    """What all dispatchers have not delivered, of the namespace that a request for a summary is about, or of all.

    `files` has each dispatcher's `deadletters.db`, read for one that is silent; empty where they are not here.
    """
    question = DispatcherQuestion("GET", sent_path(client.scope), b"", client)
    asked = (_answer(reach, number, question, Undelivered) for number in range(reach.count))
    found = await asyncio.gather(*asked)
    answers = [one for one in found if one is not None]
    backlogs, pages = [of for one in answers for of in one.backlogs], [one.letters for one in answers]
    silent = [path for path, one in zip(files, found, strict=False) if one is None]
    if silent:
        letters = await in_thread(counts_of, silent, client.path_params.get("namespace"))
        pages.append(CountsPage.of(letters))
    return Undelivered(backlogs, CountsPage.joined(pages))


async def matches(dispatchers: Iterable[Path]) -> dict[int, MatchCount] | None:
    """How many matches have ended, by target; those without any are left out. None: a dispatcher does not answer."""
    found: dict[int, MatchCount] = {}
    for socket in dispatchers:
        try:
            answer = await ask(socket, "POST", MATCHES_PATH, within_s=STATS_ANSWER_S_MAX)
        except OSError:
            return None
        if not answer.is_good:
            return None
        found |= msgspec.json.decode(answer.body, type=dict[int, MatchCount])
    return found


async def _answer(
    reach: DispatcherReach, number: int, question: DispatcherQuestion, kind: type[_Answer]
) -> _Answer | None:
    try:
        async with asyncio.timeout(STATS_ANSWER_S_MAX):
            answer = await reach.ask(number, question)
        if answer.is_good:
            return msgspec.json.decode(answer.body, type=kind)
        why = str(answer.status)
    except (UnavailableError, TimeoutError) as error:
        why = str(error)
    _log.info("a dispatcher's counters are left out", dispatcher=number, why=why)
    return None
