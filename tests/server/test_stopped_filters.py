"""Filters that have stopped matching: the rule by tables, and what the status of a trigger says of it."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.kinds.routing import TargetReport
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate.objects.store.targets import StoppedFilter
from headgate.observe.history import BrokerCount, NumbersHistory
from headgate.server.peers.target_stats import MatchCount
from headgate.server.stopped_filters import MatchCounters, StoppedFilters, StoppedFiltersWatch
from headgate_api.limits import (
    STOPPED_EXPECTED_MIN,
    STOPPED_MATCHED_PARTS,
    STOPPED_PART_S,
    STOPPED_SILENT_PARTS,
    STOPPED_TOLD_PARTS,
)
from headgate_api.objects.kinds import Kind, ObjectKey, Trigger
from tests.objects.support import trigger

Part = tuple[int, int]
"""Matches of the trigger and events of its broker between two looks."""
BUSY: Part = (20, 100)
SILENT: Part = (0, 100)
HOUR = [BUSY] * STOPPED_MATCHED_PARTS
GONE = [SILENT] * STOPPED_SILENT_PARTS


def said(parts: list[Part], *, waits: bool = False, needs: int = 1, filters: StoppedFilters | None = None) -> str:
    """What is said after these parts; `waits` holds in those without a match."""
    filters = filters or StoppedFilters({})
    matched = events = 0
    found = filters.look([MatchCounters(7, needs, 0, False, 0)], 0)
    for number, (more, taken) in enumerate(parts, 1):
        matched, events = matched + more, events + taken
        one = MatchCounters(7, needs, matched, waits and not more, events)
        found = filters.look([one], number * STOPPED_PART_S)
    return found[7].message if found else ""


@pytest.mark.parametrize(
    ("parts", "is_said"),
    [
        (HOUR, False),
        (HOUR + GONE, True),
        (HOUR + GONE[1:], False),
        (HOUR[1:] + GONE, False),
        ([*HOUR[1:], SILENT, BUSY, *GONE], False),
        ([*HOUR, SILENT, *HOUR, *GONE], True),
        ([*HOUR, *GONE, BUSY], False),
        (HOUR + [(0, 0)] * 10, False),
        ([(20, 0)] * STOPPED_MATCHED_PARTS + GONE, False),
        ([(1, 100)] * STOPPED_MATCHED_PARTS + GONE, False),
        ([(1, 100)] * STOPPED_MATCHED_PARTS + [(0, 100)] * STOPPED_EXPECTED_MIN, True),
        (HOUR + [SILENT] * (STOPPED_TOLD_PARTS - 1), True),
        (HOUR + [SILENT] * STOPPED_TOLD_PARTS, False),
        (HOUR + [SILENT] * (STOPPED_TOLD_PARTS + 3), False),
        ([SILENT] * 20, False),
    ],
    ids=[
        "it matches",
        "it has stopped",
        "not for long yet",
        "it did not match for an hour",
        "it did not match all the time",
        "it had come back",
        "it has come back",
        "its broker takes nothing",
        "its broker took nothing when it matched",
        "it is rare among its broker's events",
        "it is rare, and its broker has taken many",
        "for nearly a day",
        "for a day",
        "for longer",
        "it never matched",
    ],
)
def test_a_filter_has_stopped_when_it_matched_regularly_and_its_broker_takes_as_much(
    parts: list[Part], is_said: bool
) -> None:
    assert bool(said(parts)) is is_said


def test_matches_that_wait_for_their_subscriber_are_no_silence() -> None:
    assert not said(HOUR + GONE * 5, waits=True)


def test_another_filter_begins_anew() -> None:
    filters = StoppedFilters({})
    assert said(HOUR + GONE, filters=filters)
    assert not said(GONE, needs=2, filters=filters)
    assert not filters.look([], 0), "nor does one that is deleted stay known"


def test_the_words_have_numbers_and_times_and_stay_the_same() -> None:
    words = said(HOUR + GONE)
    assert "matched 120 events in the hour before 1970-01-01T01:00:00Z" in words
    assert "none of the 300 events that the broker took until 1970-01-01T01:30:00Z" in words
    assert "headgate why EVENT --trigger NAME" in words
    assert said(HOUR + GONE * 3) == words


def test_a_process_that_counts_anew_is_not_silent() -> None:
    filters = StoppedFilters({})
    said(HOUR, filters=filters)
    filters.look([MatchCounters(7, 1, 20, False, 100)], 0)  # both counters began anew
    assert not filters.look([MatchCounters(7, 1, 20, False, 300)], 0)


def test_what_an_earlier_process_said_holds_until_it_matches_again() -> None:
    told = {7: StoppedFilter(1, "it was so")}
    assert said(GONE, filters=StoppedFilters(dict(told))) == "it was so"
    assert not said([*GONE, BUSY], filters=StoppedFilters(dict(told)))
    assert not said(GONE, filters=StoppedFilters(dict(told)), needs=2)
    assert not said([SILENT] * STOPPED_TOLD_PARTS, filters=StoppedFilters(dict(told)))


class Counters:
    """What dispatchers and fronts have counted; of a trigger and its broker, `default/default`."""

    def __init__(self) -> None:
        self.count: dict[int, MatchCount] | None = {}
        self.taken = 0

    async def matches(self) -> dict[int, MatchCount] | None:
        return self.count

    def broker(self, path: str) -> BrokerCount:
        return BrokerCount(self.taken if path == "default/default" else 0, 0.0)


def test_the_status_of_the_trigger_says_it(store: Store) -> None:
    Admission(store).create(Kind.TRIGGER, trigger())
    reconciler, counters = Reconciler(store, report_s=0.0), Counters()
    watch = StoppedFiltersWatch(store, counters.matches, cast(NumbersHistory, counters), clock_s=lambda: 3_600.0)

    def look(parts: list[Part]) -> tuple[str, str]:
        """Status and reason of the condition after these parts."""
        for more, taken in parts:
            before = counters.count.get(1, MatchCount(0, False)) if counters.count is not None else MatchCount(0, False)
            counters.count = {1: MatchCount(before.ended + more, False)}
            counters.taken += taken
            asyncio.run(watch.look())
        reconciler.step()
        found = store.get(ObjectKey(Kind.TRIGGER, "default", "t1"))
        assert isinstance(found, Trigger)
        (condition,) = (one for one in found.status.conditions if one.type == "FilterHealthy")
        return condition.status, condition.reason

    assert look([(0, 0), *HOUR]) == ("True", "")
    assert look(GONE) == ("False", "StoppedMatching")
    store.reports.report([TargetReport(1, 0, "", "", trouble="CircuitOpen: dead")])  # says nothing of it: as before
    assert look([SILENT]) == ("False", "StoppedMatching")
    store.reports.report([TargetReport(1, 1, "boom", "s 1")])
    assert look([SILENT]) == ("False", "StoppedMatching"), "an error may be old"
    assert look([BUSY]) == ("False", "FilterErrors")
    mark = store.counters.all()["report"]
    look([BUSY] * 3)
    assert store.counters.all()["report"] == mark, "nothing is written where there is nothing new"
    look(HOUR + GONE)
    counters.count = None
    asyncio.run(watch.look())  # a dispatcher is away: nobody knows
    assert store.reports.stopped().keys() == {1}


def test_a_filter_that_was_changed_meanwhile_is_not_blamed(store: Store) -> None:
    Admission(store).create(Kind.TRIGGER, trigger())
    (target,) = store.snapshot().targets.values()
    store.reports.tell_stopped({1: StoppedFilter(target.needs + 1, "x"), 99: StoppedFilter(1, "gone")})
    assert store.reports.stopped() == {}
