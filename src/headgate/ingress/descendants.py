"""The size of trees: how many events have come of one, by replies and by brokers that are subscribers.

The hop count bounds how deep a tree grows. Three triggers that answer each other's events still make 3 ** 32 of one
within it. So the events of each tree are counted while it grows; beyond DESCENDANTS_MAX no further one is stored. Each
namespace counts for itself: what another one makes of an event that it was sent takes no room here. The counts are in
memory: a restart starts from zero, and the trees that have not grown for longest are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict

from headgate import limits
from headgate.ingress.errors import TooManyDescendantsError


class Descendants:
    """Sizes of the trees that grow. Belongs to the event loop."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def take(self, tree: str, count: int) -> None:
        """Counts new descendants of an event in a namespace, before they are stored: many wait for the disk together.

        Raises TooManyDescendantsError beyond DESCENDANTS_MAX.
        """
        grown = self._counts.get(tree, 0) + count
        if grown > limits.DESCENDANTS_MAX:
            raise TooManyDescendantsError(
                f"{limits.DESCENDANTS_MAX} events have come of one event by replies and forwarding (DESCENDANTS_MAX)",
                hint="triggers answer each other's events: change their filters, or what their subscribers answer",
            )
        self._counts[tree] = grown
        self._counts.move_to_end(tree)
        if len(self._counts) > limits.ROOTS_KEPT_MAX:
            self._counts.popitem(last=False)

    def give_back(self, tree: str, count: int) -> None:
        """Takes back a count: the events were not stored."""
        if tree in self._counts:
            self._counts[tree] -= count
