"""What do consumers get where a filter counts from an earlier place on? The log, up to where matching takes over.

A subscription with `filterFrom` is given its history when a generation of filters that has its filter is in force in
every partition: the span of each partition ends at what has been matched there by then. Rows of events in the span do
not count, whichever generation they are of, and every later row is of this filter: so no event is missed and none comes
twice, without knowing where exactly the generations changed. Until then its consumers wait.

Nothing is copied: a pull reads on in the log, by the scan, as far as it needs, and what a restart must know is one
offset a partition. History comes first: partition by partition, each in order, then what the matcher finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from headgate.delivery.events import Events, SharedEvent, load_or_none
from headgate.delivery.verdicts import FilterErrors
from headgate.limits import PULL_BYTES_MAX, SUBSCRIPTION_UNACKED_MAX
from headgate.log.errors import PositionError
from headgate.scan.pages import RuleOf, Scanner, ScanRequest
from headgate.scan.starts import EARLIEST, start_offsets
from headgate.subscriptions.cursor import Held, history_position
from headgate.subscriptions.state import State

_BEGINNING = "beginning"
_log = structlog.get_logger(__name__)


class Histories:
    """Reads them, on the dispatcher's event loop.

    Args:
        log: Directory of the log's partitions.
        scanner: Looks through the log.
        events: The log.
        errors: Where people are told what is wrong.
        rule_of: How events get their filter values.
        in_force: Of each partition that is being matched: where matching stands, and by which generation.
        clock_us: Microseconds since 1970 UTC.
    """

    def __init__(
        self,
        log: Path,
        scanner: Scanner,
        events: Events,
        errors: FilterErrors,
        rule_of: RuleOf,
        in_force: Callable[[], dict[int, tuple[int, int]]],
        *,
        clock_us: Callable[[], int],
    ) -> None:
        self._log = log
        self._scanner = scanner
        self._events = events
        self._errors = errors
        self._rule_of = rule_of
        self._in_force = in_force
        self._clock_us = clock_us

    def is_begun(self, state: State) -> bool:
        """Whether its filter has no history, or that has begun."""
        return state.cursor.filter_id == state.rules.filter_id

    async def begun(self, state: State) -> bool:
        """The same, after an attempt to begin it; `state.reading` is taken."""
        if self.is_begun(state):
            return True
        target, rules = state.target, state.rules
        if not rules.history:
            state.cursor.without_history(rules.filter_id)
            return True
        to = EARLIEST if rules.history == _BEGINNING else rules.history
        try:
            starts = await asyncio.to_thread(start_offsets, self._log, to)
        except PositionError as error:
            self._errors.backlog(target.id, f"HistoryRefused: spec.filterFrom: {error.message}")
            state.cursor.without_history(rules.filter_id)
            return True
        ends: dict[int, int] = {}
        for partition, (matched, generation) in self._in_force().items():
            if generation >= target.needs:
                ends[partition] = matched
        if starts.keys() - ends.keys() or state.target is not target:
            return False
        span = {partition: (min(at, ends[partition]), ends[partition]) for partition, at in starts.items()}
        state.cursor.begin_history(rules.filter_id, span, self._clock_us())
        _log.info("a history begins", subscription=target.name, events=state.cursor.history_left)
        return True

    async def turn(self, state: State, count_max: int) -> list[tuple[Held, SharedEvent]]:
        """The history's next events, held; `state.reading` is taken. Empty after a turn that found none.

        Raises:
            HeadgateError: The log cannot be read.
        """
        cursor = state.cursor
        room = min(count_max, SUBSCRIPTION_UNACKED_MAX - cursor.held_count)
        where = cursor.next_history()
        if where is None or room <= 0:
            return []
        partition, at, end = where
        rule = await asyncio.to_thread(self._rule_of, state.target.broker)
        if rule is None:
            return []
        broker, cel = state.target.broker, state.target.filter.cel
        page = await self._scanner.scan_page(ScanRequest(broker, rule, cel, {partition: at}, {partition: end}, room))
        taken: list[tuple[Held, SharedEvent]] = []
        size = 0
        for place in page.found:
            event = await load_or_none(self._events, partition, place.offset)
            cursor.counters.processed += 1
            cursor.history_to(partition, place.offset + 1)
            if event is None:
                cursor.counters.lost += 1
                continue
            held = Held(history_position(partition, place.offset), partition, place.offset, place.stored_us)
            cursor.take(held)
            taken.append((held, event))
            size += event.size_bytes
            if size > PULL_BYTES_MAX:
                return taken
        cursor.counters.errors += page.errors
        cursor.history_to(partition, page.positions[partition])
        return taken
