"""The decision whether a user may do something: by roles and bindings, with a bounded memory of decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

import structlog

from headgate.auth.routes import HEALTH_PATHS, READ, SUBSCRIBE
from headgate.auth.rules import EVERYTHING, AccessRule, Attributes
from headgate.auth.user import SUPERUSERS, User, service_account
from headgate_api.errors import HeadgateError
from headgate_api.limits import RBAC_CEILING_CHARS_MAX, RBAC_DECISIONS_MAX


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Whether a request may be made, and by which rule, for reviews and the audit; empty for a refusal."""

    allowed: bool
    reason: str = ""


NOTHING: Final = "false"
"""A ceiling that gives no event."""
_log = structlog.get_logger("headgate.auth")
_REFUSED: Final = AccessDecision(False)
_SUPERUSER: Final = AccessDecision(True, f'the user is in the group "{SUPERUSERS}"')
_HEALTH: Final = AccessDecision(True, "whether the server works is told to everybody")
_ALLOWED: Final = AccessDecision(True, "this server has no authorization")


class Authorizer(Protocol):
    """Who may do what. Called from event loops and threads; quick."""

    def allowed(self, user: User, wanted: Attributes) -> AccessDecision: ...

    def rules_of(self, user: User, namespace: str) -> tuple[AccessRule, ...]:
        """What a user may do in a namespace; empty: everywhere alone."""
        ...

    def ceiling(self, user: User, wanted: Attributes) -> str:
        """Of which of a broker's events a right (READ or SUBSCRIBE on it) is, as canonical CEL; empty: of all.

        Whoever has not this right, and gets the events by others, has the ceiling of the other one of the two.
        """
        ...

    def has_ceilings(self, user: User, namespace: str) -> bool:
        """Whether a user has a ceiling on a broker that may be in a namespace; empty: in any."""
        ...


class AlwaysAllow:
    """Everybody may do everything: no method of authentication is configured."""

    def allowed(self, user: User, wanted: Attributes) -> AccessDecision:
        return _ALLOWED

    def rules_of(self, user: User, namespace: str) -> tuple[AccessRule, ...]:
        return EVERYTHING

    def ceiling(self, user: User, wanted: Attributes) -> str:
        return ""

    def has_ceilings(self, user: User, namespace: str) -> bool:
        return False


OPEN: Final = AlwaysAllow()


class SubjectKind(StrEnum):
    """Whom a binding names."""

    USER = "User"
    GROUP = "Group"
    SERVICE_ACCOUNT = "ServiceAccount"


@dataclass(frozen=True, slots=True)
class BindingSubject:
    """Somebody who gets the rights of a role; only a service account has a namespace."""

    kind: SubjectKind
    name: str
    namespace: str = ""

    @property
    def key(self) -> tuple[bool, str]:
        """Whether it is a group, and the name that users have or groups are called by."""
        if self.kind is SubjectKind.SERVICE_ACCOUNT:
            return False, service_account(self.namespace, self.name)
        return self.kind is SubjectKind.GROUP, self.name

    def __str__(self) -> str:
        """`User "jane"`."""
        name = f"{self.name}/{self.namespace}" if self.kind is SubjectKind.SERVICE_ACCOUNT else self.name
        return f'{self.kind} "{name}"'


@dataclass(frozen=True, slots=True)
class RoleKey:
    """What names a role; a cluster role lies in no namespace."""

    name: str
    namespace: str = ""

    @property
    def kind(self) -> str:
        return "Role" if self.namespace else "ClusterRole"


@dataclass(frozen=True, slots=True)
class Binding:
    """A role's rights for somebody in a namespace, empty for everywhere; a role that does not exist gives none."""

    name: str
    namespace: str
    role: RoleKey
    subjects: tuple[BindingSubject, ...]

    def reason(self, subject: BindingSubject) -> str:
        kind, place = ("RoleBinding", f"/{self.namespace}") if self.namespace else ("ClusterRoleBinding", "")
        named = f'{kind} "{self.name}{place}"'
        return f'RBAC: allowed by {named} of {self.role.kind} "{self.role.name}" to {subject}'


@dataclass(frozen=True, slots=True)
class _Held:
    binding: Binding
    subject: BindingSubject
    rules: tuple[AccessRule, ...]


class RbacPolicy:
    """Roles and bindings at one moment, by subject."""

    def __init__(self, roles: Mapping[RoleKey, tuple[AccessRule, ...]], bindings: Iterable[Binding]) -> None:
        # By subject and namespace, then by role: the same role twice is no further right.
        self._held: dict[tuple[bool, str], dict[str, dict[RoleKey, _Held]]] = {}
        for binding in bindings:
            rules = roles.get(binding.role, ())
            if rules:
                for subject in binding.subjects:
                    by_role = self._held.setdefault(subject.key, {}).setdefault(binding.namespace, {})
                    by_role.setdefault(binding.role, _Held(binding, subject, rules))
        self._decisions: dict[tuple[str, tuple[str, ...], Attributes], AccessDecision] = {}
        self._ceilings: dict[tuple[str, tuple[str, ...], Attributes], str] = {}
        self._have_ceilings: dict[tuple[str, tuple[str, ...], str], bool] = {}
        self._knows_ceilings = any(rule.ceiling for rules in roles.values() for rule in rules)

    def allowed(self, user: User, wanted: Attributes) -> AccessDecision:
        key = user.name, user.groups, wanted
        found = self._decisions.get(key)
        if found is None:
            found = self._decide(user, wanted)
            if len(self._decisions) >= RBAC_DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[key] = found
        return found

    def rules_of(self, user: User, namespace: str) -> tuple[AccessRule, ...]:
        own = EVERYTHING if SUPERUSERS in user.groups else ()
        return *own, *(rule for held in self._all_held(user, namespace) for rule in held.rules)

    def ceiling(self, user: User, wanted: Attributes) -> str:
        if not self._knows_ceilings or SUPERUSERS in user.groups:
            return ""
        key = user.name, user.groups, wanted
        found = self._ceilings.get(key)
        if found is None:
            granting = self._granting(user, wanted)
            if not granting:
                other = SUBSCRIBE if wanted[:4] == READ[:4] else READ
                granting = self._granting(user, other._replace(namespace=wanted.namespace, name=wanted.name))
            found = either({rule.ceiling for rule in granting})
            if len(found) > RBAC_CEILING_CHARS_MAX:
                _log.warning("the ceilings of a user's rights are too long together: no event is given", user=user.name)
                found = NOTHING
            if len(self._ceilings) >= RBAC_DECISIONS_MAX:
                self._ceilings.clear()
            self._ceilings[key] = found
        return found

    def _granting(self, user: User, wanted: Attributes) -> list[AccessRule]:
        return [rule for held in self._all_held(user, wanted.namespace) for rule in held.rules if rule.allows(wanted)]

    def has_ceilings(self, user: User, namespace: str) -> bool:
        if not self._knows_ceilings or SUPERUSERS in user.groups:
            return False
        key = user.name, user.groups, namespace
        found = self._have_ceilings.get(key)
        if found is None:
            everywhere = self.rules_of(user, "")
            found = any(
                rule.ceiling and not any(one.covers(replace(rule, ceiling="")) for one in (*everywhere, *own))
                for own in self._rules_by_place(user, namespace)
                for rule in own
            )
            if len(self._have_ceilings) >= RBAC_DECISIONS_MAX:
                self._have_ceilings.clear()
            self._have_ceilings[key] = found
        return found

    def _rules_by_place(self, user: User, namespace: str) -> Iterator[tuple[AccessRule, ...]]:
        """What a user may do everywhere, and in a namespace, or in each of them."""
        yield self.rules_of(user, "")
        owned = [self._held.get(subject, {}) for subject in _subjects(user)]
        for place in {namespace} if namespace else {one for held in owned for one in held if one}:
            yield tuple(rule for held in owned for one in held.get(place, {}).values() for rule in one.rules)

    def _decide(self, user: User, wanted: Attributes) -> AccessDecision:
        if SUPERUSERS in user.groups:
            return _SUPERUSER
        if wanted.verb == "get" and wanted.path in HEALTH_PATHS:
            return _HEALTH  # also before the first roles are known
        for held in self._all_held(user, "" if wanted.path else wanted.namespace):
            if any(rule.allows(wanted) for rule in held.rules):
                return AccessDecision(True, held.binding.reason(held.subject))
        return _REFUSED

    def _all_held(self, user: User, namespace: str) -> Iterator[_Held]:
        """First what holds everywhere."""
        owned = [held for subject in _subjects(user) if (held := self._held.get(subject)) is not None]
        for place in ("", namespace) if namespace else ("",):
            for held in owned:
                yield from held.get(place, {}).values()


def _subjects(user: User) -> list[tuple[bool, str]]:
    return [(False, user.name), *((True, group) for group in user.groups)]


def either(ceilings: Iterable[str]) -> str:
    """Ceilings of rules that each grant a right: an event below one of them is enough; empty: all events."""
    known = sorted(set(ceilings))
    if len(known) < 2:
        return known[0] if known else ""
    return "" if "" in known else " || ".join(f"({one})" for one in known)


class RbacAuthorizer:
    """Decides by the newest policy that it was given; before the first one nobody but the superusers may anything."""

    def __init__(self) -> None:
        self.policy = RbacPolicy({}, ())

    def allowed(self, user: User, wanted: Attributes) -> AccessDecision:
        return self.policy.allowed(user, wanted)

    def rules_of(self, user: User, namespace: str) -> tuple[AccessRule, ...]:
        return self.policy.rules_of(user, namespace)

    def ceiling(self, user: User, wanted: Attributes) -> str:
        return self.policy.ceiling(user, wanted)

    def has_ceilings(self, user: User, namespace: str) -> bool:
        return self.policy.has_ceilings(user, namespace)


class ForbiddenError(HeadgateError):
    """The user has no right to do what he asks for, in Kubernetes' words; `detail` says why, else what is missing."""

    code = "forbidden"
    http_status = 403

    def __init__(self, user: User, wanted: Attributes, detail: str = "", *, hint: str = "") -> None:
        super().__init__(_refusal(user, wanted, detail), hint=hint)
        self.user = user
        self.wanted = wanted


def _refusal(user: User, wanted: Attributes, detail: str) -> str:
    cannot = f'User "{user.name}" cannot {wanted.verb}'
    if wanted.path:
        missing = f'{cannot} path "{wanted.path}"'
        return f"forbidden: {detail or missing}"
    resource = f"{wanted.full_resource}.{wanted.group}" if wanted.group else wanted.full_resource
    named = f' "{wanted.name}"' if wanted.name else ""
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    missing = f'{cannot} resource "{wanted.full_resource}" in API group "{wanted.group}" {where}'
    return f"{resource}{named} is forbidden: {detail or missing}"


def check(authorizer: Authorizer, user: User, wanted: Attributes) -> AccessDecision:
    """Lets a request pass, or raises ForbiddenError."""
    decision = authorizer.allowed(user, wanted)
    if not decision.allowed:
        raise ForbiddenError(user, wanted)
    return decision
