"""SQL's three-valued logic as two CEL expressions, one for true and one for false, that never hold together.

Selectors and property expressions are *unknown* where a property is missing, which must not count as a filter error.
So each condition is translated twice; NOT exchanges the two, and the filter is the first of them. The attributes that
must be present are collected, so that `color = 'red' AND color <> size` asks `has` once for each. Inside the two, a CEL
error may stand for "no", as both are only ever joined by `&&` and `||`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from headgate.filter.cel.ast import FALSE, TRUE, And, Node, Or
from headgate.filter.cel.build import joined, operands_of, present
from headgate.filter.cel.rewrite import negated
from headgate_api.event.attributes import REQUIRED_ATTRIBUTES


def required(name: str) -> tuple[str, ...]:
    """What a comparison of an attribute needs: that it is present, where not every event has it."""
    return () if name in REQUIRED_ATTRIBUTES else (name,)


@dataclass(frozen=True, slots=True)
class When:
    """A CEL condition: some attributes are present, and `body`, read only then, is true."""

    needs: tuple[str, ...]
    body: Node

    def cel(self) -> Node:
        if self.body == FALSE:
            return FALSE
        guards = tuple(guard for guard in map(present, self.needs) if guard != TRUE)
        return joined(And, (*guards, *_operands(And, self.body)))


NEVER: Final = When((), FALSE)


class Truth:
    """A condition: true when `holds`, false when `fails`, unknown when neither. Most are asked for one of them only."""

    def __init__(self, holds: Callable[[], When], fails: Callable[[], When]) -> None:
        self._holds = holds
        self._fails = fails

    @cached_property
    def holds(self) -> When:
        return self._holds()

    @cached_property
    def fails(self) -> When:
        return self._fails()

    def negated(self) -> Truth:
        """NOT: unknown stays unknown."""
        return Truth(lambda: self.fails, lambda: self.holds)


def truth(holds: When, fails: When) -> Truth:
    """A condition that is true when `holds` and false when `fails`."""
    return Truth(lambda: holds, lambda: fails)


def constant(value: bool) -> Truth:
    """TRUE or FALSE."""
    always = When((), TRUE)
    return truth(always, NEVER) if value else truth(NEVER, always)


def compared(needs: Iterable[str], holds: Node, fails: Node | None = None) -> Truth:
    """A comparison that is unknown where one of the attributes `needs` is missing.

    `holds` is true exactly where the comparison is, else false or an error. `fails` is true exactly where it is false;
    `!holds` when left out, so that an error of `holds` is unknown.
    """
    names = tuple(dict.fromkeys(needs))
    return Truth(lambda: When(names, holds), lambda: When(names, negated(holds) if fails is None else fails))


def both(parts: Iterable[Truth]) -> Truth:
    """AND of all parts."""
    listed = list(parts)
    return Truth(lambda: _all([part.holds for part in listed]), lambda: _any([part.fails for part in listed]))


def either(parts: Iterable[Truth]) -> Truth:
    """OR of all parts."""
    listed = list(parts)
    return Truth(lambda: _any([part.holds for part in listed]), lambda: _all([part.fails for part in listed]))


def _all(parts: list[When]) -> When:
    bodies = tuple(operand for part in parts for operand in _operands(And, part.body))
    if FALSE in bodies:
        return NEVER
    return When(tuple(dict.fromkeys(name for part in parts for name in part.needs)), joined(And, bodies))


def _any(parts: list[When]) -> When:
    possible = [part for part in parts if part.body != FALSE]
    if not possible:
        return NEVER
    if all(frozenset(part.needs) == frozenset(possible[0].needs) for part in possible):
        bodies = tuple(operand for part in possible for operand in _operands(Or, part.body))
        return When(possible[0].needs, TRUE if TRUE in bodies else joined(Or, bodies))
    bodies = tuple(operand for part in possible for operand in _operands(Or, part.cel()))
    return When((), TRUE if TRUE in bodies else joined(Or, bodies))


def _operands(join: type[And] | type[Or], node: Node) -> tuple[Node, ...]:
    return tuple(operand for operand in operands_of(join, node) if operand != (TRUE if join is And else FALSE))
