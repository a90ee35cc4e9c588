"""Attributes by the names that selectors use: headers of JMS and AMQP by table, any other name as it stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate_api.event.attributes import TEXT_ATTRIBUTES


class Type(StrEnum):
    """What is known of a value before an event is seen, as errors call it."""

    ANY = "a property"  # a string, an integer or a boolean: what an extension may be
    TEXT = "a string"
    NUMBER = "a number"
    FLAG = "a boolean"
    TIME = "a time"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A context attribute or extension, and what it is known to hold."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Constant:
    """A header that has the same value in every event."""

    value: str | bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """A header that events do not have; `hint` says what to do instead."""

    reason: str
    hint: str = ""


_TYPES: Final = {**dict.fromkeys(TEXT_ATTRIBUTES, Type.TEXT), "time": Type.TIME}
_HEADERS: Final[dict[str, Attribute | Constant | Unknown]] = {
    "JMSType": Attribute("type", Type.TEXT),
    "JMSMessageID": Attribute("id", Type.TEXT),
    "JMSTimestamp": Attribute("time", Type.TIME),
    "JMSCorrelationID": Attribute("correlationid", Type.ANY),
    "JMSPriority": Attribute("priority", Type.ANY),
    "JMSDeliveryMode": Constant("PERSISTENT"),
    **{
        name: Unknown(f"{name} may not stand in a selector", "Jakarta Messaging 3.1, section 3.8.1.1")
        for name in ("JMSDestination", "JMSReplyTo", "JMSRedelivered", "JMSExpiration", "JMSDeliveryTime")
    },
}
_PROPERTIES: Final = {
    "message_id": "id",
    "subject": "subject",
    "content_type": "datacontenttype",
    "creation_time": "time",
    "correlation_id": "correlationid",
    "group_id": "partitionkey",
}
"""AMQP's message properties."""
_CLOUD_EVENTS: Final = "cloudEvents_"
"""The prefix of attributes in CloudEvents' AMQP binding, in the form for JMS selectors."""


def meaning(name: str) -> Attribute | Constant | Unknown:
    """What a name in a selector stands for. Upper and lower case differ, as in JMS."""
    section, dot, rest = name.partition(".")
    match section if dot else "":
        case "header" | "h":
            return _header(rest)
        case "properties" | "p":
            if rest in _PROPERTIES:
                return _attribute(_PROPERTIES[rest])
            return Unknown(f"events have no property {rest}", f"one of: {', '.join(_PROPERTIES)}")
        case "application_properties" | "a":
            return _attribute(rest)
        case _ if name.startswith("JMS"):
            known = ", ".join(known for known, found in _HEADERS.items() if not isinstance(found, Unknown))
            return _HEADERS.get(name, Unknown(f"events have no {name}", f"an extension by its own name, or {known}"))
        case _:
            return _attribute(name.removeprefix(_CLOUD_EVENTS))


def _header(name: str) -> Attribute | Constant | Unknown:
    match name:
        case "priority":
            return _HEADERS["JMSPriority"]
        case "durable":
            return Constant(True)
        case _:
            return Unknown(f"events have no header {name}", "one of: priority, durable")


def _attribute(name: str) -> Attribute:
    return Attribute(name, _TYPES.get(name, Type.ANY))
