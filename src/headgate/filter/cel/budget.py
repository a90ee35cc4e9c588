"""The bound on one evaluation: steps and bytes, estimated from above from the tree and the event's sizes.

cel-cpp stops after 10,000 rounds of all macros together. It bounds neither what a round costs nor what a function does
with a long text: `map` copies its result in every round (10,000 elements: 7 s), a regular expression is compiled at
every call. Steps are 0.1 us, measured and rounded up. A filter is an error on an event that it would take too long on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.filter.cel.ast import (
    Call,
    Compare,
    Conditional,
    In,
    Index,
    ListOf,
    Literal,
    LiteralKind,
    Macro,
    MacroKind,
    MapOf,
    Message,
    Name,
    Node,
    Select,
    children,
)
from headgate.filter.cel.engine import has_value, is_regular_expression, offset_in
from headgate.filter.cel.errors import FilterError, over_limit
from headgate.filter.cel.functions import OF_DATA, FoundCounts, data_at_hand
from headgate.filter.cel.unparse import unparse
from headgate_api.limits import (
    EVENT_BYTES_MAX,
    EXTENSION_MEMBERS_MAX,
    FILTER_CONSTANTS_A_NODE,
    FILTER_COST_MAX,
    FILTER_EVALUATION_STEPS_MAX,
    FILTER_GROWTH_MAX,
    FILTER_LIST_ITEMS_MAX,
    FILTER_NODES_MAX,
    FILTER_REGEX_CHARACTERS_MAX,
    FILTER_REGEX_INSTRUCTIONS_MAX,
    JSON_VALUES_VISITED_MAX,
)

ROUNDS_MAX: Final = 10_000
"""cel-cpp's own limit on the rounds of all macros of one evaluation."""
UNBOUNDED_BYTES: Final = 1 << 62
"""No event is too large."""


@dataclass(frozen=True, slots=True)
class EventSize:
    """What counts of an event."""

    attributes_bytes: int  # all values of attributes together
    data_bytes: int  # the data as it was sent
    items: int  # of its longest list or map, at most
    elements: int  # of all its lists together, at most
    text_bytes: int  # its longest text, at most
    counts: FoundCounts | None = None  # how many values are at a path, where the event is small enough to count them


_SMALLEST: Final = EventSize(0, 0, 0, 0, 0)


class Budget:
    """What a filter may cost that may be too expensive on some event."""

    __slots__ = ("_free_bytes", "_tree")

    def __init__(self, tree: Node) -> None:
        self._tree = tree
        self._free_bytes = 0

    def refuses(self, rough: EventSize, exact: Callable[[], EventSize]) -> str:
        """Why the filter is not evaluated on an event; empty when it is. `rough` is the event's size, from above."""
        total_bytes = rough.attributes_bytes + rough.data_bytes
        if total_bytes <= self._free_bytes:
            return ""
        if steps(self._tree, _of_bytes(total_bytes)) <= FILTER_EVALUATION_STEPS_MAX:
            self._free_bytes = total_bytes  # so many bytes are never too many, whatever they hold
            return ""
        if steps(self._tree, rough) <= FILTER_EVALUATION_STEPS_MAX:
            return ""
        needed = steps(self._tree, exact())
        if needed <= FILTER_EVALUATION_STEPS_MAX:
            return ""
        return (
            f"the filter may take {needed:,.0f} steps on this event: "
            f"the limit is {FILTER_EVALUATION_STEPS_MAX:,} (FILTER_EVALUATION_STEPS_MAX)"
        )


def _of_bytes(total_bytes: int) -> EventSize:
    return EventSize(total_bytes, total_bytes, total_bytes // 2, total_bytes // 2, total_bytes)


LARGEST: Final = _of_bytes(EVENT_BYTES_MAX)


def steps(tree: Node, size: EventSize) -> float:
    """Steps of one evaluation on an event of this size, at most."""
    estimate = _Estimate(size)
    estimate.walk(tree, {}, 1.0)
    return estimate.steps


def is_unlimited(tree: Node) -> bool:
    """Whether no event can be too large for a filter."""
    return steps(tree, LARGEST) <= FILTER_EVALUATION_STEPS_MAX


def sure_bytes(tree: Node) -> int:
    """Attributes and data of the largest event on which a filter is surely evaluated, a power of two; or no bound."""
    tree = data_at_hand(tree)
    if is_unlimited(tree):
        return UNBOUNDED_BYTES
    size = EVENT_BYTES_MAX
    while size and steps(tree, _of_bytes(size)) > FILTER_EVALUATION_STEPS_MAX:
        size //= 2
    return size


def check_budget(tree: Node) -> None:
    """Refuses a filter that no event is small enough for, or that makes too large a value of the largest."""
    estimate = _Estimate(LARGEST)
    estimate.walk(tree, {}, 1.0)
    if estimate.largest > FILTER_GROWTH_MAX * EVENT_BYTES_MAX:
        what = f"the expression may build a value of {estimate.largest / EVENT_BYTES_MAX:.0f} times its event"
        raise over_limit("FILTER_GROWTH_MAX", what)
    fixed = steps(tree, _SMALLEST) if estimate.repeats else 0.0
    if fixed > FILTER_EVALUATION_STEPS_MAX:
        what = f"the expression may take {fixed:,.0f} steps on any event"
        raise over_limit("FILTER_EVALUATION_STEPS_MAX", what)


class _Value(NamedTuple):
    """The size of a value, at most."""

    bytes: float  # on average over the rounds of the macros around it
    most: float
    items: float
    text: float  # its bytes where it is a text, on average: a value of the event may be all of it, a text may not
    found: float = math.inf  # items on average, where more is known than `items`: of what is found in parts of an event
    share: float = math.inf  # the part of the event that it is on average, where it is a value of the event
    path: tuple[str, ...] | None = None  # where all values that it may be are found, as `json.objects` finds them


def _text(average: float, most: float) -> _Value:
    return _Value(average, most, 0.0, average)


_NOTHING: Final = _text(0, 0)
_SCALAR: Final = _text(8, 8)
_ITEM_BYTES: Final = 16
_COMPARED: Final = 0.4
"""Steps a byte where two values of the event are compared with each other, maps and lists among them."""
_JOINED: Final = 0.3
_ITEM_LOOKED_AT: Final = 0.3
_ITEM_COPIED: Final = 0.3
_REGEX_CALL: Final = 50.0
_REGEX_INSTRUCTION: Final = 4.0
_REGEX_BYTE: Final = 0.05
_REGEX_WIDE_BYTE: Final = 0.1
_REGEX_WIDE_MAX: Final = 12
"""Wide characters up to which RE2's automaton fits its memory: 2^12 states."""
_FUNCTION_CALL: Final = 25.0
_FUNCTION_BYTE: Final = 0.25
"""A function in Python: its arguments are converted."""
_CONVERTED_BYTE: Final = 0.25
_OF_DATA: Final = frozenset(OF_DATA.values())
_VISITED: Final = 2.0
"""Steps a value that such a function looks at."""
_BYTE: Final = {
    **dict.fromkeys(("contains", "indexOf", "lastIndexOf", "reverse"), 0.1),
    **dict.fromkeys(("size", "charAt", "substring", "lowerAscii", "upperAscii"), 0.03),
    **dict.fromkeys(("trim", "join", "string", "bytes", "strings.quote", "format"), 0.4),
    **dict.fromkeys(("startsWith", "endsWith"), 0.001),
    "replace": 1.0,
    "split": 3.0,
}
"""Steps a byte of what a function of CEL reads and makes."""
_MADE_OF_TEXT: Final = frozenset({"charAt", "substring", "lowerAscii", "upperAscii", "trim", "reverse"})
_OF_TEXTS: Final = _BYTE.keys() - {"size", "format", "join"}


class _Estimate:
    """One walk over a tree, for one size of event."""

    def __init__(self, size: EventSize, known: dict[tuple[object, ...], tuple[float, float]] | None = None) -> None:
        self._size = size
        # What `_largest_map` found, by what it depends on: it walks a body once more, so a nest would cost 2^depth.
        self._known = {} if known is None else known
        self.steps = 0.0
        self.largest = 0.0
        self.repeats = False

    def walk(self, node: Node, scope: dict[str, _Value], rounds: float) -> _Value:
        """The size of a node's value; its steps are added."""
        value = self._walk(node, scope, rounds)
        self.largest = max(self.largest, value.most)
        return value

    def _walk(self, node: Node, scope: dict[str, _Value], rounds: float) -> _Value:
        self.steps += rounds
        match node:
            case Literal(_, str(text)):
                size = len(text.encode())
                return _text(size, size)
            case Literal(_, bytes(raw)):
                return _text(len(raw), len(raw))
            case Literal():
                return _SCALAR
            case Name(name):
                return scope[name] if name in scope else self._variable(name)
            case Select(Name("ce"), _) if "ce" not in scope:
                size = self._size.attributes_bytes
                return _Value(size, size, min(size, EXTENSION_MEMBERS_MAX), size)
            case ListOf(items) if all(isinstance(item, Literal) for item in items):
                self.steps += rounds * len(items)
                size = sum(_ITEM_BYTES + len(str(item.value)) for item in items if isinstance(item, Literal))
                return _Value(size, 4 * size, len(items), size)
            case Macro():
                return self._macro(node, scope, rounds)
            case _:
                parts = [self.walk(child, scope, rounds) for child in children(node)]
                return self._made(node, parts, rounds)

    def _variable(self, name: str) -> _Value:
        size = self._size
        match name:
            case "ce":
                few = min(size.attributes_bytes, size.items)
                return _Value(size.attributes_bytes, size.attributes_bytes, few, size.attributes_bytes)
            case "data":
                whole = size.data_bytes
                return _Value(whole, whole, size.items, size.text_bytes, share=1.0, path=())
            case _:
                return _SCALAR  # a type

    def _made(self, node: Node, parts: list[_Value], rounds: float) -> _Value:
        match node:
            case Select() | Index():
                return self._inside(parts[0])
            case Compare():
                left, right = parts
                self.steps += rounds * _COMPARED * min(left.bytes, right.bytes)
                return _SCALAR
            case In():
                element, container = parts
                compared = min(element.bytes * max(container.items, 1.0), container.bytes)  # each item with the element
                self.steps += rounds * (_ITEM_LOOKED_AT * container.items + _COMPARED * compared)
                return _SCALAR
            case Conditional():
                return _Value(*map(max, zip(*(part[:4] for part in parts[1:]), strict=True)))
            case ListOf() | MapOf() | Message():
                more, whole = _ITEM_BYTES * len(parts), _sum(parts)
                return _Value(whole.bytes + more, whole.most + more, len(parts), whole.text)
            case Call():
                return self._call(node, parts, rounds)
            case _:
                return _SCALAR

    def _inside(self, of: _Value) -> _Value:
        return _Value(of.bytes, of.most, min(max(self._size.items, of.items), of.most), of.text, share=of.share)

    def _macro(self, macro: Macro, scope: dict[str, _Value], rounds: float) -> _Value:
        self.repeats = True
        source = self.walk(macro.range, scope, rounds)
        items = max(min(source.items, source.found), 1.0)
        inner = max(min(rounds * items, ROUNDS_MAX), 1.0)
        # Where cel-cpp stops the rounds, each may be of a larger part: the sums over all rounds stay what they were.
        bound = {name: _scaled(value, rounds * items / inner) for name, value in scope.items()}
        bound[macro.variable] = _scaled(self._inside(source), rounds / inner)._replace(path=source.path)
        bodies = [self.walk(body, bound, inner) for body in (macro.predicate, macro.transform) if body is not None]
        if macro.kind in {MacroKind.ALL, MacroKind.EXISTS, MacroKind.EXISTS_ONE}:
            return _SCALAR
        kept = max(min(source.items, ROUNDS_MAX), 1.0)
        self.steps += _ITEM_COPIED * inner * kept
        if macro.transform is None:
            return _Value(source.bytes, source.most, kept, source.text)
        most = self._largest_map(macro.transform, macro.variable, source, scope, kept)
        return _Value(min(inner / rounds * (bodies[-1].bytes + _ITEM_BYTES), most), most, kept, most)

    def _largest_map(
        self, transform: Node, variable: str, source: _Value, scope: dict[str, _Value], kept: float
    ) -> float:
        """The most bytes of one list that `map` makes: elements share the range, all else comes every time."""
        bound = {name: _Value(value.most, value.most, value.items, value.most) for name, value in scope.items()}
        bound[variable] = _scaled(self._inside(_Value(source.most, source.most, source.items, source.most)), 1 / kept)
        depends_on = (id(transform), kept, *bound.items())
        if depends_on not in self._known:
            alone = _Estimate(self._size, self._known)
            made = alone.walk(transform, bound, kept)
            self._known[depends_on] = max(kept * (made.bytes + _ITEM_BYTES), made.most), alone.largest
        most, largest = self._known[depends_on]
        self.largest = max(self.largest, largest)
        return most

    def _call(self, call: Call, parts: list[_Value], rounds: float) -> _Value:
        name = call.function
        if name == "matches":
            self._matches(call, parts, rounds)
            return _SCALAR
        if name in _OF_DATA:
            return self._found(self._variable("data"), call, parts[-1], rounds)
        if name in OF_DATA:
            self.steps += rounds * _CONVERTED_BYTE * parts[0].bytes
            return self._found(parts[0], call, parts[-1], rounds)
        if "." in name and name != "strings.quote" and not name.startswith("math."):
            whole = _sum(parts)
            self.steps += rounds * (_FUNCTION_CALL + _FUNCTION_BYTE * whole.bytes)
            return whole
        read = sum(part.text if name in _OF_TEXTS else part.bytes for part in parts)
        made = _SCALAR
        match name:
            case "_+_":
                made = _sum(parts)
                self.steps += rounds * _JOINED * made.bytes
            case "replace":
                made = _replaced(call, parts)
            case "split":
                most = _ITEM_BYTES * parts[0].most
                made = _Value(_ITEM_BYTES * parts[0].text, most, parts[0].text + 1, parts[0].text)
            case "join":
                made = _joined(parts)
            case "format" | "strings.quote" | "string" | "bytes":
                made = _text(4 * read, 4 * sum(part.most for part in parts))
            case _ if name in _MADE_OF_TEXT:
                made = _text(parts[0].text, parts[0].most)
            case _ if name not in _BYTE:
                made = parts[0] if parts else _SCALAR
        more = made.bytes if name in {"replace", "join"} else 0.0
        self.steps += rounds * _BYTE.get(name, 0.0) * (read + more)
        return made

    def _found(self, root: _Value, call: Call, path: _Value, rounds: float) -> _Value:
        """What `json.values` or `json.objects` finds below a value: no two of them share a byte or an element."""
        objects = "objects" in call.function
        place = None if root.path is None else _names(root.path, call.arguments[-1])
        found = 1.0 + root.share * self._size.elements if root.share < math.inf else math.inf
        visited = min(found * (1.0 + path.items), root.bytes / 2)
        if place is not None and self._size.counts is not None:
            found = min(found, root.share * self._size.counts.at(place, objects=objects))
        converted = _CONVERTED_BYTE * root.bytes if objects else 0.0
        self.steps += rounds * (_FUNCTION_CALL + _VISITED * min(visited, JSON_VALUES_VISITED_MAX) + converted)
        items = min(1.0 + self._size.elements, root.most / 2, JSON_VALUES_VISITED_MAX)
        return _Value(root.bytes, root.most, items, root.text, found, root.share, place)

    def _matches(self, call: Call, parts: list[_Value], rounds: float) -> None:
        self.repeats = True
        pattern = call.arguments[-1]
        if isinstance(pattern, Literal) and isinstance(pattern.value, str):
            size = regex_size(pattern.value)
        else:  # admission refuses it
            size = RegexSize(10 * int(parts[-1].text), int(parts[-1].text))
        wide = _REGEX_WIDE_BYTE * size.instructions if size.wide > _REGEX_WIDE_MAX else 0.0
        compiled = _REGEX_CALL + _REGEX_INSTRUCTION * size.instructions
        self.steps += rounds * (compiled + (_REGEX_BYTE + wide) * parts[0].text)


def _names(before: tuple[str, ...], path: Node) -> tuple[str, ...] | None:
    names = [item.value for item in path.items if isinstance(item, Literal)] if isinstance(path, ListOf) else []
    known = isinstance(path, ListOf) and len(names) == len(path.items)
    return (*before, *map(str, names)) if known else None


def _sum(parts: list[_Value]) -> _Value:
    return _Value(
        sum(part.bytes for part in parts),
        sum(part.most for part in parts),
        sum(part.items for part in parts),
        sum(part.text for part in parts),
    )


def _scaled(value: _Value, factor: float) -> _Value:
    return _Value(
        min(value.bytes * factor, value.most),
        value.most,
        value.items,
        min(value.text, value.bytes * factor, value.most),
        share=value.share * factor,
        path=value.path,
    )


def _replaced(call: Call, parts: list[_Value]) -> _Value:
    """Every piece of the first text, or every gap between two characters, may be replaced."""
    text, _, new = parts[:3]
    wanted = call.arguments[0]
    old = len(wanted.value.encode()) if isinstance(wanted, Literal) and isinstance(wanted.value, str) else 0
    pieces = 1 / max(1, old)
    return _text(
        text.text + (text.text * pieces + 1) * max(0.0, new.text - old),
        text.most + (text.most * pieces + 1) * max(0.0, new.most - old),
    )


def _joined(parts: list[_Value]) -> _Value:
    source = parts[0]
    between = parts[1] if len(parts) > 1 else _NOTHING
    return _text(source.bytes + source.items * between.text, source.most + source.items * between.most)


# --- limits ---------------------------------------------------------------------------------------
# On a filter's tree, found without evaluating it: they bound what admission itself does, and refuse what no event could
# bear.

_ROUNDS: Final = 100
"""How often a macro over data of unknown length is counted."""
_ROUNDS_OBJECTS: Final = 10
"""The same over `json.objects`, which event patterns nest: its elements are parts of one event.

In each is the tenth part of what the event has, so that a nest goes over the event once for each of its levels.
"""


def check_limits(tree: Node, text: str = "") -> None:
    """Refuses a tree that is over a limit, or has a constant that can only fail; `text` is what it was parsed from."""
    nodes, constants, calls = 0, 0, False
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        nodes += 1
        match node:
            case Literal():
                constants += 1
                continue
            case Name():
                continue
            case ListOf(items) if len(items) > FILTER_LIST_ITEMS_MAX:
                raise over_limit("FILTER_LIST_ITEMS_MAX", f"a list has {len(items)} items")
            case MapOf(entries) if len(entries) > FILTER_LIST_ITEMS_MAX:
                raise over_limit("FILTER_LIST_ITEMS_MAX", f"a map has {len(entries)} entries")
            case Call("matches", _, (*_, Literal(LiteralKind.STRING, str(pattern)))):
                try:
                    _check_pattern(pattern)
                except FilterError as error:
                    raise _at(text, node, error) from None
                calls = True
            case Call("matches", _, _):
                raise _at(
                    text,
                    node,
                    FilterError(
                        "matches() needs a constant regular expression",
                        field="filter.expression",
                        hint="startsWith, endsWith and contains take any text",
                    ),
                )
            case Call(function, None, (Literal(LiteralKind.STRING),)) if function in _CONVERSIONS:
                _check_constant(text, node, f"{function}() takes {_CONVERSIONS[function]}")
                calls = True
            case Macro() | Call():
                calls = True
            case _:
                pass
        waiting.extend(children(node))
    nodes -= constants - constants // FILTER_CONSTANTS_A_NODE
    if nodes > FILTER_NODES_MAX:
        raise over_limit("FILTER_NODES_MAX", f"the expression has {nodes} nodes")
    if calls:
        steps = static_cost(tree)
        if steps > FILTER_COST_MAX:
            raise over_limit("FILTER_COST_MAX", f"the expression may take {steps} steps")
        check_budget(tree)


def _check_constant(text: str, node: Node, hint: str) -> None:
    constant = unparse(node)
    if not has_value(constant):
        reason = f"{constant} is an error on every event"
        raise _at(text, node, FilterError(reason, field="filter.expression", hint=hint))


def _at(text: str, node: Node, error: FilterError) -> FilterError:
    """The error with the place of a part of the text, where there is one."""
    return error.at(text, offset_in(text, node)) if text else error


_CONVERSIONS: Final = {
    "timestamp": "an RFC 3339 time: 2026-01-01T00:00:00Z",
    "duration": "numbers with units: 1h30m, 0.5s",
    **dict.fromkeys(("int", "uint", "double"), "a number of this type"),
    "bool": "true or false",
}
"""Functions that fail for most texts, and what they take."""


def _check_pattern(pattern: str) -> None:
    if len(pattern) > FILTER_REGEX_CHARACTERS_MAX:
        what = f"a regular expression has {len(pattern)} characters"
        raise over_limit("FILTER_REGEX_CHARACTERS_MAX", what)
    size = regex_size(pattern).instructions
    if size > FILTER_REGEX_INSTRUCTIONS_MAX:
        what = f"a regular expression becomes some {size} instructions"
        raise over_limit("FILTER_REGEX_INSTRUCTIONS_MAX", what)
    if not is_regular_expression(pattern):
        raise FilterError(
            "matches() has an invalid regular expression",
            field="filter.expression",
            hint="the syntax is RE2's: no look-around, no back-references",
        )


def static_cost(node: Node) -> int:
    """Steps of one evaluation, counted from the tree alone."""
    match node:
        case Macro(_, source, _, predicate, transform):
            return static_cost(source) + _rounds(source) * sum(
                static_cost(body) for body in (predicate, transform) if body is not None
            )
        case _:
            return 1 + sum(map(static_cost, children(node)))


def _rounds(source: Node) -> int:
    match source:
        case ListOf() | MapOf():
            return max(1, len(children(source)))
        case Call(("json.values" | "json.objects") as function, None, (root, _)):
            rounds = _ROUNDS_OBJECTS if function == "json.objects" else _ROUNDS
            return rounds if root == Name("data") else rounds // _ROUNDS_OBJECTS
        case _:
            return _ROUNDS


# --- regular expressions --------------------------------------------------------------------------
# The size of a pattern's program inside RE2, estimated from its text without compiling it.
#
# cel-cpp compiles a pattern at every call, in some 0.4 us an instruction: `\pL` alone is some 3,000 of them,
# `(a{100}){10}` a thousand. RE2 runs a pattern in linear time; where its lazily built automaton gets too many states
# (several repeated character classes) each character costs a walk over the program.

_UNICODE_CLASSES: Final = {
    **{"L": 1_300, "Ll": 1_000, "Lo": 1_000, "Lu": 1_000, "M": 650, "Mn": 650, "Mc": 400, "P": 400, "Po": 400},
    **{"S": 500, "So": 500, "N": 300, "Common": 450},
}
_UNICODE_CLASS: Final = 220
"""Of all other categories and scripts: the largest is 153, measured with RE2 of 2025; negated it is 30 more."""
_PERL_CLASS: Final = 6
_NEGATED_CLASS: Final = 12
_ANY: Final = 10
_FOLDED: Final = 3
"""Instructions of a letter whose case does not matter: the Kelvin sign is a k."""
_SIZE_MAX: Final = 10**9
_REPEAT: Final = re.compile(r"\{([0-9]{1,6})(,([0-9]{0,6}))?\}")
_UNICODE: Final = re.compile(r"\\[pP](\{[^}]*\}|.)", re.DOTALL)
_CLASS: Final = re.compile(r"\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\]", re.DOTALL)
_GROUP_START: Final = re.compile(r"\((?:\?(?:P?<[^>]*>|[a-zA-Z-]*:?))?")
_QUOTED: Final = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")


@dataclass(slots=True)
class RegexSize:
    """An estimate."""

    instructions: int = 0  # of RE2's program, about; rather too many than too few
    wide: int = 0  # characters that may be one of several, repetitions counted out: they multiply an automaton's states

    def add(self, other: RegexSize) -> None:
        self.instructions = min(self.instructions + other.instructions, _SIZE_MAX)
        self.wide = min(self.wide + other.wide, _SIZE_MAX)

    def times(self, count: int) -> RegexSize:
        return RegexSize(min(self.instructions * count + 1, _SIZE_MAX), min(self.wide * count, _SIZE_MAX))


def regex_size(pattern: str) -> RegexSize:
    """The size of a pattern, valid or not; linear in its length."""
    folded = _FOLDED if _IGNORES_CASE.search(pattern) else 1
    frames = [RegexSize()]
    last = RegexSize()
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        match character:
            case "(":
                found = _GROUP_START.match(pattern, position - 1)
                position = found.end() if found else position
                frames[-1].add(last)
                frames.append(RegexSize())
                last = RegexSize()
            case ")":
                frames[-1].add(last)
                last = frames.pop() if len(frames) > 1 else RegexSize()
                last.add(RegexSize(2))
            case "*" | "+" | "?":
                last.add(RegexSize(1))
            case "{" if found := _REPEAT.match(pattern, position - 1):
                position = found.end()
                last = last.times(_count(found))
            case "|":
                frames[-1].add(last)
                last = RegexSize(1, 1)
            case _:
                frames[-1].add(last)
                last, position = _one(pattern, position - 1, folded)
    while len(frames) > 1:
        frames[-1].add(last)
        last = frames.pop()
    frames[0].add(last)
    return frames[0]


def _count(found: re.Match[str]) -> int:
    low = int(found[1])
    if found[2] is None:
        return max(1, low)
    return max(1, int(found[3]) if found[3] else low + 1)


def _one(pattern: str, position: int, folded: int) -> tuple[RegexSize, int]:
    """The size of the one item at `position`, and where the next one stands."""
    character = pattern[position]
    if character == "[" and (found := _CLASS.match(pattern, position)):
        negated = _NEGATED_CLASS if found[0].startswith("[^") else 0
        unicode = sum(map(_unicode_class, _UNICODE.finditer(found[0])))
        ranges = max(1, len(found[0]) - 2 - 2 * found[0].count("-"))
        return RegexSize(negated + unicode + folded * ranges, 1), found.end()
    if character == ".":
        return RegexSize(_ANY, 1), position + 1
    if character == "\\":
        if found := _UNICODE.match(pattern, position):
            return RegexSize(_unicode_class(found), 1), found.end()
        if found := _QUOTED.match(pattern, position):
            return RegexSize(folded * len(found[1].encode())), found.end()
        return RegexSize(_PERL_CLASS, 1), position + 2
    return RegexSize(folded * len(character.encode())), position + 1


def _unicode_class(found: re.Match[str]) -> int:
    return _UNICODE_CLASSES.get(found[1].strip("{^}"), _UNICODE_CLASS)
