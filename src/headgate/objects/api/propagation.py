"""A broker's joined filter for its sources: one CEL text, with an ETag and a wait for changes.

`GET /apis/headgate.dev/v1/namespaces/{namespace}/brokers/{name}/filter`. It is true of every event that a trigger of
the broker wants which is Ready or about to be: a source that sends only those loses nothing. It changes before a new
trigger is Ready, as soon as the trigger is stored and has somewhere to send to.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.objects.api.http import JSON, in_thread
from headgate.objects.api.queries import user_of
from headgate.objects.api.watch import ChangeFeed
from headgate.objects.store.store import Store
from headgate_api.limits import PROPAGATION_BROKERS_KEPT, PROPAGATION_WAIT_SECONDS_MAX
from headgate_api.objects.errors import MalformedObjectError, ObjectNotFoundError
from headgate_api.objects.kinds import Kind
from headgate_api.objects.metadata import duration_s

API_VERSION: Final = "headgate.dev/v1"
_SHORT_WAIT: Final = re.compile(r"([0-9]{1,4})(?:\.[0-9]{1,3})?s?")


class BrokerFilter(msgspec.Struct, frozen=True, rename="camel"):
    """What sources of a broker get.

    `cel` is true of every event that is wanted, and false or an error (which is to be treated like false) of others. It
    is `exact` when it is true of no other event; a filter that would be too long is made wider.
    """

    api_version: str
    kind: str
    metadata: dict[str, str]
    cel: str
    exact: bool
    triggers: int


@dataclass(frozen=True, slots=True)
class _Known:
    """A broker's filter as it was computed for these filters of its triggers."""

    filters: tuple[str, ...]
    body: bytes
    tag: str


class Propagation:
    """The handler."""

    def __init__(self, store: Store, feed: ChangeFeed) -> None:
        self._store = store
        self._feed = feed
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()
        """Of the table of known filters: held for no computation."""
        self._turns: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        """One by broker that is being computed: who asks about the same one waits for the answer."""

    def routes(self) -> Iterator[Route]:
        path = f"/apis/{API_VERSION}/namespaces/{{namespace}}/brokers/{{name}}/filter"
        yield Route(path, self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        wait_s = _wait_s(request.query_params.get("wait", ""))
        has = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        found = await in_thread(self._current, namespace, name)
        if wait_s and found.tag in has:
            found = await self._changed(user_of(request).name, namespace, name, has, wait_s) or found
        headers = {"ETag": found.tag, "Cache-Control": "no-cache"}
        if found.tag in has or "*" in has:
            return Response(status_code=304, headers=headers)
        return Response(found.body, media_type=JSON, headers=headers)

    async def _changed(self, user: str, namespace: str, name: str, has: set[str], wait_s: float) -> _Known | None:
        """The next filter that the client does not have; None when the time is over or the server stops."""
        ends_s = time.monotonic() + wait_s
        with self._feed.joined(namespace, user):
            seen = -1
            while (left_s := ends_s - time.monotonic()) > 0 and await self._feed.beyond(seen, left_s):
                seen = self._feed.version
                found = await in_thread(self._current, namespace, name)
                if found.tag not in has:
                    return found
        return None

    def _current(self, namespace: str, name: str) -> _Known:
        """Blocking."""
        table = self._store.snapshot()
        broker = table.brokers.get(f"{namespace}/{name}")
        if broker is None:
            raise ObjectNotFoundError(Kind.BROKER, name)
        targets = [target for target in table.targets.values() if target.broker == broker]
        filters = tuple(sorted(target.filter.cel for target in targets))
        with self._lock:
            turn = self._turns.setdefault(broker, threading.Lock())
        with turn:
            with self._lock:
                known = self._known.get(broker)
            if known is not None and known.filters == filters:
                return known
            # Imported late: cel-cpp is heavy, and few servers are asked.
            from headgate.filter.tools.union import union

            joined = union(target.filter for target in targets)
            metadata = {"namespace": namespace, "name": name}
            answer = BrokerFilter(API_VERSION, "BrokerFilter", metadata, joined.cel, joined.exact, len(targets))
            body = msgspec.json.encode(answer)
            known = _Known(filters, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
            with self._lock:
                self._known[broker] = known
                while len(self._known) > PROPAGATION_BROKERS_KEPT:
                    self._known.popitem(last=False)
        return known


def _wait_s(text: str) -> float:
    if not text:
        return 0.0
    try:
        short = _SHORT_WAIT.fullmatch(text)
        seconds = float(text.removesuffix("s")) if short else duration_s(text)
    except ValueError as error:
        raise MalformedObjectError(f"wait: {error}", hint="wait=30s or wait=PT30S") from error
    return min(seconds, PROPAGATION_WAIT_SECONDS_MAX)
