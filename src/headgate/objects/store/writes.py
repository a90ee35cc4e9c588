"""Writes of one transaction: create, replace, delete and status."""

from __future__ import annotations

import functools
import sqlite3
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from headgate.filter.compile.plan import CompiledFilter, filter_cost
from headgate.objects.kinds.managers import with_metadata
from headgate.objects.kinds.quotas import FILTER_COST, count_of
from headgate.objects.kinds.status import routed_status
from headgate.objects.kinds.validate import change_causes
from headgate.objects.store import history
from headgate.objects.store.database import apart
from headgate.objects.store.quota_usage import admit
from headgate.objects.store.rows import (
    NAMED,
    Facts,
    RowSelection,
    StoredForm,
    body_at,
    bump,
    counter,
    routed_rows,
    stale_routed,
)
from headgate.objects.store.targets import adopt_targets, drop_target, insert_target, target_cost, update_target
from headgate.shares import has_share
from headgate_api import limits
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.objects.errors import (
    AlreadyExistsError,
    InvalidObjectError,
    ObjectNotFoundError,
    QuotaError,
    StaleObjectError,
)
from headgate_api.objects.kinds import (
    API_VERSION,
    BROKER_CLASS,
    BROKER_CLASS_ANNOTATION,
    RBAC_KINDS,
    Broker,
    Eventing,
    Kind,
    Metadata,
    Object,
    ObjectKey,
    Routed,
    WithStatus,
    content,
    key_of,
)

_QUOTAS: Final[Mapping[Kind, tuple[str, int]]] = {
    Kind.BROKER: ("BROKERS_MAX", limits.BROKERS_MAX),
    Kind.TRIGGER: ("TRIGGERS_MAX", limits.TRIGGERS_MAX),
    Kind.SUBSCRIPTION: ("SUBSCRIPTIONS_MAX", limits.SUBSCRIPTIONS_MAX),
    Kind.SECRET: ("SECRETS_MAX", limits.SECRETS_MAX),
    Kind.RESOURCE_QUOTA: ("RESOURCE_QUOTAS_MAX", limits.RESOURCE_QUOTAS_MAX),
    Kind.EVENT_POLICY: ("EVENT_POLICIES_MAX", limits.EVENT_POLICIES_MAX),
    Kind.EVENT_TYPE: ("EVENT_TYPES_MAX", limits.EVENT_TYPES_MAX),
    **dict.fromkeys(RBAC_KINDS, ("RBAC_OBJECTS_MAX", limits.RBAC_OBJECTS_MAX)),
}
_NAMESPACE_QUOTAS: Final = {
    Kind.SECRET: limits.SECRETS_PER_NAMESPACE_MAX,
    Kind.RESOURCE_QUOTA: limits.RESOURCE_QUOTAS_PER_NAMESPACE_MAX,
    Kind.EVENT_POLICY: limits.EVENT_POLICIES_PER_NAMESPACE_MAX,
    Kind.EVENT_TYPE: limits.EVENT_TYPES_PER_NAMESPACE_MAX,
}
"""Of the other kinds a namespace has its share (`shares.py`)."""
_WRITTEN: Final = ("labels", "annotations", "finalizers", "managed_fields")
"""Metadata that clients write."""
_GIVEN: Final = ("uid", "generate_name", "creation_timestamp", "deletion_timestamp", "deletion_grace_period_seconds")
"""Metadata that the server writes once."""


@dataclass(frozen=True, slots=True)
class Write:
    """One of several writes of a transaction: an object, validated, with its defaults, to be created or replaced."""

    obj: Object
    plan: CompiledFilter | None
    is_new: bool


class ObjectWriter:
    """Writes of one transaction, the connection's; `compiler` is the version of the compiler that made the plans."""

    def __init__(self, connection: sqlite3.Connection, form: StoredForm, *, compiler: int, now_s: float) -> None:
        self._connection = connection
        self._form = form
        self._compiler = compiler
        self._now = kube_time(now_s)
        self._known: Facts | None = None

    def create(self, obj: Object, plan: CompiledFilter | None) -> Object:
        key = key_of(obj)
        self._check_quota(key)
        cost = {FILTER_COST: filter_cost(plan)} if plan is not None else {}
        admit(self._connection, key, {count_of(key.kind): 1} | cost)
        self._check_free(key)
        version = bump(self._connection, "version")
        new = with_metadata(
            obj,
            generate_name="",
            uid=str(uuid.uuid4()),
            resource_version=str(version),
            generation=1,
            creation_timestamp=self._now,
        )
        if isinstance(new, WithStatus):
            new = msgspec.structs.replace(new, status=type(new.status)())
        if isinstance(new, Routed):
            inputs = insert_target(
                self._connection, new, _of_routed(new, plan), compiler=self._compiler, facts=self._facts()
            )
            # In the same write: nobody may read "Ready" of a filter that is not in force.
            new = msgspec.structs.replace(new, status=routed_status(new, inputs, now=self._now))
        body = self._form.of(new)
        self._connection.execute(
            "INSERT INTO objects (kind, namespace, name, version, labels, body) VALUES (?, ?, ?, ?, ?, ?)",
            (*key, version, history.labels_text(new), body),
        )
        if isinstance(new, Broker):
            adopt_targets(self._connection, new)
        history.record(self._connection, "ADDED", new, None, body)
        if isinstance(new, Broker):
            self._known = None
            self._refresh_statuses(key.path)
        return new

    def tried(self, write: Write) -> Object | HeadgateError:
        """The object as stored, or why it is not; an error takes nothing else of the transaction with it.

        UnavailableError alone is raised: nothing can be written now.
        """
        try:
            with apart(self._connection, "object"):
                return self.create(write.obj, write.plan) if write.is_new else self.replace(write.obj, write.plan)
        except UnavailableError:
            raise
        except HeadgateError as error:
            return error

    def _facts(self) -> Facts:
        """What statuses depend on: the same for all writes of the transaction, but for those of a broker."""
        if self._known is None:
            self._known = Facts(self._connection, self._form)
        return self._known

    def _check_free(self, key: ObjectKey) -> None:
        if self._connection.execute(f"SELECT 1 FROM objects WHERE {NAMED}", key).fetchone() is not None:
            is_going = bool(self._load(key).metadata.deletion_timestamp)
            raise AlreadyExistsError(key.kind, key.name, is_going=is_going)

    def _load(self, key: ObjectKey) -> Object:
        return load(self._connection, key, self._form)

    def _check_quota(self, key: ObjectKey) -> None:
        kind = key.kind
        limit, most = _QUOTAS[kind]
        if kind is Kind.TRIGGER and not has_share(made := counter(self._connection, "target"), most - made):
            return  # so many were never made: to count a hundred thousand of them takes a millisecond
        count = self._count("kind = ?", kind)
        if count >= most:
            raise QuotaError(
                f"there are {count} {kind.plural} already, which is the maximum ({limit})",
                hint=f"delete {kind.plural} that nobody needs; a resource quota limits those of a namespace",
            )
        own_most = _NAMESPACE_QUOTAS.get(kind)
        if own_most is None and not (key.namespace and has_share(count, most - count)):
            return  # also of who has all of them
        own = self._count("kind = ? AND namespace = ?", kind, key.namespace)
        there_are = f"there are {own} {kind.plural} in the namespace {key.namespace} already"
        if own_most is not None and own >= own_most:
            raise QuotaError(f"{there_are}, which is the maximum")
        if own_most is None and has_share(own, most - count):
            raise QuotaError(
                f"{there_are}, its share of the {most} that a server has ({limit})",
                hint=f"delete {kind.plural} that nobody needs: the rest is for other namespaces",
            )

    def _count(self, where: str, *values: str) -> int:
        """How many objects there are; `where` is a condition of ours."""
        (count,) = self._connection.execute(f"SELECT count(*) FROM objects WHERE {where}", values).fetchone()
        return int(count)

    def replace(self, obj: Object, plan: CompiledFilter | None) -> Object:
        old = self._load(key_of(obj))
        _check_same(old, obj.metadata.uid, obj.metadata.resource_version)
        causes = change_causes(old, obj)
        if causes:
            raise InvalidObjectError(causes, kind=obj.kind, name=obj.metadata.name)
        spec_changed = content(old) != content(obj)
        if not spec_changed and all(getattr(old.metadata, field) == getattr(obj.metadata, field) for field in _WRITTEN):
            return old
        if plan is not None and spec_changed:
            more = filter_cost(plan) - target_cost(self._connection, key_of(obj))
            admit(self._connection, key_of(obj), {FILTER_COST: more})
        new = with_metadata(
            msgspec.structs.replace(obj, status=old.status) if isinstance(old, WithStatus) else obj,
            **{field: getattr(old.metadata, field) for field in _GIVEN},
            generation=old.metadata.generation + spec_changed,
            resource_version=str(bump(self._connection, "version")),
        )
        if new.metadata.deletion_timestamp and not new.metadata.finalizers:
            return self._remove(new, old)
        return self._rerouted(new, old, plan)

    def delete(self, key: ObjectKey, uid: str, resource_version: str) -> Object:
        old = self._load(key)
        _check_same(old, uid, resource_version)
        if old.metadata.finalizers:
            return self._mark_deleted(old)
        return self._remove(with_metadata(old, resource_version=str(bump(self._connection, "version"))), old)

    def _mark_deleted(self, old: Object) -> Object:
        """The object stays, with everything it does, until its last finalizer is taken away."""
        if old.metadata.deletion_timestamp:
            return old
        generation = old.metadata.generation + 1
        new = with_metadata(
            old,
            deletion_timestamp=self._now,
            deletion_grace_period_seconds=0,
            generation=generation,
            resource_version=str(bump(self._connection, "version")),
        )
        if isinstance(old, Eventing) and old.status.observed_generation == old.metadata.generation:
            # The spec is what it was, and so is its status.
            new = msgspec.structs.replace(
                new, status=msgspec.structs.replace(old.status, observed_generation=generation)
            )
        self._modify(new, old)
        return new

    def _remove(self, gone: Object, old: Object) -> Object:
        key = key_of(gone)
        self._connection.execute(f"DELETE FROM objects WHERE {NAMED}", key)
        if isinstance(gone, Routed):
            drop_target(self._connection, key)
        elif isinstance(gone, Broker):
            self._known = None
            bump(self._connection, "routing")
        history.record(self._connection, "DELETED", gone, old, self._form.of(gone))
        return gone

    def put_status(self, obj: WithStatus) -> int | None:
        """Store an object that was read and given another status; its resourceVersion, None if it has changed since."""
        (there,) = self._connection.execute(
            f"SELECT count(*) FROM objects WHERE {NAMED} AND version = ?",
            (*key_of(obj), int(obj.metadata.resource_version)),
        ).fetchone()
        if not there:
            return None
        version = bump(self._connection, "version")
        new = with_metadata(obj, resource_version=str(version))
        self._modify(new, obj)
        return version

    def _rerouted(self, new: Object, old: Object, plan: CompiledFilter | None) -> Object:
        """Write a changed object with its routing row, its status and its place in history."""
        if isinstance(new, Routed):
            self._save(new)  # its row is read below
            compiled = _of_routed(new, plan)
            target = update_target(self._connection, new, compiled, compiler=self._compiler, facts=self._facts())
            # In the same write: nobody may read "Ready" of a filter that is not in force.
            row = next(routed_rows(self._connection, RowSelection.TARGET, (target,), self._form))
            new = msgspec.structs.replace(new, status=routed_status(new, row.inputs, now=self._now))
        elif isinstance(new, Broker):
            self._known = None
            bump(self._connection, "routing")
        self._modify(new, old)
        return new

    def _refresh_statuses(self, broker: str) -> None:
        """Rewrites stale statuses of what names a broker: their filters wait for the matcher."""
        for obj in list(stale_routed(self._connection, RowSelection.OF_BROKER, (broker,), self._form, self._now)):
            self.put_status(obj)

    def _modify(self, new: Object, old: Object) -> None:
        """Put an object in the place of the one that was read, and keep the change."""
        history.record(self._connection, "MODIFIED", new, old, self._save(new))

    def _save(self, new: Object) -> bytes:
        """Put an object in the place of the stored one; its stored form."""
        body = self._form.of(new)
        self._connection.execute(
            f"UPDATE objects SET version = ?, labels = ?, body = ? WHERE {NAMED}",
            (int(new.metadata.resource_version), history.labels_text(new), body, *key_of(new)),
        )
        return body


def kube_time(seconds: float) -> str:
    """Seconds since 1970 as Kubernetes writes times: whole seconds, UTC."""
    return _written(int(seconds))


@functools.lru_cache(maxsize=16)
def _written(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _of_routed(obj: Routed, plan: CompiledFilter | None) -> CompiledFilter:
    if plan is None:
        raise ValueError(f"a {obj.kind} is stored with its compiled filter")
    return plan


def default_broker() -> Broker:
    """The broker that is there from the start."""
    metadata = Metadata(name="default", namespace="default", annotations={BROKER_CLASS_ANNOTATION: BROKER_CLASS})
    return Broker(api_version=API_VERSION, kind=Kind.BROKER.value, metadata=metadata)


def load(connection: sqlite3.Connection, key: ObjectKey, form: StoredForm) -> Object:
    """A stored object; SealedError for a Secret that no key opens."""
    body = body_at(connection, key)
    if body is None:
        raise ObjectNotFoundError(key.kind, key.name)
    return form.object(key, body)


def _check_same(old: Object, uid: str, resource_version: str) -> None:
    if detail := difference(old.metadata, uid, resource_version):
        raise StaleObjectError(Kind(old.kind), old.metadata.name, detail)


def difference(stored: Metadata, uid: str, resource_version: str) -> str:
    """Why a stored object is not the one that a caller read, as Kubernetes says it; empty when it is.

    What the caller read, a uid and a resourceVersion, is empty when it does not matter.
    """
    if uid and uid != stored.uid:
        return f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored.uid}"
    if resource_version and resource_version != stored.resource_version:
        return "the object has been modified; please apply your changes to the latest version and try again"
    return ""
