"""EventType as typed structs: Knative's eventing.knative.dev/v1beta2, the version that kn asks for."""

from __future__ import annotations

from typing import Annotated

from headgate.control.metadata import ApiObject, ApiStruct, ObjectStatus, field_doc


class EventTypeReference(ApiStruct, frozen=True):
    """`KReference`: who has events of the type."""

    api_version: Annotated[str, field_doc("API version of the object: eventing.knative.dev/v1.")] = ""
    group: Annotated[str, field_doc("API group of the object, instead of apiVersion.")] = ""
    kind: Annotated[str, field_doc("Kind of the object: Broker.", required=True)] = ""
    namespace: Annotated[str, field_doc("Namespace of the object; the event type's own when it is left out.")] = ""
    name: Annotated[str, field_doc("Name of the object.", required=True)] = ""


class EventTypeSpec(ApiStruct, frozen=True):
    """Which events there are."""

    type: Annotated[str, field_doc("The events' type.", required=True)] = ""
    source: Annotated[str, field_doc("The events' source, a URI.")] = ""
    schema: Annotated[str, field_doc("Where the schema of their data is, a URI.")] = ""
    schema_data: Annotated[str, field_doc("The schema itself, as a text that nobody reads here.")] = ""
    broker: Annotated[str, field_doc("Name of a broker, instead of reference; deprecated in Knative.")] = ""
    reference: Annotated[EventTypeReference | None, field_doc("Where the events are: a broker.")] = None
    description: Annotated[str, field_doc("What they are, for people.")] = ""


class EventTypeStatus(ObjectStatus, frozen=True):
    """What an event type is."""


class EventType(ApiObject, frozen=True):
    """A type of events that can be had from a broker, for people and tools who look for one. All of it is immutable."""

    spec: EventTypeSpec = EventTypeSpec()
    status: EventTypeStatus = EventTypeStatus()
