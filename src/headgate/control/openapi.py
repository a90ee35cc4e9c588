"""OpenAPI v3 documents of the objects, for `kubectl explain` and its validation."""

from __future__ import annotations

import functools
import zlib
from typing import Final

import msgspec

from headgate.control.objects import API_VERSION, OWN_API_VERSION, VERSION, JsonObject, Kind
from headgate.control.patches import APPLY_PATCH, JSON_PATCH, MERGE_PATCH

CORE: Final = "api/v1"
GROUPS: Final = (CORE, f"apis/{API_VERSION}", f"apis/{OWN_API_VERSION}")
"""What there is a document of, as clients ask for it below `/openapi/v3/`."""
_PREFIXES: Final = {API_VERSION: "dev.knative.eventing.v1", OWN_API_VERSION: "dev.headgate.v1"}
_NAMESPACE: Final = "io.k8s.api.core.v1.Namespace"
_NAMESPACE_GVK: Final = {"group": "", "version": "v1", "kind": "Namespace"}
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

_METADATA: Final = {
    "description": "Standard object's metadata.",
    "allOf": [{"$ref": f"#/components/schemas/{_META}"}],
}


def _text(description: str, **more: object) -> JsonObject:
    return {"type": "string", "description": description, **more}


def _integer(description: str, **more: object) -> JsonObject:
    return {"type": "integer", "format": "int64", "description": description, **more}


def _number(description: str) -> JsonObject:
    return {"type": "number", "description": description}


def _map(description: str) -> JsonObject:
    return {"type": "object", "description": description, "additionalProperties": {"type": "string"}}


def _texts(description: str) -> JsonObject:
    return {"type": "array", "description": description, "items": {"type": "string"}}


def _object(description: str, properties: JsonObject, required: tuple[str, ...] = ()) -> JsonObject:
    schema: JsonObject = {"type": "object", "description": description, "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema


def _reference(description: str) -> JsonObject:
    return _object(
        description,
        {
            "apiVersion": _text("API version of the object, such as v1."),
            "group": _text("API group of the object, instead of apiVersion."),
            "kind": _text("Kind of the object."),
            "namespace": _text("Namespace of the object; the trigger's own when it is left out."),
            "name": _text("Name of the object."),
        },
        ("kind", "name"),
    )


def _delivery(description: str) -> JsonObject:
    return _object(
        description,
        {
            "retry": _integer("Attempts after the first one; 10 when it is left out."),
            "backoffPolicy": _text("How waits grow; exponential by default.", enum=["linear", "exponential"]),
            "backoffDelay": _text("ISO 8601 duration before the first retry; PT0.2S by default."),
            "timeout": _text("ISO 8601 duration of one attempt; PT30S by default."),
            "deadLetterSink": _object(
                "Where events go that cannot be delivered: uri, or ref, or a uri relative to ref's address.",
                {"uri": _text("Absolute http or https URL."), "ref": _reference("A Broker of this server.")},
            ),
            "retryAfterMax": _text("ISO 8601 duration: what a Retry-After may make of a wait; PT0S ignores it."),
            "format": _text("How events are sent; binary by default.", enum=["binary", "json", "batch"]),
            "order": _text("Unordered by default.", enum=["ordered", "unordered"]),
            "parallelism": _integer("Attempts at the same time; 32 when it is left out."),
            "rateLimit": _number("Attempts a second at most; no bound when it is left out."),
            "batchSize": _integer("Events of one batch at most, with format batch; 100 when it is left out."),
            "batchWait": _text("ISO 8601 duration: how long a batch waits for events; PT0.1S by default."),
            "onFilterError": _text(
                "What becomes of events for which the filter is an error; drop by default. A trigger's only.",
                enum=["drop", "deadLetter"],
            ),
        },
    )


def _conditions() -> JsonObject:
    condition = _object(
        "One statement about the object.",
        {
            "type": _text("What the statement is about."),
            "status": _text("True, False or Unknown."),
            "severity": _text("Empty for an error; Warning or Info do not keep the object from being Ready."),
            "lastTransitionTime": _text("When the status last changed.", format="date-time"),
            "reason": _text("Why, in one word."),
            "message": _text("Why, in a sentence."),
        },
        ("type", "status"),
    )
    return {"type": "array", "description": "What is fine and what is not.", "items": condition}


def _metadata() -> JsonObject:
    return _object(
        "Standard object's metadata.",
        {
            "name": _text("Name, unique in the namespace; a DNS-1123 subdomain."),
            "generateName": _text("Prefix of a name that the server makes up, when name is left out."),
            "namespace": _text("Namespace; any DNS-1123 label, it need not be created."),
            "uid": _text("Unique in time and space; given by the server."),
            "resourceVersion": _text("Changes with every write; given by the server."),
            "generation": _integer("Grows with every change of spec; given by the server."),
            "creationTimestamp": _text("Given by the server.", format="date-time"),
            "labels": _map("Names and values to select by."),
            "annotations": _map("Names and values for programs and people."),
            "deletionTimestamp": _text("When it was deleted; it goes with its last finalizer.", format="date-time"),
            "deletionGracePeriodSeconds": _integer("Always 0: nothing but finalizers delays a deletion."),
            "finalizers": _texts("Who has something to do before a deleted object goes.")
            | {"x-kubernetes-list-type": "set"},
            "managedFields": {
                "type": "array",
                "description": "Who owns which fields; written by the server.",
                "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
    )


def _filter() -> JsonObject:
    schema = _object(
        "Which events the trigger wants: exactly one of the fields, in its dialect. Without a filter it wants all.",
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
                "x-kubernetes-preserve-unknown-fields": True,
            },
            "tags": _map(
                "Tags of the event, which are the values of its extensions tag...: at least one of those named "
                "anytag..., and all of those named alltag...."
            ),
            "eventPattern": {
                "description": "Event pattern of Amazon EventBridge: an object or its JSON text; detail is the data.",
                "x-kubernetes-preserve-unknown-fields": True,
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
        name: {
            "description": f"Dialect of the package {item.package}.",
            "x-kubernetes-preserve-unknown-fields": True,
        }
        for name, item in CUSTOM.items()
        if name in DIALECTS and not item.taken
    }


def _filters() -> JsonObject:
    nested = {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    only_here: JsonObject = {
        "exact": _map("Context attributes that must be there and equal."),
        "prefix": _map("Context attributes that must be there and start with the value."),
        "suffix": _map("Context attributes that must be there and end with the value."),
        "all": {**nested, "description": "Filters like these, of which all must hold."},
        "any": {**nested, "description": "Filters like these, of which one must hold."},
        "not": {
            "type": "object",
            "description": "A filter like these, which must not hold.",
            "x-kubernetes-preserve-unknown-fields": True,
        },
    }
    element = _object("Exactly one of the fields, in its dialect.", only_here | _filter()["properties"])
    description = (
        "Filters that must all hold, in the dialects of the CloudEvents Subscriptions API and in those of filter. "
        "When the list is not empty, filter has no effect."
    )
    return {"type": "array", "description": description, "items": element}


def _broker() -> JsonObject:
    spec = _object(
        "What the broker is to be.",
        {
            "config": _reference("Kept for compatibility, without effect. Immutable."),
            "log": _object(
                "How the broker's events are stored.",
                {
                    "filterSizeBytes": _integer("Bloom filter of a chunk, 16 to 255 bytes; 16 when it is left out."),
                    "filterValue": _text(
                        "What readers skip chunks by: an attribute's name, or CEL whose value is a string; type when it"
                        " is left out. Immutable."
                    ),
                    "compression": _text("Of chunks; none by default.", enum=["none", "lz4", "zstd"]),
                },
            ),
            "delivery": _delivery("Delivery rules of the broker's triggers that have none of their own."),
        },
    )
    address = _object("Where the broker accepts events.", {"name": _text("http"), "url": _text("URL for POST.")})
    status = _object(
        "What the broker is, written by the server.",
        {
            "observedGeneration": _integer("The generation that the conditions are about."),
            "conditions": _conditions(),
            "address": address,
            "deadLetterSinkUri": _text("Where events go that cannot be delivered."),
        },
    )
    return _kind(Kind.BROKER, "A named entry that accepts CloudEvents over HTTP.", spec, status)


def _trigger() -> JsonObject:
    subscriber = _object(
        "Where the events go: uri, or ref, or a uri relative to ref's address.",
        {
            "uri": _text("Absolute http or https URL."),
            "ref": _reference("An object with an address; without Kubernetes only a Broker of this server."),
        },
    )
    spec = _object(
        "What the trigger is to be.",
        {
            "broker": _text("Name of the broker; default when it is left out. Immutable."),
            "filter": _filter(),
            "filters": _filters(),
            "subscriber": subscriber,
            "delivery": _delivery("Delivery rules; they replace the broker's as a whole."),
        },
        ("subscriber",),
    )
    status = _object(
        "What the trigger is, written by the server.",
        {
            "observedGeneration": _integer("The generation that the conditions are about."),
            "conditions": _conditions(),
            "subscriberUri": _text("Where events go."),
            "deadLetterSinkUri": _text("Where events go that cannot be delivered."),
            "filterErrors": _integer("Events for which the filter was an error; they were not delivered."),
        },
    )
    return _kind(Kind.TRIGGER, "Sends the events of a broker that pass a filter to a subscriber.", spec, status)


def _subscription() -> JsonObject:
    spec = _object(
        "What the subscription is to be.",
        {
            "broker": _text("Name of the broker; default when it is left out. Immutable."),
            "filter": _filter(),
            "filters": _filters(),
            "consumerMetadata": _map("Names anytag... and alltag... ask for tags, beside the filters."),
            "type": _text(
                "One consumer and others are refused (exclusive, the default), one and the next takes over (failover),"
                " or several that each get other events (shared).",
                enum=["exclusive", "failover", "shared"],
            ),
            "ackTimeout": _text(
                "ISO 8601 duration until an event that is not acknowledged is handed out again; PT30S by default."
            ),
            "maxDeliveries": _integer(
                "How often an event is handed out at most, 1 to 1000; then it goes to the deadLetterSink, or is dropped"
                " and counted. Without it an event is handed out until it is acknowledged."
            ),
            "delivery": _delivery("How dead letters are sent to deadLetterSink; replaces the broker's as a whole."),
            "consumerFilter": _text("What makes a filter of consumerMetadata: tags (default) or a package's."),
            "filterFrom": _text("From where on the filter counts: now, beginning, or a position such as 0:123,1:456."),
        },
    )
    status = _object(
        "What the subscription is, written by the server.",
        {
            "observedGeneration": _integer("The generation that the conditions are about."),
            "conditions": _conditions(),
            "deadLetterSinkUri": _text("Where events go that were handed out maxDeliveries times."),
            "filterErrors": _integer("Events for which the filter was an error; they are not handed out."),
        },
    )
    return _kind(Kind.SUBSCRIPTION, "Keeps the events of a broker that pass a filter for consumers.", spec, status)


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


_SCHEMAS: Final = {Kind.BROKER: _broker, Kind.TRIGGER: _trigger, Kind.SUBSCRIPTION: _subscription}


def _kind(kind: Kind, description: str, spec: JsonObject, status: JsonObject) -> JsonObject:
    properties = {
        "apiVersion": _text(f"Always {kind.api_version}."),
        "kind": _text(f"Always {kind}."),
        "metadata": _METADATA,
        "spec": spec,
        "status": status,
    }
    return _object(description, properties, ("apiVersion", "kind")) | {"x-kubernetes-group-version-kind": [_gvk(kind)]}


def _gvk(kind: Kind) -> JsonObject:
    return {"group": kind.group, "version": VERSION, "kind": kind.value}


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

    def operation(action: str, request: JsonObject | None = None) -> JsonObject:
        # kubectl looks for fieldValidation at the patch operation of the kind.
        parameters = options if request is not None else []
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


@functools.cache
def document(group: str) -> bytes:
    """`/openapi/v3/GROUP`, of one of `GROUPS`."""
    paths: JsonObject = {}
    schemas: JsonObject = {_META: _metadata()}
    if group == CORE:
        paths |= _paths("/api/v1/namespaces", _NAMESPACE, _NAMESPACE_GVK)
        schemas[_NAMESPACE] = _namespace()
    for kind in Kind:
        if group == f"apis/{kind.api_version}":
            path = f"/{group}/namespaces/{{namespace}}/{kind.plural}"
            paths |= _paths(path, _schema(kind), _gvk(kind))
            schemas[_schema(kind)] = _SCHEMAS[kind]()
    info = {"title": "Headgate", "version": VERSION}
    return msgspec.json.encode({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}})


def index() -> JsonObject:
    """`/openapi/v3`."""
    paths = {}
    for group in GROUPS:
        checksum = f"{zlib.crc32(document(group)):08X}"
        paths[group] = {"serverRelativeURL": f"/openapi/v3/{group}?hash={checksum}"}
    return {"paths": paths}
