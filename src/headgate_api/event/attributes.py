"""The type system and the context attributes of CloudEvents, checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Final, NoReturn, TypeVar

from headgate_api import limits
from headgate_api.errors import EventError
from headgate_api.event import rfc3339
from headgate_api.event.model import DataKind, Event, ExtensionValue

REQUIRED_ATTRIBUTES: Final = frozenset({"specversion", "id", "source", "type"})
"""Context attributes that every event has."""
OPTIONAL_ATTRIBUTES: Final = ("subject", "time", "datacontenttype", "dataschema")
CONTEXT_ATTRIBUTES: Final = ("specversion", "id", "source", "type", *OPTIONAL_ATTRIBUTES)
"""Attributes that CloudEvents defines; every other one is an extension. Key extraction takes them in this order."""
TEXT_ATTRIBUTES: Final = frozenset(CONTEXT_ATTRIBUTES) - {"time"}
"""Context attributes whose values are strings where they are present; an extension may be anything."""
EXPIRY_TIME: Final = "expirytime"
"""The extension that says until when an event is of use: CloudEvents' expirytime, a timestamp; see `expiry_us`."""
DELIVERY_TIME: Final = "deliverytime"
"""The extension that says when an event is to be delivered, a timestamp: not before; see `delivery_us`."""
_T = TypeVar("_T")
INT32_MIN: Final = -(1 << 31)
INT32_MAX: Final = (1 << 31) - 1

_NAME: Final = re.compile(r"[a-z0-9]+")
_NONCHARACTERS: Final = "\ufdd0-\ufdef" + "".join(
    chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(17)
)
_FORBIDDEN: Final = re.compile(f"[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff{_NONCHARACTERS}]")
_URI_CHARS: Final = r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})"
_URI_REFERENCE: Final = re.compile(rf"{_URI_CHARS}+")
_URI: Final = re.compile(rf"[A-Za-z][A-Za-z0-9+\-.]*:{_URI_CHARS}*")
_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED: Final = r'"(?:[\t !#-\[\]-~]|\\[\t -~])*"'
# Possessive: white space could otherwise be shared out between its places in exponentially many ways.
_MEDIA_TYPE: Final = re.compile(
    rf"({_TOKEN}/{_TOKEN})((?:[ \t]*+;[ \t]*+(?:{_TOKEN}=(?:{_TOKEN}|{_QUOTED}))?)*+)[ \t]*+"
)
_PARAMETER: Final = re.compile(rf"({_TOKEN})=({_TOKEN}|{_QUOTED})")
# Most timestamps: a day that every month has, so that nothing needs to be computed.
COMMON_TIME: Final = (
    r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?Z"
)
_is_common_time: Final = re.compile(COMMON_TIME).fullmatch


def expiry_us(event: Event) -> int | None:
    """Until when an event is of use, microseconds since 1970 UTC; None where it says nothing that can be read."""
    text = event.extensions.get(EXPIRY_TIME)
    return rfc3339.micros(text) if isinstance(text, str) else None


def delivery_us(event: Event) -> int | None:
    """When an event is to be delivered, microseconds since 1970 UTC; None where it says nothing that can be read."""
    text = event.extensions.get(DELIVERY_TIME)
    return rfc3339.micros(text) if isinstance(text, str) else None


class MediaType:
    """A media type, read once: `essence` is "type/subtype"; that and the `charset`, "" for none, are in lower case.

    `is_json`: the subtype is "json" or ends in "+json" (the JSON event format's definition).
    """

    __slots__ = ("charset", "essence", "is_json")

    def __init__(self, essence: str, charset: str) -> None:
        self.essence = essence
        self.charset = charset
        self.is_json = essence.endswith(("/json", "+json"))


def _remembered(read: Callable[[str], _T]) -> Callable[[str], _T]:
    """What is read of short texts is remembered."""
    known = lru_cache(limits.VALUES_CACHED_MAX)(read)
    return wraps(read)(lambda text: known(text) if len(text) <= limits.VALUE_CACHED_CHARS_MAX else read(text))


@_remembered
def media_type(text: str) -> MediaType | None:
    """Reads a media type (RFC 2046), or gives None when `text` is none."""
    match = _MEDIA_TYPE.fullmatch(text)
    if match is None:
        return None
    charset = ""
    for name, value in _PARAMETER.findall(match[2]):
        if name.lower() == "charset":
            charset = value.strip('"').lower()
            break
    return MediaType(match[1].lower(), charset)


def is_json(content_type: str | None) -> bool:
    """Whether a content type says that data is JSON."""
    media = media_type(content_type) if content_type is not None else None
    return media is not None and media.is_json


def _is_uri(text: str) -> bool:
    return _URI.fullmatch(text) is not None


def _is_uri_reference(text: str) -> bool:
    return _URI_REFERENCE.fullmatch(text) is not None


is_source: Final = _remembered(_is_uri_reference)
"""Whether a text is a URI-reference (RFC 3986), as `source` must be."""


@lru_cache(limits.VALUES_CACHED_MAX)
def is_name(text: str) -> bool:
    """Whether an attribute can have this name."""
    return _NAME.fullmatch(text) is not None


def make_event(
    attributes: dict[str, object],
    kind: DataKind,
    data: bytes | None,
    *,
    plain: bool = False,
    media: MediaType | None = None,
) -> Event:
    """Checks attributes and makes the event; EventError names the first attribute that breaks a rule, and the rule.

    Args:
        attributes: All attributes by name as they came, without the data; what is None is not set. Consumed.
        plain: The caller knows that no string holds a forbidden character.
        media: The attribute datacontenttype, when the caller has read it already.
    """
    # Every event goes through here: checks are written out instead of called, which halves their cost.
    pop = attributes.pop
    specversion = pop("specversion", None)
    if specversion == "1.0":
        schema_name, is_schema = "dataschema", _is_uri
    elif specversion == "0.3":
        schema_name, is_schema = "schemaurl", _is_uri_reference
        if attributes.get("dataschema") is not None:
            raise EventError("the attribute of version 0.3 is named schemaurl", attribute="dataschema")
    else:
        _refuse_version(specversion)
    id_ = pop("id", None)
    if type(id_) is not str or not id_:
        _refuse_string("id", id_)
    source = pop("source", None)
    if type(source) is not str or not source:
        _refuse_string("source", source)
    type_ = pop("type", None)
    if type(type_) is not str or not type_:
        _refuse_string("type", type_)
    subject = pop("subject", None)
    if subject is not None and (type(subject) is not str or not subject):
        _refuse_string("subject", subject)
    time = pop("time", None)
    if time is not None and (type(time) is not str or not time):
        _refuse_string("time", time)
    content_type = pop("datacontenttype", None)
    if content_type is not None and (type(content_type) is not str or not content_type):
        _refuse_string("datacontenttype", content_type)
    schema = pop(schema_name, None)
    if schema is not None and (type(schema) is not str or not schema):
        _refuse_string(schema_name, schema)
    extensions = _extensions(attributes, specversion) if attributes else {}
    if not plain:
        # What Python calls printable holds no forbidden character, so the text of most events is looked at once.
        text = f"{id_}{source}{type_}{subject}{time}{content_type}{schema}"
        if not text.isprintable() or (extensions and not "".join(map(str, extensions.values())).isprintable()):
            named = {"id": id_, "source": source, "type": type_, "subject": subject, "time": time}
            _check_characters({**named, "datacontenttype": content_type, schema_name: schema, **extensions})
    if not is_source(source):
        raise EventError("must be a URI-reference (RFC 3986)", attribute="source")
    if time is not None and _is_common_time(time) is None and rfc3339.micros(time) is None:
        raise EventError("must be a timestamp as in RFC 3339 (2018-04-05T17:31:00Z)", attribute="time")
    if media is None and content_type is not None and media_type(content_type) is None:
        raise EventError("must be a media type as in RFC 2046 (type/subtype)", attribute="datacontenttype")
    if schema is not None and not is_schema(schema):
        what = "an absolute URI" if specversion == "1.0" else "a URI-reference"
        raise EventError(f"must be {what} (RFC 3986)", attribute=schema_name)
    return Event(specversion, id_, source, type_, subject, time, content_type, schema, extensions, kind, data)


def _refuse_string(name: str, value: object) -> NoReturn:
    if value is None:
        raise EventError("REQUIRED attribute is missing", attribute=name)
    rule = "must be a non-empty string" if value == "" else f"must be a string, not {_json_type(value)}"
    raise EventError(rule, attribute=name)


def _refuse_version(value: object) -> NoReturn:
    if value is None:
        raise EventError(
            "REQUIRED attribute is missing",
            attribute="specversion",
            hint="send ce- headers (binary mode) or Content-Type: application/cloudevents+json (structured mode)",
        )
    if type(value) is not str or not value:
        _refuse_string("specversion", value)
    raise EventError(f'version {value[:64]!r} is not supported, use "1.0" or "0.3"', attribute="specversion")


def _extensions(attributes: dict[str, object], specversion: str) -> dict[str, ExtensionValue]:
    """Checks what is left of the attributes; the same dict is the result when nothing in it is None."""
    unset, count = False, 0
    for name, value in attributes.items():
        if len(name) > limits.ATTRIBUTE_NAME_CHARS_MAX or not is_name(name):
            _refuse_name(name)
        if type(value) is str or type(value) is bool:
            continue
        if type(value) is int:
            if not INT32_MIN <= value <= INT32_MAX:
                raise EventError("an integer must be within 32 bits, signed", attribute=name)
        elif value is None:
            unset = True
        elif type(value) is dict and specversion == "0.3":
            attributes[name], members = _map(value, name, 1)
            count += members
            if count > limits.EXTENSION_MEMBERS_MAX:
                raise EventError(f"maps must not have more than {limits.EXTENSION_MEMBERS_MAX} members", attribute=name)
        else:
            raise EventError(f"must be a string, an integer or a boolean, not {_json_type(value)}", attribute=name)
    # The loop has shown what the values are; a call of cast() is what an event has no time for.
    extensions: dict[str, ExtensionValue] = attributes  # type: ignore[assignment]
    return {name: value for name, value in extensions.items() if value is not None} if unset else extensions


def _map(value: dict[object, object], attribute: str, depth: int) -> tuple[dict[str, ExtensionValue], int]:
    """Checks an extension that is a map, and gives it without unset members, with their number."""
    if depth > limits.EXTENSION_DEPTH_MAX:
        raise EventError(f"maps must not be nested deeper than {limits.EXTENSION_DEPTH_MAX}", attribute=attribute)
    if len(value) > limits.EXTENSION_MEMBERS_MAX:
        raise EventError(f"maps must not have more than {limits.EXTENSION_MEMBERS_MAX} members", attribute=attribute)
    found: dict[str, ExtensionValue] = {}
    count = 0
    for name, inner in value.items():
        if not isinstance(name, str) or len(name) > limits.ATTRIBUTE_NAME_CHARS_MAX:
            rule = f"the name of a member must not be longer than {limits.ATTRIBUTE_NAME_CHARS_MAX} characters"
            raise EventError(rule, attribute=attribute)
        _check_characters({attribute: name})
        count += 1
        match inner:
            case None:
                count -= 1
            case dict():
                found[name], below = _map(inner, attribute, depth + 1)
                count += below
            case str():
                _check_characters({attribute: inner})
                found[name] = inner
            case bool():
                found[name] = inner
            case int() if INT32_MIN <= inner <= INT32_MAX:
                found[name] = inner
            case int():
                raise EventError("an integer must be within 32 bits, signed", attribute=attribute)
            case _:
                rule = f"a member must be a string, an integer, a boolean or a map, not {_json_type(inner)}"
                raise EventError(rule, attribute=attribute)
    return found, count


def _refuse_name(name: str) -> NoReturn:
    rule = (
        f"an attribute name must not be longer than {limits.ATTRIBUTE_NAME_CHARS_MAX} characters"
        if len(name) > limits.ATTRIBUTE_NAME_CHARS_MAX
        else "an attribute name must consist of lower-case letters a-z and digits, at least one"
    )
    raise EventError(rule, attribute=name[: limits.ATTRIBUTE_NAME_CHARS_MAX])


def _check_characters(values: Mapping[str, ExtensionValue | None]) -> None:
    for name, value in values.items():
        match = _FORBIDDEN.search(value) if type(value) is str else None
        if match is not None:
            raise EventError(
                f"a string must not hold U+{ord(match[0]):04X}"
                " (control characters, surrogates and noncharacters are not allowed)",
                attribute=name,
            )


_JSON_TYPES: Final = {
    bool: "a boolean",
    int: "an integer",
    float: "a number with fraction or exponent",
    list: "an array",
}


def _json_type(value: object) -> str:
    return _JSON_TYPES.get(type(value), "an object")
