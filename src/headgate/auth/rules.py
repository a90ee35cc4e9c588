"""Rules of roles: which requests one allows, and whether rules hold everything that others would give away.

Source: https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

from headgate_api.errors import InvalidInputError
from headgate_api.limits import RBAC_GRANT_STEPS_MAX

ANY: Final = "*"
_NONE: Final[frozenset[str]] = frozenset()


class Attributes(NamedTuple):
    """What a request wants to do: with a resource of the API, or with a path that is none (`/metrics`).

    The verb is Kubernetes'; of a path it is the HTTP method in lower case. The group is empty for the core group, the
    subresource is the `events` of `brokers/events`. The namespace and the name are empty for all, or where there is
    none.
    """

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def full_resource(self) -> str:
        """`brokers/events`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def on(self, path: str) -> Attributes:
        """The same on one object, `namespace/name`."""
        namespace, _, name = path.partition("/")
        return self._replace(namespace=namespace, name=name)


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One rule of a role: for resources, or for paths (`/metrics`, `/livez/*`, `*`).

    `*` stands for all; a resource is also `brokers/events` or `*/status`. Without names it is for all objects. A
    `ceiling` is canonical CEL: of a broker's events the rule gives only those of which it is true; empty: all.
    """

    verbs: frozenset[str]
    groups: frozenset[str] = _NONE
    resources: frozenset[str] = _NONE
    names: frozenset[str] = _NONE
    paths: frozenset[str] = _NONE
    ceiling: str = ""

    def allows(self, wanted: Attributes) -> bool:
        if wanted.verb not in self.verbs and ANY not in self.verbs:
            return False
        if wanted.path:
            return _has_path(self.paths, wanted.path)
        if wanted.group not in self.groups and ANY not in self.groups:
            return False
        if self.names and wanted.name not in self.names:
            return False
        return _has_resource(self.resources, wanted.full_resource)

    def covers(self, other: AccessRule) -> bool:
        return (
            self.ceiling in ("", other.ceiling)
            and _has_all(self.verbs, other.verbs)
            and _has_all(self.groups, other.groups)
            and all(_has_resource(self.resources, one) for one in other.resources)
            and all(_has_path(self.paths, one) for one in other.paths)
            and (not self.names or (bool(other.names) and other.names <= self.names))
        )

    def __str__(self) -> str:
        """As Kubernetes writes it in refusals: `{APIGroups:["a"], Resources:["b"], Verbs:["get"]}`."""
        parts = {
            "APIGroups": self.groups,
            "Resources": self.resources,
            "ResourceNames": self.names,
            "NonResourceURLs": self.paths,
            "Verbs": self.verbs,
        }
        said = [f"{name}:{_quoted(values)}" for name, values in parts.items() if values]
        if self.ceiling:
            said.append(f"Filter:{self.ceiling}")
        return "{" + ", ".join(said) + "}"


EVERYTHING: Final = (
    AccessRule(frozenset({ANY}), frozenset({ANY}), frozenset({ANY})),
    AccessRule(frozenset({ANY}), paths=frozenset({ANY})),
)
"""The rules of who may do everything."""


class GrantTooLargeError(InvalidInputError):
    """A role names so many combinations that nobody can be asked about each."""

    code = "grant-too-large"
    http_status = 422


def uncovered(own: Sequence[AccessRule], wanted: Iterable[AccessRule]) -> tuple[AccessRule, ...]:
    """What rules would give away (`wanted`) and who gives does not hold (`own`), as single combinations.

    A rule may be held in parts, by several others, so it is taken apart. Raises GrantTooLargeError for more parts than
    RBAC_GRANT_STEPS_MAX.
    """
    missing: list[AccessRule] = []
    left = RBAC_GRANT_STEPS_MAX
    for rule in wanted:
        if any(one.covers(rule) for one in own):
            continue
        left -= _count(rule)
        if left < 0:
            raise GrantTooLargeError(
                f"the rules name over {RBAC_GRANT_STEPS_MAX} combinations of verb, group, resource and name",
                hint="split the role, or use *",
            )
        missing += (part for part in _parts(rule) if not any(one.covers(part) for one in own))
    return tuple(missing)


def _count(rule: AccessRule) -> int:
    if rule.paths:
        return len(rule.verbs) * len(rule.paths)
    return len(rule.verbs) * len(rule.groups) * len(rule.resources) * max(1, len(rule.names))


def _parts(rule: AccessRule) -> Iterator[AccessRule]:
    for verb, path in product(sorted(rule.verbs), sorted(rule.paths)):
        yield AccessRule(frozenset({verb}), paths=frozenset({path}))
    combinations = product(sorted(rule.verbs), sorted(rule.groups), sorted(rule.resources), sorted(rule.names) or [""])
    for verb, group, resource, name in combinations:
        names = frozenset({name}) if name else _NONE
        yield AccessRule(frozenset({verb}), frozenset({group}), frozenset({resource}), names, ceiling=rule.ceiling)


def _has_all(own: frozenset[str], wanted: frozenset[str]) -> bool:
    return ANY in own or wanted <= own


def _has_resource(own: frozenset[str], wanted: str) -> bool:
    if wanted in own or ANY in own:
        return True
    _, slash, subresource = wanted.partition("/")
    return bool(slash) and f"{ANY}/{subresource}" in own


def _has_path(own: frozenset[str], wanted: str) -> bool:
    return wanted in own or any(one.endswith(ANY) and wanted.startswith(one.rstrip(ANY)) for one in own)


def _quoted(values: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{value}"' for value in sorted(values)) + "]"
