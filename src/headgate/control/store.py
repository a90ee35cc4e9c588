"""Where are the objects? control.db: objects, resourceVersions, generations, routing; several processes share it."""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from headgate.control import history
from headgate.control.database import Database
from headgate.control.errors import (
    AlreadyExistsError,
    InvalidObjectError,
    ObjectNotFoundError,
    QuotaError,
    StaleObjectError,
)
from headgate.control.facts import TriggerRow, brokers, bump, counter, trigger_rows
from headgate.control.objects import (
    API_VERSION,
    BROKER_CLASS,
    BROKER_CLASS_ANNOTATION,
    Broker,
    BrokerStatus,
    Kind,
    Metadata,
    Object,
    ObjectKey,
    Trigger,
    TriggerStatus,
    decode_stored,
    encode,
    key_of,
)
from headgate.control.reading import Page, Selector, Stored, read_page
from headgate.control.reconcile import trigger_status
from headgate.control.routing import DeliverySpec, RoutingTable, Target, TargetReport
from headgate.control.schema import migrate
from headgate.control.targets import (
    Compile,
    SnapshotCache,
    drop_target,
    move_public_url,
    put_target,
    recompile,
)
from headgate.control.validate import change_causes
from headgate.filter.plan import CompiledFilter
from headgate.limits import BROKERS_MAX, TRIGGERS_MAX

__all__ = ["DeliverySpec", "Page", "RoutingTable", "Store", "Stored", "Target", "TargetReport"]

PUBLIC_URL_DEFAULT: Final = "http://127.0.0.1:8080"
_QUOTAS: Final = {Kind.BROKER: BROKERS_MAX, Kind.TRIGGER: TRIGGERS_MAX}


class _DryRun(Exception):
    """Carries the result of a dry run out of its transaction."""

    def __init__(self, obj: Object) -> None:
        self.obj = obj


class Store:
    """Objects and what routing needs of them, in one SQLite file. Every method may block: call it in a thread.

    `data_version` alone is cheap enough for an event loop.
    """

    def __init__(self, database: Database, *, compiler: int, clock_s: Callable[[], float]) -> None:
        self._database = database
        self._compiler = compiler
        self._clock_s = clock_s
        self._cache = SnapshotCache()
        self._cache_lock = threading.Lock()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        compile_filter: Compile | None = None,
        compiler: int = 0,
        clock_s: Callable[[], float] = time.time,
    ) -> Store:
        """Open the file, making or upgrading it; the broker `default/default` is there from the start.

        Args:
            path: `control.db` of the data directory.
            compile_filter: Compiles stored filters anew when `compiler` differs from what wrote them; None leaves them.
            compiler: Version of the compiler: whatever it changes in plans, the number changes with it.
            clock_s: Seconds since 1970.

        Raises:
            StoreUnavailableError: SQLite cannot open the file.
            ValueError: A newer Headgate wrote the file.
        """
        store = cls(Database(path), compiler=compiler, clock_s=clock_s)
        with store._database.write() as connection:
            if migrate(connection) == 0:
                store._create(connection, _default_broker(), None)
            if compile_filter is not None:
                recompile(connection, compile_filter, compiler)
        return store

    def close(self) -> None:
        """Close the file; no call may be under way."""
        self._database.close()

    # --- objects ---------------------------------------------------------------------------------

    def get(self, key: ObjectKey) -> Object:
        """One object.

        Raises:
            ObjectNotFoundError: There is none.
        """
        with self._database.read() as connection:
            return _load(connection, key)

    def page(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        name: str | None = None,
        selector: Selector | None = None,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> Page:
        """Objects of a kind ordered by namespace and name, as stored JSON.

        Args:
            kind: Which kind.
            namespace: None for all.
            name: None for all.
            selector: On labels; None for all.
            after: (namespace, name) to go on behind.
            limit: At most this many; None for all.
        """
        with self._database.read() as connection:
            return read_page(connection, kind, namespace, name, selector, after, limit)

    def namespaces(self) -> tuple[str, ...]:
        """Names in use, and `default`, sorted."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT DISTINCT namespace FROM objects").fetchall()
        return tuple(sorted({name for (name,) in rows} | {"default"}))

    def create(self, obj: Object, plan: CompiledFilter | None = None, *, dry_run: bool = False) -> Object:
        """Store a new object.

        Args:
            obj: Validated, defaults set; uid, resourceVersion and the like are given here.
            plan: The compiled filter of a trigger.
            dry_run: Do everything and take it back.

        Returns:
            The object as stored.

        Raises:
            AlreadyExistsError: The name is taken.
            QuotaError: There are as many as there may be.
        """
        return self._write(lambda connection: self._create(connection, obj, plan), dry_run=dry_run)

    def replace(self, obj: Object, plan: CompiledFilter | None = None, *, dry_run: bool = False) -> Object:
        """Put `metadata` (labels, annotations) and `spec` of an object in the place of what is stored.

        Args:
            obj: Validated, defaults set; a resourceVersion or uid in it must be the stored one.
            plan: The compiled filter of a trigger.
            dry_run: Do everything and take it back.

        Returns:
            The object as stored; unchanged (and nothing written) when it says what is stored already.

        Raises:
            ObjectNotFoundError: There is none of the name.
            StaleObjectError: resourceVersion or uid are not the stored ones.
            InvalidObjectError: An immutable field differs.
        """
        return self._write(lambda connection: self._replace(connection, obj, plan), dry_run=dry_run)

    def delete(self, key: ObjectKey, *, uid: str = "", resource_version: str = "", dry_run: bool = False) -> Object:
        """Remove an object.

        Args:
            key: Which one.
            uid: When given, it must be the stored one.
            resource_version: When given, it must be the stored one.
            dry_run: Do everything and take it back.

        Returns:
            The last version of the object.

        Raises:
            ObjectNotFoundError: There is none.
            StaleObjectError: A precondition does not hold.
        """

        def work(connection: sqlite3.Connection) -> Object:
            old = _load(connection, key)
            _check_same(old, uid, resource_version)
            version = bump(connection, "version")
            gone = _with_metadata(old, resource_version=str(version))
            connection.execute(
                "DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", (key.kind, key.namespace, key.name)
            )
            if isinstance(gone, Trigger):
                drop_target(connection, key.namespace, key.name)
            else:
                bump(connection, "routing")
            history.record(connection, "DELETED", version, gone, old)
            return gone

        return self._write(work, dry_run=dry_run)

    def _write(self, work: Callable[[sqlite3.Connection], Object], *, dry_run: bool) -> Object:
        try:
            with self._database.write() as connection:
                obj = work(connection)
                if dry_run:
                    raise _DryRun(obj)
                return obj
        except _DryRun as result:
            return result.obj

    def _create(self, connection: sqlite3.Connection, obj: Object, plan: CompiledFilter | None) -> Object:
        key = key_of(obj)
        row = (key.kind, key.namespace, key.name)
        if connection.execute("SELECT 1 FROM objects WHERE kind = ? AND namespace = ? AND name = ?", row).fetchone():
            raise AlreadyExistsError(key.kind.plural, key.name)
        (count,) = connection.execute("SELECT count(*) FROM objects WHERE kind = ?", (key.kind,)).fetchone()
        if count >= _QUOTAS[key.kind]:
            raise QuotaError(f"there are {count} {key.kind.plural} already, which is the maximum")
        version = bump(connection, "version")
        new = _with_metadata(
            obj,
            generate_name="",
            uid=str(uuid.uuid4()),
            resource_version=str(version),
            generation=1,
            creation_timestamp=self._now(),
        )
        new = _with_status(new, BrokerStatus() if isinstance(new, Broker) else TriggerStatus())
        connection.execute(
            "INSERT INTO objects (kind, namespace, name, version, labels, body) VALUES (?, ?, ?, ?, '{}', x'')",
            (*row, version),
        )
        return self._store(connection, "ADDED", new, None, plan)

    def _replace(self, connection: sqlite3.Connection, obj: Object, plan: CompiledFilter | None) -> Object:
        old = _load(connection, key_of(obj))
        _check_same(old, obj.metadata.uid, obj.metadata.resource_version)
        causes = change_causes(old, obj)
        if causes:
            raise InvalidObjectError(causes, kind=obj.kind, name=obj.metadata.name)
        spec_changed = old.spec != obj.spec
        same_labels = old.metadata.labels == obj.metadata.labels
        if not spec_changed and same_labels and old.metadata.annotations == obj.metadata.annotations:
            return old
        new = _with_metadata(
            _with_status(obj, old.status),
            uid=old.metadata.uid,
            generate_name=old.metadata.generate_name,
            creation_timestamp=old.metadata.creation_timestamp,
            generation=old.metadata.generation + spec_changed,
            resource_version=str(bump(connection, "version")),
        )
        return self._store(connection, "MODIFIED", new, old, plan)

    def _store(
        self, connection: sqlite3.Connection, change: str, new: Object, old: Object | None, plan: CompiledFilter | None
    ) -> Object:
        """Write an object that has its metadata, its routing row, its status and its place in history."""
        self._save(connection, new)
        if isinstance(new, Trigger):
            if plan is None:
                raise ValueError("a trigger is stored with its compiled filter")
            url = public_url(connection)
            target = put_target(connection, new, plan, compiler=self._compiler, public_url=url)
            # In the same write: nobody may read "Ready" of a filter that is not in force.
            row = next(trigger_rows(connection, "WHERE t.id = ?", (target,)))
            new = _with_status(new, trigger_status(new, row.facts, now=self._now()))
            self._save(connection, new)
        else:
            bump(connection, "routing")
        history.record(connection, change, int(new.metadata.resource_version), new, old)
        return new

    def _save(self, connection: sqlite3.Connection, new: Object) -> None:
        meta = new.metadata
        connection.execute(
            "UPDATE objects SET version = ?, labels = ?, body = ? WHERE kind = ? AND namespace = ? AND name = ?",
            (
                int(meta.resource_version),
                history.labels_text(new),
                encode(new),
                new.kind,
                meta.namespace,
                meta.name,
            ),
        )

    def _now(self) -> str:
        return rfc3339(self._clock_s())

    # --- status ----------------------------------------------------------------------------------

    def brokers(self) -> tuple[Broker, ...]:
        """Every broker."""
        with self._database.read() as connection:
            return tuple(brokers(connection))

    def trigger_rows(self, where: str = "", parameters: tuple[object, ...] = ()) -> tuple[TriggerRow, ...]:
        """Triggers with the facts of their status; see `facts.trigger_rows`."""
        with self._database.read() as connection:
            return tuple(trigger_rows(connection, where, parameters))

    def write_statuses(self, changed: Sequence[Object]) -> int:
        """Put new statuses in place, in one transaction.

        Args:
            changed: Objects as they were read, with another status.

        Returns:
            How many were written; an object that changed since it was read is left alone.
        """
        written = 0
        with self._database.write() as connection:
            for obj in changed:
                key = key_of(obj)
                (there,) = connection.execute(
                    "SELECT count(*) FROM objects WHERE kind = ? AND namespace = ? AND name = ? AND version = ?",
                    (key.kind, key.namespace, key.name, int(obj.metadata.resource_version)),
                ).fetchone()
                if there:
                    version = bump(connection, "version")
                    new = _with_metadata(obj, resource_version=str(version))
                    self._save(connection, new)
                    history.record(connection, "MODIFIED", version, new, obj)
                    written += 1
        return written

    def report(self, reports: Iterable[TargetReport]) -> None:
        """Add what the dispatcher saw of filters; targets that are gone are left out."""
        with self._database.write() as connection:
            mark = bump(connection, "report")
            connection.executemany(
                "INSERT INTO reports SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM targets WHERE id = ?1)"
                " ON CONFLICT (target) DO UPDATE SET filter_errors = filter_errors + excluded.filter_errors,"
                " last_error = excluded.last_error, last_error_event = excluded.last_error_event,"
                " report = excluded.report",
                [(r.target, r.filter_errors, r.last_error, r.last_error_event, mark) for r in reports],
            )

    # --- routing ---------------------------------------------------------------------------------

    def data_version(self) -> int:
        """A number that differs after every commit of any process; a few microseconds."""
        return self._database.data_version()

    def snapshot(self) -> RoutingTable:
        """Everything routed, at one moment; decodes only what changed since the last call."""
        with self._cache_lock, self._database.read() as connection:
            return self._cache.table(connection)

    def counters(self) -> dict[str, int]:
        """All counters at one moment: version, desired_generation, active_generation, routing, report, ..."""
        with self._database.read() as connection:
            return dict(connection.execute("SELECT name, value FROM counters").fetchall())

    def desired_generation(self) -> int:
        """The newest set of filters."""
        with self._database.read() as connection:
            return counter(connection, "desired_generation")

    def active_generation(self) -> int:
        """The set of filters by which events are matched now."""
        with self._database.read() as connection:
            return counter(connection, "active_generation")

    def set_active_generation(self, generation: int) -> None:
        """A matcher of this generation has taken over; an older one than is in force already changes nothing.

        Raises:
            ValueError: No such generation has been desired.
        """
        with self._database.write() as connection:
            if generation > counter(connection, "desired_generation"):
                raise ValueError(f"generation {generation} is newer than the newest set of filters")
            connection.execute(
                "UPDATE counters SET value = max(value, ?) WHERE name = 'active_generation'", (generation,)
            )

    def public_url(self) -> str:
        """The server's own address, the first part of every broker's URL."""
        with self._database.read() as connection:
            return public_url(connection)

    def set_public_url(self, url: str) -> None:
        """Tell the server's own address; brokers and triggers follow."""
        with self._database.write() as connection:
            if public_url(connection) != url:
                move_public_url(connection, url)

    # --- watching --------------------------------------------------------------------------------

    def version(self) -> int:
        """The newest resourceVersion."""
        with self._database.read() as connection:
            return counter(connection, "version")

    def changes(self, kind: Kind, since: int, namespace: str | None = None, name: str | None = None) -> history.Changes:
        """What happened after a resourceVersion; see `history.read`."""
        with self._database.read() as connection:
            return history.read(connection, kind, since, namespace, name)


def rfc3339(seconds: float) -> str:
    """Seconds since 1970 as Kubernetes writes times: whole seconds, UTC."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def public_url(connection: sqlite3.Connection) -> str:
    """The server's own address in a transaction."""
    row = connection.execute("SELECT value FROM settings WHERE name = 'public_url'").fetchone()
    return str(row[0]) if row else PUBLIC_URL_DEFAULT


def _default_broker() -> Broker:
    metadata = Metadata(name="default", namespace="default", annotations={BROKER_CLASS_ANNOTATION: BROKER_CLASS})
    return Broker(api_version=API_VERSION, kind=Kind.BROKER.value, metadata=metadata)


def _load(connection: sqlite3.Connection, key: ObjectKey) -> Object:
    row = connection.execute(
        "SELECT body FROM objects WHERE kind = ? AND namespace = ? AND name = ?", (key.kind, key.namespace, key.name)
    ).fetchone()
    if row is None:
        raise ObjectNotFoundError(key.kind.plural, key.name)
    return decode_stored(key.kind, row[0])


def _check_same(old: Object, uid: str, resource_version: str) -> None:
    kind, meta = Kind(old.kind), old.metadata
    if uid and uid != meta.uid:
        detail = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta.uid}"
        raise StaleObjectError(kind.plural, meta.name, detail)
    if resource_version and resource_version != meta.resource_version:
        raise StaleObjectError(kind.plural, meta.name)


def _with_metadata(obj: Object, **changes: object) -> Object:
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, **changes))


def _with_status(obj: Object, status: BrokerStatus | TriggerStatus) -> Object:
    return msgspec.structs.replace(obj, status=status)
