"""Lists of triggers and brokers with their counters, paged and searched: what a console shows of ten thousand.

    GET .../triggerstats   ?limit=&continue=&search=&labelSelector=&state=
    GET .../brokerstats    the same
    GET .../triggers/NAME/stats, .../brokers/NAME/stats   of one

They are read in the process of the objects. Counters are in the memory of those who count, and are asked for one page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.objects.api.http import Handler, json_response
from headgate.objects.api.queries import continue_token, list_query
from headgate.objects.api.watch import ListQuery
from headgate.objects.store.attention import Trouble, is_troubled, troubles
from headgate.objects.store.history import BodyTest, Page
from headgate.objects.store.store import Store
from headgate.observe.history import BrokerCount, NumbersHistory
from headgate.server.peers.target_stats import STATS_LISTS, TargetStats, TriggerCounters, stats_paths
from headgate_api.limits import STATS_PAGE_DEFAULT, STATS_PAGE_MAX
from headgate_api.objects.errors import MalformedObjectError
from headgate_api.objects.kinds import Broker, Condition, Kind, Object, ObjectKey, Trigger, decode_stored

_READY: Final = "Ready"


class ListedObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What is shown of an object in a list with counters.

    `ready`, `reason` and `message` are as in its condition Ready; `troubles` are its conditions that are False.
    """

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
    """A trigger with its counters; `stats` is absent while its dispatcher is away."""

    broker: str
    subscriber: str = ""
    filter: Mapping[str, object] | None = None
    filters: tuple[object, ...] = ()
    stats: TargetStats | None = None


class ListedBroker(ListedObject, frozen=True, kw_only=True):
    """A broker with its counters."""

    url: str = ""
    triggers: int
    subscriptions: int
    stats: BrokerCount


class StatsPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of a list by namespace and name; `more` is empty on the last one, `total` None where something selects."""

    items: list[ListedTrigger] | list[ListedBroker]
    more: str = msgspec.field(name="continue", default="")
    total: int | None = None


class ObjectStatsApi:
    """The handlers."""

    def __init__(self, store: Store, counters: Callable[[Request], TriggerCounters], history: NumbersHistory) -> None:
        self._store = store
        self._counters = counters
        self._history = history

    def routes(self) -> Iterator[Route]:
        for kind in STATS_LISTS:
            *lists, one = stats_paths(kind)
            for path in lists:
                yield Route(path, self._listing(kind), methods=["GET"])
            yield Route(one, self._one(kind), methods=["GET"])

    def _listing(self, kind: Kind) -> Handler:
        async def handle(request: Request) -> Response:
            query = _query(kind, request.path_params.get("namespace"), request.query_params)
            page = await run_in_threadpool(self._page, query)
            objects = await run_in_threadpool(_decoded, page)
            items = await self._items(kind, objects, request)
            more = ""
            if page.more:
                last = page.items[-1].key
                more = continue_token(query.version or page.version, last.namespace, last.name)
            total = None
            if query.selector is None and query.test is None and query.name is None:
                total = (await run_in_threadpool(self._store.attention.counts, query.namespace)).get(kind, 0)
            return json_response(StatsPage(items, more, total))

        return handle

    def _page(self, query: ListQuery) -> Page:
        return self._store.page(
            query.kind,
            query.namespace,
            name=query.name,
            selector=query.selector,
            after=query.after,
            limit=query.limit,
            test=query.test,
        )

    def _one(self, kind: Kind) -> Handler:
        async def handle(request: Request) -> Response:
            key = ObjectKey(kind, request.path_params["namespace"], request.path_params["name"])
            found = await run_in_threadpool(self._store.get, key)
            (item,) = await self._items(kind, [found], request)
            return json_response(item)

        return handle

    async def _items(
        self, kind: Kind, objects: list[Object], client: Request
    ) -> list[ListedTrigger] | list[ListedBroker]:
        paths = [obj.metadata.path for obj in objects]
        if kind is Kind.TRIGGER:
            stats = await self._counters(client).stats(frozenset(paths))
            return [_trigger(obj, stats.get(obj.metadata.path)) for obj in objects if isinstance(obj, Trigger)]
        routed = await run_in_threadpool(self._store.attention.routed_by_broker, paths)
        return [
            _broker(obj, routed, self._history.broker(obj.metadata.path)) for obj in objects if isinstance(obj, Broker)
        ]


def _trigger(obj: Trigger, stats: TargetStats | None) -> ListedTrigger:
    return ListedTrigger(
        **_listed(obj, obj.status.conditions),
        broker=obj.spec.broker,
        subscriber=obj.status.subscriber_uri,
        filter=obj.spec.filter,
        filters=tuple(obj.spec.filters),
        stats=stats,
    )


def _broker(obj: Broker, routed: Mapping[tuple[str, str], int], count: BrokerCount) -> ListedBroker:
    return ListedBroker(
        **_listed(obj, obj.status.conditions),
        url=obj.status.address.url if obj.status.address is not None else "",
        triggers=routed.get((obj.metadata.path, Kind.TRIGGER), 0),
        subscriptions=routed.get((obj.metadata.path, Kind.SUBSCRIPTION), 0),
        stats=count,
    )


def _listed(obj: Object, conditions: tuple[Condition, ...]) -> dict[str, Any]:
    ready = _ready(conditions)
    meta = obj.metadata
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


def _decoded(page: Page) -> list[Object]:
    return [decode_stored(item.key.kind, item.body) for item in page.items]


def _query(kind: Kind, namespace: str | None, given: Mapping[str, str]) -> ListQuery:
    found = list_query(kind, namespace, given)
    if found.limit is not None and found.limit > STATS_PAGE_MAX:
        raise MalformedObjectError(f"limit must be from 1 to {STATS_PAGE_MAX}")
    # A page shows counters of now beside objects of now: there is no page of the past.
    tests = [one for one in (found.test, _state_test(kind, given.get("state", ""))) if one is not None]
    return ListQuery(
        kind=kind,
        namespace=found.namespace,
        name=found.name,
        selector=found.selector,
        limit=found.limit or STATS_PAGE_DEFAULT,
        after=found.after,
        version=found.version,
        test=(lambda name, body: all(test(name, body) for test in tests)) if tests else None,
    )


def _state_test(kind: Kind, state: str) -> BodyTest | None:
    """What `state` selects; None for all."""

    def ready(body: bytes) -> str:
        obj = decode_stored(kind, body)
        assert isinstance(obj, Trigger | Broker)
        return _ready(obj.status.conditions).status

    tests: dict[str, Callable[[bytes], bool]] = {
        "ready": lambda body: ready(body) == "True",
        "notready": lambda body: ready(body) != "True",
        "troubled": is_troubled,
    }
    if not state:
        return None
    if state not in tests:
        raise MalformedObjectError(f"invalid state {state[:64]!r}", hint=f"one of: {', '.join(tests)}")
    return lambda _, body: tests[state](body)
