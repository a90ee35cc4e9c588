"""Conditions of a status: how they are made, what Ready is of them, and since when each holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headgate.control.metadata import Condition

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"


def warning(type_: str, reason: str, message: str) -> Condition:
    """False, but the object may be Ready all the same."""
    return Condition(type=type_, status=FALSE, severity="Warning", reason=reason, message=message)


def info(type_: str, reason: str, message: str) -> Condition:
    """False because somebody wants it so."""
    return Condition(type=type_, status=FALSE, severity="Info", reason=reason, message=message)


def false(type_: str, reason: str, message: str) -> Condition:
    """False, with the reason: what needs it is not Ready."""
    return Condition(type=type_, status=FALSE, reason=reason, message=message)


def summary(needed: Sequence[Condition]) -> Condition:
    """Ready: False when anything is False, else Unknown when anything is Unknown; with the reason of the first one."""
    for status in (FALSE, UNKNOWN):
        for condition in needed:
            if condition.status == status:
                return Condition(type="Ready", status=status, reason=condition.reason, message=condition.message)
    return Condition(type="Ready", status=TRUE)


def timed(conditions: Sequence[Condition], before: tuple[Condition, ...], now: str) -> tuple[Condition, ...]:
    """Each condition with the time at which its status last changed, ordered by type as Knative does."""
    last: Mapping[str, Condition] = {condition.type: condition for condition in before}
    found = []
    for condition in sorted(conditions, key=lambda condition: condition.type):
        old = last.get(condition.type)
        kept = old is not None and old.status == condition.status and old.last_transition_time
        found.append(msgspec.structs.replace(condition, last_transition_time=kept or now))
    return tuple(found)
