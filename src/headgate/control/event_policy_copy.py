"""EventPolicies in memory, as new as the last write of one that was answered, and the decisions by them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import structlog

from headgate.auth.event_policies import DefaultMode, EventPolicies, EventPolicyAuthority, SenderRule
from headgate.control.event_policies import applying_policies, subjects_of
from headgate.control.followed import ObjectChange, ObjectCopy
from headgate.control.objects import Broker, EventPolicy, Kind, Object, ObjectKey, key_of
from headgate.control.store import Store
from headgate.errors import InvalidInputError

_log: Final = structlog.get_logger("headgate.control")


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
