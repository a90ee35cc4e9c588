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
from dataclasses import dataclass, replace
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]
from typing import Final

from headgate.filter.cel.ast import INT64_MIN, UINT64_MAX
from headgate.filter.cel.errors import FilterError, known_names, over_limit
from headgate_api.event.json_text import refuse_constant
from headgate_api.limits import (
    FILTER_CHARACTERS_MAX,
    FILTER_DEPTH_MAX,
    FILTER_LIST_ITEMS_MAX,
    PATTERN_FIELDS_MAX,
    PATTERN_WILDCARDS_MAX,
)

# --- the pattern in its text ----------------------------------------------------------------------
# A pattern comes as a JSON object inside a filter or as the text of one. Only in text are number literals and places
# still to be seen, so a fault has a path always and a position in text.

Step = str | int
"""A member's name or an element's index."""

_SPACE: Final = " \t\n\r"
_DECODER: Final = JSONDecoder()


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where something stands in a pattern: by its path, and by its position where the pattern is a text."""

    field: str
    text: str | None
    path: tuple[Step, ...] = ()

    def below(self, step: Step) -> Place:
        return Place(self.field, self.text, (*self.path, step))

    def fault(self, reason: str, *, hint: str = "", limit: str = "") -> FilterError:
        field = self.field + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        refusal = FilterError(reason, field=field, hint=hint, limit=limit)
        return refusal if self.text is None else refusal.at(self.text, _position(self.text, self.path))


def _decoded(text: str, field: str) -> object:
    if len(text) > FILTER_CHARACTERS_MAX:
        raise over_limit("FILTER_CHARACTERS_MAX", f"has {len(text)} characters", field=field)
    try:
        return json.loads(
            text, parse_float=_float, parse_constant=refuse_constant, object_pairs_hook=_without_duplicates
        )
    except json.JSONDecodeError as error:
        raise FilterError(f"is no JSON: {error.msg}", field=field).at(text, error.pos) from None
    except RecursionError:
        raise FilterError("is nested too deeply", field=field) from None
    except ValueError as error:
        raise FilterError(str(error), field=field) from None


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
        found = _inside(text, at, step) if text[at] in "{[" else None
        if found is None:
            break
        at = found
    return at


def _inside(text: str, at: int, step: Step) -> int | None:
    """Where the member or the element of the value at `at` is."""
    is_object = text[at] == "{"
    at, index = _skip(text, at + 1), 0
    while text[at] not in "}]":
        here: Step = index
        if is_object:
            here, at = scanstring(text, at + 1)
            at = _skip(text, _skip(text, at) + 1)
        if here == step:
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
    place: Place  # for errors


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


def items_of(value: object, field: str) -> tuple[Item, ...]:
    """All that a pattern, an object or its text, asks for, in the order in which it is written.

    FilterError for what is no JSON, and for what event-ruler refuses.
    """
    text = value if isinstance(value, str) else None
    root = value if text is None else _decoded(text, field)
    place = Place(field, text)
    if not isinstance(root, Mapping):
        raise place.fault("must be an object", hint='for instance {"source": ["aws.s3"]}')
    return _object(root, (), place, alternative=False)


def _object(
    value: Mapping[object, object], names: tuple[str, ...], place: Place, *, alternative: bool
) -> tuple[Item, ...]:
    if not value:
        raise place.fault("an object must not be empty")
    if len(place.path) > FILTER_DEPTH_MAX:
        reason = f"is nested deeper than {FILTER_DEPTH_MAX} (FILTER_DEPTH_MAX)"
        place = replace(place, path=place.path[:FILTER_DEPTH_MAX])
        raise place.fault(reason, limit="FILTER_DEPTH_MAX")
    items: list[Item] = []
    for name, inner in value.items():
        if not isinstance(name, str):
            raise place.fault("names must be strings")
        here = place.below(name)
        if name == _OR:
            items.append(_or(inner, names, here))
        elif alternative and name in _OPERATORS:
            raise here.fault(f"{name} is an operator and no name inside {_OR}")
        elif isinstance(inner, Mapping):
            items.extend(_object(inner, (*names, name), here, alternative=alternative))
        elif isinstance(inner, list):
            items.append(Field((*names, name), _matchers(inner, here), here))
        else:
            hint = f'write {{"{name}": [value]}}' if isinstance(inner, Scalar) else ""
            raise here.fault("must be an array of values or an object", hint=hint)
    return tuple(items)


def _or(value: object, names: tuple[str, ...], place: Place) -> AnyOf:
    if not isinstance(value, list) or len(value) < 2:
        raise place.fault(f"{_OR} must be an array of at least two objects")
    branches = []
    for index, branch in enumerate(value):
        here = place.below(index)
        if not isinstance(branch, Mapping):
            raise here.fault(f"{_OR} must be an array of objects")
        branches.append(_object(branch, names, here, alternative=True))
    return AnyOf(tuple(branches))


def _matchers(values: list[object], place: Place) -> tuple[Matcher, ...]:
    _check_length(values, place)
    return tuple(_matcher(value, place.below(index)) for index, value in enumerate(values))


def _check_length(values: list[object], place: Place) -> None:
    if not values:
        raise place.fault("an array must not be empty")
    if len(values) > FILTER_LIST_ITEMS_MAX:
        reason = f"has {len(values)} values: the limit is {FILTER_LIST_ITEMS_MAX} (FILTER_LIST_ITEMS_MAX)"
        raise place.fault(reason, limit="FILTER_LIST_ITEMS_MAX")


def _matcher(value: object, place: Place) -> Matcher:
    if isinstance(value, Scalar):
        return Exact(_finite(value, place))
    if not isinstance(value, Mapping):
        raise place.fault("must be a string, a number, true, false, null or an operator's object")
    operator, argument, here = _only_member(value, place)
    match operator:
        case "exactly":
            return Exact(_string(argument, here))
        case "prefix" | "suffix":
            return _affix(operator, argument, here)
        case "equals-ignore-case" | "wildcard":
            return _of_text(operator, _string(argument, here), here)
        case "numeric":
            return Numeric(_bounds(argument, here))
        case "cidr":
            return Cidr(_network(argument, here))
        case "anything-but":
            return AnythingBut(_unwanted(argument, here))
        case "exists":
            if not isinstance(argument, bool):
                raise here.fault("must be true or false")
            return Exists(argument)
        case _:
            raise here.fault("unknown operator", hint=known_names(_OPERATORS, operator))


def _only_member(value: Mapping[object, object], place: Place) -> tuple[str, object, Place]:
    if len(value) != 1:
        raise place.fault("must have exactly one operator", hint="alternatives are elements of the array")
    ((operator, argument),) = value.items()
    return str(operator), argument, place.below(str(operator))


def _affix(operator: str, argument: object, place: Place) -> Affix:
    ignore_case = isinstance(argument, Mapping)
    if isinstance(argument, Mapping):
        inner, argument, place = _only_member(argument, place)
        if inner != "equals-ignore-case":
            raise place.fault("unknown operator", hint=known_names(["equals-ignore-case"], inner))
    text = _string(argument, place)
    return Affix(_AFFIXES[operator], text, ignore_case)


def _string(value: object, place: Place) -> str:
    if not isinstance(value, str):
        raise place.fault("must be a string")
    return value


def _finite(value: Scalar, place: Place) -> Scalar:
    """The value, when CEL has it: within uint64 or finite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise place.fault("the number is outside the range of a double")
    if isinstance(value, int) and not INT64_MIN <= value <= UINT64_MAX:
        return float(value) if abs(value) < 2**1023 else _finite(math.inf, place)
    return value


def _number(value: object, place: Place) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.fault("must be a number")
    number = _finite(value, place)
    assert isinstance(number, int | float)
    return number


def _bounds(value: object, place: Place) -> tuple[tuple[str, int | float], ...]:
    hint = 'for instance ["=", 5], ["<", 5] or [">=", 0, "<", 5]'
    if not isinstance(value, list) or len(value) not in (2, 4):
        raise place.fault("must be an array of one or two comparisons", hint=hint)
    operator, first = value[0], _number(value[1], place.below(1))
    if operator not in ("=", "<", "<=", ">", ">="):
        raise place.below(0).fault("unknown comparison", hint=hint)
    if len(value) == 2:
        return (("==" if operator == "=" else str(operator), first),)
    if operator not in (">", ">="):
        raise place.below(0).fault("a range begins with > or >=", hint=hint)
    if value[2] not in ("<", "<="):
        raise place.below(2).fault("a range ends with < or <=", hint=hint)
    second = _number(value[3], place.below(3))
    if first >= second:
        raise place.fault("the lower bound must be below the upper one")
    return ((str(operator), first), (str(value[2]), second))


def _network(value: object, place: Place) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    address, slash, bits = _string(value, place).partition("/")
    if not slash or not _BITS.fullmatch(bits):
        raise place.fault("must be an IP address, / and a number of bits", hint="for instance 10.0.0.0/24")
    try:
        return ipaddress.ip_network(f"{address}/{bits}", strict=False)
    except ValueError:
        raise place.fault("is no network of IPv4 or IPv6 addresses", hint="for instance 10.0.0.0/24") from None


def _pieces(text: str, place: Place) -> tuple[str, ...]:
    pieces = [""]
    for found in _ESCAPED.finditer(text):
        escaped, plain = found[1], found[2]
        if plain == "*":
            if pieces[-1] == "" and len(pieces) > 1:
                raise place.fault(f"two * in a row at character {found.start() + 1}")
            pieces.append("")
        elif escaped is not None and escaped not in ("*", "\\"):
            raise place.fault(f"only * and \\ can be escaped, at character {found.start() + 1}")
        else:
            pieces[-1] += plain if escaped is None else escaped
    if len(pieces) - 1 > PATTERN_WILDCARDS_MAX:
        reason = f"has {len(pieces) - 1} wildcards: the limit is {PATTERN_WILDCARDS_MAX} (PATTERN_WILDCARDS_MAX)"
        raise place.fault(reason, limit="PATTERN_WILDCARDS_MAX")
    return tuple(pieces)


def _unwanted(value: object, place: Place) -> tuple[Exact | Affix | IgnoreCase | Wildcard, ...]:
    if isinstance(value, Mapping):
        return _unwanted_shape(value, place)
    values = value if isinstance(value, list) else [value]
    _check_length(values, place)
    kinds = {str if isinstance(item, str) else float for item in values}
    if any(isinstance(item, bool) or not isinstance(item, str | int | float) for item in values) or len(kinds) > 1:
        reason = "must be a string, a number, an array of strings or of numbers, or an operator's object"
        raise place.fault(reason)
    return tuple(Exact(_finite(item, place)) for item in values if isinstance(item, Scalar))


def _unwanted_shape(value: Mapping[object, object], place: Place) -> tuple[Affix | IgnoreCase | Wildcard, ...]:
    operator, argument, here = _only_member(value, place)
    known = ("prefix", "suffix", "equals-ignore-case", "wildcard")
    if operator not in known:
        raise here.fault("unknown operator inside anything-but", hint=known_names(known, operator))
    arguments = argument if isinstance(argument, list) else [argument]
    _check_length(arguments, here)
    texts = [_string(item, here) for item in arguments]
    if operator in _AFFIXES and "" in texts:
        raise here.fault(f"an empty {operator} matches every string")
    return tuple(_of_text(operator, text, here) for text in texts)


def _of_text(operator: str, text: str, place: Place) -> Affix | IgnoreCase | Wildcard:
    if operator in _AFFIXES:
        return Affix(_AFFIXES[operator], text)
    return IgnoreCase(text) if operator == "equals-ignore-case" else Wildcard(_pieces(text, place))


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
        if sum(1 for _ in fields_of(base)) > PATTERN_FIELDS_MAX:
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
    keys = {_key(field) for field in fields_of(left)}
    members = {field.names[:_TOGETHER] for field in fields_of(left) if len(field.names) > _TOGETHER}
    return any(_key(field) in keys or field.names[:_TOGETHER] in members for field in fields_of(right))


def fields_of(items: Iterable[Item]) -> Iterator[Field]:
    """All fields, those of alternatives among them."""
    for item in items:
        if isinstance(item, Field):
            yield item
        else:
            for branch in item.branches:
                yield from fields_of(branch)


def _key(field: Field) -> str:
    """A path as event-ruler sees it: names joined by dots."""
    return ".".join(field.names)


def _too_many() -> FilterError:
    return over_limit("PATTERN_FIELDS_MAX", "has too many fields with its $or written out", field="filter")
