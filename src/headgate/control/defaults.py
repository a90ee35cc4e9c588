"""Defaults of objects: namespace, broker, class, and the copies that the server keeps."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

import msgspec

from headgate.control.errors import MalformedObjectError
from headgate.control.event_policies import policy_with_defaults
from headgate.control.objects import (
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
    Metadata,
    Object,
    RbacRole,
    ResourceQuota,
    RoleBinding,
    Secret,
)
from headgate.control.quota_rules import quota_with_defaults
from headgate.control.rbac_rules import bound
from headgate.control.secret_rules import secret_with_defaults
from headgate.event.names import NAMESPACE_DEFAULT

_SUFFIX_BYTES: Final = 4
"""Of `generateName`: eight hexadecimal digits."""
BROKER_DEFAULT: Final = "default"
"""The broker, of the object's own namespace, of a trigger or subscription that names none (Broker specification)."""


def with_defaults(obj: Object) -> Object:
    """The object with its defaults, and with the labels and annotations that are the server's."""
    if isinstance(obj, Broker):
        annotations = {BROKER_CLASS_ANNOTATION: BROKER_CLASS} | obj.metadata.annotations
        return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, annotations=annotations))
    if isinstance(obj, Secret):
        return secret_with_defaults(obj)
    if isinstance(obj, ResourceQuota):
        return quota_with_defaults(obj)
    if isinstance(obj, RoleBinding | ClusterRoleBinding):
        return bound(obj)
    if isinstance(obj, RbacRole | ClusterRole | EventType):
        return obj
    if isinstance(obj, EventPolicy):
        return policy_with_defaults(obj)
    broker = obj.spec.broker or BROKER_DEFAULT
    annotations = without_filter(obj.metadata.annotations)
    if obj.spec.filter and set(obj.spec.filter) != {"attributes"}:
        annotations[FILTER_ANNOTATION] = msgspec.json.encode(obj.spec.filter).decode()
    if obj.spec.filters:
        annotations[FILTERS_ANNOTATION] = msgspec.json.encode(obj.spec.filters).decode()
    labels = obj.metadata.labels | {BROKER_LABEL: broker}
    metadata: Metadata = msgspec.structs.replace(obj.metadata, annotations=annotations, labels=labels)
    return msgspec.structs.replace(obj, metadata=metadata, spec=msgspec.structs.replace(obj.spec, broker=broker))


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
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(meta, namespace=place, name=given))
