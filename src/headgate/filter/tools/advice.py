"""Remarks on valid filters, from what was written alone; cel-cpp is not needed for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain, product
from typing import Any, Final

import msgspec

from headgate.filter.cel.build import may_exist
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.tokens import TEXTS
from headgate.filter.cel.tokens import names_in as names_in_cel
from headgate.filter.cel.unparse import string_literal
from headgate.filter.compile.plan import CompiledFilter, KeyKind, Op, Operand, PlanRow, Root
from headgate.filter.dialects.cesql import parser as cesql
from headgate.filter.dialects.eventpattern import rules
from headgate.filter.dialects.jms import parser as jms
from headgate.filter.dialects.jms.to_cel import Attribute, meaning
from headgate.filter.dialects.jms.to_cel import names_in as names_in_selector
from headgate.filter.dialects.sql_tokens import Kind, Token, tokens, walk
from headgate.filter.tools.algebra import Meaning
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES, REQUIRED_ATTRIBUTES
from headgate_api.limits import FILTERS_CACHED_MAX, MEANT_CHARS_MAX, UNSEEN_NAMES_MAX

# --- other engines --------------------------------------------------------------------------------
# Where another engine of a filter's language takes the filter otherwise: a table of what its text shows.
#
# The pages of the dialects and docs/reference/interoperability.md say what engines do, and by which source. A place
# stands here when the filter alone shows it and its author can write it otherwise, or can know that it will not move.
# What depends on the events' values is not here: how a reader of JSON makes integers, members that are null, lengths of
# text beyond ASCII, sums beyond 32 bits, absence below arrays, exact decimals. Nor are emulators for tests, and what
# makes SQL of CEL.


@dataclass(frozen=True, slots=True)
class Place:
    """Something in filters of a dialect that other engines take otherwise."""

    dialect: str
    seen: Callable[[Any], str]  # what of a filter, as `_READ` reads it, is such a place; empty for nothing
    says: str  # the sentence, with `{found}` and the engines that do


def differences(dialect: str, value: object) -> tuple[str, ...]:
    """What other engines make of a valid filter, a sentence for each place of the table."""
    if isinstance(value, str):
        return _of_text(dialect, value)
    return _differences(dialect, value) if dialect == "eventPattern" else ()


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def _of_text(dialect: str, text: str) -> tuple[str, ...]:
    return _differences(dialect, text)


def _differences(dialect: str, value: object) -> tuple[str, ...]:
    dialect = "cel" if dialect == "expression" else dialect
    if dialect not in _READ:
        return ()
    try:
        read = _READ[dialect](value)
        found = [(place, place.seen(read)) for place in PLACES if place.dialect == dialect]
    except FilterError:  # admission says it
        return ()
    return tuple(place.says.format(found=part) for place, part in found if part)


# --- CEL ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cel:
    """An expression, and the same without what stands in its texts and comments."""

    text: str
    code: str


_QUOTED: Final = re.compile(TEXTS, re.DOTALL)
_NULL: Final = re.compile(r"[=!]=\s*null\b|\bnull\s*[=!]=")
_MILLISECONDS: Final = re.compile(r"(\w*)\s*\((?:[^()]|\([^()]*\))*\)\s*\.\s*getMilliseconds\s*\(\s*\)")
_PATTERN: Final = re.compile(rf"""\bmatches\s*\(\s*(?:[^"'()]*,\s*)?(?P<pattern>{TEXTS})""", re.DOTALL)
_CLASS: Final = re.compile(r"\\(?:[dD]|[pP](?!\{)\w)")
_CONVERSION: Final = re.compile(rf"\b(?P<type>timestamp|int|uint|double)\s*\(\s*(?P<text>{TEXTS})\s*\)", re.DOTALL)
_STRICT: Final = {
    "timestamp": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:[0-5]\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)"),
    "int": re.compile(r"-?\d+"),
    "uint": re.compile(r"\d+"),
    "double": re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"),
}


def _cel(text: str) -> _Cel:
    return _Cel(text, _QUOTED.sub(lambda found: " " if found[0].startswith("//") else '""', text))


def _null_compared(cel: _Cel) -> str:
    found = _NULL.search(cel.code)
    return found[0] if found is not None else ""


def _duration_milliseconds(cel: _Cel) -> str:
    """Of a timestamp every engine gives those below a second."""
    return "getMilliseconds()" if any(one[1] != "timestamp" for one in _MILLISECONDS.finditer(cel.code)) else ""


def _class_of_letters(cel: _Cel) -> str:
    found = (_CLASS.search(one["pattern"]) for one in _PATTERN.finditer(cel.text))
    return next((one[0] for one in found if one is not None), "")


def _lax_conversion(cel: _Cel) -> str:
    for one in _CONVERSION.finditer(cel.text):
        if _STRICT[one["type"]].fullmatch(one["text"].strip("\"'")) is None:
            return one[0]
    return ""


# --- CloudEvents SQL ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cesql:
    """An expression, and every node of its tree."""

    text: str
    nodes: tuple[object, ...]


def _cesql(text: str) -> _Cesql:
    return _Cesql(text, tuple(walk(cesql.parse(text))))


def _mixed_operators(read: _Cesql) -> str:
    """Operators that stand beside each other without parentheses, which the tree no longer shows."""
    levels: list[set[str]] = [set()]
    for token in tokens(read.text, cesql.LEXICON):
        match token:
            case Token(Kind.SIGN, "("):
                levels.append(set())
            case Token(Kind.SIGN, ")"):
                levels.pop()
            case Token(Kind.SIGN, ","):
                levels[-1] = set()
            case Token(Kind.KEYWORD, "AND" | "OR" | "XOR" as operator):
                levels[-1].add(operator)
                if len(levels[-1]) > 1:
                    return " and ".join(sorted(levels[-1]))
            case _:
                pass
    return ""


def _missing_before_or(read: _Cesql) -> str:
    """An attribute that may be missing, on the left of an OR, and is nowhere tested by EXISTS."""
    tested = {one.name for one in read.nodes if isinstance(one, cesql.Exists)}
    for logic in read.nodes:
        if isinstance(logic, cesql.Logic) and logic.operator == "OR":
            for one in chain.from_iterable(map(walk, logic.operands[:-1])):
                if isinstance(one, cesql.Attribute) and one.name not in REQUIRED_ATTRIBUTES | tested:
                    return one.name
    return ""


def _one_character_of_many_bytes(read: _Cesql) -> str:
    for one in read.nodes:
        if isinstance(one, cesql.Like) and not one.pattern.isascii() and re.search(r"(?<!\\)_", one.pattern):
            return one.pattern
    return ""


# --- JMS selectors --------------------------------------------------------------------------------


def _selector(text: str) -> tuple[object, ...]:
    return tuple(walk(jms.parse(text)))


def _missing_properties(nodes: tuple[object, ...], *, both: bool) -> str:
    """A comparison of properties that may be missing and are nowhere tested: of `both` sides, or of one by `<>`."""
    tested = {one.operand.name for one in nodes if isinstance(one, jms.IsNull)}

    def may_miss(side: object) -> bool:
        if not isinstance(side, jms.Identifier) or side.name in tested:
            return False
        found = meaning(side.name)
        return isinstance(found, Attribute) and found.name not in REQUIRED_ATTRIBUTES

    for one in nodes:
        if isinstance(one, jms.Comparison) and one.operator in (("=", "<>") if both else ("<>",)):
            sides = [side for side in (one.left, one.right) if may_miss(side)]
            if len(sides) == 1 + both:
                return " and ".join(side.name for side in sides if isinstance(side, jms.Identifier))
    return ""


def _compared_with_each_other(nodes: tuple[object, ...]) -> str:
    return _missing_properties(nodes, both=True)


def _unequal(nodes: tuple[object, ...]) -> str:
    return _missing_properties(nodes, both=False)


# --- event patterns -------------------------------------------------------------------------------


def _matchers(field: rules.Field) -> Iterator[rules.Matcher]:
    for matcher in field.matchers:
        yield from matcher.unwanted if isinstance(matcher, rules.AnythingBut) else (matcher,)


def _case_beyond_ascii(items: tuple[rules.Item, ...]) -> str:
    for matcher in chain.from_iterable(map(_matchers, rules.fields_of(items))):
        match matcher:
            case rules.IgnoreCase(text) | rules.Affix(_, text, True) if not text.isascii():
                return repr(text)
            case _:
                pass
    return ""


def _wildcard_beside_case(items: tuple[rules.Item, ...]) -> str:
    for field in rules.fields_of(items):
        found = tuple(_matchers(field))
        ignores_case = any(
            isinstance(one, rules.IgnoreCase) or (isinstance(one, rules.Affix) and one.ignore_case) for one in found
        )
        if ignores_case and any(isinstance(one, rules.Wildcard) for one in found):
            return ".".join(field.names)
    return ""


def _whole_address(items: tuple[rules.Item, ...]) -> str:
    for matcher in chain.from_iterable(map(_matchers, rules.fields_of(items))):
        if isinstance(matcher, rules.Cidr) and matcher.network.prefixlen == matcher.network.max_prefixlen:
            return str(matcher.network)
    return ""


# --- the table ------------------------------------------------------------------------------------


_READ: Final[Mapping[str, Callable[[Any], object]]] = {
    "cel": _cel,
    "cesql": _cesql,
    "jms": _selector,
    "eventPattern": lambda value: rules.items_of(value, "eventPattern"),
}
"""A filter's value as the places of its dialect look at it. `expression` is CEL, too."""

PLACES: Final = (
    Place(
        "cel",
        _null_compared,
        "where the member is null, {found} is true or false here and in CEL's specification, and no boolean in dev.cel"
        " (Java)",
    ),
    Place(
        "cel",
        _duration_milliseconds,
        "{found} of a duration is the part below a second here, and the whole duration in cel-go, cel-python, the Rust"
        " cel and cel-js",
    ),
    Place(
        "cel",
        _class_of_letters,
        "{found} in a regular expression has RE2's meaning here (\\d is 0 to 9, \\pL any letter), and another one in"
        " cel-js and common-expression-language (Rust)",
    ),
    Place(
        "cel",
        _lax_conversion,
        "{found} has a value here, and is an error in engines that follow RFC 3339 strictly; write the usual form",
    ),
    Place(
        "cesql",
        _mixed_operators,
        "{found} stand beside each other without parentheses: CESQL groups from the left, as here, but the SDKs of Go"
        " and Java from the right; write parentheses",
    ),
    Place(
        "cesql",
        _missing_before_or,
        "without {found} the expression is an error here, as in the SDK of Go, but the SDK of Java goes on with what"
        " follows OR; test it with EXISTS, or write what needs it last",
    ),
    Place(
        "cesql",
        _one_character_of_many_bytes,
        "_ in the pattern {found!r} is one character here, and one byte in the SDK of Go",
    ),
    Place(
        "jms",
        _compared_with_each_other,
        "without {found} the comparison is unknown here and in the specification, but ActiveMQ and Qpid compare what is"
        " missing; test it with IS NOT NULL",
    ),
    Place(
        "jms",
        _unequal,
        "without {found} the comparison with <> is unknown here, in the specification and in ActiveMQ, but true in"
        " Qpid; test it with IS NOT NULL",
    ),
    Place(
        "eventPattern",
        _case_beyond_ascii,
        "EventBridge may take {found} for another text than here, as it compares each letter with the pattern's in"
        " upper and in lower case; here the order of the two texts does not matter",
    ),
    Place(
        "eventPattern",
        _wildcard_beside_case,
        "EventBridge may match more in {found} than its values, as a wildcard and a value that ignores case change each"
        " other there; here each stands for itself",
    ),
    Place(
        "eventPattern",
        _whole_address,
        "EventBridge refuses the CIDR {found} for its length; here it is that one address",
    ),
)


# --- advice ---------------------------------------------------------------------------------------

_DEPRECATED: Final = "sourceAndType"
_NAMES_IN: Final[Mapping[str, Callable[[str], Sequence[str]]]] = {
    "jms": names_in_selector,
    "cel": names_in_cel,
    "expression": names_in_cel,
}
"""What names attributes as it likes; other dialects refuse a name that no attribute has."""
_NAMES_SHOWN: Final = 5
_ALIKE: Final = 0.8
"""How alike a name and an attribute's are where one is meant for the other, of 1: `typ`, `sources`."""
_NESTING: Final = ("all", "any", "not")


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that works and should be written otherwise; `reason` is one word, for a condition."""

    reason: str
    message: str


NEVER_TRUE: Final = Advice("NeverTrue", "no event makes the filter true: its conditions exclude each other")


def advice(filter_object: Mapping[str, object] | None, filters: Sequence[object] = ()) -> tuple[Advice, ...]:
    """Remarks on an admitted `spec.filter` and `spec.filters`; asked for again, as a status is, they are free."""
    return _advice(msgspec.json.encode((filter_object, filters)))


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def _advice(written: bytes) -> tuple[Advice, ...]:
    return tuple(_remarks(*msgspec.json.decode(written)))


def is_never_true(plan: CompiledFilter) -> bool:
    """Whether it is sure that no event makes a filter true; free for most, whose rows compare no place twice."""
    return all(map(_compares_twice, plan.rows)) and Meaning(plan).is_never


def _compares_twice(row: PlanRow) -> bool:
    operands = [part.operand for part in row.signature.key] + [part.operand for part in row.signature.residual]
    return len({(one.root, one.path) for one in operands}) < len(operands)


def _remarks(filter_object: Mapping[str, object] | None, filters: Sequence[object]) -> Iterator[Advice]:
    if filters and filter_object:
        message = "spec.filter has no effect beside spec.filters: remove it, or move it there as an element"
        yield Advice("FilterOverridden", message)
    written = list(_written_fields(filter_object, "spec.filter"))
    for at, one in enumerate(filters):
        written.extend(_written_fields(one, f"spec.filters[{at}]"))
    deprecated = [f"{field}.{name}" for field, name, _ in written if name == _DEPRECATED]
    if deprecated:
        message = f"{', '.join(deprecated)}: {_DEPRECATED} is deprecated, write attributes instead"
        yield Advice("DialectDeprecated", message)

    for field, name, value in written:
        if name in _NAMES_IN and isinstance(value, str):
            for read in _NAMES_IN[name](value):
                near = [] if read in CONTEXT_ATTRIBUTES else get_close_matches(read, CONTEXT_ATTRIBUTES, 1, _ALIKE)
                if near and may_exist(read):
                    message = f"{field}.{name} reads {read}, which would be an extension: did you mean {near[0]}?"
                    yield Advice("NameUnlikely", message)
            impossible = [read for read in _NAMES_IN[name](value) if not may_exist(read)]
            if impossible:
                listed = ", ".join(impossible[:_NAMES_SHOWN])
                rule = (
                    "the data is no attribute" if impossible == ["data"] else "names are lower-case letters and digits"
                )
                message = f"{field}.{name} reads {listed}: no event has it, {rule}"
                yield Advice("NameImpossible", message)
        for sentence in differences(name, value):
            yield Advice("EnginesDiffer", f"{field}.{name}: {sentence}")


def _written_fields(value: object, field: str) -> Iterator[tuple[str, str, object]]:
    """Fields of filters, nested ones too: path of the filter, the field's name, its value."""
    if not isinstance(value, Mapping):
        return
    for name, inner in value.items():
        yield field, str(name), inner
    for name in _NESTING:
        inner = value.get(name)
        if isinstance(inner, list | tuple):
            for at, one in enumerate(inner):
                yield from _written_fields(one, f"{field}.{name}[{at}]")
        else:
            yield from _written_fields(inner, f"{field}.{name}")


# --- names that events have had -------------------------------------------------------------------
# A broker's catalogue knows which types, sources and attributes its events have had. A filter may name others, for
# events to come; where it names one that is nearly the same as one of them, it is probably misspelt. Who stores a
# filter is not told: it would be a look at the log for each. Who tries one, or compares those of a broker, is.


@dataclass(frozen=True, slots=True)
class SeenNames:
    """What the events of a broker have had: types, sources, and names of extension attributes."""

    types: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class UnseenName(Advice):
    """A name that no event has had, as it is written, and one that was probably meant."""

    written: str
    meant: str


class UnseenNames:
    """Finds types, sources and attributes that filters compare or read and no event has had, where one is nearly so.

    For one answer on one filter or many: of further names than `names_max` nothing is said.
    """

    def __init__(self, seen: SeenNames, names_max: int = UNSEEN_NAMES_MAX) -> None:
        self._seen = seen
        self._left = names_max
        self._found: dict[tuple[str, str], UnseenName | None] = {}

    def of(self, plan: CompiledFilter) -> tuple[UnseenName, ...]:
        found = (self._looked_up(*one) for one in _unseen(plan, self._seen))
        return tuple(one for one in found if one is not None)

    def _looked_up(self, reason: str, says: str, name: str, known: frozenset[str]) -> UnseenName | None:
        key = reason, name
        if key not in self._found:
            if not self._left:
                return None
            self._left -= 1
            meant = nearest(name, known)
            message = says.format(written=_quoted(reason, name), meant=_quoted(reason, meant))
            self._found[key] = UnseenName(reason, message, name, meant) if meant else None
        return self._found[key]


def unknown_name(error: FilterError, seen: SeenNames) -> UnseenName | None:
    """What an expression probably means by a name that there is not: an attribute, which it has to read of `ce`."""
    name = error.unknown
    near = name if name in seen.attributes else nearest(name, seen.attributes)
    return UnseenName("NameUnknown", f"{error.reason}; did you mean ce.{near}?", name, f"ce.{near}") if near else None


_ATTRIBUTE: Final = "AttributeUnseen"
_DIGITS: Final = re.compile(r"[0-9]+")
_FEW_LETTERS: Final = 5
"""A name with fewer is nearly another one where one letter differs, and not two."""


def _quoted(reason: str, name: str) -> str:
    return name if reason == _ATTRIBUTE else string_literal(name)


def _unseen(plan: CompiledFilter, seen: SeenNames) -> Iterator[tuple[str, str, str, frozenset[str]]]:
    """Reason, sentence, name, and the names that there are; nothing is said where no name is known."""
    for attribute, reason, says, known in (
        ("type", "TypeUnseen", "no event of type {written} has been seen; did you mean {meant}?", seen.types),
        ("source", "SourceUnseen", "no event from source {written} has been seen; did you mean {meant}?", seen.sources),
    ):
        for constant in dict.fromkeys(_compared(plan, attribute)) if known else ():
            if constant not in known:
                yield reason, says, constant, known
    says = "the catalogue has seen no attribute {written}; did you mean {meant}?"
    for name in dict.fromkeys(name.partition(".")[0] for name in names_in_cel(plan.cel)) if seen.attributes else ():
        if name not in CONTEXT_ATTRIBUTES and name not in seen.attributes and may_exist(name):
            yield _ATTRIBUTE, says, name, seen.attributes


def _compared(plan: CompiledFilter, attribute: str) -> Iterator[str]:
    """Texts that the rows of a filter compare a context attribute with for being the same."""
    operand = Operand(Root.CE, (attribute,))
    for row in plan.rows:
        for part, text in zip(row.signature.key, row.key, strict=True):
            if part.operand == operand and part.kind is KeyKind.STRING and isinstance(text, str):
                yield text
        for residual, constants in zip(row.signature.residual, row.constants, strict=True):
            if residual.operand == operand and residual.op in (Op.EQ, Op.IN):
                for text in constants if isinstance(constants, tuple) else (constants,):
                    if isinstance(text, str):
                        yield text


def nearest(name: str, known: Iterable[str]) -> str:
    """Of other names the one that a person may have meant: it differs by two letters at most; empty for none.

    Not one that differs in numbers alone: `v2` comes after `v1`. Upper and lower case are the same here.
    """
    if not 0 < len(name) <= MEANT_CHARS_MAX:
        return ""
    most = 1 if len(name) < _FEW_LETTERS else 2
    (plain, letters), wordless = _shape(name), _DIGITS.sub("", name)
    best = (most + 1, "")
    for one in known:
        other, others = _shape(one)
        # Most are told apart by this; what changes a letter takes one away and adds one.
        if abs(len(other) - len(plain)) > most or (letters ^ others).bit_count() > 2 * most:
            continue
        found = _edits(plain, other), one
        if found < best and _DIGITS.sub("", one) != wordless:
            best = found
    return best[1]


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def _shape(name: str) -> tuple[str, int]:
    """A name in lower case, and a bit for each of its letters, which some share."""
    plain, letters = name.lower(), 0
    for letter in plain:
        letters |= 1 << (ord(letter) & 63)
    return plain, letters


_ENDS: Final = ((1, 1), (0, 1), (1, 0))
"""What one change takes of the one text and of the other: a letter of both, or of one of them."""


def _edits(a: str, b: str) -> int:
    """How many letters have to be changed, added or left out to make one of the other; 3 for more than 2."""
    same = _begin_alike(a, b)
    a, b = a[same:], b[same:]
    same = _begin_alike(a[::-1], b[::-1])
    a, b = a[: len(a) - same], b[: len(b) - same]
    least, most = sorted((len(a), len(b)))
    if most < 2 or not least:
        return min(most, 3)
    # Both ends differ, so each is changed; what lies between must then be the same.
    for (first_a, first_b), (last_a, last_b) in product(_ENDS, _ENDS):
        if a[first_a : len(a) - last_a] == b[first_b : len(b) - last_b]:
            return 2
    return 3


def _begin_alike(a: str, b: str) -> int:
    """How many letters at their beginnings are the same."""
    return next((at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
