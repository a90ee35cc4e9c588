"""EventTypes: what they may say, and the one of a flow of events. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from headgate_api.limits import EVENT_TYPE_SCHEMA_CHARS_MAX, EVENT_TYPE_TEXT_CHARS_MAX
from headgate_api.objects.errors import Cause, invalid, required
from headgate_api.objects.kinds import API_VERSION, GROUP, Broker, EventType, EventTypeReference, EventTypeSpec, Kind
from headgate_api.objects.metadata import JsonObject

DESCRIPTION: Final = "Event Type auto-created by controller"
"""Of an EventType that Knative or Headgate has made of events, word for word as tools know it."""
_URI: Final = re.compile(r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+", re.ASCII)
_MADE: Final = re.compile(r"et-.+-[0-9a-f]{32}", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*", re.ASCII)


def is_uri(text: str) -> bool:
    """Whether Go's clients can read a text as a URL: one that they cannot would spoil every list that it is in."""
    if not _URI.fullmatch(text):
        return False
    first, colon, _ = re.split(r"[/?#]", text, maxsplit=1)[0].partition(":")
    if colon and not _SCHEME.fullmatch(first):
        return False
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises ValueError when it is no port
    except ValueError:
        return False
    return "[" not in parts.netloc or bool(parts.hostname)


def event_type_causes(event_type: EventType) -> Iterator[Cause]:
    """Every rule that an EventType breaks by itself."""
    spec = event_type.spec
    if not spec.type:
        yield required("spec.type", "the type of the events")
    for field, text in (("type", spec.type), ("description", spec.description), ("broker", spec.broker)):
        yield from _length_causes(f"spec.{field}", text, EVENT_TYPE_TEXT_CHARS_MAX)
    yield from _length_causes("spec.schemaData", spec.schema_data, EVENT_TYPE_SCHEMA_CHARS_MAX)
    for field, text in (("source", spec.source), ("schema", spec.schema)):
        yield from _length_causes(f"spec.{field}", text, EVENT_TYPE_TEXT_CHARS_MAX)
        if text and not is_uri(text):
            yield invalid(f"spec.{field}", text, "must be a URI; write other characters as %xx")
    if spec.reference is not None:
        yield from _reference_causes(spec.reference, event_type.metadata.namespace)
        if spec.broker:
            yield invalid("spec.broker", spec.broker, "only one of broker, reference")


def _length_causes(field: str, text: str, most: int) -> Iterator[Cause]:
    if len(text) > most:
        yield invalid(field, f"{text[:32]}...", f"must have at most {most} characters")


def _reference_causes(reference: EventTypeReference, namespace: str) -> Iterator[Cause]:
    for field, text in (("kind", reference.kind), ("name", reference.name)):
        if not text:
            yield required(f"spec.reference.{field}", "a reference names a kind and an object")
        yield from _length_causes(f"spec.reference.{field}", text, EVENT_TYPE_TEXT_CHARS_MAX)
    if not reference.api_version and not reference.group:
        yield required("spec.reference.apiVersion", "a reference names an apiVersion")
    if reference.namespace not in ("", namespace):
        # Its status would say to anybody what there is in other namespaces.
        yield invalid("spec.reference.namespace", reference.namespace, f"must be {namespace}, where the event type is")


def broker_of(event_type: EventType) -> str:
    """`namespace/name` of the broker that has the events; empty where none is named."""
    spec, namespace = event_type.spec, event_type.metadata.namespace
    reference = spec.reference
    if reference is None:
        return f"{namespace}/{spec.broker}" if spec.broker else ""
    is_broker = reference.kind == Kind.BROKER and (reference.api_version == API_VERSION or reference.group == GROUP)
    return f"{namespace}/{reference.name}" if is_broker else ""


def is_made_of_events(name: str) -> bool:
    """Whether an EventType has a name as `event_type_of` gives it: that it is there says that there was an event."""
    return _MADE.fullmatch(name) is not None


def event_type_of(broker: Broker, type_: str, source: str) -> JsonObject | None:
    """The EventType of events that flow through a broker, as Knative makes and names it; None where none can be."""
    spec = EventTypeSpec(type=type_)
    if len(type_) > EVENT_TYPE_TEXT_CHARS_MAX or len(source) > EVENT_TYPE_TEXT_CHARS_MAX or not spec.type:
        return None
    meta = broker.metadata
    unique = hashlib.md5(f"{type_}{source}{meta.namespace}{meta.name}".encode(), usedforsecurity=False).hexdigest()
    reference = {"apiVersion": API_VERSION, "kind": "Broker", "namespace": meta.namespace, "name": meta.name}
    return {
        "apiVersion": Kind.EVENT_TYPE.api_version,
        "kind": Kind.EVENT_TYPE.value,
        "metadata": {"name": f"et-{meta.name}-{unique}", "namespace": meta.namespace},
        "spec": {
            "type": type_,
            **({"source": source} if is_uri(source) else {}),
            "reference": reference,
            "description": DESCRIPTION,
        },
    }
