"""Roles and bindings: their rules for writers, their defaults, and what they mean to who decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Final

import msgspec
import structlog

from headgate.auth.authorizer import NOTHING, Binding, BindingSubject, RbacPolicy, RoleKey, SubjectKind
from headgate.auth.routes import EVENTING, READ, SUBSCRIBE
from headgate.auth.rules import ANY, AccessRule
from headgate.filter.cel.errors import FilterError, over_limit
from headgate.objects.kinds.managers import with_metadata
from headgate_api.errors import InvalidInputError
from headgate_api.limits import (
    RBAC_CEILING_CHARS_MAX,
    RBAC_RULE_ITEMS_MAX,
    RBAC_RULES_MAX,
    RBAC_SUBJECTS_MAX,
    RBAC_TEXT_CHARS_MAX,
)
from headgate_api.objects.access_objects import (
    RBAC_GROUP,
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    RbacRole,
    RbacSubject,
    RoleBinding,
    RoleRef,
)
from headgate_api.objects.errors import Cause, forbidden, invalid, not_named, not_one_of, required, too_many
from headgate_api.objects.kinds import FILTERS_ANNOTATION, JsonObject

AnyRole = RbacRole | ClusterRole
AnyBinding = RoleBinding | ClusterRoleBinding
_ROLES = ("ClusterRole", "Role")
_LISTS: Final = 5
"""The first fields of a rule, which are Kubernetes' and lists of texts."""
_CEILING: Final = (
    "a rule with a filter gives rights to events alone: verbs get of brokers/events (reading) and knsubscribe of"
    " brokers (subscribing), of eventing.knative.dev; put other rights into another rule"
)
_log = structlog.get_logger("headgate.objects")


def bound(binding: AnyBinding) -> AnyBinding:
    """A binding with Kubernetes' defaults: the API group of its role, its users and its groups."""
    subjects = tuple(
        msgspec.structs.replace(one, api_group=RBAC_GROUP)
        if one.kind in (SubjectKind.USER, SubjectKind.GROUP) and not one.api_group
        else one
        for one in binding.subjects
    )
    role = msgspec.structs.replace(binding.role_ref, api_group=binding.role_ref.api_group or RBAC_GROUP)
    return msgspec.structs.replace(binding, subjects=subjects, role_ref=role)


def role_with_copies(role: AnyRole) -> AnyRole:
    """A role with copies of its ceilings in an annotation: programs that know no filter in a rule write it back."""
    ceilings = ceilings_of(role)
    annotations = {key: value for key, value in role.metadata.annotations.items() if key != FILTERS_ANNOTATION}
    copies = {FILTERS_ANNOTATION: msgspec.json.encode(ceilings, order="sorted").decode()} if ceilings else {}
    return with_metadata(role, annotations=annotations | copies)


def ceilings_of(role: AnyRole) -> list[JsonObject | list[JsonObject]]:
    """What the rules of a role say as their ceilings, of those that have one."""
    return [list(rule.filters) or rule.filter or {} for rule in role.rules if rule.filter or rule.filters]


# --- what writers must keep to --------------------------------------------------------------------


def role_causes(role: AnyRole) -> Iterator[Cause]:
    """Every rule that a role breaks."""
    yield from too_many("rules", len(role.rules), RBAC_RULES_MAX)
    for number, rule in enumerate(role.rules[:RBAC_RULES_MAX]):
        yield from _rule_causes(f"rules[{number}]", rule, is_namespaced=isinstance(role, RbacRole))


def _rule_causes(field: str, rule: PolicyRule, *, is_namespaced: bool) -> Iterator[Cause]:
    for one in msgspec.structs.fields(rule)[:_LISTS]:
        values, at = getattr(rule, one.name), f"{field}.{one.encode_name}"
        yield from too_many(at, len(values), RBAC_RULE_ITEMS_MAX)
        if any(len(value) > RBAC_TEXT_CHARS_MAX for value in values):
            yield invalid(at, "", f"each has at most {RBAC_TEXT_CHARS_MAX} characters")
    if not rule.verbs:
        yield required(f"{field}.verbs", "verbs must contain at least one value")
    if rule.filter is not None or rule.filters:
        yield from _ceiling_causes(field, rule)
    if rule.non_resource_urls:
        if is_namespaced:
            detail = "namespaced rules cannot apply to non-resource URLs"
            yield invalid(f"{field}.nonResourceURLs", rule.non_resource_urls, detail)
        if rule.api_groups or rule.resources or rule.resource_names:
            detail = "rules cannot apply to both regular resources and non-resource URLs"
            yield invalid(f"{field}.nonResourceURLs", rule.non_resource_urls, detail)
        for url in rule.non_resource_urls:
            if ANY in url[:-1] or not (url == ANY or url.startswith("/")):
                yield invalid(f"{field}.nonResourceURLs", url, "must begin with / and may end with *, or be *")
        return
    if not rule.api_groups:
        yield required(f"{field}.apiGroups", "resource rules must supply at least one api group")
    if not rule.resources:
        yield required(f"{field}.resources", "resource rules must supply at least one resource")


def _ceiling_causes(field: str, rule: PolicyRule) -> Iterator[Cause]:
    """A ceiling is of events, so its rule gives nothing else than to read them and to subscribe to them."""
    if not rule.filter and not rule.filters:
        yield required(f"{field}.filter", "an empty filter is no ceiling: leave it out, or say which events are meant")
    given = set(product(rule.verbs, rule.resources))
    wanted = {(READ.verb, READ.full_resource), (SUBSCRIBE.verb, SUBSCRIBE.full_resource)}
    for name, values, which in (("verbs", rule.verbs, 0), ("resources", rule.resources, 1)):
        for value in values:
            if not any(one[which] == value and one in given for one in wanted):
                yield invalid(f"{field}.{name}", value, _CEILING)
    if rule.api_groups != (EVENTING,):
        yield invalid(f"{field}.apiGroups", rule.api_groups, _CEILING)
    if rule.non_resource_urls:
        yield invalid(f"{field}.nonResourceURLs", rule.non_resource_urls, _CEILING)


def check_ceilings(role: AnyRole) -> None:
    """Compiles the filters of a role's rules; a FilterError has the place."""
    for number, rule in enumerate(role.rules[:RBAC_RULES_MAX]):
        if rule.filter or rule.filters:
            try:
                ceiling_of(rule)
            except FilterError as error:
                raise error.at_field(f"rules[{number}].{error.field}") from None


def binding_causes(binding: AnyBinding) -> Iterator[Cause]:
    """Every rule that a binding breaks."""
    role = binding.role_ref
    is_namespaced = isinstance(binding, RoleBinding)
    yield from not_one_of("roleRef.apiGroup", role.api_group, (RBAC_GROUP,))
    yield from not_one_of("roleRef.kind", role.kind, _ROLES if is_namespaced else _ROLES[:1])
    yield from not_named("roleRef.name", role.name, "a binding names a role")
    yield from too_many("subjects", len(binding.subjects), RBAC_SUBJECTS_MAX)
    for number, subject in enumerate(binding.subjects[:RBAC_SUBJECTS_MAX]):
        yield from _subject_causes(f"subjects[{number}]", subject, is_namespaced=is_namespaced)


def _subject_causes(field: str, subject: RbacSubject, *, is_namespaced: bool) -> Iterator[Cause]:
    yield from not_named(f"{field}.name", subject.name, "a subject has a name")
    yield from not_one_of(f"{field}.kind", subject.kind, tuple(SubjectKind))
    is_account = subject.kind == SubjectKind.SERVICE_ACCOUNT
    yield from not_one_of(f"{field}.apiGroup", subject.api_group, ("",) if is_account else (RBAC_GROUP,))
    if is_account and not subject.namespace and not is_namespaced:
        yield required(f"{field}.namespace", "a service account lies in a namespace")
    if subject.namespace and not is_account:
        yield forbidden(f"{field}.namespace", "users and groups lie in no namespace")


def role_ref_causes(old: AnyBinding, new: AnyBinding) -> Iterator[Cause]:
    """Whose rights a binding gives cannot change: who may write its subjects might not be given the other role's."""
    if old.role_ref != new.role_ref:
        yield invalid("roleRef", msgspec.to_builtins(new.role_ref), "cannot change roleRef")


# --- what they mean -------------------------------------------------------------------------------


def access_rules(rules: Iterable[PolicyRule]) -> tuple[AccessRule, ...]:
    """Rules as they are decided by. One with a ceiling is for the rights that may have one, and for nothing beside."""
    return tuple(one for rule in rules for one in _access_rules(rule))


def _access_rules(rule: PolicyRule) -> Iterator[AccessRule]:
    whole = AccessRule(
        verbs=frozenset(rule.verbs),
        groups=frozenset(rule.api_groups),
        resources=frozenset(rule.resources),
        names=frozenset(rule.resource_names),
        paths=frozenset(rule.non_resource_urls),
        ceiling=_ceiling(rule),
    )
    if not whole.ceiling:
        yield whole
        return
    for right in (READ, SUBSCRIBE):
        if right.verb in whole.verbs and right.full_resource in whole.resources:
            yield replace(whole, verbs=frozenset({right.verb}), resources=frozenset({right.full_resource}))


def _ceiling(rule: PolicyRule) -> str:
    if rule.filter is None and not rule.filters:
        return ""
    try:
        return ceiling_of(rule)
    except InvalidInputError as error:  # an older version took it, or a dialect is gone: closed, and told
        _log.warning("the filter of a role's rule does not work: it gives no event", error=error.message)
        return NOTHING


def ceiling_of(rule: PolicyRule) -> str:
    """The ceiling that a rule with a filter says, as canonical CEL; InvalidInputError names the place in the rule."""
    # Imported late: cel-cpp is heavy, and few roles have filters.
    from headgate.filter.compile.compiler import compile_filter

    cel = compile_filter(rule.filter, rule.filters).cel
    if len(cel) > RBAC_CEILING_CHARS_MAX:
        field = "filters" if rule.filters else "filter"
        raise over_limit("RBAC_CEILING_CHARS_MAX", f"the ceiling has {len(cel)} characters in CEL").at_field(field)
    return cel


def role_key(role: RoleRef, namespace: str) -> RoleKey:
    """The role that a binding in a namespace names."""
    return RoleKey(role.name, namespace if role.kind == "Role" else "")


def policy(roles: Iterable[AnyRole], bindings: Iterable[AnyBinding]) -> RbacPolicy:
    """Objects as they are decided by."""
    rules = {RoleKey(role.metadata.name, role.metadata.namespace): access_rules(role.rules) for role in roles}
    return RbacPolicy(rules, map(_binding, bindings))


def _binding(binding: AnyBinding) -> Binding:
    namespace = binding.metadata.namespace
    subjects = tuple(
        BindingSubject(SubjectKind(one.kind), one.name, one.namespace or namespace) for one in binding.subjects
    )
    return Binding(binding.metadata.name, namespace, role_key(binding.role_ref, namespace), subjects)
