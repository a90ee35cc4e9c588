"""Hops, root and descendants of an event: how many brokers it has passed, and what has come of it. They end loops.

Hops and root are extensions of the stored event, `headgatehops` and `headgateroot`, which filters can ask for;
producers do not send them and subscribers do not see them. On the wire they are the headers `headgate-hops` and
`headgate-root` of every delivery, from where ingress takes them; those of a reply are the dispatcher's, whatever the
reply says.

Anybody who may publish can write these headers. Hops bind nothing but the event that has them. A root binds every event
of its tree, so only the server's own deliveries say it; from anybody else it names a tree of theirs (`outside_root`).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec
import xxhash

from headgate_api import limits
from headgate_api.errors import EventError, InvalidInputError
from headgate_api.event.model import Event
from headgate_api.limits import ROOT_CHARS_MAX

HOPS: Final = "headgatehops"
HOPS_HEADER: Final = "headgate-hops"
REPLY_HEADER: Final = "headgate-reply"
"""Of a reply on its way to the broker: that its sender was delivered to does not mean that he may publish."""
ROOT: Final = "headgateroot"
ROOT_HEADER: Final = "headgate-root"
ATTRIBUTES: Final = (HOPS, ROOT)
"""The broker's own."""


class Lineage(NamedTuple):
    """Where events come from."""

    hops: int = 0  # how many brokers they have been through
    root: str = ""  # the event that they descend from, empty when it is not known; see `outside_root`


NO_LINEAGE: Final = Lineage()


def hops_of(event: Event) -> int:
    """The count of a stored event; 0 for one that came from a producer."""
    value = event.extensions.get(HOPS, 0)
    return value if type(value) is int else 0


def root_of(event: Event) -> str:
    """The event that a stored one descends from; empty for one that came from a producer."""
    value = event.extensions.get(ROOT, "")
    return value if type(value) is str else ""


def forgery(event: Event) -> EventError | None:
    """Why a producer's event is refused that has one of `ATTRIBUTES`; None where it has none."""
    for name in ATTRIBUTES:
        if name in event.extensions:
            hint = f"leave it out; a broker that forwards events sends their hops in the header {HOPS_HEADER}"
            return EventError("is the broker's own attribute", attribute=name, hint=hint)
    return None


def place_root(event: Event, partition: int, offset: int) -> str:
    """What descendants of a stored event that descends from none have for a root; no other event's is the same."""
    return f"{partition}-{offset}-{xxhash.xxh32_hexdigest(f'{event.source} {event.id}'.encode())}"


def outside_root(root: str, sender: str, namespace: str) -> str:
    """A root that somebody outside says, as it counts here: in trees of this sender's in this namespace.

    It is no `place_root`, and another sender's is another one. What came back from another server is the same again.
    """
    whose = hashlib.sha256(f"{namespace} {sender}".encode()).hexdigest()[:16]
    return f"{whose}~{root.rpartition('~')[2]}"[:ROOT_CHARS_MAX]


def with_lineage(event: Event, hops: int, root: str = "") -> Event:
    """The event with this count and root in the place of any that it carries; without any when the count is 0."""
    if hops == 0 and HOPS not in event.extensions:
        return event
    extensions = {name: value for name, value in event.extensions.items() if name not in ATTRIBUTES}
    if hops:
        extensions[HOPS] = hops
        if root:
            extensions[ROOT] = root
    return msgspec.structs.replace(event, extensions=extensions)


class TooManyDescendantsError(InvalidInputError):
    """DESCENDANTS_MAX events have come of one: its tree grows without end."""

    code = "too-many-descendants"
    http_status = 422


class Descendants:
    """The size of trees: how many events have come of one, by replies and by brokers that are subscribers.

    The hop count bounds how deep a tree grows; three triggers that answer each other's events still make 3 ** 32 of one
    within it. Each namespace counts for itself: what another one makes of an event that it was sent takes no room here.
    The counts are in memory: a restart starts from zero, and trees that have not grown for longest are forgotten.
    Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def take(self, tree: str, count: int) -> None:
        """Counts new descendants of an event, before they are stored, as many wait for the disk together."""
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
        if tree in self._counts:
            self._counts[tree] -= count
