"""The Kubernetes-style HTTP API of the objects, as a Starlette app.

Whatever touches SQLite, YAML or the compiler runs in a thread: watches and short answers do not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headgate.auth.user import User
from headgate.filter.tools.advice import SeenNames
from headgate.objects.api import discovery, openapi, tables
from headgate.objects.api.admission import Admission, Admitted, TriedFilters, nothing_seen
from headgate.objects.api.discovery import IdentityApi
from headgate.objects.api.grants import Grants, check_heard_of, hides, seen_by
from headgate.objects.api.http import (
    DOCUMENT_TYPES,
    ERROR_HANDLERS,
    JSON,
    PROTOBUF,
    Handler,
    in_thread,
    json_response,
    warn,
)
from headgate.objects.api.namespaces_api import NamespaceApi
from headgate.objects.api.propagation import Propagation
from headgate.objects.api.queries import (
    Representation,
    continue_token,
    delete_options,
    include_object,
    is_set,
    list_query,
    read_write,
    representation_of,
    user_of,
    watch_query,
)
from headgate.objects.api.reviews_api import AdmissionWebhook, ReviewApi, SeenNamespacesApi
from headgate.objects.api.together import TogetherApi
from headgate.objects.api.watch import ChangeFeed, ListQuery, pages_of, watch
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.kinds.kube_status import Status, deleted
from headgate.objects.kinds.managers import WriteOptions
from headgate.objects.kinds.patches import APPLY_PATCH, PATCH_TYPES, STRATEGIC_MERGE_PATCH, change_of
from headgate.objects.store.history import Page
from headgate.objects.store.store import Store
from headgate_api.limits import OBJECT_BYTES_MAX, SECRET_BODY_BYTES_MAX
from headgate_api.objects.bodies import media_type
from headgate_api.objects.errors import FutureVersionError, ObjectNotFoundError
from headgate_api.objects.kinds import (
    EVENTING_KINDS,
    KINDS_WITH_STATUS,
    JsonObject,
    Kind,
    Object,
    ObjectKey,
    decode_stored,
    encode,
)

_LOCAL: Final = UrlPolicy()
_KNOW_OF_EVENTS: Final = (Kind.TRIGGER, Kind.SUBSCRIPTION, Kind.RESOURCE_QUOTA)
"""Kinds of objects whose status has what events have left."""
BODY_BYTES_MAX: Final = {kind: SECRET_BODY_BYTES_MAX if kind is Kind.SECRET else OBJECT_BYTES_MAX for kind in Kind}
"""Of a request that writes an object."""
BODY_TYPES: Final = {kind: DOCUMENT_TYPES - ({PROTOBUF} if kind in EVENTING_KINDS else set()) for kind in Kind}
"""Of a request that creates an object or puts it in the place of another."""


class ControlApi:
    """The handlers; without grants everybody may do, and give away, everything. `seen` is as of `TriedFilters`."""

    def __init__(
        self,
        store: Store,
        policy: UrlPolicy = _LOCAL,
        grants: Grants | None = None,
        *,
        on_kafka: bool = False,
        seen: Callable[[ObjectKey, str], SeenNames] = nothing_seen,
    ) -> None:
        self._store = store
        self._grants = grants or Grants(store, policy)
        self.authorizer = self._grants.authorizer
        self._tried = TriedFilters(store, self.authorizer, seen)
        self._admission = Admission(store, policy, self._grants, on_kafka=on_kafka)
        self._feed = ChangeFeed(store)
        self._together = TogetherApi(self._admission, self._grants, self._tried)
        self._propagation = Propagation(store, self._feed)
        self.app = Starlette(routes=list(self._routes()), exception_handlers=ERROR_HANDLERS)
        self.app.router.redirect_slashes = False

    def close(self) -> None:
        """End all watches, and the processes that validate, so that the server can stop."""
        self._feed.close()
        self._together.close()

    def _routes(self) -> Iterator[Route]:
        for kind in Kind:  # first, as a route costs what is before it
            path = f"{kind.root}/{kind.plural}"
            if kind.is_namespaced:
                yield Route(path, self._collection(kind), methods=["GET"])
                path = f"{kind.root}/namespaces/{{namespace}}/{kind.plural}"
            yield Route(path, self._collection(kind), methods=["GET", "POST", "DELETE"])
            yield Route(f"{path}/{{name}}", self._item(kind), methods=["GET", "PUT", "PATCH", "DELETE"])
            if kind in KINDS_WITH_STATUS:
                yield Route(f"{path}/{{name}}/status", self._item(kind), methods=["GET"])
        for path, make in _DOCUMENTS.items():
            yield Route(path, _static(make), methods=["GET"])
            yield Route(f"{path}/", _static(make), methods=["GET"])
        yield Route("/openapi/v3", _static(openapi.index), methods=["GET"])
        for name in openapi.GROUPS:
            yield Route(f"/openapi/v3/{name}", _static(partial(openapi.document, name)), methods=["GET"])
        yield from ReviewApi(self._grants).routes()
        yield from SeenNamespacesApi(self._store, self._grants).routes()
        yield from NamespaceApi(self._store, self._feed).routes()
        for path in ("/api/v1/events", "/api/v1/namespaces/{namespace}/events"):
            yield Route(path, _static(_no_events), methods=["GET"])
        yield from self._propagation.routes()
        yield from AdmissionWebhook(self._admission).routes()
        yield from self._together.routes()
        yield from IdentityApi(self._store).routes()
        yield from self._store.handshakes.routes()

    def _collection(self, kind: Kind) -> Handler:
        async def handle(request: Request) -> Response:
            namespace = request.path_params.get("namespace")
            if request.method == "POST":
                return await self._create(request, kind, namespace)
            if request.method != "DELETE" and is_set(request.query_params, "watch"):
                return await self._watch(request, kind, namespace)
            query = self._heard_of(user_of(request), list_query(kind, namespace, request.query_params))
            if request.method == "DELETE":
                return await self._delete_all(request, query)
            return await self._list(request, query)

        return handle

    async def _create(self, request: Request, kind: Kind, namespace: str | None) -> Response:
        document, warnings, how = await read_write(request, BODY_TYPES[kind], BODY_BYTES_MAX[kind])
        made = await in_thread(self._admission.create, kind, document, how, namespace=namespace)
        return await self._written(request, made, warnings, how)

    async def _list(self, request: Request, query: ListQuery) -> Response:
        form = representation_of(request.headers.get("accept", ""))
        include = include_object(request.query_params)
        pages = pages_of(self._store, query)
        first = await anext(pages)
        if query.at_least > first.version:
            raise FutureVersionError(query.at_least, first.version)
        version = query.version if query.version is not None else first.version
        shown = self._shown_to(user_of(request), query.kind)

        def encoded(page: Page) -> bytes:
            bodies = (shown(item.body) for item in page.items)
            if form is Representation.OBJECT:
                return b",".join(bodies)
            objects = (decode_stored(query.kind, body) for body in bodies)
            items: list[tables.Row] | list[tables.PartialObject]
            if form is Representation.TABLE:
                items = [tables.row(obj, now_s=time.time(), include=include) for obj in objects]
            else:
                items = [tables.partial(obj.metadata) for obj in objects]
            return b",".join(map(msgspec.json.encode, items))

        async def stream() -> AsyncIterator[bytes]:
            # One chunk after the other, so that a list of everything costs neither memory nor the event loop's time.
            yield _list_head(query.kind, form)
            page = first
            yield await in_thread(encoded, page)
            async for page in pages:
                if page.items:
                    yield b"," + await in_thread(encoded, page)
            metadata = {"resourceVersion": str(version)}
            if page.more:
                last = page.items[-1].key
                metadata["continue"] = continue_token(version, last.namespace, last.name, exact=query.exact)
            yield b'],"metadata":' + msgspec.json.encode(metadata) + b"}"

        return StreamingResponse(stream(), media_type=JSON)

    async def _delete_all(self, request: Request, query: ListQuery) -> Response:
        options = await delete_options(request)
        async for page in pages_of(self._store, query):
            for item in page.items:
                with suppress(ObjectNotFoundError):
                    await in_thread(self._store.delete, item.key, **options)
        return json_response(Status("Status", "v1", {}, "Success"))

    async def _watch(self, request: Request, kind: Kind, namespace: str | None) -> Response:
        form = representation_of(request.headers.get("accept", ""))
        shown = self._shown_to(user_of(request), kind)
        query = replace(watch_query(kind, namespace, request.query_params, form), shown=shown)
        query = replace(query, objects=self._heard_of(user_of(request), query.objects))
        place = namespace or "", user_of(request).name
        self._feed.places.check(*place)

        async def stream() -> AsyncIterator[bytes]:
            with self._feed.joined(*place):
                async for lines in watch(self._store, self._feed, query):
                    yield lines

        return StreamingResponse(stream(), media_type=JSON)

    def _item(self, kind: Kind) -> Handler:
        async def handle(request: Request) -> Response:
            key = ObjectKey(kind, request.path_params.get("namespace", ""), request.path_params["name"])
            check_heard_of(self.authorizer, user_of(request), key)
            match request.method:
                case "PUT":
                    return await self._replace(request, key)
                case "PATCH":
                    return await self._patch(request, key)
                case "DELETE":
                    return await self._delete(request, key)
                case _:
                    return await self._answer(request, await in_thread(self._store.get, key))

        return handle

    async def _replace(self, request: Request, key: ObjectKey) -> Response:
        document, warnings, how = await read_write(request, BODY_TYPES[key.kind], BODY_BYTES_MAX[key.kind])
        made = await in_thread(self._admission.replace, key, document, how)
        return await self._written(request, made, warnings, how)

    async def _patch(self, request: Request, key: ObjectKey) -> Response:
        found = media_type(request.headers.get("content-type", ""))
        # Of kinds built into Kubernetes clients send strategic merge patches; theirs are merge patches.
        types = PATCH_TYPES if key.kind in EVENTING_KINDS else PATCH_TYPES | {STRATEGIC_MERGE_PATCH}
        is_apply = found == APPLY_PATCH
        document, warnings, how = await read_write(request, types, BODY_BYTES_MAX[key.kind], is_apply=is_apply)

        def work() -> Admitted:
            if is_apply:
                return self._admission.server_side_apply(key, document, how)
            return self._admission.patch(key, change_of(found, document), how)

        return await self._written(request, await in_thread(work), warnings, how)

    async def _delete(self, request: Request, key: ObjectKey) -> Response:
        gone = await in_thread(self._store.delete, key, **await delete_options(request))
        # What finalizers keep is answered as it is now; it goes with the last of them.
        return await self._answer(request, gone) if gone.metadata.finalizers else json_response(deleted(gone))

    async def _written(
        self, request: Request, admitted: Admitted, warnings: tuple[str, ...], how: WriteOptions
    ) -> Response:
        response = await self._answer(request, admitted.obj)
        response.status_code = 201 if admitted.outcome == "created" else 200
        warnings += admitted.warnings
        if how.dry_run:
            (tried,) = await in_thread(list, self._tried.warnings(user_of(request), [admitted.obj]))
            warnings += tried
        warn(response, warnings)
        return response

    def _shown_to(self, user: User, kind: Kind) -> Callable[[bytes], bytes]:
        """Makes of the JSON of objects what a user may see."""
        if kind not in _KNOW_OF_EVENTS or not self.authorizer.has_ceilings(user, ""):
            return bytes
        return lambda body: encode(seen_by(self.authorizer, user, decode_stored(kind, body)))

    def _heard_of(self, user: User, query: ListQuery) -> ListQuery:
        """A query that finds no object of which a user must not hear."""
        hidden, wanted = hides(self.authorizer, user, query.kind, query.namespace or ""), query.test
        if hidden is None:
            return query
        return replace(query, test=lambda name, body: not hidden(name) and (wanted is None or wanted(name, body)))

    async def _answer(self, request: Request, obj: Object) -> Response:
        obj = seen_by(self.authorizer, user_of(request), obj)
        match representation_of(request.headers.get("accept", "")):
            case Representation.TABLE:
                include = include_object(request.query_params)
                row = msgspec.json.encode(tables.row(obj, now_s=time.time(), include=include))
                body = tables.table(Kind(obj.kind), row, {"resourceVersion": obj.metadata.resource_version})
            case Representation.METADATA:
                body = msgspec.json.encode(tables.partial(obj.metadata))
            case _:
                body = encode(obj)
        return Response(body, media_type=JSON)


def _no_events() -> JsonObject:
    return {"kind": "EventList", "apiVersion": "v1", "metadata": {"resourceVersion": "0"}, "items": []}


_DOCUMENTS: Final[dict[str, Callable[[], JsonObject]]] = {
    "/version": discovery.version,
    "/api": discovery.core_versions,
    "/api/v1": discovery.core_resources,
    "/apis": discovery.groups,
    **{f"/apis/{name}": partial(discovery.group, name) for name in discovery.GROUPS},
    **{
        f"/apis/{name}/{version}": partial(discovery.object_resources, name, version)
        for name in discovery.OBJECT_GROUPS
        for version in discovery.versions_of(name)
    },
    **{f"/apis/{name}": partial(discovery.review_resources, name) for name in set(discovery.REVIEWS.values())},
}
"""What is answered to a GET, with a slash at the end and without."""


def _static(make: Callable[[], JsonObject | bytes]) -> Handler:
    async def handle(request: Request) -> Response:
        made = make()
        return Response(made, media_type=JSON) if isinstance(made, bytes) else json_response(made)

    return handle


def _list_head(kind: Kind, form: Representation) -> bytes:
    match form:
        case Representation.TABLE:
            return tables.head(kind)
        case Representation.METADATA:
            return b'{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":['
        case _:
            return f'{{"kind":"{kind}List","apiVersion":"{kind.api_version}","items":['.encode()
