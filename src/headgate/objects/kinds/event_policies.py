"""EventPolicies: their rules for writers, what they apply to, and whom they name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from headgate.auth.event_policies import WILDCARD
from headgate.auth.user import subject_of
from headgate_api.limits import EVENT_POLICY_ITEMS_MAX, RBAC_TEXT_CHARS_MAX
from headgate_api.objects.access_objects import (
    BrokerReference,
    BrokerSelector,
    EventPolicy,
    PolicySender,
    SelectorRequirement,
    SenderReference,
)
from headgate_api.objects.errors import Cause, forbidden, invalid, not_named, not_one_of, required, too_many
from headgate_api.objects.kinds import API_VERSION, Broker, Kind, ObjectKey

_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def policy_with_defaults(policy: EventPolicy) -> EventPolicy:
    """A policy whose references say their namespaces."""

    def placed(sender: PolicySender) -> PolicySender:
        if sender.ref is None or sender.ref.namespace:
            return sender
        ref = msgspec.structs.replace(sender.ref, namespace=policy.metadata.namespace)
        return msgspec.structs.replace(sender, ref=ref)

    senders = tuple(map(placed, policy.spec.from_))
    return msgspec.structs.replace(policy, spec=msgspec.structs.replace(policy.spec, from_=senders))


# --- what writers must keep to --------------------------------------------------------------------


def policy_causes(policy: EventPolicy) -> Iterator[Cause]:
    """Every rule that a policy breaks, its filters left aside."""
    for name, count in (("to", len(policy.spec.to)), ("from", len(policy.spec.from_))):
        yield from too_many(f"spec.{name}", count, EVENT_POLICY_ITEMS_MAX)
    for number, target in enumerate(policy.spec.to[:EVENT_POLICY_ITEMS_MAX]):
        at = f"spec.to[{number}]"
        yield from _one_of_causes(at, ref=target.ref is not None, selector=target.selector is not None)
        if target.ref is not None:
            yield from _broker_causes(f"{at}.ref", target.ref)
            if not target.ref.name:
                yield required(f"{at}.ref.name", "a reference names a broker")
        if target.selector is not None:
            yield from _broker_causes(f"{at}.selector", target.selector)
            yield from _selector_causes(f"{at}.selector", target.selector)
    for number, sender in enumerate(policy.spec.from_[:EVENT_POLICY_ITEMS_MAX]):
        at = f"spec.from[{number}]"
        yield from _one_of_causes(at, ref=sender.ref is not None, sub=bool(sender.sub))
        if sender.ref is not None:
            yield from _sender_causes(f"{at}.ref", sender.ref)
        yield from _subject_causes(f"{at}.sub", sender.sub)


def _one_of_causes(at: str, **given: bool) -> Iterator[Cause]:
    count = sum(given.values())
    if count == 0:
        yield required(at, f"one of {', '.join(given)}")
    if count > 1:
        yield forbidden(at, f"only one of {', '.join(given)} may be set")


def _broker_causes(at: str, named: BrokerReference | BrokerSelector) -> Iterator[Cause]:
    yield from not_one_of(f"{at}.kind", named.kind, (Kind.BROKER.value,))
    yield from not_one_of(f"{at}.apiVersion", named.api_version, (API_VERSION,))


def _selector_causes(at: str, selector: BrokerSelector) -> Iterator[Cause]:
    count = len(selector.match_labels) + len(selector.match_expressions)
    yield from too_many(at, count, EVENT_POLICY_ITEMS_MAX, "conditions")
    for number, one in enumerate(selector.match_expressions[:EVENT_POLICY_ITEMS_MAX]):
        where = f"{at}.matchExpressions[{number}]"
        if not one.key:
            yield required(f"{where}.key", "the name of a label")
        yield from not_one_of(f"{where}.operator", one.operator, _OPERATORS)
        has_values = one.operator in _OPERATORS[:2]
        if has_values and not one.values:
            yield required(f"{where}.values", "In and NotIn compare with at least one value")
        if not has_values and one.values:
            yield forbidden(f"{where}.values", "only In and NotIn compare with values")
        yield from too_many(f"{where}.values", len(one.values), EVENT_POLICY_ITEMS_MAX)


def _sender_causes(at: str, ref: SenderReference) -> Iterator[Cause]:
    for name, value in (("apiVersion", ref.api_version), ("kind", ref.kind), ("name", ref.name)):
        detail = "a reference names an object by apiVersion, kind and name"
        yield from not_named(f"{at}.{name}", value, detail)


def _subject_causes(at: str, sub: str) -> Iterator[Cause]:
    if len(sub) > RBAC_TEXT_CHARS_MAX:
        yield invalid(at, "", f"has at most {RBAC_TEXT_CHARS_MAX} characters")
    elif WILDCARD in sub[:-1]:
        yield invalid(at, sub, "* is allowed only at the end")


# --- what they mean -------------------------------------------------------------------------------


def applying_policies(broker: Broker, policies: Iterable[EventPolicy]) -> tuple[EventPolicy, ...]:
    """Those of a broker's namespace that apply to it, by name."""
    found = [one for one in policies if _applies(one, broker)]
    return tuple(sorted(found, key=lambda one: one.metadata.name))


def _applies(policy: EventPolicy, broker: Broker) -> bool:
    if policy.metadata.namespace != broker.metadata.namespace:
        return False
    labels = broker.metadata.labels
    return not policy.spec.to or any(
        (one.ref is not None and one.ref.name == broker.metadata.name)
        or (one.selector is not None and _selects(one.selector, labels))
        for one in policy.spec.to
    )


def _selects(selector: BrokerSelector, labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _holds(one, labels) for one in selector.match_expressions
    )


def _holds(requirement: SelectorRequirement, labels: dict[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case _:
            return value is None


def subjects_of(policy: EventPolicy) -> tuple[str, ...]:
    """The users that a policy names, those of references included; what cannot be resolved names nobody."""
    return tuple(dict.fromkeys(subject for one in policy.spec.from_ if (subject := _subject(one))))


def _subject(sender: PolicySender) -> str:
    if sender.ref is None:
        return sender.sub
    return subject_of(f"{sender.ref.namespace}/{sender.ref.name}") if is_trigger_reference(sender.ref) else ""


def foreign_senders(policy: EventPolicy) -> tuple[ObjectKey, ...]:
    """The triggers of other namespaces that a policy names by reference."""
    named = (one.ref for one in policy.spec.from_ if one.ref is not None and is_trigger_reference(one.ref))
    return tuple(
        ObjectKey(Kind.TRIGGER, ref.namespace, ref.name) for ref in named if ref.namespace != policy.metadata.namespace
    )


def is_trigger_reference(ref: SenderReference) -> bool:
    """Whether a reference names what has a user here."""
    return (ref.kind, ref.api_version) == (Kind.TRIGGER, API_VERSION)
