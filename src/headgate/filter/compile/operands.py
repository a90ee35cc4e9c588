"""Operands: what an expression reads of an event, so that it can be compared with a constant."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from typing import Final, NamedTuple

from headgate.filter.cel.ast import (
    INT64_MAX,
    PUBLISH_TIME,
    TIMESTAMP_END_S,
    Call,
    Comparison,
    Literal,
    LiteralKind,
    Name,
    Node,
    Select,
    children,
    in_cel_years,
)
from headgate.filter.cel.build import TIME_TEXT
from headgate.filter.compile.plan import Form, Operand, Root
from headgate_api.event import rfc3339
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES

EXACT_DOUBLE_MAX: Final = 2**53 - 1
"""Beyond it a double stands for several integers: cel-cpp compares an int with a double as two doubles."""

TIME: Final = Operand(Root.CE, ("time",))
_PUBLISHED: Final = Operand(Root.PUBLISH_TIME, (), Form.TIME)

_FORMS: Final = {
    "lowerAscii": Form.LOWER,
    "upperAscii": Form.UPPER,
    "size": Form.SIZE,
    "type": Form.TYPE,
    "int": Form.TO_INT,
    "double": Form.TO_DOUBLE,
    "string": Form.TO_STRING,
}
_VALUES: Final = "json.values"
_MICROS_MAX: Final = 2**52
"""Up to here, year 2112, half a microsecond is a double of its own."""
_SECOND: Final = 1_000_000
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s|us|ns)")
_UNITS: Final = {
    "h": Fraction(3_600_000_000),
    "m": Fraction(60_000_000),
    "s": Fraction(_SECOND),
    "ms": Fraction(1_000),
    "us": Fraction(1),
    "ns": Fraction(1, 1_000),
}


def path_of(node: Node) -> Operand | None:
    """The value that a path reads; None when `node` is no path, or one of which the matcher does not read the value.

    Those are the whole of `ce` and of `data`, and attributes by a name that JSON escapes.
    """
    names: list[str] = []
    while isinstance(node, Select):
        names.append(node.field)
        node = node.operand
    match node:
        case Name("data") if names:
            return Operand(Root.DATA, tuple(reversed(names)))
        case Name("ce") if len(names) == 1 and _is_read(names[0]):
            return Operand(Root.CE, (names[0],))
        case _:
            return None


def _is_read(attribute: str) -> bool:
    """Whether the matcher finds an attribute: it compares names byte by byte in the JSON text of extensions."""
    return json.dumps(attribute, ensure_ascii=False) == f'"{attribute}"'


def time_of(node: Node) -> Operand | None:
    """The operand of a time, in its form; None for anything else."""
    match node:
        case Name(name) if name == PUBLISH_TIME:
            return _PUBLISHED
        case _:
            return replace(TIME, form=Form.TIME) if path_of(node) == TIME else None


def operand_of(node: Node) -> Operand | None:
    """One value in its form: `data.x`, `size(data.x)`, `data.x.lowerAscii()`, `int(ce.x)`."""
    match node:
        case Call(function):
            operands = children(node)
            form = _FORMS.get(function)
            operand = path_of(operands[0]) if form is not None and len(operands) == 1 else None
            if form is None or operand is None or operand == TIME:
                return None
            return replace(operand, form=form)
        case _:
            return path_of(node)


NAMED: Final = "@named"
"""What `desugar.py` writes for the values of extensions whose names begin with a text; no filter can."""
_CONTEXT: Final = (*CONTEXT_ATTRIBUTES, TIME_TEXT)


def many_of(node: Node) -> Operand | None:
    """The operand of many values: a path to a list, or `json.values(data, ["a", "b"])`."""
    match node:
        case Call(function, None, (Literal(LiteralKind.STRING, str(prefix)),)) if function == NAMED:
            # The value of an extension may be a map, which equals no constant.
            is_extension = _is_read(prefix) and not any(name.startswith(prefix) for name in _CONTEXT)
            return Operand(Root.CE, (prefix,), Form.NAMED) if is_extension else None
        case Call(function, None, (Name("data"), path)) if function == _VALUES:
            names = [item.value for item in getattr(path, "items", ()) if isinstance(item, Literal)]
            if not names or not all(isinstance(name, str) for name in names):
                return None
            return Operand(Root.DATA, tuple(map(str, names)), Form.VALUES)
        case _:
            operand = path_of(node)
            if operand is None or operand.root is not Root.DATA:
                return None
            return replace(operand, form=Form.ELEMENTS)


# --- time -----------------------------------------------------------------------------------------------------------


def instant_of(node: Node) -> int | float | None:
    """A constant timestamp as `Form.TIME` has it: microseconds, and half a one more where it lies between two.

    None for any other expression, and for what is too far away to be told by a double.
    """
    exact = _instant(node)
    if exact is None or abs(exact) > _MICROS_MAX:
        return None
    floor = math.floor(exact)
    return floor if exact == floor else floor + 0.5


def _instant(node: Node) -> Fraction | None:
    """Microseconds since 1970."""
    match node:
        case Call("timestamp", None, (Literal(LiteralKind.STRING, str(text)),)):
            # Beyond nine digits of a second, and with signs or spaces, cel-cpp is asked.
            micros = (
                rfc3339.micros(text)
                if re.fullmatch(r"[-0-9]{10}T[0-9:]{8}(\.[0-9]{1,9})?(Z|[+-][0-9:]{5})", text)
                else None
            )
            if micros is None or ":60" in text:
                return None
            fraction = re.search(r"\.([0-9]+)", text)
            nanos = int(fraction[1][6:].ljust(3, "0")) if fraction is not None and len(fraction[1]) > 6 else 0
            found = Fraction(micros) + Fraction(nanos, 1_000)
        case Call("timestamp", None, (Literal(LiteralKind.INT, int(seconds)),)):
            found = Fraction(seconds * _SECOND)
        case Call("_+_" | "_-_" as sign, None, (left, right)):
            instant, span = _instant(left), _span(right)
            if instant is None or span is None:
                return None
            found = instant + span if sign == "_+_" else instant - span
        case _:
            return None
    return found if in_cel_years(found / _SECOND) else None


def _span(node: Node) -> Fraction | None:
    """Microseconds of a constant duration."""
    match node:
        case Call("duration", None, (Literal(LiteralKind.STRING, str(text)),)):
            sign, unsigned = (-1, text[1:]) if text.startswith("-") else (1, text)
            parts = _DURATION.findall(unsigned)
            if not parts or "".join(map("".join, parts)) != unsigned:
                return None
            total = sum((Fraction(number) * _UNITS[unit] for number, unit in parts), Fraction(0))
            whole_nanos = (total * 1_000).denominator == 1
            return sign * total if whole_nanos and total < TIMESTAMP_END_S * _SECOND else None
        case _:
            return None


# --- arithmetic -----------------------------------------------------------------------------------------------------


Bounds = tuple[Operand, tuple[tuple[Comparison, int | float], ...]]
"""An operand, and comparisons of it with constants."""
NEVER: Final = 0.5
"""No integer equals it."""


def solved(left: Node, comparison: Comparison, constant: int | float) -> Bounds | None:
    """`data.x * 2 + 1 > 10` as bounds of `data.x`, the integer, that hold together (for `!=`: one of which holds).

    Exact for integers that a double can tell apart; the matcher leaves larger ones, and nothing else, to cel-cpp.
    None where an intermediate result could overflow, or the arithmetic is no integer's.
    """
    if abs(constant) > EXACT_DOUBLE_MAX or _reach(left) is None:
        return None
    operand = _integer(left)
    bounds = None if operand is None else _solve(left, comparison, Fraction(constant))
    if operand is None or bounds is None:
        return None
    made = tuple((side, _whole(side, k)) for side, k in bounds)
    if any(abs(bound) > EXACT_DOUBLE_MAX for _, bound in made):
        return None
    return replace(operand, form=Form.INTEGER), made


class _Step(NamedTuple):
    """`operand sign constant`; `mirrored`: `constant sign operand`."""

    sign: str
    operand: Node
    constant: int
    mirrored: bool


def _step(node: Node) -> _Step | None:
    match node:
        case Call("_+_" | "_-_" | "_*_" as sign, None, (Literal(LiteralKind.INT, int(constant)), operand)):
            return _Step(sign, operand, constant, mirrored=True)
        case Call("_+_" | "_-_" | "_*_" | "_/_" as sign, None, (operand, Literal(LiteralKind.INT, int(constant)))):
            return _Step(sign, operand, constant, mirrored=False)
        case _:
            return None


def _integer(node: Node) -> Operand | None:
    """The one path inside arithmetic with integers."""
    while (step := _step(node)) is not None:
        node = step.operand
    operand = path_of(node)
    return None if operand is None or operand == TIME or not operand.path else operand


def _reach(node: Node) -> int | None:
    """How large the value may become, in absolute terms; None when that could leave int64."""
    step = _step(node)
    if step is None:
        return EXACT_DOUBLE_MAX
    reach = _reach(step.operand)
    if reach is None or (step.sign in {"_*_", "_/_"} and step.constant == 0):
        return None
    if step.sign == "_*_":
        reach *= abs(step.constant)
    elif step.sign != "_/_":
        reach += abs(step.constant)
    return reach if reach <= INT64_MAX else None


_Bounds = tuple[tuple[Comparison, Fraction], ...]


def _solve(node: Node, comparison: Comparison, k: Fraction) -> _Bounds | None:
    step = _step(node)
    match step:
        case None:
            return ((comparison, k),)
        case _Step("_+_", operand, constant):
            return _solve(operand, comparison, k - constant)
        case _Step("_-_", operand, constant, mirrored=False):
            return _solve(operand, comparison, k + constant)
        case _Step("_-_", operand, constant):
            return _solve(operand, comparison.mirrored, constant - k)
        case _Step("_*_", operand, constant):
            return _solve(operand, comparison if constant > 0 else comparison.mirrored, k / constant)
        case _Step(_, operand, constant):
            return _solve_division(operand, comparison, k, constant)


def _solve_division(node: Node, comparison: Comparison, k: Fraction, divisor: int) -> _Bounds | None:
    """The quotient is cut towards zero."""
    if divisor < 0:
        comparison, k, divisor = comparison.mirrored, -k, -divisor
    whole = _whole_bound(comparison, k)
    match comparison:
        case Comparison.GT | Comparison.GE:
            least = whole + 1 if comparison is Comparison.GT else whole
            # quotient >= least
            if least > 0:
                return _solve(node, Comparison.GE, Fraction(least * divisor))
            return _solve(node, Comparison.GT, Fraction((least - 1) * divisor))
        case Comparison.LT | Comparison.LE:
            most = whole - 1 if comparison is Comparison.LT else whole
            if most < 0:
                return _solve(node, Comparison.LE, Fraction(most * divisor))
            return _solve(node, Comparison.LT, Fraction((most + 1) * divisor))
        case Comparison.EQ | Comparison.NE if k.denominator == 1:
            ends = (Comparison.GE, Comparison.LE) if comparison is Comparison.EQ else (Comparison.LT, Comparison.GT)
            low, high = (_solve_division(node, end, k, divisor) for end in ends)
            return None if low is None or high is None else low + high
        case _:
            return None


def _whole_bound(comparison: Comparison, k: Fraction) -> int:
    """The integer that bounds integers as `k` does."""
    return math.ceil(k) if comparison in {Comparison.GE, Comparison.LT} else math.floor(k)


def _whole(comparison: Comparison, k: Fraction) -> int | float:
    if comparison in {Comparison.EQ, Comparison.NE}:
        return int(k) if k.denominator == 1 else NEVER
    return _whole_bound(comparison, k)
