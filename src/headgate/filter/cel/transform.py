"""A transform: CEL that builds the event to be delivered from the one that is stored, for who wants it otherwise.

    {"type": "order.v2", "customer": data.customer.id, "data": {"id": data.id, "total": data.total}}

It is a map of attributes and `data`, or a condition between such maps. What it does not name stays as it is, null
removes it. `data` becomes JSON, or text where `datacontenttype` says so. cel-cpp evaluates it as a whole, and what it
makes is checked as what a producer sends.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec

from headgate.event.hops import ATTRIBUTES
from headgate.filter.cel.ast import Conditional, ListOf, Literal, MapOf, Name, Node, children
from headgate.filter.cel.budget import Budget, check_limits, is_unlimited
from headgate.filter.cel.engine import Expression, compile_expression, offset_in
from headgate.filter.cel.errors import EvaluationError, FilterError
from headgate.filter.cel.evaluate import EventView
from headgate.filter.cel.functions import data_at_hand
from headgate.filter.cel.reads import reads_of
from headgate.filter.cel.rewrite import resolve
from headgate.filter.cel.unparse import unparse
from headgate_api.errors import EventError
from headgate_api.event.attributes import REQUIRED_ATTRIBUTES, is_name, make_event, media_type
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import EVENT_BYTES_MAX, FILTER_CANONICAL_CHARACTERS_MAX, FILTERS_CACHED_MAX

_DATA: Final = "data"
_SCHEMA: Final = "dataschema"
_CONTENT_TYPE: Final = "datacontenttype"
_JSON: Final = "application/json"
_EXAMPLE: Final = '{"type": "order.v2", "data": {"id": data.id}}'
_SAMPLE: Final[dict[str, object]] = {"specversion": "1.0", "id": "1", "source": "/", "type": "t"}
_KEPT: Final = object()
_encode = msgspec.json.Encoder(order="sorted").encode  # CEL's maps have no order


class _Transform:
    """A transform, ready to be applied to any number of events."""

    __slots__ = ("_budget", "_expression", "_reads")

    def __init__(self, expression: Expression, tree: Node) -> None:
        self._expression = expression
        self._reads = reads_of(tree)
        self._budget = None if is_unlimited(tree) else Budget(tree)

    def apply(self, view: EventView) -> Event:
        """See `apply_transform`."""
        budget = self._budget
        if budget is not None and (refusal := budget.refuses(view.rough_size, lambda: view.size)):
            raise EvaluationError(refusal.replace("the filter", "the transform", 1))
        named = self._expression.value(view.for_one(self._reads))
        if type(named) is not dict:
            raise EvaluationError("the transform's value is no map")
        try:
            return _made(view.event, named)
        except EventError as error:
            raise EvaluationError(error.message) from None


def apply_transform(text: str, view: EventView) -> Event:
    """The event that a transform makes of another one; EvaluationError, with the reason, where it makes none."""
    try:
        return _transform(text).apply(view)
    except FilterError as error:  # a text that was admitted, and that this version no longer takes
        raise EvaluationError(error.message) from None


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def _transform(text: str) -> _Transform:
    tree = data_at_hand(resolve(compile_expression(text, characters_max=FILTER_CANONICAL_CHARACTERS_MAX).tree()))
    return _Transform(compile_expression(unparse(tree), characters_max=2 * FILTER_CANONICAL_CHARACTERS_MAX), tree)


# --- admission ------------------------------------------------------------------------------------


def check_transform(text: str) -> None:
    """Refuses a text that is no transform, or can make no event: FilterError says of what part, and why."""
    try:
        tree = compile_expression(text).tree()
        check_limits(tree)
        for one in _maps(text, tree):
            _check_map(text, one)
    except FilterError as error:
        raise error.at_field("transform") from None


def _refusal(text: str, name: str, reason: str, hint: str = "") -> FilterError:
    """The refusal of what a name is given."""
    place = max(text.find(f'"{name}"'), text.find(f"'{name}'"))
    return FilterError(reason, hint=hint).at(text, place if place >= 0 else None)


def _maps(text: str, tree: Node) -> Iterator[MapOf]:
    """The maps one of which is the value."""
    match tree:
        case MapOf():
            yield tree
        case Conditional(_, then, otherwise):
            yield from _maps(text, then)
            yield from _maps(text, otherwise)
        case _:
            reason = "a transform is a map of attributes and data, or a condition between such maps"
            raise FilterError(reason, hint=_EXAMPLE).at(text, offset_in(text, tree))


def _check_map(text: str, found: MapOf) -> None:
    constants: dict[str, object] = {}
    names: set[str] = set()
    for key, value in found.entries:
        if not isinstance(key, Literal) or not isinstance(name := key.value, str):
            raise FilterError("the name of an attribute is a text in quotes", hint=_EXAMPLE)
        if name in names:
            raise _refusal(text, name, f"{name} is there twice")
        names.add(name)
        if name == "specversion" or name in ATTRIBUTES:
            raise _refusal(text, name, f"{name} is the broker's own, and stays as it is")
        if _is_ce(value):
            raise _refusal(text, name, "ce as a whole is no value", "name its attributes: ce.type")
        if name == _DATA:
            continue
        if not is_name(name):
            raise _refusal(text, name, f"{name[:64]!r} is no attribute's name: it has letters a-z and digits alone")
        if isinstance(value, MapOf | ListOf):
            raise _refusal(text, name, f"{name} is an attribute: a text, an integer or a boolean", "data may be more")
        if isinstance(value, Literal):
            if value.value is None and name in REQUIRED_ATTRIBUTES:
                raise _refusal(text, name, f"every event has {name}, null cannot remove it")
            constants[name] = value.value
    try:
        make_event(_SAMPLE | constants, DataKind.NONE, None)
    except EventError as error:
        raise FilterError(error.message, hint=error.hint) from None


def _is_ce(value: Node) -> bool:
    """Whether all attributes at once are a value, or part of one: there are names of the evaluator's own among them."""
    if isinstance(value, MapOf | ListOf | Conditional):
        return any(map(_is_ce, children(value)))
    return value == Name("ce")


# --- the event ------------------------------------------------------------------------------------


def _made(event: Event, named: dict[Any, Any]) -> Event:
    """The event with what a transform names, which is consumed; EventError where that is none."""
    schema = _SCHEMA if event.specversion == "1.0" else "schemaurl"
    attributes: dict[str, object] = {
        **event.extensions,
        "specversion": event.specversion,
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "subject": event.subject,
        "time": event.time,
        _CONTENT_TYPE: event.datacontenttype,
        schema: event.dataschema,
    }
    data = named.pop(_DATA, _KEPT)
    plain = True  # what stays as it is has been checked
    for name, value in named.items():
        if type(value) is str:
            plain = plain and value.isprintable()
        else:
            value = _attribute(name, value)
        attributes[schema if name == _SCHEMA else name] = value
    content_type = attributes[_CONTENT_TYPE]
    media = media_type(content_type) if type(content_type) is str else None
    says_json = content_type is None or (media is not None and media.is_json)
    kind, body = _data(event, attributes, data, is_named=_CONTENT_TYPE in named, says_json=says_json)
    return make_event(attributes, kind, body, plain=plain, media=media)


def _attribute(name: str, value: object) -> object:
    """CloudEvents' text of a value of a type that has one."""
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case bytearray():
            return base64.b64encode(value).decode()
        case timedelta():
            raise EventError("must be a string, an integer or a boolean, not a duration", attribute=name)
        case None if name in REQUIRED_ATTRIBUTES:
            raise EventError("every event has it, null cannot remove it", attribute=name)
        case _:
            return value


def _data(
    event: Event, attributes: dict[str, object], value: object, *, is_named: bool, says_json: bool
) -> tuple[DataKind, bytes | None]:
    """The kind and the bytes of the data; the content type follows them unless it `is_named`."""
    if value is _KEPT:
        if is_named and event.data is not None and says_json != (event.data_kind is DataKind.JSON):
            raise EventError("says JSON of other data, or the other way round: name data, too", attribute=_CONTENT_TYPE)
        return event.data_kind, event.data
    if value is None:
        if not is_named:
            attributes[_CONTENT_TYPE] = None
        return DataKind.NONE, None
    if is_named and not says_json:
        if type(value) is not str:
            raise EventError("must be a text, because datacontenttype is not JSON", attribute=_DATA)
        kind, data = DataKind.TEXT, value.encode()
    else:
        _check_json(value)
        if not says_json or attributes[_CONTENT_TYPE] is None:
            attributes[_CONTENT_TYPE] = _JSON
        try:
            kind, data = DataKind.JSON, _encode(value)
        except TypeError:  # a type, or a message of protobuf
            raise EventError("holds a value which JSON does not have", attribute=_DATA) from None
    if len(data) > EVENT_BYTES_MAX:
        raise EventError(f"has {len(data)} bytes: the limit is {EVENT_BYTES_MAX} (EVENT_BYTES_MAX)", attribute=_DATA)
    return kind, data


def _check_json(value: object) -> None:
    """Refuses what would be written as something else: numbers that JSON does not have, keys that are no texts."""
    if type(value) is float:
        if not math.isfinite(value):
            raise EventError(f"holds the number {value}, which JSON does not have", attribute=_DATA)
    elif type(value) is dict:
        for key, one in value.items():
            if type(key) is not str:
                raise EventError(f"holds a map with the key {key!r}, which is no text", attribute=_DATA)
            _check_json(one)
    elif type(value) is list:
        for one in value:
            _check_json(one)
