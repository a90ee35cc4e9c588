"""Filters that have stopped matching: a trigger got events regularly, and gets none although its broker takes events.

An event whose type or data has changed is in no row, so nothing fails that could be counted. What is left to see is the
silence: every STOPPED_PART_S each trigger's matches are compared with what its broker took since the last look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from headgate.objects.store.store import Store
from headgate.objects.store.targets import StoppedFilter
from headgate.objects.store.writes import kube_time
from headgate.observe.history import NumbersHistory, grown
from headgate.observe.logs import Recurring
from headgate.server.peers.target_stats import MatchCount
from headgate_api import limits
from headgate_api.errors import UnavailableError
from headgate_api.event.names import path_of

_NOTHING: Final = MatchCount(0, False)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MatchCounters:
    """The counters of a trigger at one moment; each begins anew when its process does.

    `needs` is the generation that first held its filter. `matched` events were delivered or given up; while it `waits`,
    nobody knows how many will be. `events` is what its broker has taken.
    """

    target: int
    needs: int
    matched: int
    waits: bool
    events: int


class StoppedFilters:
    """Finds them. Pure. What an earlier process `told` holds until the filter matches, is another, or a day is over."""

    def __init__(self, told: dict[int, StoppedFilter]) -> None:
        self._told = told
        self._tracks: dict[int, _Track] = {}

    def look(self, counters: Iterable[MatchCounters], now_s: float) -> dict[int, StoppedFilter]:
        """By target; `now_s` is in seconds since 1970."""
        tracks = {}
        for one in counters:
            track = self._tracks.get(one.target)
            if track is None or track.last.needs != one.needs:
                told = self._told.get(one.target) if track is None else None
                track = _Track(one, told.message if told is not None and told.needs == one.needs else "")
            else:
                track.add(one, now_s)
            tracks[one.target] = track
        self._tracks, self._told = tracks, {}
        return {id_: StoppedFilter(one.last.needs, one.message) for id_, one in tracks.items() if one.message}


class _Track:
    """One trigger: its counters at the last look, and what is said of it, empty for nothing."""

    __slots__ = ("_matched", "_matched_at_s", "_silent", "_silent_events", "last", "message")

    def __init__(self, first: MatchCounters, message: str) -> None:
        self.last = first
        self.message = message
        self._matched: tuple[tuple[int, int], ...] = ()  # matches and events of parts with matches, in a row
        self._matched_at_s = 0.0
        self._silent = 0  # parts without a match since
        self._silent_events = 0

    def add(self, now: MatchCounters, now_s: float) -> None:
        matched, events = grown(self.last.matched, now.matched), grown(self.last.events, now.events)
        self.last = now
        if matched:
            before = () if self._silent else self._matched
            self._matched = (*before, (matched, events))[-limits.STOPPED_MATCHED_PARTS :]
            self._matched_at_s, self._silent, self._silent_events, self.message = now_s, 0, 0, ""
        elif not now.waits:
            self._silent += 1
            self._silent_events += events
            if self._silent >= limits.STOPPED_TOLD_PARTS:
                self._matched, self.message = (), ""
            elif not self.message and self._has_stopped():
                self.message = self._words(now_s)

    def _has_stopped(self) -> bool:
        if len(self._matched) < limits.STOPPED_MATCHED_PARTS or self._silent < limits.STOPPED_SILENT_PARTS:
            return False
        matched, events = map(sum, zip(*self._matched, strict=True))
        # Without events of its broker what it matched was stored before, and says nothing of its share.
        return events > 0 and matched / events * self._silent_events >= limits.STOPPED_EXPECTED_MIN

    def _words(self, now_s: float) -> str:
        """They stay the same while it is silent: each change is a write of the trigger."""
        matched = sum(count for count, _ in self._matched)
        hours = limits.STOPPED_MATCHED_PARTS * limits.STOPPED_PART_S / 3600
        span = "hour" if hours == 1 else f"{hours:g} hours"
        last, now = kube_time(self._matched_at_s), kube_time(now_s)
        return (
            f"the filter matched {matched:,} events in the {span} before {last}, then none of the "
            f"{self._silent_events:,} events that the broker took until {now}; if their type or data has changed, "
            "change the filter: `headgate why EVENT --trigger NAME` shows why one of them did not match"
        )


class StoppedFiltersWatch:
    """Looks for them, and tells the objects; `matches` has None while a dispatcher does not answer."""

    def __init__(
        self,
        store: Store,
        matches: Callable[[], Awaitable[dict[int, MatchCount] | None]],
        history: NumbersHistory,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._matches = matches
        self._history = history
        self._clock_s = clock_s
        self._filters: StoppedFilters | None = None

    async def run(self) -> None:
        looks = Recurring(_log, "filters that stopped matching cannot be told", UnavailableError)
        while True:
            with looks.attempt():
                await self.look()
            await asyncio.sleep(limits.STOPPED_PART_S)

    async def look(self) -> None:
        if (counts := await self._matches()) is not None:
            await asyncio.to_thread(self._look, counts)

    def _look(self, counts: dict[int, MatchCount]) -> None:
        if self._filters is None:
            self._filters = StoppedFilters(self._store.reports.stopped())
        targets = [one for one in self._store.snapshot().targets.values() if one.pull is None]
        events = {broker: self._history.broker(path_of(broker)).received for broker in {one.broker for one in targets}}
        found = self._filters.look(
            (
                MatchCounters(one.id, one.needs, count.ended, count.waits or one.paused, events[one.broker])
                for one in targets
                for count in (counts.get(one.id, _NOTHING),)
            ),
            self._clock_s(),
        )
        self._store.reports.tell_stopped(found)
