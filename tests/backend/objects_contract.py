"""What the store of objects keeps, however its changes become durable: tests for each way to inherit."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.api.watch import ChangeFeed, ListQuery, WatchQuery, watch
from headgate.objects.kinds.routing import TargetReport
from headgate.objects.store.store import Store
from headgate_api.objects.errors import (
    AlreadyExistsError,
    ExpiredError,
    FutureVersionError,
    ObjectNotFoundError,
    StaleObjectError,
)
from headgate_api.objects.kinds import Kind, Object, ObjectKey
from tests.objects.support import broker, trigger


class OpenObjects(Protocol):
    """Objects that a test has for itself."""

    @property
    def store(self) -> Store:
        """The store, which may write."""
        ...

    @property
    def path(self) -> Path:
        """Its file."""
        ...

    def reopen(self) -> None:
        """Closes it, as a process ends, and opens it again; `store` is a new one."""
        ...


def key(name: str, kind: Kind = Kind.TRIGGER) -> ObjectKey:
    return ObjectKey(kind, "default", name)


def dump(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of a file by table; who led, how far a cache is, and the count of commits are no objects."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr)
            for name in names
            if not name.startswith("topic_") and name != "commits"
        }


def names(store: Store, kind: Kind = Kind.TRIGGER) -> list[str]:
    return [item.key.name for item in store.page(kind).items]


def version(obj: Object) -> int:
    return int(obj.metadata.resource_version)


def create(store: Store, name: str = "t1", **spec: object) -> Object:
    return Admission(store).create(Kind.TRIGGER, trigger(name, **spec)).obj


def label(store: Store, name: str, value: str) -> Object:
    return Admission(store).merge(key(name), {"metadata": {"labels": {"a": value}}}).obj


def watched(store: Store, since: int, count: int) -> list[tuple[str, str, int]]:
    """The next changes of triggers as a watch tells them: type, name, resourceVersion."""

    async def run() -> list[tuple[str, str, int]]:
        feed = ChangeFeed(store)
        objects = ListQuery(Kind.TRIGGER, None, None, None, None, None, None)
        found: list[tuple[str, str, int]] = []
        with feed.joined("", ""):
            async for lines in watch(store, feed, WatchQuery(objects, since, False, "", False, False, 30.0)):
                for line in lines.splitlines():
                    told = msgspec.json.decode(line)
                    meta = told["object"]["metadata"]
                    found.append((told["type"], meta["name"], int(meta["resourceVersion"])))
                if len(found) >= count:
                    return found
        raise AssertionError(f"{len(found)} changes of {count} came")

    return asyncio.run(run())


class ObjectStoreContract:
    """The tests; a way's own class has the fixture `objects`."""

    @pytest.fixture
    def objects(self) -> Iterator[OpenObjects]:
        raise NotImplementedError

    def test_what_was_written_is_there_after_a_new_start(self, objects: OpenObjects) -> None:
        store = objects.store
        made = create(store, "t1")
        create(store, "t2")
        changed = label(store, "t1", "x")
        store.delete(key("t2"))
        assert version(changed) > version(made)
        before = dump(objects.path)
        objects.reopen()
        assert dump(objects.path) == before
        assert objects.store.get(key("t1")) == changed
        assert names(objects.store) == ["t1"]
        with pytest.raises(ObjectNotFoundError):
            objects.store.get(key("t2"))
        with pytest.raises(AlreadyExistsError):
            create(objects.store, "t1")
        assert objects.store.counters.version() == version(changed) + 1

    def test_versions_and_the_numbers_of_targets_go_on_after_a_new_start(self, objects: OpenObjects) -> None:
        create(objects.store, "t1")
        number = objects.store.targets.id_of(key("t1"))
        objects.store.delete(key("t1"))
        newest, generation = objects.store.counters.version(), objects.store.desired_generation()
        objects.reopen()
        assert (objects.store.counters.version(), objects.store.desired_generation()) == (newest, generation)
        assert version(create(objects.store, "t1")) > newest
        assert number is not None
        assert (objects.store.targets.id_of(key("t1")) or 0) > number
        assert objects.store.desired_generation() > generation

    def test_a_stale_write_is_a_conflict_and_changes_nothing(self, objects: OpenObjects) -> None:
        store = objects.store
        made = create(store)
        label(store, "t1", "x")
        before = dump(objects.path)
        for stale in (
            lambda: Admission(store).replace(
                key("t1"), trigger() | {"metadata": {"name": "t1", "resourceVersion": made.metadata.resource_version}}
            ),
            lambda: store.delete(key("t1"), resource_version=made.metadata.resource_version),
            lambda: store.delete(key("t1"), uid="another"),
        ):
            with pytest.raises(StaleObjectError) as caught:
                stale()
            assert caught.value.http_status == 409
        store.delete(key("t1"), dry_run=True)
        assert dump(objects.path) == before

    def test_a_watch_tells_every_change_from_a_version_on(self, objects: OpenObjects) -> None:
        store = objects.store
        since = store.counters.version()
        one, two = create(store, "t1"), create(store, "t2")
        changed = label(store, "t1", "x")
        store.delete(key("t2"))
        told = [
            ("ADDED", "t1", version(one)),
            ("ADDED", "t2", version(two)),
            ("MODIFIED", "t1", version(changed)),
            ("DELETED", "t2", version(changed) + 1),
        ]
        assert watched(store, since, 4) == told
        assert watched(store, version(two), 2) == told[2:]
        objects.reopen()
        assert watched(objects.store, since, 4) == told
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(watched, objects.store, version(changed) + 1, 1)
            made = create(objects.store, "t3")
            assert later.result() == [("ADDED", "t3", version(made))]

    def test_a_version_that_nothing_has_yet_is_refused(self, objects: OpenObjects) -> None:
        newest = objects.store.counters.version()
        with pytest.raises(ExpiredError):
            objects.store.changes(Kind.TRIGGER, newest + 1)
        with pytest.raises(FutureVersionError):
            objects.store.page(Kind.TRIGGER, at=newest + 1)

    def test_a_change_of_several_objects_is_there_as_a_whole_or_not_at_all(self, objects: OpenObjects) -> None:
        store = objects.store
        made = [create(store, name) for name in ("t1", "t2", "t3")]
        changed = [msgspec.structs.replace(one, status=type(one.status)()) for one in made]
        before = dump(objects.path)

        def failing() -> Iterator[Object]:
            yield from changed[:2]
            raise RuntimeError("in the middle")

        with pytest.raises(RuntimeError, match="in the middle"):
            store.write_statuses(failing())
        assert dump(objects.path) == before
        written = store.write_statuses(changed)
        assert len(written) == 3
        after = dump(objects.path)
        objects.reopen()
        assert dump(objects.path) == after

    def test_a_broker_of_many_triggers_and_reports_survive(self, objects: OpenObjects) -> None:
        store = objects.store
        for number in range(5):
            create(store, f"t{number}", broker="late")
        Admission(store).create(Kind.BROKER, broker("late"))
        target = store.targets.id_of(key("t0"))
        assert target is not None
        store.reports.report([TargetReport(target, 3, "division by zero", "/s 1")])
        store.public_url.set("http://events.example")
        store.counters.activate(store.desired_generation())
        routing, counters = store.snapshot(), store.counters.all()
        objects.reopen()
        assert (objects.store.snapshot(), objects.store.counters.all()) == (routing, counters)
        assert objects.store.public_url.get() == "http://events.example"
        assert objects.store.reports.since(0) == (target,)

    def test_writers_at_the_same_time_get_versions_of_their_own(self, objects: OpenObjects) -> None:
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda number: create(objects.store, f"t{number:02}"), range(24)))
        assert len({version(one) for one in made}) == 24
        objects.reopen()
        assert names(objects.store) == [f"t{number:02}" for number in range(24)]
        assert [objects.store.get(key(one.metadata.name)) for one in made] == made
