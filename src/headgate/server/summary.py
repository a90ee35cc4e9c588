"""The numbers that a console shows: the summary of a deployment, and lists of triggers and brokers with counters.

They are read in the process of the objects, which keeps the history in memory; counters of triggers, by their
dispatchers, for one page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.auth.authorizer import OPEN, Authorizer
from headgate.auth.routes import READ, SUBSCRIBE
from headgate.auth.user import User
from headgate.deadletters.store import DeadLetterCount
from headgate.objects.api.grants import hides, is_own, seen_by
from headgate.objects.api.http import Handler, in_thread, json_response
from headgate.objects.api.queries import continue_token, list_query, user_of
from headgate.objects.api.watch import ListQuery
from headgate.objects.store.attention import ObjectTrouble, Trouble, is_troubled, troubles
from headgate.objects.store.history import BodyTest, Page
from headgate.objects.store.store import Store
from headgate.observe.history import BrokerCount, NumbersHistory, Rates
from headgate.observe.logs import Recurring
from headgate.server import ready
from headgate.server.peers import target_stats
from headgate.server.peers.dispatcher_group import DispatcherReach
from headgate.server.peers.target_stats import BacklogCount, RemoteStats, TargetStats, Undelivered
from headgate.settings import Settings
from headgate_api.event import rfc3339
from headgate_api.limits import ATTENTION_MAX, HISTORY_POINT_S, RATE_WINDOW_S, STATS_PAGE_DEFAULT, STATS_PAGE_MAX
from headgate_api.objects.errors import MalformedObjectError
from headgate_api.objects.kinds import Broker, Condition, Kind, Object, ObjectKey, Trigger, decode_stored, key_of

_KEPT: Final = "kept"
_READY: Final = "Ready"
_log = structlog.get_logger(__name__)


# --- the summary ----------------------------------------------------------------------------------
#     GET /apis/headgate.dev/v1/summary                   all of it
#     GET /apis/headgate.dev/v1/namespaces/NS/summary     what is in one namespace, and nothing of the others


class PartView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of a server; `note` is only for those who may see all, `server` its URL where there are several."""

    name: str
    ready: bool
    note: str = ""
    server: str = ""


class HistoryView(msgspec.Struct, frozen=True, rename={"begin": "from"}):
    """Points of `seconds` each from `begin` on, the oldest first; see `observe.history.Rates`."""

    seconds: float
    begin: str
    received: list[float]
    delivered: list[float]
    failed: list[float]
    p50: list[float | None]
    p99: list[float | None]


class DeadLetterTotals(msgspec.Struct, frozen=True):
    """Dead letters, and those of them that wait for a person."""

    count: int
    kept: int


class DeadLetterTrouble(msgspec.Struct, frozen=True):
    """A trigger that has dead letters which wait for a person."""

    kind: str
    namespace: str
    name: str
    reason: str
    count: int
    message: str


class SummaryView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The answer. Of the last minute: `rates` a second, and `latency` in seconds, empty without deliveries.

    `objects` are counted by plural; `attention` has at most ATTENTION_MAX of `attention_total`. Who has a ceiling is
    told no total of events: for him there are no `history`, `rates`, `latency` and `dead_letters`, and the backlog is
    that of triggers which get no event but those of his right.
    """

    namespace: str = ""
    time: str
    ready: bool
    parts: list[PartView]
    history: HistoryView | None = None
    rates: dict[str, float] = {}
    latency: dict[str, float | None] = {}
    backlog: BacklogCount
    objects: dict[str, int]
    dead_letters: DeadLetterTotals | None = None
    attention: list[ObjectTrouble | DeadLetterTrouble]
    attention_total: int


def parts_of(settings: Settings, server: str = "") -> list[PartView]:
    """The processes of this server as they are now; reads their files."""
    return [PartView(part.name, one.ready, one.note, server) for part, one in ready.states(settings).items()]


class SummaryApi:
    """The handlers. `parts` may block; `letters`: each dispatcher's `deadletters.db`, for when it does not answer."""

    def __init__(
        self,
        store: Store,
        parts: Callable[[], Iterable[PartView]],
        dispatchers: DispatcherReach,
        history: NumbersHistory,
        letters: Sequence[Path],
        authorizer: Authorizer,
    ) -> None:
        self._store = store
        self._parts = parts
        self._dispatchers = dispatchers
        self._history = history
        self._authorizer = authorizer
        self._letters = letters

    def routes(self) -> Iterator[Route]:
        yield Route(target_stats.SUMMARY, self._summary, methods=["GET"])
        yield Route(target_stats.SUMMARY_OF_NAMESPACE, self._summary, methods=["GET"])

    async def _summary(self, request: Request) -> Response:
        found = await target_stats.undelivered(self._dispatchers, request, self._letters)
        namespace, user = request.path_params.get("namespace"), user_of(request)
        return json_response(await in_thread(self._view, namespace, found, user))

    def _view(self, namespace: str | None, found: Undelivered, user: User) -> SummaryView:
        parts, backlog = list(self._parts()), BacklogCount()
        for one in found.backlogs:
            if is_own(self._authorizer, user, one.broker, one.ceiling):
                backlog.add(one.count)
        objects = self._store.attention.counts(namespace)
        view = SummaryView(
            namespace=namespace or "",
            time=_shown(time.time()),
            ready=all(part.ready for part in parts),
            parts=parts if namespace is None else [PartView(part.name, part.ready) for part in parts],
            backlog=backlog,
            objects={kind.plural: objects.get(kind, 0) for kind in (Kind.BROKER, Kind.TRIGGER, Kind.SUBSCRIPTION)},
            attention=[],
            attention_total=0,
        )
        if self._authorizer.has_ceilings(user, ""):
            troubles, count = self._store.attention.read(namespace, ATTENTION_MAX, partial(self._seen_by, user))
            return msgspec.structs.replace(view, attention=[*troubles], attention_total=count)
        conditions, count = self._store.attention.read(namespace, ATTENTION_MAX)
        kept = [_kept(one) for one in found.letters.items if one.state == _KEPT]
        last = self._history.last(namespace, RATE_WINDOW_S)
        return msgspec.structs.replace(
            view,
            history=_history(*self._history.points(namespace)),
            rates={"received": last.received, "delivered": last.delivered, "failed": last.failed},
            latency={} if last.p50 is None else {"p50": last.p50, "p99": last.p99},
            dead_letters=DeadLetterTotals(found.letters.total, found.letters.kept),
            attention=[*kept, *conditions][:ATTENTION_MAX],
            attention_total=count + len(kept),
        )

    def _seen_by(self, user: User, obj: Object) -> Object | None:
        """What a user may see of an object; None for nothing."""
        hidden = hides(self._authorizer, user, Kind(obj.kind), obj.metadata.namespace)
        return None if hidden is not None and hidden(obj.metadata.name) else seen_by(self._authorizer, user, obj)


async def keep(history: NumbersHistory) -> None:
    """Takes the points of a history until it is cancelled."""
    samples = Recurring(_log, "the history of numbers cannot be kept", OSError)
    while True:
        with samples.attempt():
            await asyncio.to_thread(history.sample)
        await asyncio.sleep(HISTORY_POINT_S)


def _kept(one: DeadLetterCount) -> DeadLetterTrouble:
    noun = "dead letter is" if one.count == 1 else "dead letters are"
    message = f"{one.count:,} {noun} kept; the reason of the last one: {one.reason}"
    return DeadLetterTrouble("DeadLetters", one.namespace, one.trigger, "Kept", one.count, message)


def _history(begin_s: float, points: list[Rates]) -> HistoryView:
    return HistoryView(
        HISTORY_POINT_S,
        _shown(begin_s),
        [round(one.received, 3) for one in points],
        [round(one.delivered, 3) for one in points],
        [round(one.failed, 3) for one in points],
        [one.p50 for one in points],
        [one.p99 for one in points],
    )


def _shown(time_s: float) -> str:
    return rfc3339.text(int(time_s * 1e6), "milliseconds")


# --- lists with counters --------------------------------------------------------------------------
#     GET .../triggerstats   ?limit=&continue=&search=&labelSelector=&state=
#     GET .../brokerstats    the same
#     GET .../triggers/NAME/stats, .../brokers/NAME/stats   of one


class ListedObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a list shows of an object: its condition Ready, and in `troubles` those that are False."""

    namespace: str
    name: str
    uid: str
    created: str
    generation: int
    ready: str
    reason: str
    message: str
    troubles: list[Trouble]


class ListedTrigger(ListedObject, frozen=True, kw_only=True):
    """A trigger with its counters; `stats` is absent while its dispatcher is away, and where it is not for the user."""

    broker: str
    subscriber: str = ""
    filter: Mapping[str, object] | None = None
    filters: tuple[object, ...] = ()
    stats: TargetStats | None = None


class ListedBroker(ListedObject, frozen=True, kw_only=True):
    """A broker with its counters; `stats` is absent where they count events that are not for the user."""

    url: str = ""
    triggers: int
    subscriptions: int
    stats: BrokerCount | None = None


class StatsPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of a list by namespace and name; `more` is empty on the last one, `total` None where something selects."""

    items: list[ListedTrigger] | list[ListedBroker]
    more: str = msgspec.field(name="continue", default="")
    total: int | None = None


class ObjectStatsApi:
    """The handlers. Below a ceiling a user has the counters of targets that get no event but those of his right."""

    def __init__(
        self,
        store: Store,
        counters: Callable[[Request], RemoteStats],
        history: NumbersHistory,
        authorizer: Authorizer = OPEN,
    ) -> None:
        self._store = store
        self._counters = counters
        self._history = history
        self._authorizer = authorizer

    def routes(self) -> Iterator[Route]:
        for kind in target_stats.STATS_LISTS:
            *lists, one = target_stats.stats_paths(kind)
            for path in lists:
                yield Route(path, self._listing(kind), methods=["GET"])
            yield Route(one, self._one(kind), methods=["GET"])

    def _listing(self, kind: Kind) -> Handler:
        async def handle(request: Request) -> Response:
            shown = partial(seen_by, self._authorizer, user_of(request))
            query = _query(kind, request.path_params.get("namespace"), request.query_params, shown)
            page, objects = await in_thread(self._page, query)
            items = await self._items(kind, objects, request)
            more = ""
            if page.more:
                last = page.items[-1].key
                more = continue_token(query.version or page.version, last.namespace, last.name)
            total = None
            if query.selector is None and query.test is None and query.name is None:
                total = (await in_thread(self._store.attention.counts, query.namespace)).get(kind, 0)
            return json_response(StatsPage(items, more, total))

        return handle

    def _page(self, query: ListQuery) -> tuple[Page, list[Object]]:
        page = self._store.page(
            query.kind,
            query.namespace,
            name=query.name,
            selector=query.selector,
            after=query.after,
            limit=query.limit,
            test=query.test,
        )
        return page, [decode_stored(item.key.kind, item.body) for item in page.items]

    def _one(self, kind: Kind) -> Handler:
        async def handle(request: Request) -> Response:
            key = ObjectKey(kind, request.path_params["namespace"], request.path_params["name"])
            found = await in_thread(self._store.get, key)
            (item,) = await self._items(kind, [found], request)
            return json_response(item)

        return handle

    async def _items(
        self, kind: Kind, objects: list[Object], client: Request
    ) -> list[ListedTrigger] | list[ListedBroker]:
        if kind is Kind.TRIGGER:
            user = user_of(client)
            stats = await self._counters(client).stats(await in_thread(self._own, user, objects))
            shown = (seen_by(self._authorizer, user, obj) for obj in objects)
            return [_trigger(obj, stats.get(obj.metadata.path)) for obj in shown if isinstance(obj, Trigger)]
        paths = [obj.metadata.path for obj in objects]
        routed = await in_thread(self._store.attention.routed_by_broker, paths)
        return [_broker(obj, routed, self._count(client, obj)) for obj in objects if isinstance(obj, Broker)]

    def _count(self, client: Request, broker: Broker) -> BrokerCount | None:
        user, path = user_of(client), broker.metadata.path
        if any(self._authorizer.ceiling(user, right.on(path)) for right in (READ, SUBSCRIBE)):
            return None
        return self._history.broker(path)

    def _own(self, user: User, objects: list[Object]) -> frozenset[str]:
        """The names of those whose counters are for a user."""
        keys = [key_of(obj) for obj in objects]
        if self._authorizer.has_ceilings(user, ""):
            known = [(key, self._store.targets.ceiling_of(key)) for key in keys]
            keys = [key for key, one in known if one is not None and is_own(self._authorizer, user, *one)]
        return frozenset(key.path for key in keys)


def _trigger(obj: Trigger, stats: TargetStats | None) -> ListedTrigger:
    return ListedTrigger(
        **_listed(obj, obj.status.conditions),
        broker=obj.broker_name,
        subscriber=obj.status.subscriber_uri,
        filter=obj.spec.filter,
        filters=tuple(obj.spec.filters),
        stats=stats,
    )


def _broker(obj: Broker, routed: Mapping[tuple[str, str], int], count: BrokerCount | None) -> ListedBroker:
    return ListedBroker(
        **_listed(obj, obj.status.conditions),
        url=obj.status.address.url if obj.status.address is not None else "",
        triggers=routed.get((obj.metadata.path, Kind.TRIGGER), 0),
        subscriptions=routed.get((obj.metadata.path, Kind.SUBSCRIPTION), 0),
        stats=count,
    )


def _listed(obj: Object, conditions: tuple[Condition, ...]) -> dict[str, Any]:
    ready, meta = _ready(conditions), obj.metadata
    return {
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
        "created": meta.creation_timestamp,
        "generation": meta.generation,
        "ready": ready.status,
        "reason": ready.reason,
        "message": ready.message,
        "troubles": troubles(conditions),
    }


def _ready(conditions: tuple[Condition, ...]) -> Condition:
    return next((one for one in conditions if one.type == _READY), Condition(type=_READY, status="Unknown"))


def _query(kind: Kind, namespace: str | None, given: Mapping[str, str], shown: Callable[[Object], Object]) -> ListQuery:
    found = list_query(kind, namespace, given)
    if found.limit is not None and found.limit > STATS_PAGE_MAX:
        raise MalformedObjectError(f"limit must be from 1 to {STATS_PAGE_MAX}")
    # A page shows counters of now beside objects of now: there is no page of the past.
    tests = [one for one in (found.test, _state_test(kind, given.get("state", ""), shown)) if one is not None]
    test = (lambda name, body: all(one(name, body) for one in tests)) if tests else None
    return replace(found, limit=found.limit or STATS_PAGE_DEFAULT, test=test)


def _state_test(kind: Kind, state: str, shown: Callable[[Object], Object]) -> BodyTest | None:
    def conditions(body: bytes) -> tuple[Condition, ...]:
        obj = shown(decode_stored(kind, body))
        assert isinstance(obj, Trigger | Broker)
        return obj.status.conditions

    tests: dict[str, Callable[[bytes], bool]] = {
        "ready": lambda body: _ready(conditions(body)).status == "True",
        "notready": lambda body: _ready(conditions(body)).status != "True",
        "troubled": lambda body: is_troubled(body) and bool(troubles(conditions(body))),
    }
    if not state:
        return None
    if state not in tests:
        raise MalformedObjectError(f"invalid state {state[:64]!r}", hint=f"one of: {', '.join(tests)}")
    return lambda _, body: tests[state](body)
