"""Validation: what a document says as an object, with its defaults and its compiled filter, or what is wrong with it.

It needs no store, so that many documents are validated by all cores of the machine.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import msgspec

from headgate.filter.compile.conjunctions import preserve_errors
from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.tools.advice import NEVER_TRUE, advice, is_never_true
from headgate.objects.kinds.credentials import secret_with_defaults
from headgate.objects.kinds.decode import Decoded, decode_object
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.kinds.event_policies import policy_with_defaults
from headgate.objects.kinds.managers import with_metadata
from headgate.objects.kinds.quotas import quota_with_defaults
from headgate.objects.kinds.rbac_rules import AnyRole, bound, check_ceilings, role_with_copies
from headgate.objects.kinds.specs import compiler_input, keeps_filter_errors, order_warning
from headgate.objects.kinds.status import CEILINGS
from headgate.objects.kinds.validate import filter_cause, not_on_kafka_causes, object_causes, scan_warning
from headgate.objects.store.plans import FilterCompiler
from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.event.names import NAMESPACE_DEFAULT
from headgate_api.objects.bodies import FieldValidation
from headgate_api.objects.errors import InvalidObjectError, MalformedObjectError
from headgate_api.objects.kinds import (
    BROKER_CLASS,
    BROKER_CLASS_ANNOTATION,
    BROKER_LABEL,
    FILTER_ANNOTATION,
    FILTERS_ANNOTATION,
    Broker,
    ClusterRole,
    ClusterRoleBinding,
    EventPolicy,
    EventType,
    Kind,
    Object,
    RbacRole,
    ResourceQuota,
    RoleBinding,
    Routed,
    Secret,
    Trigger,
)

Validated: TypeAlias = "tuple[Decoded, CompiledFilter | None]"
"""An object that may be stored, with its defaults and warnings, and its filter as plan rows where it has one."""


@dataclass(frozen=True, slots=True)
class Validator:
    """Decodes, sets defaults, compiles the filter, judges; `on_kafka` refuses what such a deployment has not."""

    compiler: FilterCompiler
    policy: UrlPolicy
    on_kafka: bool = False

    def validate(
        self, kind: Kind, document: object, namespace: str | None, name: str | None, validation: FieldValidation
    ) -> Validated:
        """The object of a document that was sent to this namespace and name; InvalidInputError."""
        decoded = decode_object(kind, document, field_validation=validation)
        obj = with_defaults(placed(decoded.obj, namespace, name))
        causes = list(object_causes(obj, self.policy))
        if self.on_kafka:
            causes += not_on_kafka_causes(obj)
        plan, hint = None, ""
        try:
            plan = self._plan(obj)
        except InvalidInputError as error:
            causes.append(filter_cause(error, obj))
            hint = error.hint
        if causes:
            raise InvalidObjectError(tuple(causes), kind=kind, name=obj.metadata.name, hint=hint)
        if isinstance(obj, Routed):
            advised = tuple(one.message for one in advice(obj.spec.filter, obj.spec.filters))
            if plan is not None and is_never_true(plan):
                advised = (NEVER_TRUE.message, *advised)
            decoded = replace(decoded, warnings=decoded.warnings + advised + scan_warning(plan) + order_warning(obj))
        return replace(decoded, obj=obj), plan

    def each(
        self, kind: Kind, documents: Iterable[object], namespace: str | None, validation: FieldValidation
    ) -> list[Validated | HeadgateError]:
        """Of each of several documents what `validate` gives, or its error."""
        found: list[Validated | HeadgateError] = []
        for document in documents:
            try:
                found.append(self.validate(kind, document, namespace, None, validation))
            except HeadgateError as error:
                found.append(error)
        return found

    def _plan(self, obj: Object) -> CompiledFilter | None:
        if isinstance(obj, EventPolicy):
            self.compiler.compile(None, obj.spec.filters)  # fronts do it again: nothing is matched by it
        if isinstance(obj, AnyRole):
            check_ceilings(obj)
        return plan_of(obj, self.compiler) if isinstance(obj, Routed) else None


def plan_of(obj: Routed, compiler: FilterCompiler, ceiling: str = "") -> CompiledFilter:
    """The filter of an object with its defaults, below a ceiling (CEL, empty for none), compiled; InvalidInputError."""
    compiled = compiler.below(*compiler_input(obj), ceiling)
    keeps = isinstance(obj, Trigger) and keeps_filter_errors(obj.spec.delivery)
    return preserve_errors(compiled) if keeps else compiled


def ceiling_warning(plan: CompiledFilter | None) -> tuple[str, ...]:
    """What the writer of a filter hears of the ceiling of his right."""
    if plan is None or not plan.ceiling:
        return ()
    return (f"{CEILINGS[plan.within]}: {plan.ceiling[:_CEILING_CHARS]}",)


# --- defaults -------------------------------------------------------------------------------------


_CEILING_CHARS: Final = 200
_SUFFIX_BYTES: Final = 4
"""Of `generateName`: eight hexadecimal digits."""
BROKER_DEFAULT: Final = "default"
"""The broker, of the object's own namespace, of a trigger or subscription that names none (Broker specification)."""


def with_defaults(obj: Object) -> Object:
    """The object with its defaults, and with the labels and annotations that are the server's."""
    match obj:
        case Broker():
            return with_metadata(obj, annotations={BROKER_CLASS_ANNOTATION: BROKER_CLASS} | obj.metadata.annotations)
        case Secret():
            return secret_with_defaults(obj)
        case ResourceQuota():
            return quota_with_defaults(obj)
        case EventPolicy():
            return policy_with_defaults(obj)
        case RoleBinding() | ClusterRoleBinding():
            return bound(obj)
        case RbacRole() | ClusterRole():
            return role_with_copies(obj)
        case EventType():
            return obj
    broker = obj.spec.broker or ("" if obj.spec.broker_ref is not None else BROKER_DEFAULT)
    annotations = without_filter(obj.metadata.annotations)
    if obj.spec.filter and set(obj.spec.filter) != {"attributes"}:
        annotations[FILTER_ANNOTATION] = msgspec.json.encode(obj.spec.filter).decode()
    if obj.spec.filters:
        annotations[FILTERS_ANNOTATION] = msgspec.json.encode(obj.spec.filters).decode()
    routed = msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, broker=broker))
    labels = {name: value for name, value in obj.metadata.labels.items() if name != BROKER_LABEL}
    if not routed.is_foreign:  # the label is of brokers of this namespace
        labels[BROKER_LABEL] = routed.broker_name
    return with_metadata(routed, annotations=annotations, labels=labels)


def without_filter(annotations: Mapping[str, str]) -> dict[str, str]:
    """Annotations without the server's copies of filters."""
    return {key: value for key, value in annotations.items() if key not in (FILTER_ANNOTATION, FILTERS_ANNOTATION)}


def placed(obj: Object, namespace: str | None, name: str | None) -> Object:
    """The object with the namespace and name of the request."""
    meta = obj.metadata
    if namespace is not None and meta.namespace not in ("", namespace):
        raise MalformedObjectError(
            f"the namespace of the provided object does not match the namespace sent on the request "
            f"({meta.namespace!r} is not {namespace!r})"
        )
    if name is not None and meta.name not in ("", name):
        raise MalformedObjectError(f"the name of the object ({meta.name}) does not match the name on the URL ({name})")
    if not Kind(obj.kind).is_namespaced and meta.namespace:
        raise MalformedObjectError(f"the object lies in no namespace, and metadata.namespace is {meta.namespace!r}")
    given = name or meta.name
    if not given and meta.generate_name:
        given = meta.generate_name + secrets.token_hex(_SUFFIX_BYTES)
    place = (namespace or meta.namespace or NAMESPACE_DEFAULT) if Kind(obj.kind).is_namespaced else ""
    return with_metadata(obj, namespace=place, name=given)
