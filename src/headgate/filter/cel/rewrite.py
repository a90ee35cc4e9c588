"""The canonical form of an expression. `RULES` are pure functions from tree to tree.

Every rule gives a simpler expression that keeps the value on every event, errors included (an error may become another
one). A filter is read as a *condition*: what is no boolean is an error, so `!!x` is `x`. Conditions are the root and
operands of `&&`, `||`, `!` and of a conditional in such a place; elsewhere only `everywhere` rules apply.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from headgate.filter.cel.ast import (
    FALSE,
    INT64_MAX,
    INT64_MIN,
    TRUE,
    TYPE_NAMES,
    UINT64_MAX,
    And,
    Call,
    Compare,
    Comparison,
    Conditional,
    Has,
    In,
    Index,
    ListOf,
    Literal,
    LiteralKind,
    Macro,
    Name,
    Node,
    Not,
    Or,
    Select,
    children,
    map_children,
    root_of,
)
from headgate.filter.cel.build import flattened, joined, literal, of_member, present
from headgate_api.event.attributes import REQUIRED_ATTRIBUTES, TEXT_ATTRIBUTES

_ROOTS: Final = frozenset({"ce", "data"})


def is_path(node: Node) -> bool:
    """Whether `node` reads one value of the event: `ce.x`, `data`, `data.a.b`."""
    root = root_of(node)
    return isinstance(root, Name) and root.name in _ROOTS


def everywhere(*changes: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """A rule that applies `changes`, one after the other, to every node, children first.

    The body of a macro whose variable hides `ce` or `data` is left alone.
    """
    about = [(NODE_RULES[change], change) for change in changes]

    def walk(node: Node) -> Node:
        kind = type(node)
        if kind is Literal or kind is Name:
            return node
        if isinstance(node, Macro) and node.variable in _ROOTS:
            node = Macro(node.kind, walk(node.range), node.variable, node.predicate, node.transform)
        else:
            node = map_children(node, walk)
        for kinds, change in about:
            if type(node) in kinds:
                node = change(node)
        return node

    return walk


def conditions(*changes: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """A rule that applies `changes`, one after the other, to every condition, children first."""

    def walk(node: Node) -> Node:
        if isinstance(node, And | Or | Not | Conditional):
            node = map_children(node, walk)
        for change in changes:
            node = change(node)
        return node

    return walk


def index_to_field(node: Node) -> Node:
    """`data["a"]` is `data.a`; `dyn(data.a)` is `data.a`."""
    match node:
        case Index(operand, Literal(LiteralKind.STRING, str(name))) if is_path(operand):
            return Select(operand, name)
        case Call("dyn", None, (operand,)) if is_path(operand) and operand != Name("ce"):
            return operand
        case _:
            return node


def member_of_attribute(node: Node) -> Node:
    """`ce.a.b` and `has(ce.a.b)` read the attribute `a.b`, see `build.py`."""
    match node:
        case Select(Select(Name("ce"), name), member) if name != "time":
            return Select(Name("ce"), of_member(name, member))
        case Has(Select(Name("ce"), name), member) if name != "time":
            return present(of_member(name, member))
        case _:
            return node


_MADE: Final = frozenset({"timestamp", "duration", "_+_", "_-_"})


def _is_constant(node: Node) -> bool:
    """A literal, a type, or a point in time made of literals."""
    match node:
        case Literal():
            return True
        case Name(name):
            return name in TYPE_NAMES
        case Call(function, None, arguments):
            return function in _MADE and all(map(_is_constant, arguments))
        case _:
            return False


def constant_right(node: Node) -> Node:
    """`1 < data.n` is `data.n > 1`, `string == type(x)` is `type(x) == string`."""
    match node:
        case Compare(comparison, left, right) if _is_constant(left) and not _is_constant(right):
            return Compare(comparison.mirrored, right, left)
        case _:
            return node


def attribute_presence(node: Node) -> Node:
    """`"x" in ce` is `has(ce.x)`, and `has(ce.type)` is true."""
    match node:
        case In(Literal(LiteralKind.STRING, str(name)), Name("ce")):
            there = present(name)
            return there if there == node else attribute_presence(there)
        case Has(Name("ce"), name) if name in REQUIRED_ATTRIBUTES:
            return TRUE
        case _:
            return node


def attribute_size(node: Node) -> Node:
    """`size(ce.subject) > 0` is `ce.subject > ""`: an attribute that is no extension is no map and no list."""
    match node:
        case Compare(comparison, Call("size") as call, Literal(LiteralKind.INT, int(size))):
            some = asks_for_some(comparison, size)
        case _:
            return node
    match children(call):
        case (Select(Name("ce"), name) as operand,) if name in TEXT_ATTRIBUTES and some is not None:
            return Compare(Comparison.GT if some else Comparison.LE, operand, literal(""))
        case _:
            return node


def asks_for_some(comparison: Comparison, size: float) -> bool | None:
    """Whether a size that compares so is no zero (true) or zero (false); None for another question."""
    match comparison, size:
        case (Comparison.GT | Comparison.NE, 0) | (Comparison.GE, 1):
            return True
        case (Comparison.EQ | Comparison.LE, 0) | (Comparison.LT, 1):
            return False
        case _:
            return None


_PLAIN: Final = r"(?:[^\\.+*?()\[\]{}|^$]|\\[.+*?()\[\]{}|^$/\\-])*"
_PLAIN_PATTERN: Final = re.compile(rf"(\^?)({_PLAIN})(\$?)")
_PREFIX_PATTERN: Final = re.compile(rf"\^({_PLAIN})(.?)", re.DOTALL)


def whole_text(pattern: str) -> str | None:
    """The one text that a regular expression like `^created$` matches; None when it is not of this form."""
    found = _PLAIN_PATTERN.fullmatch(pattern)
    return _unescape(found[2]) if found is not None and found[1] and found[3] else None


def certain_prefix(pattern: str) -> str:
    """A text that everything begins with that a regular expression matches; empty when none is certain."""
    found = _PREFIX_PATTERN.match(pattern)
    if found is None or "|" in pattern:
        return ""
    # What follows may say that the last character is optional.
    text = _unescape(found[1])
    return text[:-1] if found[2] in {"*", "?", "{", "+"} else text


def _unescape(plain: str) -> str:
    return re.sub(r"\\(.)", r"\1", plain)


def plain_pattern(node: Node) -> Node:
    """A regular expression without operators is a prefix, a suffix or a substring."""
    match node:
        case Call("matches", None, (subject, pattern)):
            return plain_pattern(Call("matches", subject, (pattern,)))
        case Call("matches", _, (Literal(LiteralKind.STRING, str(text)),)):
            found = _PLAIN_PATTERN.fullmatch(text)
        case _:
            return node
    if found is None or (found[1] and found[3]):
        return node
    function = "startsWith" if found[1] else "endsWith" if found[3] else "contains"
    return Call(function, node.target, (literal(_unescape(found[2])),))


def fold_constants(node: Node) -> Node:
    """`60 * 60` is 3600, `"a" < "b"` is true; what would overflow or compare two types is left to cel-cpp."""
    match node:
        case Call("_+_" | "_-_" | "_*_" as function, None, (Literal(kind, left), Literal(other, right))) if (
            kind == other
        ):
            return _arithmetic(function, kind, left, right) or node
        case Call("-_", None, (Literal(LiteralKind.INT, int(value)),)) if value > INT64_MIN:
            return Literal(LiteralKind.INT, -value)
        case Call("-_", None, (Literal(LiteralKind.DOUBLE, float(number)),)):
            return Literal(LiteralKind.DOUBLE, -number)
        case Compare(comparison, Literal(kind, left), Literal(other, right)) if kind == other:
            if kind is LiteralKind.NULL:
                return node
            return TRUE if comparison.holds(left, right) else FALSE
        case _:
            return node


def _arithmetic(function: str, kind: LiteralKind, left: object, right: object) -> Node | None:
    match left, right:
        case (str() | bytes(), str() | bytes()):
            return Literal(kind, left + right) if function == "_+_" else None  # type: ignore[operator]
        case (int() | float(), int() | float()) if kind in {LiteralKind.INT, LiteralKind.UINT, LiteralKind.DOUBLE}:
            value = {"_+_": operator.add, "_-_": operator.sub, "_*_": operator.mul}[function](left, right)
            if kind is LiteralKind.DOUBLE:
                return Literal(kind, value) if value == value else None
            low, high = (0, UINT64_MAX) if kind is LiteralKind.UINT else (INT64_MIN, INT64_MAX)
            return Literal(kind, value) if low <= value <= high else None
        case _:
            return None


def fold_condition(node: Node) -> Node:
    """`true && x` is `x`, `false && x` is false, `!true` is false, `true ? x : y` is `x`."""
    match node:
        case Not(Literal(LiteralKind.BOOL, value)):
            return FALSE if value else TRUE
        case And(operands):
            return FALSE if FALSE in operands else joined(And, [one for one in operands if one != TRUE])
        case Or(operands):
            return TRUE if TRUE in operands else joined(Or, [one for one in operands if one != FALSE])
        case Conditional(Literal(LiteralKind.BOOL, value), then, otherwise):
            return then if value else otherwise
        case _:
            return node


def push_not(node: Node) -> Node:
    """`!(a && b)` is `!a || !b`, `!(a == b)` is `a != b`, `!(p < 1)` is `p >= 1`: exact, errors stay errors."""
    match node:
        case Not(operand):
            return negated(operand)
        case And() | Or() | Conditional():
            return map_children(node, push_not)
        case _:
            return node


def negated(node: Node) -> Node:
    """`!node`, with the `!` pushed down."""
    match node:
        case Not(operand):
            return push_not(operand)
        case And(operands):
            return Or(tuple(map(negated, operands)))
        case Or(operands):
            return And(tuple(map(negated, operands)))
        case Conditional(condition, then, otherwise):
            return Conditional(push_not(condition), negated(then), negated(otherwise))
        case Literal(LiteralKind.BOOL, value):
            return FALSE if value else TRUE
        case Compare(Comparison.EQ | Comparison.NE as comparison, left, right):
            return Compare(comparison.opposite, left, right)
        # Neither a constant nor JSON is ever NaN, so one of two opposite orders holds.
        case Compare(comparison, left, Literal() as right) if is_path(left):
            return Compare(comparison.opposite, left, right)
        case _:
            return Not(node)


def flatten(node: Node) -> Node:
    """`a && (b && a)` is `a && b`."""
    if isinstance(node, And | Or):
        unique = tuple(dict.fromkeys(flattened(type(node), node.operands)))
        return node if len(unique) == len(node.operands) and unique == node.operands else joined(type(node), unique)
    return node


def macros_last(node: Node) -> Node:
    """`data.l.exists(...) || x` is `x || data.l.exists(...)`, and so for `&&`.

    cel-cpp gives up on all of an expression after so many rounds of its macros, and looks at operands in their order:
    what decides without a macro is looked at first, as a row of the matcher decides by itself.
    """
    if isinstance(node, And | Or):
        ordered = tuple(sorted(node.operands, key=has_macro))
        return node if ordered == node.operands else type(node)(ordered)
    return node


def has_macro(node: Node) -> bool:
    """Whether a macro stands in it."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind is Macro:
            return True
        if kind is not Literal and kind is not Name:
            waiting += children(one)
    return False


def literal_order(constant: Literal) -> tuple[str, str]:
    """The canonical order of constants in a list."""
    return constant.kind, repr(constant.value)


def sorted_list(node: Node) -> Node:
    """A list of constants after `in` is a set: sorted and without duplicates, so that equal filters are equal text."""
    match node:
        case In(element, ListOf(items)) if len(items) > 1:
            literals: list[Literal] = [item for item in items if isinstance(item, Literal)]
            if len(literals) == len(items):
                unique: list[Literal] = list(dict.fromkeys(literals))
                unique.sort(key=literal_order)
                return In(element, ListOf(tuple(unique)))
    return node


NODE_RULES: Final[dict[Callable[[Node], Node], frozenset[type]]] = {
    index_to_field: frozenset({Index, Call}),
    member_of_attribute: frozenset({Select, Has}),
    attribute_presence: frozenset({In, Has}),
    fold_constants: frozenset({Call, Compare}),
    constant_right: frozenset({Compare}),
    attribute_size: frozenset({Compare}),
    plain_pattern: frozenset({Call}),
    sorted_list: frozenset({In}),
}
"""Exact wherever they stand; and the kinds of nodes that each may change."""
CONDITION_RULES: Final[tuple[Callable[[Node], Node], ...]] = (fold_condition, flatten, macros_last)

RULES: Final[tuple[Callable[[Node], Node], ...]] = (everywhere(*NODE_RULES), push_not, conditions(*CONDITION_RULES))
"""In the order in which they are applied; each once is enough for a fixed point."""

resolve: Final[Callable[[Node], Node]] = everywhere(index_to_field, member_of_attribute)
"""Only what gives a path its meaning: index forms become fields, and a member of an extension has one name."""

macros_last_all: Final[Callable[[Node], Node]] = conditions(flatten, macros_last)
"""Nothing but the order in which operands are looked at."""

flatten_all: Final[Callable[[Node], Node]] = conditions(flatten)
"""Nothing but joining nested `&&` and `||`."""


def rewrite(node: Node) -> Node:
    """The canonical form of a filter: every rule, in order."""
    for rule in RULES:
        node = rule(node)
    return node


# --- folds ----------------------------------------------------------------------------------------

T = TypeVar("T")


class Fold(Generic[T]):
    """What is known of a condition, from what is known of its parts; of each conditional once.

    `leaf` is of a condition that joins no others, `both` of `&&`, `either` of `||` and of a conditional's two branches.
    """

    def __init__(self, leaf: Callable[[Node], T], both: Callable[[list[T]], T], either: Callable[[list[T]], T]) -> None:
        self._leaf, self._both, self._either = leaf, both, either
        self._known: dict[Node, T] = {}

    def __call__(self, node: Node) -> T:
        match node:
            case And(operands):
                return self._both([self(operand) for operand in operands])
            case Or(operands):
                return self._either([self(operand) for operand in operands])
            case Conditional():
                if node not in self._known:
                    self._known[node] = self._either([self(branch) for branch in _branches(node)])
                return self._known[node]
            case _:
                return self._leaf(node)


def _branches(node: Conditional) -> tuple[Node, Node]:
    """`c ? a : b` is true where `c && a` or `!c && b` is.

    Both hold the condition: who goes on below them remembers what is known of a node, or a nest costs 2^depth.
    """
    return And((node.condition, node.then)), And((negated(node.condition), node.otherwise))
