"""What happened in a schedule, as the subscribers' side and the disks saw it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.delivery.retry import Outcome
from headgate_api.event.model import Event

PARTITIONS = 2


@dataclass
class Attempt:
    """One event in one POST.

    Attributes:
        life: Of the dispatcher that made it.
        target: Of the trigger.
        key: (partition, offset) of the event.
        started_at: Virtual seconds.
        ended_at: When the dispatcher heard; None when it never did.
        outcome: What it heard.
        stored: Whether the reply in the answer was stored; None when there was none.
        members: How many events the POST had.
        wall_us: The latest time that the machine's clock had said by then: it may be set back afterwards.
    """

    life: int
    target: int
    key: tuple[int, int]
    started_at: float
    ended_at: float | None = None
    outcome: Outcome | None = None
    stored: bool | None = None
    members: int = 1
    wall_us: int = 0


@dataclass
class Life:
    """One dispatcher, from its start to its end.

    Attributes:
        dispatcher: Its number.
        flushed_at: When what the last successful flush holds was taken, virtual seconds.
        killed_at: Virtual seconds; None when it ended by itself.
    """

    dispatcher: int
    flushed_at: float = -1.0
    killed_at: float | None = None


@dataclass
class Ledger:
    """What happened."""

    accepted: dict[tuple[int, int], Event] = field(default_factory=dict)
    in_force: dict[tuple[int, int], int] = field(default_factory=dict)  # the generation that each was accepted under
    stored_us: dict[tuple[int, int], int] = field(default_factory=dict)  # when each was stored
    attempts: list[Attempt] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    buried: dict[tuple[int, str], list[float]] = field(default_factory=dict)  # when each time, virtual seconds
    at_sink: set[tuple[int, str]] = field(default_factory=set)
    replies: list[str] = field(default_factory=list)
    dropped: int = 0
    parallel_max: dict[int, int] = field(default_factory=dict)
    unfinished: str = ""
