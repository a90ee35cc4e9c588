"""The state of a takeover that holds no rows, as data: what a reader of a log needs to go on after a restart. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RunState:
    """A run that is alive.

    Attributes:
        active: Whether it has owned all of them.
    """

    run: int
    generation: int
    partitions: int
    active: bool


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition between two steps, nothing being held.

    Attributes:
        watermark: W.
        contenders: Runs, in order.
        retired: Runs that are alive and were followed here, in order.
        owned: Whether the first contender is the owner.
        near_misses: How often the last contender ended near W and below it.
    """

    watermark: int
    contenders: tuple[int, ...] = ()
    retired: tuple[int, ...] = ()
    owned: bool = False
    near_misses: int = 0


@dataclass(frozen=True, slots=True)
class TakeoverState:
    """All that a takeover without held rows is.

    Attributes:
        runs: Those that are alive, in order.
        partitions: By number.
    """

    runs: tuple[RunState, ...] = ()
    partitions: Mapping[int, PartitionState] = field(default_factory=dict)
