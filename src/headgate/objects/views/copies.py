"""Copies of some kinds of objects in memory, as new as the last write that was answered, and decisions by them."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import Any, Final

import structlog

from headgate.auth.authorizer import RbacAuthorizer
from headgate.auth.event_policies import DefaultMode, EventPolicies, EventPolicyAuthority, SenderRule
from headgate.objects.kinds.event_policies import applying_policies, subjects_of
from headgate.objects.kinds.rbac_rules import AnyBinding, AnyRole
from headgate.objects.kinds.rbac_rules import policy as rbac_policy
from headgate.objects.kinds.specs import ServedBroker
from headgate.objects.kinds.status import served_broker
from headgate.objects.store.database import StoreUnavailableError
from headgate.objects.store.rows import KnownObjects
from headgate.objects.store.store import Store
from headgate.observe.logs import Recurring
from headgate_api.errors import InvalidInputError
from headgate_api.event.names import path_of
from headgate_api.objects.kinds import RBAC_KINDS, Broker, EventPolicy, Kind

_log: Final = structlog.get_logger("headgate.objects")


class ObjectCopy(ABC):
    """A copy of what the store says of some kinds, for who must know it without a wait."""

    def __init__(self, store: Store, *known: KnownObjects[Any]) -> None:
        self.store = store
        self._known = known
        self._is_due = False
        """Whether something has changed that was not taken yet."""
        self._reading = threading.Lock()
        """Held while objects are read, so that an older result never replaces a newer one."""

    @abstractmethod
    def _take(self) -> None:
        """Something has changed of what is known."""

    def refresh(self) -> None:
        """Read what has changed; may block. What was known stays when StoreUnavailableError is raised."""
        with self._reading:
            for known in self._known:
                self._is_due |= bool(self.store.refresh(known))
            if self._is_due:
                self._take()
                self._is_due = False


async def follow(*copies: ObjectCopy) -> None:
    """Have copies of one store read whenever an object has changed, until it is cancelled."""
    store = copies[0].store
    looks = Recurring(_log, "objects cannot be read, those that are known are served", StoreUnavailableError)
    commits = version = -1
    pause = store.change_watch.follow()

    def look() -> None:
        nonlocal version
        newest = store.counters.version()
        if newest != version:
            for copy in copies:
                copy.refresh()
            version = newest

    while True:
        await pause()
        with looks.attempt():
            seen = store.data_version()
            if seen != commits:
                await asyncio.to_thread(look)
                commits = seen


class ServedBrokers(ObjectCopy):
    """The brokers that accept events."""

    def __init__(self, store: Store) -> None:
        self._brokers: KnownObjects[ServedBroker | None] = KnownObjects(Kind.BROKER, served_broker)
        super().__init__(store, self._brokers)
        self._served: dict[str, ServedBroker] = {}

    def get(self, path: str) -> ServedBroker | None:
        """The broker `namespace/name`; None when there is none that accepts events."""
        return self._served.get(path)

    def retention_us(self, identity: str) -> int | None:
        """How long a broker, by its identity, keeps its events, microseconds; None: as long as the log."""
        served = self._served.get(path_of(identity))
        return served.rule.retention_us if served is not None and served.identity == identity else None

    def windows(self) -> dict[str, int]:
        """By identity, brokers that store an event once, and their windows, microseconds."""
        served = self._served.values()
        return {one.identity: one.rule.window_us for one in served if one.rule.window_us}

    def __len__(self) -> int:
        return len(self._served)

    def _take(self) -> None:
        self._served = {path: one for path, one in self._brokers.by_path.items() if one is not None}


class RbacCopy(ObjectCopy):
    """Roles and bindings; its `authorizer` decides by the copy."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, *map(KnownObjects, RBAC_KINDS))
        self.authorizer = RbacAuthorizer()

    def _take(self) -> None:
        objects = [obj for known in self._known for obj in known.by_path.values()]
        roles = [obj for obj in objects if isinstance(obj, AnyRole)]
        bindings = [obj for obj in objects if isinstance(obj, AnyBinding)]
        self.authorizer.policy = rbac_policy(roles, bindings)


class EventPolicyCopy(ObjectCopy):
    """EventPolicies, and the brokers that they may apply to; its `authority` decides by the copy."""

    def __init__(self, store: Store, mode: DefaultMode) -> None:
        self._policies: KnownObjects[EventPolicy] = KnownObjects(Kind.EVENT_POLICY)
        self._brokers: KnownObjects[Broker] = KnownObjects(Kind.BROKER)
        super().__init__(store, self._policies, self._brokers)
        self.authority = EventPolicyAuthority(mode)
        self._compile = store.compiler.compile
        self._rules: dict[tuple[str, int], SenderRule] = {}
        """By uid and generation of the policy."""

    def _take(self) -> None:
        before, self._rules = self._rules, {}
        by_namespace: defaultdict[str, list[EventPolicy]] = defaultdict(list)
        for policy in self._policies.by_path.values():
            by_namespace[policy.metadata.namespace].append(policy)
            version = policy.metadata.uid, policy.metadata.generation
            self._rules[version] = before.get(version) or self._rule(policy)
        found: dict[str, tuple[SenderRule, ...]] = {}
        for path, broker in self._brokers.by_path.items() if by_namespace else ():
            policies = applying_policies(broker, by_namespace.get(broker.metadata.namespace, ()))
            if policies:
                found[path] = tuple(self._rules[one.metadata.uid, one.metadata.generation] for one in policies)
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
