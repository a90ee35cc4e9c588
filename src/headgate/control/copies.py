"""Copies of some kinds of objects in memory, as new as the last write that was answered."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import structlog

from headgate.auth.authorizer import RbacAuthorizer
from headgate.auth.event_policies import DefaultMode, EventPolicies, EventPolicyAuthority, SenderRule
from headgate.control.database import StoreUnavailableError
from headgate.control.errors import ExpiredError
from headgate.control.event_policies import applying_policies, subjects_of
from headgate.control.objects import (
    RBAC_KINDS,
    Broker,
    EventPolicy,
    Kind,
    Object,
    ObjectKey,
    ResourceQuota,
    decode_stored,
    key_of,
)
from headgate.control.quota_rules import lowest
from headgate.control.rbac_rules import AnyBinding, AnyRole
from headgate.control.rbac_rules import policy as rbac_policy
from headgate.control.specs import ServedBroker
from headgate.control.status import served_brokers
from headgate.control.store import Store
from headgate.errors import InvalidInputError
from headgate.event.identity import path_of
from headgate.observe.logs import Recurring

# --- followed -------------------------------------------------------------------------------------
# A copy of some kinds of objects in memory, as new as the last write that was answered: the frame of such copies.

_log: Final = structlog.get_logger("headgate.control")

ObjectChange = tuple[ObjectKey, Object | None]
"""What names an object, and what it is now; None when it is gone."""


class ObjectCopy(ABC):
    """A copy of what the store says of some kinds, for whoever must know it without a wait.

    Args:
        store: The objects.
        kinds: Which kinds.
        what: They in messages: `brokers`.
    """

    def __init__(self, store: Store, kinds: tuple[Kind, ...], what: str) -> None:
        self._store = store
        self._kinds = kinds
        self._what = what
        self._version: int | None = None
        """The resourceVersion up to which changes are in the copy; None before the first read."""
        self._reading = threading.Lock()
        """Held while objects are read, so that an older result never replaces a newer one."""

    @abstractmethod
    def _begin(self, objects: Iterable[Object]) -> None:
        """Everything there is."""

    @abstractmethod
    def _apply(self, changes: Iterable[ObjectChange]) -> None:
        """What has changed, in order."""

    def refresh(self) -> None:
        """Read what has changed; may block.

        Raises:
            StoreUnavailableError: The store cannot be read; what was known stays.
        """
        with self._reading:
            if self._version is None:
                self._read_all()
                return
            try:
                self._read_changes(self._version)
            except ExpiredError:
                self._read_all()

    def _read_all(self) -> None:
        version = self._store.version()  # first: what changes in between is read again
        self._begin(decode_stored(kind, item.body) for kind in self._kinds for item in self._store.page(kind).items)
        self._version = version

    def _read_changes(self, since: int) -> None:
        versions = []
        for kind in self._kinds:
            at = since
            while True:
                changes = self._store.changes(kind, at)
                at = changes.version
                if not changes.items:
                    break
                objects = ((change.type, decode_stored(kind, change.body)) for change in changes.items)
                self._apply((key_of(obj), None if type_ == "DELETED" else obj) for type_, obj in objects)
            versions.append(at)
        self._version = min(versions)  # what came between two kinds is read again

    async def follow(self) -> None:
        """Read whenever the store has changed, until it is cancelled."""
        problem = f"{self._what} cannot be read, those that are known are served"
        looks = Recurring(_log, problem, StoreUnavailableError)
        seen: int | None = None
        while True:
            await self._store.change_watch.pause()
            with looks.attempt():
                version = self._store.data_version()
                if version != seen:
                    await asyncio.to_thread(self.refresh)
                    seen = version


# --- served ---------------------------------------------------------------------------------------
# The brokers that accept events, in memory, as new as the last write of a broker that was answered.


class ServedBrokers(ObjectCopy):
    """A copy of what the store says of brokers.

    Args:
        store: The objects.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, (Kind.BROKER,), "brokers")
        self._served: dict[str, ServedBroker] = {}

    def get(self, path: str) -> ServedBroker | None:
        """The broker `namespace/name`; None when there is none that accepts events."""
        return self._served.get(path)

    def retention_us(self, identity: str) -> int | None:
        """How long a broker, by its identity, keeps its events, microseconds; None: as long as the log."""
        served = self._served.get(path_of(identity))
        return served.rule.retention_us if served is not None and served.identity == identity else None

    def __len__(self) -> int:
        return len(self._served)

    def _begin(self, objects: Iterable[Object]) -> None:
        self._served = served_brokers(obj for obj in objects if isinstance(obj, Broker))

    def _apply(self, changes: Iterable[ObjectChange]) -> None:
        served = dict(self._served)
        for key, obj in changes:
            served.pop(key.path, None)
            if isinstance(obj, Broker):
                served |= served_brokers([obj])
        self._served = served


# --- rbac copy ------------------------------------------------------------------------------------
# Roles and bindings in memory, as new as the last write of one that was answered, and the decisions by them.


class RbacCopy(ObjectCopy):
    """A copy of what the store says of rights.

    Args:
        store: The objects.

    Attributes:
        authorizer: Decides by the copy.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, RBAC_KINDS, "roles and bindings")
        self.authorizer = RbacAuthorizer()
        self._objects: dict[ObjectKey, AnyRole | AnyBinding] = {}

    def _begin(self, objects: Iterable[Object]) -> None:
        self._objects = {key_of(obj): obj for obj in objects if isinstance(obj, AnyRole | AnyBinding)}
        self._decide()

    def _apply(self, changes: Iterable[ObjectChange]) -> None:
        for key, obj in changes:
            if isinstance(obj, AnyRole | AnyBinding):
                self._objects[key] = obj
            else:
                self._objects.pop(key, None)
        self._decide()

    def _decide(self) -> None:
        roles = [obj for obj in self._objects.values() if isinstance(obj, AnyRole)]
        bindings = [obj for obj in self._objects.values() if isinstance(obj, AnyBinding)]
        self.authorizer.policy = rbac_policy(roles, bindings)


# --- event policy copy ----------------------------------------------------------------------------
# EventPolicies in memory, as new as the last write of one that was answered, and the decisions by them.


class EventPolicyCopy(ObjectCopy):
    """A copy of what the store says of policies, and of the brokers that they may apply to.

    Args:
        store: The objects.
        mode: Who may send to a broker that no policy applies to.

    Attributes:
        authority: Decides by the copy.
    """

    def __init__(self, store: Store, mode: DefaultMode) -> None:
        super().__init__(store, (Kind.EVENT_POLICY, Kind.BROKER), "event policies")
        self.authority = EventPolicyAuthority(mode)
        self._compile = store.compiler.compile
        self._policies: dict[ObjectKey, EventPolicy] = {}
        self._brokers: dict[ObjectKey, Broker] = {}
        self._rules: dict[tuple[str, int], SenderRule] = {}
        """By uid and generation of the policy."""

    def _begin(self, objects: Iterable[Object]) -> None:
        self._policies, self._brokers = {}, {}
        self._apply([(key_of(obj), obj) for obj in objects])

    def _apply(self, changes: Iterable[ObjectChange]) -> None:
        for key, obj in changes:
            if isinstance(obj, EventPolicy):
                self._policies[key] = obj
            elif isinstance(obj, Broker):
                self._brokers[key] = obj
            else:
                self._policies.pop(key, None)
                self._brokers.pop(key, None)
        self._decide()

    def _decide(self) -> None:
        before, self._rules = self._rules, {}
        by_namespace: defaultdict[str, list[EventPolicy]] = defaultdict(list)
        for policy in self._policies.values():
            by_namespace[policy.metadata.namespace].append(policy)
            version = policy.metadata.uid, policy.metadata.generation
            self._rules[version] = before.get(version) or self._rule(policy)
        found: dict[str, tuple[SenderRule, ...]] = {}
        for key, broker in self._brokers.items() if by_namespace else ():
            policies = applying_policies(broker, by_namespace.get(key.namespace, ()))
            if policies:
                found[key.path] = tuple(self._rules[one.metadata.uid, one.metadata.generation] for one in policies)
        self.authority.policies = EventPolicies(self.authority.mode, found)

    def _rule(self, policy: EventPolicy) -> SenderRule:
        name, subjects = policy.metadata.name, subjects_of(policy)
        if not policy.spec.filters:
            return SenderRule.of(name, subjects)
        try:
            return SenderRule.of(name, subjects, self._compile(None, policy.spec.filters).cel)
        except InvalidInputError as error:  # an older version took it: closed, and told
            _log.warning("the filter of an EventPolicy does not work", policy=policy.metadata.path, error=error.message)
            return SenderRule.of(name, subjects, None)


# --- quota copy -----------------------------------------------------------------------------------
# Resource quotas in memory, as new as the last write of one that was answered.

QuotaLimits = Mapping[str, Mapping[str, int]]
"""By namespace and resource the most that may be used."""


class QuotaCopy(ObjectCopy):
    """A copy of what the store says of quotas.

    Args:
        store: The objects.

    Attributes:
        limits: Of the namespaces that have quotas; replaced as a whole.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, (Kind.RESOURCE_QUOTA,), "resource quotas")
        self._objects: dict[ObjectKey, ResourceQuota] = {}
        self.limits: QuotaLimits = {}

    def _begin(self, objects: Iterable[Object]) -> None:
        self._objects = {key_of(obj): obj for obj in objects if isinstance(obj, ResourceQuota)}
        self._take()

    def _apply(self, changes: Iterable[ObjectChange]) -> None:
        for key, obj in changes:
            if isinstance(obj, ResourceQuota):
                self._objects[key] = obj
            else:
                self._objects.pop(key, None)
        self._take()

    def _take(self) -> None:
        by_namespace: dict[str, list[ResourceQuota]] = {}
        for key, quota in self._objects.items():
            by_namespace.setdefault(key.namespace, []).append(quota)
        self.limits = {namespace: lowest(quotas) for namespace, quotas in by_namespace.items()}
        self.changed()

    def changed(self) -> None:
        """Called after every change, in the thread that reads."""
