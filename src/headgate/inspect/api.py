"""The API of what became of an event, and of what is in the log: see `auth/routes.py`.

`?id=` names an event; with it they take `source`, `since` and `next`: a request searches a bounded piece of the log,
and says where to go on. For all triggers of a broker they take `after` and `limit`, too; `catalogue` takes `type` and
`source` for one flow, and in a POST a filter whose names are looked up in it; `lint` takes `of` for one trigger or
subscription; `chunks`, which is of the whole log, takes `partition`, `before`, `limit`, `filter` and `broker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.auth.authorizer import OPEN, Authorizer, check
from headgate.auth.routes import CATALOGUE as CATALOGUE_RIGHT
from headgate.auth.routes import EVENTING, READ
from headgate.auth.rules import Attributes
from headgate.auth.user import User
from headgate.filter.tools.advice import SeenNames
from headgate.filter.tools.trial import FilterRequest
from headgate.inspect.catalogue import Catalogues
from headgate.inspect.chunks import ChunkLists, ChunkQuery
from headgate.inspect.find import EventSearch, OtherBroker, Records
from headgate.inspect.flows import FlowKey
from headgate.inspect.lint import Lints, LintView, Viewer
from headgate.inspect.views import broker_json, timeline_json, trace_json, why_json
from headgate.inspect.why import EventExplanation, Tracer, Why
from headgate.log.directory import LogDirectory
from headgate.objects.api.grants import may_see, seen_by
from headgate.objects.api.http import decoded_as, json_response, read_body
from headgate.objects.api.queries import user_of
from headgate.objects.kinds.routing import Target
from headgate.objects.store.store import Store
from headgate.shares import FairPlaces, FairThreads
from headgate_api import positions
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.event import rfc3339
from headgate_api.limits import CHUNKS_SHOWN_MAX, INSPECT_THREADS, INSPECTIONS_MAX, WHY_TRIGGERS_MAX
from headgate_api.objects.kinds import API_VERSION, OWN_API_VERSION, JsonObject, Kind, ObjectKey
from headgate_api.positions import PositionError

_T = TypeVar("_T")
_BROKER: Final = Attributes("get", EVENTING, "brokers")
_OFFSET_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = 19
"""Of an offset."""
_PREFIX: Final = f"/apis/{API_VERSION}/namespaces/{{namespace}}"
WHY_TRIGGER: Final = f"{_PREFIX}/triggers/{{name}}/why"
WHY_BROKER: Final = f"{_PREFIX}/brokers/{{name}}/why"
TRACE: Final = f"{_PREFIX}/brokers/{{name}}/trace"
CATALOGUE: Final = f"{_PREFIX}/brokers/{{name}}/catalogue"
TIMELINE: Final = f"{_PREFIX}/brokers/{{name}}/timeline"
LINT: Final = f"{_PREFIX}/brokers/{{name}}/lint"
CHUNKS: Final = f"/apis/{OWN_API_VERSION}/chunks"
OF_BROKERS: Final = (WHY_BROKER, TRACE, TIMELINE)


class InspectApi:
    """The handlers; `records` gives what the client of a request may have. Without a `log` the events are in Kafka."""

    def __init__(
        self,
        records: Callable[[Request], Records],
        store: Store,
        catalogues: Catalogues,
        *,
        authorizer: Authorizer = OPEN,
        log: LogDirectory | None = None,
    ) -> None:
        self._records = records
        self._store = store
        self._catalogues = catalogues
        self._authorizer = authorizer
        self._chunk_lists = ChunkLists(store, log)
        self._lints = Lints(store)
        self._threads = FairThreads(INSPECT_THREADS, "inspect")
        self._comparing = FairThreads(1, "lint")
        self._places = FairPlaces("inspections", "INSPECTIONS_MAX", INSPECTIONS_MAX)

    def routes(self) -> Iterator[Route]:
        yield Route(WHY_TRIGGER, self._why_trigger, methods=["GET"])
        yield Route(WHY_BROKER, self._why_broker, methods=["GET"])
        yield Route(TRACE, self._trace, methods=["GET"])
        yield Route(TIMELINE, self._timeline, methods=["GET"])
        yield Route(CATALOGUE, self._catalogue, methods=["GET"])
        yield Route(CATALOGUE, self._unseen, methods=["POST"])
        yield Route(LINT, self._lint, methods=["GET"])
        yield Route(CHUNKS, self._chunks, methods=["GET"])

    async def _why_trigger(self, request: Request) -> Response:
        key, search, why, user = _key(Kind.TRIGGER, request), _search(request), self._why(request), user_of(request)

        def work() -> EventExplanation:
            known = self._store.targets.ceiling_of(key)
            return why.of_trigger(key, self._below(user, known[0], search) if known is not None else search)

        found = await self._in_turn(request, work)
        return json_response(why_json(key.path, search.id, found))

    async def _why_broker(self, request: Request) -> Response:
        key, why = _key(Kind.BROKER, request), self._why(request)
        search = self._below(user_of(request), key.path, _search(request))
        after, limit = _page(request)
        found = await self._in_turn(request, lambda: why.of_broker(key, search, after=after, limit=limit))
        return json_response(broker_json(key.path, search.id, found))

    async def _catalogue(self, request: Request) -> Response:
        catalogues, (ceiling, sees) = self._catalogues, self._bounds(request)
        key, query = _key(Kind.BROKER, request), request.query_params
        if ("type" in query) != ("source" in query):
            raise InvalidInputError("type and source name a flow together", hint="?type=TYPE&source=SOURCE, or neither")
        if "type" in query:
            flow = FlowKey(query["type"], query["source"])
            return json_response(await self._in_turn(request, lambda: catalogues.read_flow(key, flow, ceiling, sees)))
        return json_response(await self._in_turn(request, lambda: catalogues.read(key, ceiling)))

    async def _unseen(self, request: Request) -> Response:
        body = await read_body(request)
        asked = await decoded_as(request, body, FilterRequest, "the request")
        key, catalogues, (ceiling, _) = _key(Kind.BROKER, request), self._catalogues, self._bounds(request)
        return json_response(await self._in_turn(request, lambda: catalogues.unseen(key, asked.spec(), ceiling)))

    async def _lint(self, request: Request) -> Response:
        key, of, user = _key(Kind.BROKER, request), request.query_params.get("of", ""), user_of(request)
        ceiling, sees = self._bounds(request)
        # Who may not read the catalogue learns no name from it.
        may_look = self._authorizer.allowed(user, CATALOGUE_RIGHT.on(key.path)).allowed
        viewer = Viewer((user.name, *user.groups), sees) if ceiling else None

        def work() -> LintView:
            return self._lints.read(key, of, self._seen(key, ceiling) if may_look else None, viewer)

        return json_response(await self._in_turn(request, work, self._comparing))

    def _seen(self, key: ObjectKey, ceiling: str) -> SeenNames | None:
        try:
            return self._catalogues.names(key, ceiling)
        except UnavailableError:
            return None  # filters are compared without the log, too

    async def _chunks(self, request: Request) -> Response:
        query = request.query_params
        broker = _broker_of(query["broker"]) if query.get("broker") else None
        if broker is not None:
            check(self._authorizer, user_of(request), _BROKER.on(broker.path))
        partition, before = (_number(query, name, 0, None) for name in ("partition", "before"))
        limit = _number(query, "limit", 1, CHUNKS_SHOWN_MAX) or CHUNKS_SHOWN_MAX
        asked = ChunkQuery(before, limit, query.get("filter", ""))
        found = await self._in_turn(request, lambda: self._chunk_lists.read(asked, partition, broker))
        return json_response(found)

    async def _timeline(self, request: Request) -> Response:
        key, tracer, why = _key(Kind.BROKER, request), self._tracer(request), self._why(request)
        search = self._below(user_of(request), key.path, _search(request))
        after, limit = _page(request)

        def work() -> JsonObject:
            trace, result = tracer.trace(key, search)
            found = why.of_stored(key, trace.found, after=after, limit=limit) if trace is not None else None
            return timeline_json(key.path, search.id, trace, result, found)

        return json_response(await self._in_turn(request, work))

    async def _trace(self, request: Request) -> Response:
        key = _key(Kind.BROKER, request)
        search = self._below(user_of(request), key.path, _search(request))
        tracer = self._tracer(request)
        trace, result = await self._in_turn(request, lambda: tracer.trace(key, search))
        return json_response(trace_json(trace, result))

    async def _in_turn(self, request: Request, work: Callable[[], _T], threads: FairThreads | None = None) -> _T:
        """Does it in a thread; turns go round by namespace and user, and PlacesTakenError says that too many wait."""
        namespace, user = request.path_params.get("namespace", ""), user_of(request).name
        with self._places.held(namespace, user):
            return await asyncio.get_running_loop().run_in_executor(
                (threads or self._threads).of(namespace, user), work
            )

    def _below(self, user: User, broker: str, search: EventSearch) -> EventSearch:
        """A search that finds nothing above the user's ceiling: what he may not see is as what is not there."""
        return replace(search, ceiling=self._authorizer.ceiling(user, READ.on(broker)))

    def _bounds(self, request: Request) -> tuple[str, Callable[[Target], bool]]:
        """The ceiling of a request about a broker, and which targets its user may see: below a ceiling not all."""
        user, broker = user_of(request), _key(Kind.BROKER, request).path
        ceiling = self._authorizer.ceiling(user, READ.on(broker))
        return ceiling, (lambda target: not ceiling or may_see(self._authorizer, user, target))

    def _why(self, request: Request) -> Why:
        return Why(self._records(request), self._store, partial(seen_by, self._authorizer, user_of(request)))

    def _tracer(self, request: Request) -> Tracer:
        is_below = self._authorizer.has_ceilings(user_of(request), "")
        return Tracer(self._records(request), self._store, is_below_ceiling=is_below)


def _key(kind: Kind, request: Request) -> ObjectKey:
    return ObjectKey(kind, request.path_params["namespace"], request.path_params["name"])


def _search(request: Request) -> EventSearch:
    query = request.query_params
    if not query.get("id"):
        raise InvalidInputError("the query names no event", hint="?id=EVENT-ID, and &source=SOURCE when ids repeat")
    since_us = 0
    if query.get("since"):
        found = rfc3339.micros(query["since"])
        if found is None:
            raise InvalidInputError("since is no RFC 3339 time", hint="since=2026-01-02T03:04:05Z")
        since_us = found
    reached, other = _next(query.get("next", ""))
    return EventSearch(query["id"], query.get("source", ""), since_us, reached, other)


def _next(text: str) -> tuple[dict[int, int], OtherBroker | None]:
    """What the last answer gave as `next`: where to go on, and the place of another broker's event."""
    if not text:
        return {}, None
    reached, slash, other = text.partition("/")
    places = list(positions.parse(other).items()) if slash else []
    if len(places) > 1:
        raise PositionError(f"{text[:64]!r} is no position", hint="give back what the server gave as next")
    return positions.parse(reached), places[0] if places else None


def _page(request: Request) -> tuple[str, int]:
    """Behind which trigger a page begins, and how many it has."""
    query = request.query_params
    return query.get("after", ""), _number(query, "limit", 1, WHY_TRIGGERS_MAX) or WHY_TRIGGERS_MAX


def _number(query: Mapping[str, str], name: str, least: int, most: int | None) -> int | None:
    """A number of a query, None where it has none; `most` None: as large as an offset may be."""
    text = query.get(name)
    if not text:
        return None
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    if not is_number or not least <= int(text) <= (_OFFSET_MAX if most is None else most):
        problem = f"{name} {text[:_DIGITS_MAX]!r} is not in {least}..{'' if most is None else most}"
        raise InvalidInputError(problem, hint=f"{name}={least if most is None else most}")
    return int(text)


def _broker_of(path: str) -> ObjectKey:
    namespace, slash, name = path.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise InvalidInputError(f"broker names none: {path[:64]!r}", hint="broker=NAMESPACE/NAME")
    return ObjectKey(Kind.BROKER, namespace, name)
