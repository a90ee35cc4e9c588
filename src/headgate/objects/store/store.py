"""The store of objects, control.db: objects, resourceVersions, generations, routing; several processes share it."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from headgate.filter.compile.plan import CompiledFilter
from headgate.objects.kinds.routing import RoutingTable
from headgate.objects.kinds.specs import ServedBroker
from headgate.objects.kinds.status import event_type_status, served_broker
from headgate.objects.store import history
from headgate.objects.store.attention import AttentionReader
from headgate.objects.store.database import Database, StoreChanges, StoreCommits
from headgate.objects.store.handshake_grants import HandshakeGrants
from headgate.objects.store.history import BodyTest, Page, Selector, read_page
from headgate.objects.store.namespaces import NamespaceTable
from headgate.objects.store.plans import FilterCompiler, StoredPlans, filter_compiler
from headgate.objects.store.quota_usage import QuotaTable
from headgate.objects.store.rows import (
    CounterTable,
    KnownObjects,
    RowSelection,
    StoredForm,
    broker_at,
    counter,
    stale_routed,
)
from headgate.objects.store.schema import is_current, migrate
from headgate.objects.store.secret_store import SecretTable
from headgate.objects.store.server_secret import ServerSecret
from headgate.objects.store.signing_keys import SigningKeys
from headgate.objects.store.targets import PublicUrl, ReportTable, SnapshotCache, TargetTable
from headgate.objects.store.writes import ObjectWriter, Write, default_broker, kube_time, load
from headgate.storage.commit import Committer
from headgate.storage.keyring import Keyring
from headgate_api.errors import HeadgateError
from headgate_api.objects.errors import ObjectNotFoundError
from headgate_api.objects.kinds import (
    FRONT_KINDS,
    EventType,
    Kind,
    Object,
    ObjectKey,
    Routed,
    WithStatus,
    decode_stored,
)

_T = TypeVar("_T")


class _DryRun(Exception):
    """Carries the result of a dry run out of its transaction."""

    def __init__(self, result: object) -> None:
        self.result = result


class Store:
    """Objects and what routing needs of them, in one SQLite file. Every method may block: call it in a thread.

    `data_version` alone is cheap enough for an event loop; `change_watch` says when to look at it again. A dry run does
    everything and takes it back.
    """

    def __init__(
        self, database: Database, *, compiler: FilterCompiler, clock_s: Callable[[], float], form: StoredForm
    ) -> None:
        self._database = database
        self.change_watch = StoreChanges(database.path)
        self._form = form
        self.compiler = compiler
        self._clock_s = clock_s
        self.namespaces = NamespaceTable(database, clock_s)
        self.secrets = SecretTable(database, form)
        self.quotas = QuotaTable(database)
        self.signing_keys = SigningKeys(database, form, clock_s)
        self.server_secret = ServerSecret(database)
        self.handshakes = HandshakeGrants(database, self.server_secret, clock_s)
        self.reports = ReportTable(database)
        self.counters = CounterTable(database)
        self.targets = TargetTable(database)
        self.public_url = PublicUrl(database)
        self.attention = AttentionReader(database)
        self.plans = StoredPlans(database, compiler)
        self._cache = SnapshotCache()
        self._cache_lock = threading.Lock()
        self._on_broker: list[Callable[[], object]] = []

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        compiler: FilterCompiler | None = None,
        clock_s: Callable[[], float] = time.time,
        targets_from: int = 0,
        committer: Committer | None = None,
        keys: Keyring | None = None,
    ) -> Store:
        """Open the file, making or upgrading it; the broker `default/default` is there from the start.

        The ids of targets that are made from now on are above `targets_from`. The committer makes writes durable; None:
        SQLite alone does. Without `keys` no Secret can be stored or read.
        """
        database = Database(path, committer)
        store = cls(database, compiler=compiler or filter_compiler(), clock_s=clock_s, form=StoredForm(keys))
        with store._database.read() as connection:
            if is_current(connection, path) and not targets_from:
                return store  # without a wait for whoever writes
        with store._database.write() as connection:
            if migrate(connection, path) == 0:
                store._writer(connection).create(default_broker(), None)
            connection.execute("UPDATE counters SET value = max(value, ?) WHERE name = 'target'", (targets_from,))
        return store

    def make_default_broker(self) -> None:
        """Make the broker `default/default` where nothing was ever written; `open` does it for a file that it makes."""
        with self._database.write() as connection:
            if counter(connection, "version") == 0:
                self._writer(connection).create(default_broker(), None)

    def commits(self) -> StoreCommits:
        """For who follows the store without an event loop."""
        return StoreCommits(self._database.path)

    def now(self) -> str:
        """The time of a write, RFC 3339."""
        return kube_time(self._clock_s())

    def close(self) -> None:
        """Close the file; no call may be under way."""
        self.change_watch.close()
        self._database.close()

    def get(self, key: ObjectKey) -> Object:
        with self._database.read() as connection:
            return load(connection, key, self._form)

    def found(self, keys: Iterable[ObjectKey]) -> dict[ObjectKey, Object]:
        """Those of some objects that are there, at one moment."""
        with self._database.read() as connection:
            there = {}
            for key in keys:
                with suppress(ObjectNotFoundError):
                    there[key] = load(connection, key, self._form)
            return there

    def page(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        name: str | None = None,
        selector: Selector | None = None,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
        at: int | None = None,
        test: BodyTest | None = None,
    ) -> Page:
        """Objects of a kind ordered by namespace and name, as stored JSON; what is None does not restrict them.

        Goes on behind the (namespace, name) `after`. With `at` they are as they were at this resourceVersion, and
        ExpiredError is raised when that is no longer kept, FutureVersionError when there is no such version yet.
        """
        with self._database.read() as connection:
            return read_page(connection, self._form, kind, namespace, name, selector, after, limit, at, test)

    def create(self, obj: Object, plan: CompiledFilter | None = None, *, dry_run: bool = False) -> Object:
        """Store a new object, validated, with defaults; uid, resourceVersion and the like are given here."""
        return self._write(Kind(obj.kind), lambda writer: writer.create(obj, plan), dry_run=dry_run)

    def replace(self, obj: Object, plan: CompiledFilter | None = None, *, dry_run: bool = False) -> Object:
        """Put labels, annotations and `spec` of a validated object in the place of stored ones, if they differ.

        A resourceVersion or uid in it must be the stored one. Returns the object as stored.
        """
        return self._write(Kind(obj.kind), lambda writer: writer.replace(obj, plan), dry_run=dry_run)

    def write_all(self, writes: Sequence[Write], *, dry_run: bool = False) -> list[Object | HeadgateError]:
        """Create and replace several triggers or subscriptions in one transaction, in their order.

        Of each the object as stored, or the error that `create` or `replace` would have raised.
        """
        assert not any(one.obj.kind in FRONT_KINDS for one in writes)
        return self._transaction(lambda writer: [writer.tried(one) for one in writes], dry_run=dry_run)

    def delete(self, key: ObjectKey, *, uid: str = "", resource_version: str = "", dry_run: bool = False) -> Object:
        """Remove an object, and return its last version; a given uid or resourceVersion must be the stored one."""
        return self._write(key.kind, lambda writer: writer.delete(key, uid, resource_version), dry_run=dry_run)

    def on_broker(self, look: Callable[[], object]) -> None:
        """Have something called when one of FRONT_KINDS has been written through this, before its writer goes on."""
        self._on_broker.append(look)

    def tell_of_brokers(self) -> None:
        """Call what `on_broker` was given: some of FRONT_KINDS may have been written."""
        for look in self._on_broker:
            look()

    def _writer(self, connection: sqlite3.Connection) -> ObjectWriter:
        return ObjectWriter(connection, self._form, compiler=self.compiler.version, now_s=self._clock_s())

    def _write(self, kind: Kind, work: Callable[[ObjectWriter], Object], *, dry_run: bool) -> Object:
        obj = self._transaction(work, dry_run=dry_run)
        if kind in FRONT_KINDS and not dry_run:
            self.tell_of_brokers()
        return obj

    def _transaction(self, work: Callable[[ObjectWriter], _T], *, dry_run: bool) -> _T:
        try:
            with self._database.write() as connection:
                result = work(self._writer(connection))
                if dry_run:
                    raise _DryRun(result)
        except _DryRun as dry:
            return cast(_T, dry.result)
        return result

    def served(self, path: str) -> ServedBroker | None:
        """The broker `namespace/name`; None when there is none that accepts events."""
        with self._database.read() as connection:
            return served_broker(broker_at(connection, path))

    def refresh(self, known: KnownObjects[Any]) -> set[str]:
        """Brings objects in memory up to date; the paths of those that have changed, see `KnownObjects.read`."""
        with self._database.read() as connection:
            return known.read(connection)

    def stale_routed(
        self, now_s: float, which: RowSelection = RowSelection.ALL, parameters: tuple[object, ...] = ()
    ) -> list[Routed]:
        """Triggers and subscriptions whose stored status is not what the facts say, with the status that is."""
        with self._database.read() as connection:
            return list(stale_routed(connection, which, parameters, self._form, kube_time(now_s)))

    def stale_event_types(
        self, now_s: float, since: int | None, namespaces: Iterable[str], is_there: Callable[[str], bool]
    ) -> list[EventType]:
        """EventTypes whose stored status is not true, with the status that is.

        All, or those that were written after the resourceVersion `since`, and those of the namespaces where brokers
        have come or gone.
        """
        select, kind, found = "SELECT body FROM objects WHERE", Kind.EVENT_TYPE, dict[str, EventType]()
        with self._database.read() as connection:
            # The unary plus keeps SQLite to the index of versions.
            rows = connection.execute(f"{select} +kind = ? AND version > ?", (kind, since or 0))
            others = (
                connection.execute(f"{select} kind = ? AND namespace = ?", (kind, namespace))
                for namespace in (namespaces if since is not None else ())
            )
            for (body,) in itertools.chain(rows, *others):
                one = cast(EventType, decode_stored(kind, body))
                status = event_type_status(one, is_there=is_there, now=kube_time(now_s))
                if status != one.status:
                    found[one.metadata.uid] = msgspec.structs.replace(one, status=status)
        return list(found.values())

    def write_statuses(self, changed: Iterable[WithStatus]) -> tuple[int, ...]:
        """Put new statuses of objects in place, which else are as they were read; in one transaction.

        Returns the resourceVersions written; an object that changed since it was read is left alone.
        """
        with self._database.write() as connection:
            writer = self._writer(connection)
            return tuple(version for obj in changed if (version := writer.put_status(obj)) is not None)

    def data_version(self) -> int:
        """A number that differs after every commit of any process; a few microseconds."""
        return self._database.data_version()

    def snapshot(self) -> RoutingTable:
        """Everything routed, at one moment; decodes only what changed since the last call."""
        with self._cache_lock, self._database.read() as connection:
            return self._cache.table(connection)

    def desired_generation(self) -> int:
        """The newest set of filters."""
        with self._database.read() as connection:
            return counter(connection, "desired_generation")

    def changes(self, kind: Kind, since: int, namespace: str | None = None, name: str | None = None) -> history.Changes:
        """What happened after a resourceVersion; see `history.read`."""
        with self._database.read() as connection:
            return history.read(connection, self._form, kind, since, namespace, name)
