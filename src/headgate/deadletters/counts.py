"""How many dead letters there are, by trigger, reason and state, counted from an index of the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from headgate.event import rfc3339
from headgate.storage.sqlite import read_only


class DeadLetterCount(msgspec.Struct, frozen=True):
    """Dead letters of one trigger, of one reason, in one state.

    Attributes:
        oldest: When the first of them died, RFC 3339.
        newest: When the last one did.
    """

    namespace: str
    trigger: str
    reason: str
    state: str
    count: int
    oldest: str
    newest: str


def counts_of(paths: Iterable[Path], namespace: str | None) -> list[DeadLetterCount]:
    """The counts of several stores, most first; blocking.

    Args:
        paths: Of `deadletters.db`, which need not be there; no trigger is in two of them.
        namespace: None for all.
    """
    found = [one for path in paths if path.exists() for one in _counts(path, namespace)]
    return most_first(found)


def most_first(counts: Sequence[DeadLetterCount]) -> list[DeadLetterCount]:
    """In the order in which people look at them."""
    return sorted(counts, key=lambda one: (-one.count, one.namespace, one.trigger, one.reason, one.state))


def _counts(path: Path, namespace: str | None) -> list[DeadLetterCount]:
    where, parameters = "", tuple[str, ...]()
    if namespace is not None:
        where, parameters = "WHERE trigger >= ? AND trigger < ?", (f"{namespace}/", f"{namespace}0")
    with read_only(path) as connection:
        rows = connection.execute(
            f"SELECT trigger, reason, state, count(*), min(died_us), max(died_us) FROM letters {where}"
            " GROUP BY trigger, reason, state",
            parameters,
        ).fetchall()
    return [
        DeadLetterCount(at, name, reason, state, count, rfc3339.text(oldest), rfc3339.text(newest))
        for trigger, reason, state, count, oldest, newest in rows
        for at, _, name in [trigger.partition("/")]
    ]
