"""An event pattern's JSON as fields with matchers, every rule of the language checked, and its items arranged.

The language is that of Amazon EventBridge and its library event-ruler: values stand in arrays, of which one must match;
members of an object must all match; `$or` lists alternatives. Of a field given twice the later one counts.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]
from typing import Final

from headgate.filter.cel.ast import INT64_MIN, UINT64_MAX
from headgate.filter.cel.errors import FilterError, over_limit
from headgate_api.event.json_text import refuse_constant
from headgate_api.limits import (
    FILTER_CHARACTERS_MAX,
    FILTER_DEPTH_MAX,
    FILTER_LIST_ITEMS_MAX,
    PATTERN_FIELDS_MAX,
    PATTERN_WILDCARDS_MAX,
)

# --- the pattern in its text ----------------------------------------------------------------------
# The JSON of an event pattern, and faults that name the place in its text.
#
# A pattern comes as a JSON object inside a filter or as the text of one. Only in text are number literals and places
# still to be seen, so a fault has a path always and a position in text.

Step = str | int
"""A member's name or an element's index."""

_SPACE: Final = " \t\n\r"
_DECODER: Final = JSONDecoder()


class Pattern:
    """A decoded pattern, from an object or its text, to speak of places in it; FilterError when it is no JSON."""

    def __init__(self, value: object, field: str) -> None:
        self._field = field
        self._text = value if isinstance(value, str) else None
        self.root = value if self._text is None else self._decode(self._text)

    def fault(self, path: tuple[Step, ...], reason: str, *, hint: str = "", limit: str = "") -> FilterError:
        field = self._field + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        refusal = FilterError(reason, field=field, hint=hint, limit=limit)
        return refusal if self._text is None else refusal.at(self._text, _position(self._text, path))

    def _decode(self, text: str) -> object:
        if len(text) > FILTER_CHARACTERS_MAX:
            raise over_limit("FILTER_CHARACTERS_MAX", f"has {len(text)} characters", field=self._field)
        try:
            return json.loads(
                text, parse_float=_float, parse_constant=refuse_constant, object_pairs_hook=_without_duplicates
            )
        except json.JSONDecodeError as error:
            raise FilterError(f"is no JSON: {error.msg}", field=self._field).at(text, error.pos) from None
        except RecursionError:
            raise FilterError("is nested too deeply", field=self._field) from None
        except ValueError as error:
            raise FilterError(str(error), field=self._field) from None


def _float(literal: str) -> float:
    number = float(literal)
    mantissa = literal.lower().partition("e")[0]
    if math.isinf(number) or (number == 0 and any(digit in mantissa for digit in "123456789")):
        raise ValueError(f"the number {literal} is outside the range of a double")
    return number


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{json.dumps(twice)} is given twice in one object")
    return made


def _position(text: str, path: tuple[Step, ...]) -> int:
    """Offset of the value at `path` in JSON text that is known to be well-formed; of the nearest one around it else."""
    at = _skip(text, 0)
    for step in path:
        found = _member(text, at, step) if text[at] == "{" else _element(text, at, step) if text[at] == "[" else None
        if found is None:
            break
        at = found
    return at


def _member(text: str, at: int, step: Step) -> int | None:
    at = _skip(text, at + 1)
    while text[at] != "}":
        name, at = scanstring(text, at + 1)
        at = _skip(text, _skip(text, at) + 1)
        if name == step:
            return at
        at = _next(text, at)
    return None


def _element(text: str, at: int, step: Step) -> int | None:
    at, index = _skip(text, at + 1), 0
    while text[at] != "]":
        if index == step:
            return at
        at, index = _next(text, at), index + 1
    return None


def _next(text: str, at: int) -> int:
    """Where the value or the bracket after the value at `at` is."""
    at = _skip(text, _DECODER.raw_decode(text, at)[1])
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


# --- rules ----------------------------------------------------------------------------------------

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Exact:
    """The value itself."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Affix:
    """A string that begins or ends so; `function` is CEL's: `startsWith` or `endsWith`."""

    function: str
    text: str
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class IgnoreCase:
    """A string that differs at most in case."""

    text: str


@dataclass(frozen=True, slots=True)
class Wildcard:
    """A string of these pieces with anything between them; one piece is the whole string."""

    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Numeric:
    """A number within bounds: operators of CEL and numbers."""

    bounds: tuple[tuple[str, int | float], ...]


@dataclass(frozen=True, slots=True)
class Cidr:
    """A string that is an IP address of the network."""

    network: ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class AnythingBut:
    """A value that none of these match."""

    unwanted: tuple[Exact | Affix | IgnoreCase | Wildcard, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    """There is a value, or there is none."""

    wanted: bool


Matcher = Exact | Affix | IgnoreCase | Wildcard | Numeric | Cidr | AnythingBut | Exists


@dataclass(frozen=True, slots=True)
class Field:
    """A path of member names as they are written, and the matchers of which one must match."""

    names: tuple[str, ...]  # from the root of the event
    matchers: tuple[Matcher, ...]  # at least one
    place: tuple[Step, ...]  # path inside the pattern, for errors


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Alternatives: every one is a list of items that must all hold."""

    branches: tuple[tuple[Item, ...], ...]


Item = Field | AnyOf

_OR: Final = "$or"
_OPERATORS: Final = (
    *("anything-but", "cidr", "equals-ignore-case", "exactly", "exists"),
    *("numeric", "prefix", "suffix", "wildcard"),
)
_AFFIXES: Final = {"prefix": "startsWith", "suffix": "endsWith"}
_ESCAPED: Final = re.compile(r"\\(.?)|([^\\])", re.DOTALL)
_BITS: Final = re.compile(r"[0-9]{1,3}")


def items_of(pattern: Pattern) -> tuple[Item, ...]:
    """All that a pattern asks for, in the order in which it is written; FilterError for what event-ruler refuses."""
    if not isinstance(pattern.root, Mapping):
        raise pattern.fault((), "must be an object", hint='for instance {"source": ["aws.s3"]}')
    return _object(pattern, pattern.root, (), (), alternative=False)


def _object(
    pattern: Pattern,
    value: Mapping[object, object],
    names: tuple[str, ...],
    place: tuple[Step, ...],
    *,
    alternative: bool,
) -> tuple[Item, ...]:
    if not value:
        raise pattern.fault(place, "an object must not be empty")
    if len(place) > FILTER_DEPTH_MAX:
        reason = f"is nested deeper than {FILTER_DEPTH_MAX} (FILTER_DEPTH_MAX)"
        raise pattern.fault(place[:FILTER_DEPTH_MAX], reason, limit="FILTER_DEPTH_MAX")
    items: list[Item] = []
    for name, inner in value.items():
        if not isinstance(name, str):
            raise pattern.fault(place, "names must be strings")
        here = (*place, name)
        if name == _OR:
            items.append(_or(pattern, inner, names, here))
        elif alternative and name in _OPERATORS:
            raise pattern.fault(here, f"{name} is an operator and no name inside {_OR}")
        elif isinstance(inner, Mapping):
            items.extend(_object(pattern, inner, (*names, name), here, alternative=alternative))
        elif isinstance(inner, list):
            items.append(Field((*names, name), _matchers(pattern, inner, here), here))
        else:
            hint = f'write {{"{name}": [value]}}' if inner is None or isinstance(inner, Scalar) else ""
            raise pattern.fault(here, "must be an array of values or an object", hint=hint)
    return tuple(items)


def _or(pattern: Pattern, value: object, names: tuple[str, ...], place: tuple[Step, ...]) -> AnyOf:
    if not isinstance(value, list) or len(value) < 2:
        raise pattern.fault(place, f"{_OR} must be an array of at least two objects")
    branches = []
    for index, branch in enumerate(value):
        here = (*place, index)
        if not isinstance(branch, Mapping):
            raise pattern.fault(here, f"{_OR} must be an array of objects")
        branches.append(_object(pattern, branch, names, here, alternative=True))
    return AnyOf(tuple(branches))


def _matchers(pattern: Pattern, values: list[object], place: tuple[Step, ...]) -> tuple[Matcher, ...]:
    _check_length(pattern, values, place)
    return tuple(_matcher(pattern, value, (*place, index)) for index, value in enumerate(values))


def _check_length(pattern: Pattern, values: list[object], place: tuple[Step, ...]) -> None:
    if not values:
        raise pattern.fault(place, "an array must not be empty")
    if len(values) > FILTER_LIST_ITEMS_MAX:
        reason = f"has {len(values)} values: the limit is {FILTER_LIST_ITEMS_MAX} (FILTER_LIST_ITEMS_MAX)"
        raise pattern.fault(place, reason, limit="FILTER_LIST_ITEMS_MAX")


def _matcher(pattern: Pattern, value: object, place: tuple[Step, ...]) -> Matcher:
    if value is None or isinstance(value, Scalar):
        return Exact(_finite(pattern, value, place))
    if not isinstance(value, Mapping):
        raise pattern.fault(place, "must be a string, a number, true, false, null or an operator's object")
    operator, argument, here = _only_member(pattern, value, place)
    match operator:
        case "exactly":
            return Exact(_string(pattern, argument, here))
        case "prefix" | "suffix":
            return _affix(pattern, operator, argument, here)
        case "equals-ignore-case":
            return IgnoreCase(_string(pattern, argument, here))
        case "wildcard":
            return Wildcard(_pieces(pattern, argument, here))
        case "numeric":
            return Numeric(_bounds(pattern, argument, here))
        case "cidr":
            return Cidr(_network(pattern, argument, here))
        case "anything-but":
            return AnythingBut(_unwanted(pattern, argument, here))
        case "exists":
            if not isinstance(argument, bool):
                raise pattern.fault(here, "must be true or false")
            return Exists(argument)
        case _:
            raise pattern.fault(here, "unknown operator", hint=f"one of: {', '.join(_OPERATORS)}")


def _only_member(
    pattern: Pattern, value: Mapping[object, object], place: tuple[Step, ...]
) -> tuple[str, object, tuple[Step, ...]]:
    if len(value) != 1:
        raise pattern.fault(place, "must have exactly one operator", hint="alternatives are elements of the array")
    ((operator, argument),) = value.items()
    return str(operator), argument, (*place, str(operator))


def _affix(pattern: Pattern, operator: str, argument: object, place: tuple[Step, ...]) -> Affix:
    ignore_case = isinstance(argument, Mapping)
    if isinstance(argument, Mapping):
        inner, argument, place = _only_member(pattern, argument, place)
        if inner != "equals-ignore-case":
            raise pattern.fault(place, "unknown operator", hint="one of: equals-ignore-case")
    text = _string(pattern, argument, place)
    return Affix(_AFFIXES[operator], text, ignore_case)


def _string(pattern: Pattern, value: object, place: tuple[Step, ...]) -> str:
    if not isinstance(value, str):
        raise pattern.fault(place, "must be a string")
    return value


def _finite(pattern: Pattern, value: Scalar, place: tuple[Step, ...]) -> Scalar:
    """The value, when CEL has it: within uint64 or finite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise pattern.fault(place, "the number is outside the range of a double")
    if isinstance(value, int) and not INT64_MIN <= value <= UINT64_MAX:
        return float(value) if abs(value) < 2**1023 else _finite(pattern, math.inf, place)
    return value


def _number(pattern: Pattern, value: object, place: tuple[Step, ...]) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise pattern.fault(place, "must be a number")
    number = _finite(pattern, value, place)
    assert isinstance(number, int | float)
    return number


def _bounds(pattern: Pattern, value: object, place: tuple[Step, ...]) -> tuple[tuple[str, int | float], ...]:
    hint = 'for instance ["=", 5], ["<", 5] or [">=", 0, "<", 5]'
    if not isinstance(value, list) or len(value) not in (2, 4):
        raise pattern.fault(place, "must be an array of one or two comparisons", hint=hint)
    operator, first = value[0], _number(pattern, value[1], (*place, 1))
    if operator not in ("=", "<", "<=", ">", ">="):
        raise pattern.fault((*place, 0), "unknown comparison", hint=hint)
    if len(value) == 2:
        return (("==" if operator == "=" else str(operator), first),)
    if operator not in (">", ">="):
        raise pattern.fault((*place, 0), "a range begins with > or >=", hint=hint)
    if value[2] not in ("<", "<="):
        raise pattern.fault((*place, 2), "a range ends with < or <=", hint=hint)
    second = _number(pattern, value[3], (*place, 3))
    if first >= second:
        raise pattern.fault(place, "the lower bound must be below the upper one")
    return ((str(operator), first), (str(value[2]), second))


def _network(pattern: Pattern, value: object, place: tuple[Step, ...]) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    address, slash, bits = _string(pattern, value, place).partition("/")
    if not slash or not _BITS.fullmatch(bits):
        raise pattern.fault(place, "must be an IP address, / and a number of bits", hint="for instance 10.0.0.0/24")
    try:
        return ipaddress.ip_network(f"{address}/{bits}", strict=False)
    except ValueError:
        raise pattern.fault(place, "is no network of IPv4 or IPv6 addresses", hint="for instance 10.0.0.0/24") from None


def _pieces(pattern: Pattern, value: object, place: tuple[Step, ...]) -> tuple[str, ...]:
    pieces = [""]
    for found in _ESCAPED.finditer(_string(pattern, value, place)):
        escaped, plain = found[1], found[2]
        if plain == "*":
            if pieces[-1] == "" and len(pieces) > 1:
                raise pattern.fault(place, f"two * in a row at character {found.start() + 1}")
            pieces.append("")
        elif escaped is not None and escaped not in ("*", "\\"):
            raise pattern.fault(place, f"only * and \\ can be escaped, at character {found.start() + 1}")
        else:
            pieces[-1] += plain if escaped is None else escaped
    if len(pieces) - 1 > PATTERN_WILDCARDS_MAX:
        reason = f"has {len(pieces) - 1} wildcards: the limit is {PATTERN_WILDCARDS_MAX} (PATTERN_WILDCARDS_MAX)"
        raise pattern.fault(place, reason, limit="PATTERN_WILDCARDS_MAX")
    return tuple(pieces)


def _unwanted(
    pattern: Pattern, value: object, place: tuple[Step, ...]
) -> tuple[Exact | Affix | IgnoreCase | Wildcard, ...]:
    if isinstance(value, Mapping):
        return _unwanted_shape(pattern, value, place)
    values = value if isinstance(value, list) else [value]
    _check_length(pattern, values, place)
    kinds = {str if isinstance(item, str) else float for item in values}
    if any(isinstance(item, bool) or not isinstance(item, str | int | float) for item in values) or len(kinds) > 1:
        reason = "must be a string, a number, an array of strings or of numbers, or an operator's object"
        raise pattern.fault(place, reason)
    return tuple(Exact(_finite(pattern, item, place)) for item in values if isinstance(item, Scalar))


def _unwanted_shape(
    pattern: Pattern, value: Mapping[object, object], place: tuple[Step, ...]
) -> tuple[Affix | IgnoreCase | Wildcard, ...]:
    operator, argument, here = _only_member(pattern, value, place)
    if operator not in ("prefix", "suffix", "equals-ignore-case", "wildcard"):
        hint = "one of: prefix, suffix, equals-ignore-case, wildcard"
        raise pattern.fault(here, "unknown operator inside anything-but", hint=hint)
    arguments = argument if isinstance(argument, list) else [argument]
    _check_length(pattern, arguments, here)
    texts = [_string(pattern, item, here) for item in arguments]
    match operator:
        case "prefix" | "suffix":
            if "" in texts:
                raise pattern.fault(here, f"an empty {operator} matches every string")
            return tuple(Affix(_AFFIXES[operator], text) for text in texts)
        case "equals-ignore-case":
            return tuple(IgnoreCase(text) for text in texts)
        case _:
            return tuple(Wildcard(_pieces(pattern, text, here)) for text in texts)


# --- arrangement ----------------------------------------------------------------------------------
# Items without overridden fields and tangled `$or`s: fields that must be asked together stand together here. A pattern
# means what it means with every `$or` written out, one rule a combination of branches, in which of a path given twice
# the later one counts. Here a `$or` stays where it is, unless it shares a path or a member of the data with what stands
# beside it: only then its branches take in what it shares.

_Items = tuple[Item, ...]
_TOGETHER: Final = 2
"""Names that two paths share when they lie in one object below a root: the root and a member of it."""


def arranged(items: Iterable[Item], base: _Items = ()) -> _Items:
    """Items that hold together if and only if `base` and `items` do, no `$or` tangled with another item.

    Paths begin with the name of a root, as they are bound; `base` came before and is arranged already. Where `$or`s
    that have to be written out make too many fields, a FilterError has the limit and no field.
    """
    for item in items:
        base = _with_field(base, item) if isinstance(item, Field) else _with_any(base, item)
        if sum(1 for _ in _fields(base)) > PATTERN_FIELDS_MAX:
            raise _too_many()
    return base


def _with_field(base: _Items, field: Field) -> _Items:
    base = _without(base, _key(field))
    tangled = [item for item in base if isinstance(item, AnyOf) and _tangled((item,), (field,))]
    if not tangled:
        return (*base, field)
    rest = tuple(item for item in base if item not in tangled)
    written_out = tangled[0].branches
    for other in tangled[1:]:
        if len(written_out) * len(other.branches) > PATTERN_FIELDS_MAX:
            raise _too_many()
        written_out = tuple(arranged(branch, before) for before in written_out for branch in other.branches)
    return (*rest, AnyOf(tuple(arranged((field,), branch) for branch in written_out)))


def _with_any(base: _Items, item: AnyOf) -> _Items:
    shared = tuple(other for other in base if _tangled((other,), (item,)))
    rest = tuple(other for other in base if other not in shared)
    return (*rest, AnyOf(tuple(arranged(branch, shared) for branch in item.branches)))


def _without(items: _Items, key: str) -> _Items:
    kept: list[Item] = []
    for item in items:
        if isinstance(item, AnyOf):
            kept.append(AnyOf(tuple(_without(branch, key) for branch in item.branches)))
        elif _key(item) != key:
            kept.append(item)
    return tuple(kept)


def _tangled(left: _Items, right: _Items) -> bool:
    keys = {_key(field) for field in _fields(left)}
    members = {field.names[:_TOGETHER] for field in _fields(left) if len(field.names) > _TOGETHER}
    return any(_key(field) in keys or field.names[:_TOGETHER] in members for field in _fields(right))


def _fields(items: _Items) -> Iterator[Field]:
    for item in items:
        if isinstance(item, Field):
            yield item
        else:
            for branch in item.branches:
                yield from _fields(branch)


def _key(field: Field) -> str:
    """A path as event-ruler sees it: names joined by dots."""
    return ".".join(field.names)


def _too_many() -> FilterError:
    return over_limit("PATTERN_FIELDS_MAX", "has too many fields with its $or written out", field="filter")
