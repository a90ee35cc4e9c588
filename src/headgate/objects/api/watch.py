"""Lists page by page, and watches: changes as JSON lines, with one poll of the store for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.objects.api import tables
from headgate.objects.api.http import in_thread
from headgate.objects.kinds.kube_status import failure_of
from headgate.objects.store.history import BodyTest, Change, Page, Selector
from headgate.objects.store.store import Store
from headgate.shares import FairPlaces
from headgate_api.errors import UnavailableError
from headgate_api.limits import SECRETS_READ_MAX, WATCHES_MAX
from headgate_api.objects.errors import ExpiredError
from headgate_api.objects.kinds import Kind, decode_stored

POLL_S: Final = 0.05
"""Between two looks at the store's data_version, for all watches together."""
BOOKMARK_S: Final = 30.0
"""Silence after which a watcher that wants bookmarks gets the current version."""
LIST_CHUNK: Final = 250
"""Objects of a list, or of the state before a watch's first change, that are read and sent at once."""


class ChangeFeed:
    """Wakes watches when objects have changed; polls only while there are any."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.places = FairPlaces("watches", "WATCHES_MAX", WATCHES_MAX)
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._failed: UnavailableError | None = None
        self.version = -1
        self.is_closed = False

    @contextmanager
    def joined(self, namespace: str, user: str) -> Iterator[None]:
        """Take part, as a user who watches a namespace, empty for all; the last one to leave ends the polling."""
        try:
            with self.places.held(namespace, user):
                if self._task is None or self._task.done():
                    self._failed = None
                    self._task = asyncio.create_task(self._poll(), name="control-watch-poll")
                yield
        finally:
            if not self.places and self._task is not None:
                self._task.cancel()
                self._task, self.version = None, -1

    async def beyond(self, version: int, timeout_s: float) -> bool:
        """Wait until the store has a newer version than this one; False when the time is over first."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.version <= version and not self.is_closed:
                    if self._failed is not None:
                        raise self._failed
                    await self._changed.wait()
        except TimeoutError:
            return False
        return not self.is_closed

    def close(self) -> None:
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    async def _poll(self) -> None:
        seen = None
        while not self.is_closed:
            try:
                if (found := self._store.data_version()) != seen:
                    version = await in_thread(self._store.counters.version)
                    seen = found
                    if version != self.version:
                        self.version = version
                        self._wake()
            except UnavailableError as error:
                self._failed = error
                self._wake()
                return
            await asyncio.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which objects a list holds; `namespace`, `name`, `selector` (on labels), `limit` and `test` are None for all.

    `after` is the (namespace, name) behind which it goes on. `version` is the resourceVersion of the first page, when
    this is a later one, or the requested one, as of which `exact` asks for the objects. The resourceVersion `at_least`
    must have been reached. `test` is on names and JSON; a watch takes one on names alone, which do not change.
    """

    kind: Kind
    namespace: str | None
    name: str | None
    selector: Selector | None
    limit: int | None
    after: tuple[str, str] | None
    version: int | None
    exact: bool = False
    at_least: int = 0
    test: BodyTest | None = None


async def pages_of(store: Store, query: ListQuery) -> AsyncIterator[Page]:
    """The pages of a list up to its limit; only the last one may be empty or say that there is more beyond it."""
    left, after = query.limit, query.after
    chunk = SECRETS_READ_MAX if query.kind is Kind.SECRET else LIST_CHUNK
    while True:
        page = await in_thread(
            store.page,
            query.kind,
            query.namespace,
            name=query.name,
            selector=query.selector,
            after=after,
            limit=chunk if left is None else min(left, chunk),
            at=query.version if query.exact else None,
            test=query.test,
        )
        yield page
        left = None if left is None else left - len(page.items)
        if not page.more or left == 0:
            return
        after = (page.items[-1].key.namespace, page.items[-1].key.name)


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """What a watch is about: changes behind the resourceVersion `since`; None begins with the present state, as ADDED.

    `is_table` sends objects as tables of one row. `bookmarks` send the current version from time to time,
    `initial_bookmark` marks the end of the present state. `shown` makes of an object's JSON what its watcher may see.
    """

    objects: ListQuery
    since: int | None
    is_table: bool
    include_object: str
    bookmarks: bool
    initial_bookmark: bool
    timeout_s: float
    shown: Callable[[bytes], bytes] = lambda body: body


async def watch(store: Store, feed: ChangeFeed, query: WatchQuery) -> AsyncIterator[bytes]:
    """Lines of a watch, until it times out, expires or the server stops; the caller has joined the feed meanwhile."""
    ends_s = time.monotonic() + query.timeout_s
    try:
        # First what is there, or what happened since: at once, for it may have expired.
        seen = -1
        async for lines, version in _begin(store, query):
            seen = version
            yield lines
        if query.initial_bookmark:
            yield _bookmark(query, seen, initial=True)
        sent = seen
        while (left_s := ends_s - time.monotonic()) > 0:
            if await feed.beyond(seen, min(left_s, BOOKMARK_S)):
                lines, seen = await in_thread(_changes, store, query, seen)
                if lines:
                    sent = seen
                    yield lines
            elif feed.is_closed:
                return
            elif query.bookmarks:
                sent = seen
                yield _bookmark(query, seen)
        if query.bookmarks and sent != seen:
            yield _bookmark(query, seen)
    except (ExpiredError, UnavailableError) as error:
        yield _line("ERROR", msgspec.json.encode(failure_of(error)))


async def _begin(store: Store, query: WatchQuery) -> AsyncIterator[tuple[bytes, int]]:
    if query.since is not None:
        yield await in_thread(_changes, store, query, query.since)
        return

    def added(page: Page) -> bytes:
        return b"".join(_object_line("ADDED", item.body, query) for item in page.items)

    # The present state, with the version before the first page: later changes are sent (again).
    version: int | None = None
    async for page in pages_of(store, query.objects):
        version = page.version if version is None else version
        yield await in_thread(added, page), version


def _changes(store: Store, query: WatchQuery, since: int) -> tuple[bytes, int]:
    objects = query.objects
    changes = store.changes(objects.kind, since, objects.namespace, objects.name)
    lines = []
    for change in changes.items:
        type_ = _type_for(change, objects.selector)
        is_wanted = objects.test is None or objects.test(change.key.name, change.body)
        if type_ is not None and is_wanted:
            lines.append(_object_line(type_, change.body, query))
    return b"".join(lines), changes.version


def _type_for(change: Change, selector: Selector | None) -> str | None:
    """What a change is to a watcher that sees only what its selector wants; None when it is nothing."""
    if selector is None:
        return change.type
    before = change.labels_before is not None and selector(change.labels_before)
    after = change.type != "DELETED" and selector(change.labels)
    if before and after:
        return "MODIFIED"
    if after:
        return "ADDED"
    return "DELETED" if before else None


def _object_line(type_: str, stored: bytes, query: WatchQuery) -> bytes:
    body = query.shown(stored)
    if not query.is_table:
        return _line(type_, body)
    obj = decode_stored(query.objects.kind, body)
    row = msgspec.json.encode(tables.row(obj, now_s=time.time(), include=query.include_object))
    metadata: dict[str, object] = {"resourceVersion": obj.metadata.resource_version}
    return _line(type_, tables.table(query.objects.kind, row, metadata))


def _bookmark(query: WatchQuery, version: int, *, initial: bool = False) -> bytes:
    metadata: dict[str, object] = {"resourceVersion": str(version), "creationTimestamp": None}
    if initial:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    if query.is_table:
        body = tables.table(query.objects.kind, b"", metadata)
    else:
        spec: dict[str, object] = {
            "kind": query.objects.kind,
            "apiVersion": query.objects.kind.api_version,
            "metadata": metadata,
        }
        body = msgspec.json.encode(spec)
    return _line("BOOKMARK", body)


def _line(type_: str, body: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), body)
