"""Are these attributes those of a valid event? The type system and the context attributes of CloudEvents."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NoReturn

from headgate.event import rfc3339
from headgate.event.errors import EventError
from headgate.event.model import DataKind, Event, ExtensionValue
from headgate.limits import ATTRIBUTE_NAME_CHARS_MAX, VALUE_CACHED_CHARS_MAX, VALUES_CACHED_MAX

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
_MEDIA_TYPE: Final = re.compile(rf"({_TOKEN}/{_TOKEN})((?:[ \t]*;[ \t]*(?:{_TOKEN}=(?:{_TOKEN}|{_QUOTED}))?)*)[ \t]*")
_CHARSET: Final = re.compile(rf';[ \t]*charset="?({_TOKEN})', re.IGNORECASE)
# Most timestamps: a day that every month has, so that nothing needs to be computed.
_USUAL_TIME: Final = re.compile(
    r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?Z"
)


class MediaType:
    """A media type, read once.

    Attributes:
        essence: "type/subtype" in lower case.
        is_json: The subtype is "json" or ends in "+json" (the JSON event format's definition).
        charset: In lower case, "" without one.
    """

    __slots__ = ("charset", "essence", "is_json")

    def __init__(self, essence: str, charset: str) -> None:
        self.essence = essence
        self.charset = charset
        self.is_json = essence.endswith(("/json", "+json"))


@lru_cache(VALUES_CACHED_MAX)
def _media_type(text: str) -> MediaType | None:
    match = _MEDIA_TYPE.fullmatch(text)
    if match is None:
        return None
    charset = _CHARSET.search(match[2])
    return MediaType(match[1].lower(), charset[1].lower() if charset else "")


def media_type(text: str) -> MediaType | None:
    """Reads a media type (RFC 2046), or gives None when `text` is none."""
    return _media_type(text) if len(text) <= VALUE_CACHED_CHARS_MAX else _media_type.__wrapped__(text)


@lru_cache(VALUES_CACHED_MAX)
def _is_uri(text: str) -> bool:
    return _URI.fullmatch(text) is not None


@lru_cache(VALUES_CACHED_MAX)
def _is_uri_reference(text: str) -> bool:
    return _URI_REFERENCE.fullmatch(text) is not None


@lru_cache(VALUES_CACHED_MAX)
def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> None:
    """Refuses what is no attribute name.

    Raises:
        EventError: Empty, longer than `ATTRIBUTE_NAME_CHARS_MAX`, or other characters than a-z and 0-9.
    """
    if len(name) > ATTRIBUTE_NAME_CHARS_MAX:
        raise EventError(
            f"an attribute name must not be longer than {ATTRIBUTE_NAME_CHARS_MAX} characters", attribute=name[:64]
        )
    if not _is_name(name):
        raise EventError(
            "an attribute name must consist of lower-case letters a-z and digits, at least one", attribute=name
        )


def make_event(attributes: dict[str, object], kind: DataKind, data: bytes | None, *, plain: bool) -> Event:
    """Checks attributes and makes the event.

    Args:
        attributes: All attributes by name as they came, without the data; what is None is not set. Consumed: it
            becomes the event's extensions.
        kind: What `data` is.
        data: The data.
        plain: The caller knows that no string holds anything but printable ASCII and spaces.

    Raises:
        EventError: Names the first attribute that breaks a rule, and the rule.
    """
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
    id_ = _required("id", pop("id", None))
    source = _required("source", pop("source", None))
    type_ = _required("type", pop("type", None))
    subject = _optional("subject", pop("subject", None))
    time = _optional("time", pop("time", None))
    content_type = _optional("datacontenttype", pop("datacontenttype", None))
    schema = _optional(schema_name, pop(schema_name, None))
    extensions = _extensions(attributes) if attributes else {}
    if not plain:
        _check_strings(id_, source, type_, subject, time, content_type, schema, extensions)
    if not _cached(_is_uri_reference, source):
        raise EventError("must be a URI-reference (RFC 3986)", attribute="source")
    if time is not None and _USUAL_TIME.fullmatch(time) is None and rfc3339.micros(time) is None:
        raise EventError("must be a timestamp as in RFC 3339 (2018-04-05T17:31:00Z)", attribute="time")
    if content_type is not None and media_type(content_type) is None:
        raise EventError("must be a media type as in RFC 2046 (type/subtype)", attribute="datacontenttype")
    if schema is not None and not _cached(is_schema, schema):
        rule = (
            "must be an absolute URI (RFC 3986)"
            if schema_name == "dataschema"
            else "must be a URI-reference (RFC 3986)"
        )
        raise EventError(rule, attribute=schema_name)
    return Event(specversion, id_, source, type_, subject, time, content_type, schema, extensions, kind, data)


def _cached(check: Callable[[str], bool], text: str) -> bool:
    """Calls a remembering check, unless the text is too long to be remembered."""
    if len(text) <= VALUE_CACHED_CHARS_MAX:
        return check(text)
    result: bool = check.__wrapped__(text)  # type: ignore[attr-defined]
    return result


def _required(name: str, value: object) -> str:
    if type(value) is str and value:
        return value
    if value is None:
        raise EventError("REQUIRED attribute is missing", attribute=name)
    _refuse_string(name, value)


def _optional(name: str, value: object) -> str | None:
    if value is None or (type(value) is str and value):
        return value
    _refuse_string(name, value)


def _refuse_string(name: str, value: object) -> NoReturn:
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


def _extensions(attributes: dict[str, object]) -> dict[str, ExtensionValue]:
    extensions: dict[str, ExtensionValue] = {}
    for name, value in attributes.items():
        check_name(name)
        if type(value) is str or type(value) is bool:
            extensions[name] = value
        elif type(value) is int:
            if not INT32_MIN <= value <= INT32_MAX:
                raise EventError("an integer must be within 32 bits, signed", attribute=name)
            extensions[name] = value
        elif value is not None:
            raise EventError(f"must be a string, an integer or a boolean, not {_json_type(value)}", attribute=name)
    return extensions


def _check_strings(
    id_: str,
    source: str,
    type_: str,
    subject: str | None,
    time: str | None,
    content_type: str | None,
    schema: str | None,
    extensions: dict[str, ExtensionValue],
) -> None:
    """Refuses forbidden characters. What Python calls printable holds none of them, so most events end early."""
    named = {
        "id": id_,
        "source": source,
        "type": type_,
        "subject": subject,
        "time": time,
        "datacontenttype": content_type,
        "dataschema": schema,
        **extensions,
    }
    texts = {name: value for name, value in named.items() if type(value) is str}
    if "".join(texts.values()).isprintable():
        return
    for name, value in texts.items():
        match = _FORBIDDEN.search(value)
        if match is not None:
            raise EventError(
                f"a string must not hold U+{ord(match[0]):04X}"
                " (control characters, surrogates and noncharacters are not allowed)",
                attribute=name,
            )


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number with fraction or exponent"
    if isinstance(value, list):
        return "an array"
    return "an object"
