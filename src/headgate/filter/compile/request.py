"""A filter as a request brings it: CEL text, JSON as in a trigger's spec, or a message of `rpc/pulsar.proto`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from headgate.filter.cel.errors import FilterError
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.dialects import DIALECTS
from headgate.filter.dialects.subscriptions import NAMES
from headgate_api.errors import InvalidInputError
from headgate_api.event.json_text import AmbiguousJsonError, decode_strictly
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc import pulsar_pb2 as wire

_T = TypeVar("_T")
_NOT_READ: Final = (msgspec.DecodeError, UnicodeEncodeError, RecursionError, AmbiguousJsonError)

_HINT: Final = "CEL text, or JSON as in a trigger's spec"
WHOLE: Final = ("filter", "filters")
"""A trigger's `spec.filter` and `spec.filters`, where a dialect can be named."""
KNOWN: Final = (*DIALECTS, *NAMES, *WHOLE)
"""What can be named there."""
_TEXTS: Final = frozenset({"expression", "cel", "cesql", "jms"})
"""Dialects whose values are texts: what begins like JSON is none there."""


def filter_of(given: str | Mapping[str, object]) -> Mapping[str, object]:
    """One field of a request as `spec.filter`: an object as it is or as JSON text (else FilterError), or CEL text."""
    if not isinstance(given, str):
        return given
    return _json(given, "filter", dict[str, object]) if given.lstrip()[:1] == "{" else {"cel": given}


def condition(given: str | Mapping[str, object] | Sequence[object], field: str) -> str:
    """The canonical CEL of a place's condition; empty for none.

    It is CEL, an object as in `spec.filter` or its JSON text, or a list as in `spec.filters`.
    """
    if not given:
        return ""
    try:
        if isinstance(given, str | Mapping):
            return compile_filter(filter_of(given)).cel
        return compile_filter(None, given).cel
    except FilterError as error:
        raise error.at_field(error.field.replace("filter", field, 1)) from None


def filter_and_filters(one: str | None, listed: str | None) -> tuple[Mapping[str, object] | None, Sequence[object]]:
    """Texts as `spec.filter` and `spec.filters`, None where the request has none; FilterError when they are no JSON."""
    return None if one is None else filter_of(one), [] if listed is None else _json(listed, "filters", list[object])


def spec_of(dialect: str, value: object) -> tuple[Mapping[str, object] | None, Sequence[object]]:
    """A filter in one dialect of KNOWN as `spec.filter` and `spec.filters`; FilterError when there is none such.

    `value` is as JSON has it; of a dialect that takes JSON, also its text.
    """
    if dialect not in KNOWN:
        raise FilterError(f"unknown dialect {dialect[:64]!r}", field="dialect", hint=f"one of: {', '.join(KNOWN)}")
    if isinstance(value, str) and dialect not in _TEXTS and value.lstrip()[:1] in ("{", "["):
        try:
            value = decode_strictly(value.encode(), dict[str, object] | list[object])
        except _NOT_READ as error:
            raise FilterError(f"the text is no JSON object or list: {error}", field=dialect) from None
    if dialect in NAMES:
        return None, [{dialect: value}]
    if dialect not in WHOLE:
        return {dialect: value}, []
    if isinstance(value, dict) and dialect == "filter":
        return value, []
    if isinstance(value, list) and dialect == "filters":
        return None, value
    raise FilterError(f"must be JSON: {'an object' if dialect == 'filter' else 'a list'}", field=dialect)


def text_of_message(expression: wire.Expr) -> str:
    """A filter expression's message as the JSON text of a filter."""
    raw = expression.SerializeToString(deterministic=True)
    return msgspec.json.encode({"pulsar": base64.b64encode(raw).decode()}).decode()


def texts_of(message: pb.Filter) -> tuple[str | None, str | None]:
    """What a `Filter` message holds, as `filter_and_filters` reads it; InvalidInputError: one filter twice."""
    given = [text for text in (message.filter, message.cel) if text]
    if message.HasField("expression"):
        given.append(text_of_message(message.expression))
    if len(given) > 1:
        raise InvalidInputError("filter, cel and expression each say one filter: give one of them")
    return given[0] if given else None, message.filters or None


def _json(text: str, name: str, kind: type[_T]) -> _T:
    try:
        return decode_strictly(text.encode(), kind)
    except _NOT_READ as error:
        raise FilterError(str(error), field=name, hint=_HINT) from None
