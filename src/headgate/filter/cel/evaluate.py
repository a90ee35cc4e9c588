"""Evaluation of a filter on an event. cel-cpp decides: every other part is measured by it.

`ce` holds the attributes that are present, `time` as a timestamp. `data` is the decoded JSON; for any other data, and
for JSON that CEL cannot hold (NUL in a string), there is none, and a filter that reads it has an error. `publish_time`
is when the broker stored the event: the append time of its chunk, to the millisecond below it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Final

import msgspec

from headgate.filter.cel.ast import INT64_MIN, PUBLISH_TIME, UINT64_MAX, Node, in_cel_years, reads_publish_time
from headgate.filter.cel.budget import Budget, EventSize, is_unlimited
from headgate.filter.cel.build import TIME_TEXT, members
from headgate.filter.cel.engine import Activation, Expression, FilterOutcome, OutcomeKind, compile_expression, timestamp
from headgate.filter.cel.functions import FoundCounts, data_at_hand
from headgate.filter.cel.reads import EVERYTHING, Reads
from headgate.filter.cel.rewrite import resolve
from headgate.filter.cel.unparse import unparse
from headgate_api.event import rfc3339
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES
from headgate_api.event.json_text import NUL_ESCAPED, refuse_constant
from headgate_api.event.model import DataKind, Event, ExtensionValue
from headgate_api.limits import FILTER_CANONICAL_CHARACTERS_MAX, FILTERS_CACHED_MAX

__all__ = ["EventView", "FilterOutcome", "OutcomeKind", "Program", "program"]

JsonValue = str | int | float | bool | list["JsonValue"] | dict[str, "JsonValue"] | None
"""Decoded JSON. An int lies within int64 or uint64; every other number is a float."""

_LONG_NUMBER: Final = b"0" * 19
_DIGITS_AS_ZEROS: Final = bytes(ord("0" if chr(byte).isdecimal() else " ") for byte in range(256))
"""With it a long number is found ten times as fast as by a regular expression."""
_DIGITS_MAX: Final = len(str(UINT64_MAX))
"""Also of the smallest int64 with its sign."""
_VALUES_COUNTED_MAX: Final = 20_000
"""JSON values that are looked at one by one for an event's size: some 2 ms."""


class EventView:
    """One event as filters see it; keep it to evaluate several programs on the same event.

    Without `stored_us` (when it was stored, since 1970 UTC) a filter that reads `publish_time` has an error.
    """

    def __init__(self, event: Event, stored_us: int | None = None) -> None:
        self.event = event
        self.publish_time_us = None if stored_us is None else publish_time_us(stored_us)

    @cached_property
    def attributes(self) -> dict[str, ExtensionValue]:
        """Attributes, extensions and members of these by name, as they were sent; `time` is its text."""
        event = self.event
        found = dict(event.extensions)
        for name, value in event.extensions.items():
            if type(value) is dict:
                found.update(members(name, value))
        found.update(specversion=event.specversion, id=event.id, source=event.source, type=event.type)
        if event.subject is not None:
            found["subject"] = event.subject
        if event.time is not None:
            found["time"] = found[TIME_TEXT] = event.time
        if event.datacontenttype is not None:
            found["datacontenttype"] = event.datacontenttype
        if event.dataschema is not None:
            found["dataschema"] = event.dataschema
        return found

    @cached_property
    def json(self) -> tuple[JsonValue] | None:
        """The decoded JSON data in a tuple of one (data may be null); None when there is none that CEL can hold."""
        return self._json(_DECODER.decode)

    def _json(self, decode: Callable[[bytes], JsonValue]) -> tuple[JsonValue] | None:
        event = self.event
        if event.data_kind is not DataKind.JSON or event.data is None:
            return None
        return decode_json(event.data, decode)

    @cached_property
    def rough_size(self) -> EventSize:
        """How large the event is, from above, in what counts for the cost of evaluating something on it."""
        data = self.event.data or b""
        attributes = sum(len(value.encode()) for value in self.attributes.values() if isinstance(value, str))
        if len(self.attributes) > len(self.event.extensions) + len(CONTEXT_ATTRIBUTES) + 1:  # and the text of `time`
            attributes += sum(len(name.encode()) for name in self.attributes)  # names of members are texts, too
        more = data.count(b",")
        return EventSize(attributes, len(data), more + 1, more + data.count(b"["), len(data))

    @cached_property
    def size(self) -> EventSize:
        """The same more closely; of JSON with very many values the rough one."""
        rough = self.rough_size
        if self.json is None or rough.items > _VALUES_COUNTED_MAX:
            return rough
        items = elements = text = 0
        waiting: list[JsonValue] = [self.json[0]]
        while waiting:
            value = waiting.pop()
            if isinstance(value, str):
                text = max(text, len(value))
            elif isinstance(value, dict):
                items = max(items, len(value))
                waiting.extend(value.values())
            elif isinstance(value, list):
                items = max(items, len(value))
                elements += len(value)
                waiting.extend(value)
        text_bytes = min(4 * text, rough.data_bytes)
        counts = FoundCounts(self.json[0], elements)
        return EventSize(rough.attributes_bytes, rough.data_bytes, items, elements, text_bytes, counts)

    @cached_property
    def activation(self) -> Activation:
        """All variables, for any number of expressions."""
        return Activation(self.variables(EVERYTHING))

    def for_one(self, reads: Reads) -> Activation | dict[str, object]:
        """What a single expression is evaluated on: what it reads, or all variables where others have had them made."""
        made: Activation | None = vars(self).get("activation")
        return made or self.variables(reads)

    def variables(self, reads: Reads) -> dict[str, object]:
        """The variables of an expression, as far as it reads them."""
        found: dict[str, object] = {}
        names = reads.attributes
        if names is None or names:
            of = self.attributes
            values: dict[str, object] = {name: of[name] for name in names if name in of} if names else {**of}
            if self.event.time is not None and "time" in values:
                values["time"] = _timestamp(self.event.time)
            found["ce"] = values
        if reads.data:
            data = self.json if reads.decode is None else self._json(reads.decode)
            if data is not None:
                found["data"] = data[0]
        if reads.publish_time and self.publish_time_us is not None:
            seconds, micros = divmod(self.publish_time_us, 1_000_000)
            found[PUBLISH_TIME] = timestamp(seconds, micros * 1_000)
        return found


def publish_time_us(stored_us: int) -> int:
    """`publish_time` of what was stored then, microseconds since 1970 UTC: a whole number of milliseconds."""
    return stored_us - stored_us % 1_000


_DECODER: Final = msgspec.json.Decoder()


def decode_json(text: bytes, decode: Callable[[bytes], JsonValue] = _DECODER.decode) -> tuple[JsonValue] | None:
    """Decodes JSON the way CEL reads it, in a tuple of one; None when it is no JSON or CEL cannot hold it.

    Integers beyond int64 and uint64 become doubles. Of a name given twice the last value counts. `decode` may leave out
    what is not read; it is not asked where it does not take the text, or may make of it what CEL does not read.
    """
    if b"\\" in text and b"\\u0000" in text and NUL_ESCAPED.search(text) is not None:
        return None  # cel-expr-python would cut the string there
    if _LONG_NUMBER not in text.translate(_DIGITS_AS_ZEROS):
        try:
            return (decode(text),)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return _decode_slowly(text)


def _decode_slowly(text: bytes) -> tuple[JsonValue] | None:
    """Also what msgspec refuses and JSON allows: numbers beyond a double, which become infinite."""
    try:
        value = json.loads(text.decode(), parse_constant=refuse_constant, parse_int=_within_64_bits)
        if b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # lone surrogates have no UTF-8, and come by escapes alone
    except (ValueError, RecursionError):
        return None
    return (value,)


def _within_64_bits(digits: str) -> int | float:
    """An integer as it is read: while it is parsed, as a walk through what was parsed may go too deep."""
    if len(digits) <= _DIGITS_MAX and INT64_MIN <= (value := int(digits)) <= UINT64_MAX:
        return value
    return float(digits)


def _timestamp(text: str) -> object:
    """A CEL timestamp, or null for an instant outside CEL's years: present, but without an order."""
    micros = rfc3339.micros(text)
    if micros is None:
        return None
    seconds = micros // 1_000_000
    if not in_cel_years(seconds):
        return None
    fraction = text.partition(".")[2]
    digits = re.match(r"[0-9]*", fraction)
    return timestamp(seconds, int((digits[0] if digits else "")[:9].ljust(9, "0")))


class Program:
    """A filter, ready to be evaluated on any number of events."""

    __slots__ = ("_budget", "_expression", "cel", "reads_publish_time")

    def __init__(self, cel: str, expression: Expression, tree: Node) -> None:
        self.cel = cel
        self.reads_publish_time = reads_publish_time(tree)
        self._expression = expression
        self._budget = None if is_unlimited(tree) else Budget(tree)

    def evaluate(self, event: Event, stored_us: int | None = None) -> FilterOutcome:
        """The filter's value on `event`. Never raises; whatever is not true or false is an ERROR with its reason."""
        return self.evaluate_view(EventView(event, stored_us))

    def evaluate_view(self, view: EventView) -> FilterOutcome:
        """The same on a view that several programs share: the event is decoded and converted once. Never raises."""
        if self._budget is not None and (refusal := self.refusal(view)):
            return FilterOutcome(OutcomeKind.ERROR, refusal)
        return self._expression.evaluate(view.activation)

    @property
    def is_unlimited(self) -> bool:
        """Whether the filter is evaluated on every event: none is so large that it would take too long."""
        return self._budget is None

    def refusal(self, view: EventView) -> str:
        """Why the filter is not evaluated on this event, which it might take too long on; empty when it is."""
        return "" if self._budget is None else self._budget.refuses(view.rough_size, lambda: view.size)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def program(cel_text: str) -> Program:
    """The program of a CEL text, canonical or not; limits are checked by admission (`compile_cel`), not here."""
    expression = compile_expression(cel_text, characters_max=FILTER_CANONICAL_CHARACTERS_MAX)
    tree = expression.tree()
    resolved = resolve(tree)
    evaluated = data_at_hand(resolved)
    if evaluated != tree:
        expression = compile_expression(unparse(evaluated), characters_max=2 * FILTER_CANONICAL_CHARACTERS_MAX)
    return Program(cel_text if resolved == tree else unparse(resolved), expression, evaluated)
