"""A fold over a condition: what is known of it, from what is known of the conditions that it joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from headgate.filter.cel.ast import And, Conditional, Node, Not, Or
from headgate.filter.cel.rewrite import push_not

T = TypeVar("T")


class Fold(Generic[T]):
    """What is known of a condition, from what is known of its parts; of each conditional once.

    Args:
        leaf: Of a condition that joins no others.
        both: Of `&&`, from its operands.
        either: Of `||`, and of a conditional from its two branches.
    """

    def __init__(self, leaf: Callable[[Node], T], both: Callable[[list[T]], T], either: Callable[[list[T]], T]) -> None:
        self._leaf, self._both, self._either = leaf, both, either
        self._known: dict[Node, T] = {}

    def __call__(self, node: Node) -> T:
        """What is known of `node`."""
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
    return And((node.condition, node.then)), And((push_not(Not(node.condition)), node.otherwise))
