"""Who may send which events to which brokers: EventPolicies as they are decided by, and the mode without one.

At the door, before a body is read: may this user send anything to this broker (`PublishAuthorizer`)? Roles, policies or
the mode say so. Then, of a broker that policies apply to: may he send these events (`EventPolicies.admission`)? Roles
alone do not answer that. Source: https://knative.dev/docs/eventing/features/authorization/
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.auth.authorizer import AccessDecision, Authorizer
from headgate.auth.routes import PUBLISH
from headgate.auth.rules import AccessRule, Attributes
from headgate.auth.user import User, is_account_of
from headgate_api.errors import HeadgateError
from headgate_api.limits import RBAC_DECISIONS_MAX

WILDCARD: Final = "*"


class DefaultMode(StrEnum):
    """Who may send to a broker that no policy applies to."""

    ALLOW_SAME_NAMESPACE = "allow-same-namespace"
    ALLOW_ALL = "allow-all"
    DENY_ALL = "deny-all"


@dataclass(frozen=True, slots=True)
class SenderRule:
    """One EventPolicy as it is decided by; `cel`: for which events, empty for all, None (it does not work) for none."""

    policy: str
    names: frozenset[str]
    prefixes: tuple[str, ...] = ()
    cel: str | None = ""

    @classmethod
    def of(cls, policy: str, subjects: tuple[str, ...], cel: str | None = "") -> SenderRule:
        """A policy with subjects as its status has them, a `*` at the end for any rest."""
        prefixes = tuple(one[:-1] for one in subjects if one.endswith(WILDCARD))
        return cls(policy, frozenset(one for one in subjects if not one.endswith(WILDCARD)), prefixes, cel)

    def is_for(self, user: User) -> bool:
        """Whether it names a user; who did not say who he is, is named in full only."""
        return user.name in self.names or (not user.is_anonymous and user.name.startswith(self.prefixes))


@dataclass(frozen=True, slots=True)
class EventAdmission:
    """Which events of one user a broker takes: every one, or those of which one of the CEL texts is true, or none."""

    every: bool
    filters: tuple[str, ...] = ()
    reason: str = ""


_ANOTHER_AUDIENCE: Final = AccessDecision(False)
_EVERY: Final = EventAdmission(True)
_NO_POLICY: Final = EventAdmission(False, reason=f'no EventPolicy applies, and the default is "{DefaultMode.DENY_ALL}"')
_NOT_NAMED: Final = EventAdmission(False, reason="no EventPolicy that applies names the user")


class EventPolicies:
    """All policies at one moment, by `namespace/name` of the broker; the mode is for brokers that none applies to."""

    def __init__(self, mode: DefaultMode, rules: Mapping[str, tuple[SenderRule, ...]]) -> None:
        self._mode = mode
        self._rules = rules
        self._known: dict[tuple[str, str, bool], EventAdmission] = {}

    def admission(self, user: User, broker: str) -> EventAdmission:
        """Which events a user may send to a broker `namespace/name`, whose door he has passed."""
        rules = self._rules.get(broker)
        if rules is None:
            return _NO_POLICY if self._mode is DefaultMode.DENY_ALL else _EVERY
        key = broker, user.name, user.is_anonymous
        found = self._known.get(key)
        if found is None:
            found = _admission(user, rules)
            if len(self._known) >= RBAC_DECISIONS_MAX:
                self._known.clear()
            self._known[key] = found
        return found

    def door(self, user: User, broker: str) -> str:
        """By what a user whom no role lets in may send something to a broker; empty when by nothing."""
        namespace, _, name = broker.partition("/")
        if not (namespace and name):
            return ""
        rules = self._rules.get(broker)
        if rules is not None:
            rule = next((one for one in rules if one.is_for(user)), None)
            return f'EventPolicy "{rule.policy}/{namespace}" names the user' if rule is not None else ""
        for_all = self._mode is DefaultMode.ALLOW_ALL and not user.is_anonymous
        for_own = self._mode is DefaultMode.ALLOW_SAME_NAMESPACE and is_account_of(user.name, namespace)
        return f'the default authorization mode is "{self._mode}"' if for_all or for_own else ""


def _admission(user: User, rules: tuple[SenderRule, ...]) -> EventAdmission:
    mine = [rule.cel for rule in rules if rule.is_for(user)]
    if "" in mine:
        return _EVERY
    filters = tuple(dict.fromkeys(cel for cel in mine if cel))
    if filters:
        return EventAdmission(False, filters)
    return EventAdmission(False, reason="the filter of the EventPolicy does not work") if mine else _NOT_NAMED


class EventPolicyAuthority:
    """Decides by the newest policies that it was given; before the first ones there are none."""

    def __init__(self, mode: DefaultMode) -> None:
        self.mode = mode
        self.policies = EventPolicies(mode, {})


class PublishAuthorizer:
    """Roles, which decide first and about everything, and policies for the right to publish. An `Authorizer`."""

    def __init__(self, roles: Authorizer, events: EventPolicyAuthority) -> None:
        self._roles = roles
        self._events = events

    def allowed(self, user: User, wanted: Attributes) -> AccessDecision:
        if is_beyond(user, wanted):
            return _ANOTHER_AUDIENCE
        decision = self._roles.allowed(user, wanted)
        if decision.allowed or wanted[:4] != PUBLISH[:4]:
            return decision
        reason = self._events.policies.door(user, f"{wanted.namespace}/{wanted.name}")
        return AccessDecision(True, reason) if reason else decision

    def rules_of(self, user: User, namespace: str) -> tuple[AccessRule, ...]:
        """What policies let in is no right that somebody could give away."""
        return () if BOUND in user.extra else self._roles.rules_of(user, namespace)

    def ceiling(self, user: User, wanted: Attributes) -> str:
        return self._roles.ceiling(user, wanted)

    def has_ceilings(self, user: User, namespace: str) -> bool:
        return self._roles.has_ceilings(user, namespace)


class EventForbiddenError(HeadgateError):
    """No policy admits an event of this user to the broker; `index` is its place in a batch, None for a single one."""

    code = "event-forbidden"
    http_status = 403

    def __init__(self, message: str, *, index: int | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.index = index


# --- audiences ------------------------------------------------------------------------------------
# A token that is meant for brokers alone is good for publishing to them, and for nothing else.
# Source: Knative's `status.address.audience`.


_PREFIX: Final = "eventing.knative.dev/broker/"
BOUND: Final = "headgate.dev/audience"
"""Key of a user's `extra`: the audiences that the token is bound to."""


def broker_audience(path: str) -> str:
    """The audience of tokens for the broker `namespace/name`, as Knative has it."""
    return f"{_PREFIX}{path}"


def bound(user: User, audiences: Collection[str]) -> User:
    """A user who has shown a token, with those of its audiences that the server takes."""
    if not audiences or not all(one.startswith(_PREFIX) for one in audiences):
        return user
    extra = {**user.extra, BOUND: tuple(sorted(audiences))}
    return User(user.name, user.groups, user.uid, extra)


def is_beyond(user: User, wanted: Attributes) -> bool:
    """Whether a request is not what the user's token is for."""
    audiences = user.extra.get(BOUND) if user.extra else None
    if audiences is None:
        return False
    return wanted[:4] != PUBLISH[:4] or broker_audience(f"{wanted.namespace}/{wanted.name}") not in audiences
