"""Namespaces over HTTP, as in core v1, so that a manifest may bring its namespace.

A namespace exists as soon as something is in it; one that is created keeps labels and annotations. To delete one
deletes everything in it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headgate.objects.api.http import DOCUMENT_TYPES, JSON, in_thread, json_response, warn
from headgate.objects.api.queries import (
    Representation,
    delete_options,
    is_set,
    list_query,
    read_write,
    representation_of,
    user_of,
    watch_query,
)
from headgate.objects.api.tables import Column, Row, partial
from headgate.objects.api.watch import ChangeFeed
from headgate.objects.kinds.kube_status import Status, StatusDetails
from headgate.objects.kinds.managers import Manager, WriteOptions, applied, managers_of, owned, updated
from headgate.objects.kinds.patches import APPLY_PATCH, PATCH_TYPES, STRATEGIC_MERGE_PATCH, change_of, patched
from headgate.objects.store.namespaces import Make, decode_namespace
from headgate.objects.store.store import Store
from headgate.objects.store.writes import difference
from headgate_api.event.names import NAMESPACE_DEFAULT
from headgate_api.limits import SECRETS_READ_MAX
from headgate_api.objects.bodies import media_type
from headgate_api.objects.errors import (
    NamespaceExistsError,
    NamespaceForbiddenError,
    NamespaceNotFoundError,
    NamespaceStaleError,
    ObjectNotFoundError,
)
from headgate_api.objects.kinds import JsonObject, Kind, Namespace
from headgate_api.plain_words import age

PATH: Final = "/api/v1/namespaces"
_LATER: Final = (Kind.EVENT_POLICY, Kind.EVENT_TYPE, Kind.SECRET, Kind.RESOURCE_QUOTA, Kind.ROLE_BINDING, Kind.ROLE)
_DELETED: Final = (Kind.TRIGGER, Kind.SUBSCRIPTION, Kind.BROKER, *_LATER)
"""What goes with a namespace, in this order."""
_COLUMNS: Final = (
    Column("Name", format="name", description="Name"),
    Column("Status", description="Always Active"),
    Column("Age", description="Time since creation"),
)


class NamespaceApi:
    """The handlers."""

    def __init__(self, store: Store, feed: ChangeFeed) -> None:
        self._store = store
        self._table = store.namespaces
        self._feed = feed

    def routes(self) -> Iterator[Route]:
        yield Route(PATH, self._list, methods=["GET"])
        yield Route(PATH, self._create, methods=["POST"])
        yield Route(f"{PATH}/{{name}}", self._get, methods=["GET"])
        yield Route(f"{PATH}/{{name}}", self._replace, methods=["PUT"])
        yield Route(f"{PATH}/{{name}}", self._patch, methods=["PATCH"])
        yield Route(f"{PATH}/{{name}}", self._delete, methods=["DELETE"])

    async def _list(self, request: Request) -> Response:
        if is_set(request.query_params, "watch"):
            return await self._watch(request)
        wanted = self._wanted(request)
        found, version = await in_thread(self._table.all)
        found = tuple(filter(wanted, found))
        if representation_of(request.headers.get("accept", "")) is Representation.TABLE:
            return json_response(_table(found, version))
        return json_response(_list(found, version))

    def _wanted(self, request: Request) -> Callable[[Namespace], bool]:
        # A namespace lies in none, and the selectors are the same as for everything else.
        query = list_query(Kind.BROKER, None, request.query_params)
        return lambda one: (
            query.name in (None, one.metadata.name) and (query.selector is None or query.selector(one.metadata.labels))
        )

    async def _get(self, request: Request) -> Response:
        return self._answer(request, await in_thread(self._table.get, request.path_params["name"]))

    async def _create(self, request: Request) -> Response:
        document, warnings, how = await read_write(request, DOCUMENT_TYPES)
        given = decode_namespace(document)
        name = given.metadata.name

        def make(old: Namespace | None) -> Namespace:
            # One that is only in use has no time at which it was created.
            if name == NAMESPACE_DEFAULT or (old is not None and old.metadata.creation_timestamp):
                raise NamespaceExistsError(name)
            return owned(given, updated({}, None, given, how.by, self._store.now()))

        return await self._write(request, name, make, warnings, how, status_code=201)

    async def _replace(self, request: Request) -> Response:
        name = request.path_params["name"]
        document, warnings, how = await read_write(request, DOCUMENT_TYPES)
        given = decode_namespace(document, name)
        return await self._write(request, name, self._update(name, how.by, lambda _: given), warnings, how)

    async def _patch(self, request: Request) -> Response:
        found = media_type(request.headers.get("content-type", ""))
        # A strategic merge patch, which clients send for kinds built into Kubernetes, is a merge patch of maps.
        types, is_apply = PATCH_TYPES | {STRATEGIC_MERGE_PATCH}, found == APPLY_PATCH
        name = request.path_params["name"]
        document, warnings, how = await read_write(request, types, is_apply=is_apply)
        if not is_apply:
            change = await in_thread(change_of, found, document)
            make = self._update(name, how.by, lambda live: decode_namespace(patched(live, change), name))
            return await self._write(request, name, make, warnings, how)
        given = await in_thread(decode_namespace, document, name)

        def apply(old: Namespace | None) -> Namespace:
            assert isinstance(document, dict)
            if old is not None:
                _check_same(old, given.metadata.uid, given.metadata.resource_version)
            made = applied(old, document, how.by, self._store.now())
            return owned(decode_namespace(made.document, name), made.managers)

        return await self._write(request, name, apply, warnings, how)

    def _update(self, name: str, by: Manager, new_of: Callable[[Namespace], Namespace]) -> Make:
        def make(old: Namespace | None) -> Namespace:
            if old is None:
                raise NamespaceNotFoundError(name)
            new = new_of(old)
            before, after = old.metadata, new.metadata
            _check_same(old, after.uid, after.resource_version)
            if before.creation_timestamp and (before.labels, before.annotations) == (after.labels, after.annotations):
                return old
            return owned(new, updated(managers_of(old), old, new, by, self._store.now()))

        return make

    async def _write(
        self,
        request: Request,
        name: str,
        make: Make,
        warnings: tuple[str, ...],
        how: WriteOptions,
        *,
        status_code: int = 200,
    ) -> Response:
        made = await in_thread(self._table.change, name, make, dry_run=how.dry_run)
        response = self._answer(request, made, status_code=status_code)
        warn(response, warnings)
        return response

    async def _delete(self, request: Request) -> Response:
        options = await delete_options(request)
        name = request.path_params["name"]

        def work() -> Namespace:
            if name == NAMESPACE_DEFAULT:
                raise NamespaceForbiddenError(name)
            there = self._table.get(name)
            _check_same(there, options["uid"], options["resource_version"])
            if not options["dry_run"]:
                for kind in _DELETED:
                    self._delete_all(kind, name)
                self._table.delete(name)
            return there

        gone = await in_thread(work)
        details = StatusDetails(name, "", "namespaces", gone.metadata.uid)
        return json_response(Status("Status", "v1", {}, "Success", details=details))

    def _delete_all(self, kind: Kind, namespace: str) -> None:
        after: tuple[str, str] | None = None
        while items := self._store.page(kind, namespace, after=after, limit=SECRETS_READ_MAX).items:
            for item in items:
                with suppress(ObjectNotFoundError):
                    self._store.delete(item.key)
            after = (items[-1].key.namespace, items[-1].key.name)

    def _answer(self, request: Request, one: Namespace, *, status_code: int = 200) -> Response:
        if representation_of(request.headers.get("accept", "")) is Representation.TABLE:
            version = int(one.metadata.resource_version or 0)
            return json_response(_table([one], version), status_code)
        return json_response(one, status_code)

    async def _watch(self, request: Request) -> Response:
        form = representation_of(request.headers.get("accept", ""))
        query = watch_query(Kind.BROKER, None, request.query_params, form)
        wanted = self._wanted(request)
        user = user_of(request).name
        self._feed.places.check("", user)

        def line(type_: str, one: Namespace, version: int) -> bytes:
            shown = _table([one], version) if form is Representation.TABLE else one
            return msgspec.json.encode({"type": type_, "object": shown}) + b"\n"

        async def stream() -> AsyncIterator[bytes]:
            # There is no history of namespaces: existing ones are sent again, which watchers tolerate.
            ends_s = time.monotonic() + query.timeout_s
            known: dict[str, Namespace] = {}
            with self._feed.joined("", user):
                while True:
                    found, version = await in_thread(self._table.all)
                    now = {one.metadata.name: one for one in filter(wanted, found)}
                    for name, one in now.items():
                        if one != known.get(name):
                            yield line("MODIFIED" if name in known else "ADDED", one, version)
                    for name in known.keys() - now.keys():
                        yield line("DELETED", known[name], version)
                    known = now
                    if not await self._feed.beyond(version, max(0.0, ends_s - time.monotonic())):
                        return

        return StreamingResponse(stream(), media_type=JSON)


def _check_same(stored: Namespace, uid: str, resource_version: str) -> None:
    if detail := difference(stored.metadata, uid, resource_version):
        raise NamespaceStaleError(stored.metadata.name, f"cannot be changed: {detail}")


def _list(found: Iterable[Namespace], version: int) -> JsonObject:
    metadata = {"resourceVersion": str(version)}
    return {"kind": "NamespaceList", "apiVersion": "v1", "metadata": metadata, "items": list(found)}


def _table(found: Iterable[Namespace], version: int) -> JsonObject:
    now_s = time.time()
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(version)},
        "columnDefinitions": _COLUMNS,
        "rows": [
            Row((one.metadata.name, "Active", age(one.metadata.creation_timestamp, now_s)), partial(one.metadata))
            for one in found
        ],
    }
