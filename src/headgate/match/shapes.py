"""What of a conjunction can the matcher say, and what when a broker asks for too many kinds of keys?

A `Shape` is a signature without its `exact`: whether a row decides alone is data of the row. A broker has a limited
number of kinds of keys. However many clients send, every row finds a place: what is over the limit falls to a shape
that asks for less (one key part, or only the broker) and says CANDIDATE. Fewer conditions let more events through,
never fewer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headgate.filter.compile.plan import MANY, Constant, KeyKind, KeyPart, Op, PlanRow, Residual, Root, Signature
from headgate.match.reads import readable
from headgate.match.residuals import expressible

_COARSE_SHARE: Final = 4
"""One in so many shapes is a coarse one, once there are more than fit."""
_NUMBER_MAX: Final = 2.0**64
"""Integer constants of CEL lie below."""
_USEFULNESS: Final = (KeyKind.STRING, KeyKind.NUMBER, KeyKind.PREFIX, KeyKind.SUFFIX, KeyKind.BOOL)
"""Kinds of key parts, the one that lets the fewest events through first."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Comparisons of a conjunction, as in `Signature`."""

    key: tuple[KeyPart, ...] = ()
    residual: tuple[Residual, ...] = ()


SCAN: Final = Shape()
"""Every event of the broker."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How rows of one signature become rows of a compiled shape.

    Attributes:
        shape: The compiled shape.
        key: For each key part of `shape`, its index among the row's key constants.
        residual: For each residual of `shape`, its index among the row's residual constants.
        exact: Whether nothing of the conjunction was lost.
    """

    shape: Shape
    key: tuple[int, ...]
    residual: tuple[int, ...]
    exact: bool


def readable_part(signature: Signature) -> Fit:
    """What of a signature Spark can say; the rest of its conditions is dropped and the rows become candidates."""
    many = [i for i, part in enumerate(signature.key) if part.operand.form in MANY]
    # One part of many values is enough: two would make a key for each pair. The residual says the others as well.
    key = tuple(i for i, part in enumerate(signature.key) if readable(part.operand) and i not in many[1:])
    residual = tuple(
        i
        for i, test in enumerate(signature.residual)
        if expressible(test) and readable(test.operand, presence_only=test.op is Op.HAS)
    )
    shape = Shape(tuple(signature.key[i] for i in key), tuple(signature.residual[i] for i in residual))
    whole = len(key) + len(many[1:]) == len(signature.key) and len(residual) == len(signature.residual)
    return Fit(shape, key, residual, signature.exact and whole)


def choose(rows_by_shape: Mapping[Shape, int], *, shapes_max: int) -> dict[Shape, Shape]:
    """For every shape the compiled one that holds its rows; at most `shapes_max` different ones.

    The shapes with the most rows stay themselves. For the others, the coarse shapes that most of their rows could use
    are compiled, and each row's shape takes the most useful of those.
    """
    ranked = sorted(rows_by_shape, key=lambda shape: (-rows_by_shape[shape], shape))
    if len(ranked) <= shapes_max:
        return {shape: shape for shape in ranked}
    coarse_max = max(1, shapes_max // _COARSE_SHARE)
    whole, rest = ranked[: shapes_max - coarse_max], ranked[shapes_max - coarse_max :]
    chosen = {shape: shape for shape in whole}
    uses: Counter[Shape] = Counter()
    for shape in rest:
        uses.update(dict.fromkeys(_coarser(shape), rows_by_shape[shape]))
    by_use = sorted(uses.keys() - chosen.keys(), key=lambda shape: (-uses[shape], shape))
    compiled = {*whole, *by_use[: coarse_max - 1], SCAN}
    for shape in rest:
        chosen[shape] = next((coarse for coarse in _coarser(shape) if coarse in compiled), SCAN)
    return chosen


def _coarser(shape: Shape) -> tuple[Shape, ...]:
    """Shapes that ask for less, the most useful first; the last resort is not among them."""
    parts = sorted(shape.key, key=_rank)
    singles = [Shape((part,)) for part in parts]
    return tuple(dict.fromkeys([Shape(shape.key), *singles])) if parts else ()


def _rank(part: KeyPart) -> tuple[int, int, bool, KeyPart]:
    return _USEFULNESS.index(part.kind), -part.length, part.operand.root is not Root.CE, part


def fit(signature_part: Fit, compiled: Shape) -> Fit:
    """The rows of `signature_part` as rows of `compiled`, which is its own shape or a coarser one."""
    if compiled == signature_part.shape:
        return signature_part
    own = signature_part.shape
    key = tuple(signature_part.key[own.key.index(part)] for part in compiled.key)
    residual = tuple(signature_part.residual[own.residual.index(test)] for test in compiled.residual)
    return Fit(compiled, key, residual, exact=False)


def usable(row: PlanRow) -> bool:
    """Whether every constant of a row can be stored: text that UTF-8 can hold, numbers that a double can."""
    return all(map(_storable, row.key)) and all(
        all(map(_storable, constant)) if isinstance(constant, tuple) else _storable(constant)
        for constant in row.constants
    )


def _storable(constant: Constant) -> bool:
    match constant:
        case str():
            return constant.isascii() or not any("\ud800" <= character <= "\udfff" for character in constant)
        case float():
            return not math.isnan(constant)
        case int():
            return abs(constant) <= _NUMBER_MAX
        case _:
            return True
