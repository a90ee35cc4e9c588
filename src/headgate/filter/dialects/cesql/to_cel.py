"""`cesql`: a CloudEvents SQL expression (CESQL 1.0), which sees context attributes and extensions, in CEL.

    type = 'order.paid' AND subject LIKE 'shop/%' AND INT(prio) > 5

Every cast is written out, and what is an error in CESQL is one in CEL. In CESQL every expression has a value even after
an error; a filter is only wanted when its value is true and there was no error (section 1.2).

CESQL evaluates from left to right and any error spoils the whole: `a OR b` is an error when `a` is one, whatever `b`
says, where CEL's `||` would be true. So `a OR b` is `a || b` only if `a` cannot fail, or only for lack of an attribute
without which `b` fails too; else it is `a ? true : b`. `a AND b` is `a && b` likewise, and also wherever false and an
error come to the same: a filter is wanted when it is true, below an even number of NOT. That is what `Aim` says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from headgate.filter.cel.ast import FALSE, TRUE, And, Compare, Conditional, Node, Or, children
from headgate.filter.cel.ast import Comparison as Op
from headgate.filter.cel.build import call, flattened, joined, present
from headgate.filter.cel.errors import FilterError, known_names
from headgate.filter.cel.rewrite import negated
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.cesql import parser
from headgate.filter.dialects.cesql.values import (
    FUNCTIONS,
    Aim,
    Part,
    Signature,
    Type,
    arguments_of,
    cast,
    condition,
    constant,
    equal,
    invoked,
    is_like,
    of_all,
    one_of,
    read,
    within_32_bits,
)
from headgate.filter.dialects.sql_tokens import fault, walk
from headgate_api.event.attributes import INT32_MAX
from headgate_api.limits import FILTER_DEPTH_MAX, FILTER_NODES_MAX

_ORDERS: Final = {"<": Op.LT, "<=": Op.LE, ">": Op.GT, ">=": Op.GE}
_DEPTH_MAX: Final = 2 * FILTER_DEPTH_MAX
"""Levels of our tree, some of which are none in cel-cpp's."""
_NODES_MAX: Final = 2 * FILTER_NODES_MAX
"""Nodes of our tree, constants among them, which count half in the compiler."""


def cesql(value: object, field: str) -> str:
    """CEL text of a CESQL expression; FilterError, with the place, also for one that is never true or false."""
    if not isinstance(value, str):
        raise FilterError("must be a string", field=field)
    try:
        parsed = parser.parse(value)
        _refuse_misread_not(value, parsed)
        found = Translator(value).part(parsed, Aim.TRUE)
    except FilterError as error:
        raise error.at_field(field) from None
    if found.type in {Type.STRING, Type.INTEGER}:
        reason = f"a filter is true or false, this expression is of type {found.type}"
        raise FilterError(reason, field=field, hint="compare the value with something")
    return unparse(found.node)


def _refuse_misread_not(text: str, parsed: parser.Tree) -> None:
    """`NOT type = 'x'` is `(NOT type) = 'x'`, which no event fulfils and nobody means."""
    for part in walk(parsed):
        match part:
            case (
                parser.Comparison(_, parser.Not(parser.Attribute(name), position), parser.Constant(str(right)))
                | parser.Like(parser.Not(parser.Attribute(name), position), right)
                | parser.OneOf(parser.Not(parser.Attribute(name), position), (parser.Constant(str(right)), *_))
            ) if right.lower() not in {"true", "false"}:
                reason = f"NOT binds tighter than what follows: this negates {name} alone"
                raise fault(text, position, reason, f"write NOT ({name} ...) around the whole condition")
            case _:
                pass


class Translator:
    """Translates the trees of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._done: dict[tuple[int, Aim], Part] = {}
        self._extents: dict[int, tuple[Node, int, int]] = {}

    def part(self, tree: parser.Tree, aim: Aim = Aim.EXACT) -> Part:
        """A tree in CEL, FilterError for a function that there is none of; the aim concerns conditions."""
        # Remembered, because a condition is asked for under several aims on every level.
        key = (id(tree), aim if _is_condition(tree) else Aim.EXACT)
        if key not in self._done:
            part = self._done[key] = self._translated(tree, aim)
            if isinstance(tree, parser.Logic | parser.OneOf):
                self._check_extent(part.node, tree.position)
        return self._done[key]

    def _check_extent(self, whole: Node, position: int) -> None:
        """Refuses what is about to become too large: `x IN (a, b)` says `x` twice, `a OR b OR c` nests.

        Each node is measured once, and none by recursion; cel-cpp's own, narrower limits are the compiler's business.
        """
        waiting = [whole]
        while waiting:
            node = waiting[-1]
            if id(node) in self._extents:
                waiting.pop()
                continue
            unknown = [child for child in children(node) if id(child) not in self._extents]
            if unknown:
                waiting += unknown
                continue
            inner = [self._extents[id(child)] for child in children(node)]
            count = 1 + sum(count for _, count, _ in inner)
            depth = 1 + max((depth for _, _, depth in inner), default=0)
            if count > _NODES_MAX:
                raise self._over("FILTER_NODES_MAX", "becomes too large in CEL", position)
            if depth > _DEPTH_MAX:
                raise self._over("FILTER_DEPTH_MAX", "is nested too deeply in CEL", position)
            self._extents[id(node)] = (node, count, depth)  # with the node, for its id is taken again once it is gone

    def _over(self, limit: str, what: str, position: int) -> FilterError:
        return fault(self._text, position, f"the expression {what} ({limit})", limit=limit)

    def _translated(self, tree: parser.Tree, aim: Aim) -> Part:
        match tree:
            case parser.Constant(value):
                return constant(value)
            case parser.Attribute(name):
                return read(name)
            case parser.Exists(name):
                return Part(present(name), Type.BOOLEAN)
            case parser.Not(operand):
                return self._not(operand, aim)
            case parser.Minus(operand):
                number = cast(self.part(operand), Type.INTEGER)
                return within_32_bits(call("-_", number.node), -number.high, -number.low, number)
            case parser.Arithmetic():
                return self._arithmetic(tree)
            case parser.Comparison(operator, left, right):
                return self._comparison(operator, self.part(left), self.part(right), aim)
            case parser.Logic():
                return self._logic(tree, aim)
            case parser.Like(operand, pattern):
                return is_like(self.part(operand), pattern, aim)
            case parser.OneOf(operand, items):
                return self._one_of(self.part(operand), tuple(map(self.part, items)), aim, tree.position)
            case parser.Invocation(name, arguments, position):
                found = self.signature(name, len(arguments), position)
                return invoked(found, arguments_of(found, tuple(map(self.part, arguments))))
            case _:
                assert_never(tree)

    def signature(self, name: str, count: int, position: int) -> Signature:
        for found in FUNCTIONS.get(name, ()):
            if count == len(found.parameters) or (found.more is not None and count > len(found.parameters)):
                return found
        if name in FUNCTIONS:
            counts = " or ".join(_count(one) for one in FUNCTIONS[name])
            raise fault(self._text, position, f"{name} takes {counts}, not {count}")
        raise fault(self._text, position, f"there is no function {name[:40]}", known_names(FUNCTIONS, name))

    def _condition(self, tree: parser.Tree, aim: Aim) -> Part:
        return cast(self.part(tree, aim), Type.BOOLEAN)

    def _not(self, operand: parser.Tree, aim: Aim) -> Part:
        part = self.part(operand, aim.opposite)
        if part.type in {Type.INTEGER, Type.ANY}:
            return Part(call("cesql.not", part.node), Type.BOOLEAN, None, part.needs)
        part = cast(part, Type.BOOLEAN)
        return replace(part, node=negated(part.node), constant=None)

    def _arithmetic(self, tree: parser.Arithmetic) -> Part:
        left = cast(self.part(tree.left), Type.INTEGER)
        right = cast(self.part(tree.right), Type.INTEGER)
        node = call(f"_{tree.operator}_", left.node, right.node)
        match tree.operator:
            case "+":
                return within_32_bits(node, left.low + right.low, left.high + right.high, left, right)
            case "-":
                return within_32_bits(node, left.low - right.high, left.high - right.low, left, right)
            case "*":
                bounds = [one * other for one in (left.low, left.high) for other in (right.low, right.high)]
                return within_32_bits(node, min(bounds), max(bounds), left, right)
            case "/" | "%":
                # Only -2147483648 / -1 has more than 32 bits. Division by zero is an error in CEL too.
                most = max(abs(left.low), abs(left.high))
                high = most if tree.operator == "/" and right.low <= -1 <= right.high else min(most, INT32_MAX)
                part = within_32_bits(node, -most, high, left, right)
                return part if right.low > 0 or right.high < 0 else replace(part, fails=None)
            case _:
                assert_never(tree.operator)

    def _comparison(self, operator: str, left: Part, right: Part, aim: Aim) -> Part:
        if operator in _ORDERS:
            left, right = cast(left, Type.INTEGER), cast(right, Type.INTEGER)
            return condition(Compare(_ORDERS[operator], left.node, right.node), left, right)
        if operator == "=":
            return equal(left, right, aim)
        found = equal(left, right, aim.opposite)
        return replace(found, node=negated(found.node))

    def _logic(self, tree: parser.Logic, aim: Aim) -> Part:
        if tree.operator == "XOR":
            parts = tuple(self._condition(operand, Aim.EXACT) for operand in tree.operands)
            node = parts[0].node
            for part in parts[1:]:
                node = Conditional(node, negated(part.node), part.node)
            return condition(node, *parts)
        exact = tuple(self._condition(operand, Aim.EXACT) for operand in tree.operands)
        aimed = tuple(self._condition(operand, aim) for operand in tree.operands)
        return self._joined(And if tree.operator == "AND" else Or, exact, aimed, aim, tree.position)

    def _joined(
        self,
        join: type[And] | type[Or],
        exact: tuple[Part, ...],
        aimed: tuple[Part, ...],
        aim: Aim,
        position: int,
    ) -> Part:
        """Conditions joined by AND or OR; see the module's docstring. `aimed` are the same ones under `aim`."""
        careless = (join is And and aim is Aim.TRUE) or (join is Or and aim is Aim.FALSE)
        run = [aimed[-1].node]  # joined plainly, the last one first
        needs, nested = aimed[-1].needs, 0
        for strict, part in zip(reversed(exact[:-1]), reversed(aimed[:-1]), strict=True):
            if careless or (strict.fails is not None and strict.fails <= needs):
                run.append(part.node)
            else:
                rest = _plainly(join, run)
                run = [Conditional(strict.node, rest, FALSE) if join is And else Conditional(strict.node, TRUE, rest)]
                nested += 1
                if nested > _DEPTH_MAX:
                    raise self._over("FILTER_DEPTH_MAX", "is nested too deeply in CEL", position)
            needs = strict.needs
        return Part(_plainly(join, run), Type.BOOLEAN, of_all(exact)[0], needs)

    def _one_of(self, operand: Part, items: tuple[Part, ...], aim: Aim, position: int) -> Part:
        constants = [item.constant for item in items if item.constant is not None]
        if len(constants) == len(items):
            return one_of(operand, constants, aim)
        # Values are looked at one after the other, until one is equal.
        equalities = tuple(equal(item, operand, Aim.EXACT) for item in items)
        return self._joined(Or, equalities, equalities, aim, position)


def _is_condition(tree: parser.Tree) -> bool:
    """Whether the aim may make a difference."""
    match tree:
        case parser.Comparison(_, left):
            return isinstance(left, parser.Invocation)
        case parser.Not() | parser.Logic() | parser.Like() | parser.OneOf():
            return True
        case _:
            return False


def _count(found: Signature) -> str:
    count = len(found.parameters)
    return f"{count} or more arguments" if found.more else f"{count} argument{'' if count == 1 else 's'}"


def _plainly(join: type[And] | type[Or], run: list[Node]) -> Node:
    """A run of conditions, the last one first, joined by `&&` or `||`."""
    return joined(join, flattened(join, reversed(run)))
