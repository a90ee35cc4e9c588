"""OpenAPI v3 documents: the objects, for `kubectl explain` and its validation, and every other path of their groups."""

from __future__ import annotations

import functools
import zlib
from typing import Final

import msgspec
from msgspec import inspect

from headgate.auth.routes import ROUTES
from headgate.objects.kinds.patches import APPLY_PATCH, JSON_PATCH
from headgate_api.objects.access_objects import RBAC_API_VERSION
from headgate_api.objects.bodies import MERGE_PATCH
from headgate_api.objects.kinds import (
    API_VERSION,
    KINDS_WITH_STATUS,
    OWN_API_VERSION,
    TYPES,
    UNKNOWN_FIELDS,
    VERSION,
    JsonObject,
    Kind,
    Metadata,
)

CORE: Final = "api/v1"
GROUPS: Final = (CORE, *dict.fromkeys(kind.root[1:] for kind in Kind if kind.group))
"""What there is a document of, as clients ask for it below `/openapi/v3/`."""
_PREFIXES: Final = {
    API_VERSION: "dev.knative.eventing.v1",
    Kind.EVENT_POLICY.api_version: "dev.knative.eventing.v1alpha1",
    Kind.EVENT_TYPE.api_version: "dev.knative.eventing.v1beta2",
    OWN_API_VERSION: "dev.headgate.v1",
    VERSION: "io.k8s.api.core.v1",
    RBAC_API_VERSION: "io.k8s.api.rbac.v1",
}
_WANTED: Final = (
    "Which events the trigger wants: exactly one of the fields, in its dialect. Without a filter it wants all."
)
_ALL_HOLD: Final = (
    "Filters that must all hold, in the dialects of the CloudEvents Subscriptions API and in those of filter. "
    "When the list is not empty, filter has no effect."
)
_ADMITTED: Final = (
    "Which events may be sent, all when it is left out: filters that must all hold, in every dialect of a Trigger."
)
_CEILING: Final = (
    "A ceiling, in one of the dialects of a Trigger's filter: of the brokers' events the rule gives only those that it"
    " matches. For get of brokers/events and knsubscribe of brokers."
)
_NAMESPACE: Final = "io.k8s.api.core.v1.Namespace"
_NAMESPACE_GVK: Final = {"group": "", "version": "v1", "kind": "Namespace"}
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

_METADATA: Final = {"description": "Standard object's metadata.", "allOf": [{"$ref": f"#/components/schemas/{_META}"}]}


def _text(description: str, **more: object) -> JsonObject:
    return {"type": "string", "description": description, **more}


def _map(description: str) -> JsonObject:
    return {"type": "object", "description": description, "additionalProperties": {"type": "string"}}


def _texts(description: str) -> JsonObject:
    return {"type": "array", "description": description, "items": {"type": "string"}}


def _object(description: str, properties: JsonObject, required: tuple[str, ...] = ()) -> JsonObject:
    schema: JsonObject = {"type": "object", "description": description, "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema


def _schema_of(type_: inspect.Type) -> JsonObject:
    """The schema of a field of `objects`, whose annotations hold what types do not say."""
    match type_:
        case inspect.Metadata():
            return _schema_of(type_.type) | (type_.extra_json_schema or {})
        case inspect.UnionType():
            known = [one for one in type_.types if not isinstance(one, inspect.NoneType)]
            return _schema_of(known[-1])  # of int | float, what takes both
        case inspect.StructType():
            required = tuple(one.encode_name for one in type_.fields if _is_required(one.type))
            return _object("", {one.encode_name: _schema_of(one.type) for one in type_.fields}, required)
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _schema_of(type_.value_type)}
        case inspect.VarTupleType():
            return {"type": "array", "items": _schema_of(type_.item_type)}
        case inspect.IntType():
            return {"type": "integer", "format": "int64"}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.FloatType():
            return {"type": "number"}
        case inspect.StrType():
            return {"type": "string"}
        case _:
            return UNKNOWN_FIELDS


def _is_required(type_: inspect.Type) -> bool:
    return isinstance(type_, inspect.Metadata) and bool((type_.extra or {}).get("required"))


def _filter(description: str = _WANTED) -> JsonObject:
    schema = _object(
        description,
        {
            "attributes": _map("Context attributes that must be there; a value that is not empty must be equal."),
            "sourceAndType": _object(
                "Deprecated form of attributes.", {"source": _text("Source."), "type": _text("Type.")}
            ),
            "expression": _text("CEL over ce (context attributes) and data (JSON data)."),
            "cel": _text("The same as expression."),
            "celVersion": _text('Version of the language of expression or cel; "1" by default.', enum=["1"]),
            "cesql": _text("A CloudEvents SQL expression: type = 'order.paid' AND subject LIKE 'shop/%'."),
            "jms": _text("A selector of JMS, as in SQL-92: color = 'blue' AND weight > 2500."),
            "pulsar": {
                "description": "A filter expression: an object (and, or, not, or a predicate over property, eventTime "
                "or publishTime), or an Expr message of pulsar.proto in Base64.",
                **UNKNOWN_FIELDS,
            },
            "tags": _map(
                "Tags of the event, which are the values of its extensions tag...: at least one of those named "
                "anytag..., and all of those named alltag...."
            ),
            "eventPattern": {
                "description": "Event pattern of Amazon EventBridge: an object or its JSON text; detail is the data.",
                **UNKNOWN_FIELDS,
            },
            **_custom_dialects(),
        },
    )
    # One owner for all of it in server-side apply: half a filter is no filter.
    return schema | {"x-kubernetes-map-type": "atomic"}


def _custom_dialects() -> JsonObject:
    """Fields that installed packages add; their schemas are checked by the compiler."""
    from headgate.filter.dialects import CUSTOM, DIALECTS  # cel-cpp is heavy

    return {
        name: {"description": f"Dialect of the package {item.package}.", **UNKNOWN_FIELDS}
        for name, item in CUSTOM.items()
        if name in DIALECTS and not item.taken
    }


def _filters(description: str) -> JsonObject:
    nested = {"type": "array", "items": {"type": "object", **UNKNOWN_FIELDS}}
    only_here: JsonObject = {
        "exact": _map("Context attributes that must be there and equal."),
        "prefix": _map("Context attributes that must be there and start with the value."),
        "suffix": _map("Context attributes that must be there and end with the value."),
        "all": {**nested, "description": "Filters like these, of which all must hold."},
        "any": {**nested, "description": "Filters like these, of which one must hold."},
        "not": {"type": "object", "description": "A filter like these, which must not hold.", **UNKNOWN_FIELDS},
    }
    element = _object("Exactly one of the fields, in its dialect.", only_here | _filter()["properties"])
    return {"type": "array", "description": description, "items": element}


def _namespace() -> JsonObject:
    properties = {
        "apiVersion": _text("Always v1."),
        "kind": _text("Always Namespace."),
        "metadata": _METADATA,
        "spec": _object("Without effect.", {"finalizers": _texts("Without effect.")}),
        "status": _object("What it is.", {"phase": _text("Always Active.")}),
    }
    description = "A name that objects lie in. It exists as soon as something is in it and need not be created."
    return _object(description, properties) | {"x-kubernetes-group-version-kind": [_NAMESPACE_GVK]}


def _schema(kind: Kind) -> str:
    return f"{_PREFIXES[kind.api_version]}.{kind}"


_KINDS: Final = {
    Kind.BROKER: "A named entry that accepts CloudEvents over HTTP.",
    Kind.TRIGGER: "Sends the events of a broker that pass a filter to a subscriber.",
    Kind.SUBSCRIPTION: "Keeps the events of a broker that pass a filter for consumers.",
    Kind.EVENT_POLICY: "Says who may send which events to brokers of its namespace.",
    Kind.EVENT_TYPE: "Says that events of a type can be had from a broker. All of it is immutable.",
    Kind.SECRET: "Small values that no one else may read, such as what deliveries authenticate by; stored encrypted.",
    Kind.RESOURCE_QUOTA: "Limits of what a namespace uses, over all its objects.",
    Kind.ROLE: "Rights in one namespace.",
    Kind.CLUSTER_ROLE: "Rights in every namespace, or in the one of a RoleBinding that names it.",
    Kind.ROLE_BINDING: "Gives somebody the rights of a role in one namespace.",
    Kind.CLUSTER_ROLE_BINDING: "Gives somebody the rights of a cluster role everywhere.",
}


def _kind(kind: Kind) -> JsonObject:
    made = _schema_of(inspect.type_info(TYPES[kind]))["properties"]
    if kind in (Kind.TRIGGER, Kind.SUBSCRIPTION):
        made["spec"]["properties"] |= {"filter": _filter(), "filters": _filters(_ALL_HOLD)}
    if kind is Kind.EVENT_POLICY:
        made["spec"]["properties"]["filters"] = _filters(_ADMITTED)
    if kind in (Kind.ROLE, Kind.CLUSTER_ROLE):
        made["rules"]["items"]["properties"] |= {"filter": _filter(_CEILING), "filters": _filters(_ALL_HOLD)}
    name = kind.lower()
    properties = {
        "apiVersion": _text(f"Always {kind.api_version}."),
        "kind": _text(f"Always {kind}."),
        "metadata": _METADATA,
    }
    if kind in KINDS_WITH_STATUS:
        properties["spec"] = made["spec"] | {"description": f"What the {name} is to be."}
        properties["status"] = made["status"] | {"description": f"What the {name} is, written by the server."}
    else:
        properties = {**made, **properties}
    schema = _object(_KINDS[kind], properties, ("apiVersion", "kind"))
    return schema | {"x-kubernetes-group-version-kind": [_gvk(kind)]}


def _gvk(kind: Kind) -> JsonObject:
    return {"group": kind.group, "version": kind.version, "kind": kind.value}


def _query(name: str, description: str) -> JsonObject:
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}


def _paths(path: str, schema: str, gvk: JsonObject) -> JsonObject:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    answer = {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}}
    body = {"content": {"application/json": {"schema": reference}, "application/yaml": {"schema": reference}}}
    patch = {
        "content": {
            MERGE_PATCH: {"schema": {"type": "object"}},
            JSON_PATCH: {"schema": {"type": "array", "items": {"type": "object"}}},
            APPLY_PATCH: {"schema": reference},
        }
    }
    options = [
        _query("dryRun", "All: do everything, store nothing."),
        _query("fieldManager", "Who writes; an apply patch names it."),
        _query("fieldValidation", "What unknown fields do: Strict (default), Warn or Ignore."),
    ]
    selecting = [
        _query("labelSelector", "Labels that the objects have."),
        _query("fieldSelector", "metadata.name or metadata.namespace of the objects."),
        _query("search", "Words that name and spec hold."),
        _query("limit", "Objects of a page."),
        _query("continue", "Where the page begins: what the last one gave."),
    ]

    def operation(action: str, request: JsonObject | None = None) -> JsonObject:
        # kubectl looks for fieldValidation at the patch operation of the kind.
        parameters = options if request is not None else selecting if action == "list" else []
        made: JsonObject = {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk,
            "parameters": parameters,
            "responses": answer,
        }
        return made | ({"requestBody": request} if request is not None else {})

    return {
        path: {"get": operation("list"), "post": operation("post", body)},
        f"{path}/{{name}}": {
            "get": operation("get"),
            "put": operation("put", body),
            "patch": operation("patch", patch),
            "delete": operation("delete"),
        },
    }


def _questions(group: str, known: JsonObject) -> JsonObject:
    """The paths of a group that are no objects, as the table of routes has them: what each does, and its parameters."""
    paths: JsonObject = {}
    for route in ROUTES:
        if not route.path.startswith(f"/{group}/") or route.path in known or route.wanted.path:
            continue
        named = [segment.strip("{}") for segment in route.path.split("/") if segment.startswith("{")]
        place = paths.setdefault(route.path, {"parameters": [_in_path(name) for name in named]})
        wanted = route.wanted
        place[route.method.lower()] = {
            "description": f"{route.what[:1].upper()}{route.what[1:]}. Needs {wanted.verb} on {wanted.full_resource}.",
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": UNKNOWN_FIELDS}}}},
        }
    return paths


def _in_path(name: str) -> JsonObject:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


@functools.cache
def document(group: str) -> bytes:
    """`/openapi/v3/GROUP`, of one of `GROUPS`."""
    paths: JsonObject = {}
    schemas: JsonObject = {_META: _schema_of(inspect.type_info(Metadata)) | {"description": _METADATA["description"]}}
    if group == CORE:
        paths |= _paths("/api/v1/namespaces", _NAMESPACE, _NAMESPACE_GVK)
        schemas[_NAMESPACE] = _namespace()
    for kind in Kind:
        if group == kind.root[1:]:
            path = (
                f"/{group}/namespaces/{{namespace}}/{kind.plural}" if kind.is_namespaced else f"/{group}/{kind.plural}"
            )
            paths |= _paths(path, _schema(kind), _gvk(kind))
            schemas[_schema(kind)] = _kind(kind)
    paths |= _questions(group, paths)
    info = {"title": "Headgate", "version": VERSION}
    return msgspec.json.encode({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}})


def index() -> JsonObject:
    """`/openapi/v3`."""
    paths = {}
    for group in GROUPS:
        checksum = f"{zlib.crc32(document(group)):08X}"
        paths[group] = {"serverRelativeURL": f"/openapi/v3/{group}?hash={checksum}"}
    return {"paths": paths}
