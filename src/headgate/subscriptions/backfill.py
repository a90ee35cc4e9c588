"""The history of a filter that counts from an earlier place on: events of the log, up to where matching takes over.

A subscription with `filterFrom` gets its history when a generation of filters that has its filter is in force in every
partition: the span of each partition ends at what has been matched there by then. Rows of events in the span do not
count, whichever generation they are of, and every later row is of this filter: so no event is missed and none comes
twice, without knowing where exactly the generations changed. Until then its consumers wait.

Nothing is copied: a pull reads on in the log, by the scan, as far as it needs, and what a restart must know is one
offset a partition. History comes first: partition by partition, each in order, then what the matcher finds.
"""

from __future__ import annotations

import asyncio

import structlog

from headgate.delivery.events import SharedEvent, load_or_none
from headgate.limits import PULL_BYTES_MAX, SUBSCRIPTION_UNACKED_MAX
from headgate.log.errors import PositionError
from headgate.scan.pages import ScanRequest
from headgate.scan.starts import EARLIEST, start_offsets
from headgate.subscriptions.registry import SubscriptionState
from headgate.subscriptions.sources import SubscriptionResources
from headgate.subscriptions.store import UnackedEvent, history_position

_BEGINNING = "beginning"
_log = structlog.get_logger(__name__)


def has_begun(state: SubscriptionState) -> bool:
    """Whether its filter has no history, or that has begun."""
    return state.cursor.filter_id == state.rules.filter_id


async def begin(resources: SubscriptionResources, state: SubscriptionState) -> bool:
    """Begins the history if that is possible now; `state.reading` is taken. Whether it has begun."""
    if has_begun(state):
        return True
    target, rules = state.target, state.rules
    if not rules.history:
        state.cursor.without_history(rules.filter_id)
        return True
    to = EARLIEST if rules.history == _BEGINNING else rules.history
    try:
        starts = await asyncio.to_thread(start_offsets, resources.log, to)
    except PositionError as error:
        resources.look.errors.backlog(target.id, f"HistoryRefused: spec.filterFrom: {error.message}")
        state.cursor.without_history(rules.filter_id)
        return True
    ends: dict[int, int] = {}
    for partition, (matched, generation) in resources.in_force().items():
        if generation >= target.needs:
            ends[partition] = matched
    if starts.keys() - ends.keys() or state.target is not target:
        return False
    span = {partition: (min(at, ends[partition]), ends[partition]) for partition, at in starts.items()}
    state.cursor.begin_history(rules.filter_id, span, resources.clock_us())
    _log.info("a history begins", subscription=target.name, events=state.cursor.history_left)
    return True


async def next_events(
    resources: SubscriptionResources, state: SubscriptionState, count_max: int
) -> list[tuple[UnackedEvent, SharedEvent]]:
    """The history's next events, unacknowledged; `state.reading` is taken. Empty after a page that found none.

    Raises:
        HeadgateError: The log cannot be read.
    """
    cursor = state.cursor
    room = min(count_max, SUBSCRIPTION_UNACKED_MAX - len(cursor.leases))
    where = cursor.next_history()
    if where is None or room <= 0:
        return []
    partition, at, end = where
    broker, cel = state.target.broker, state.target.filter.cel
    rule = await asyncio.to_thread(resources.rule_of, broker)
    if rule is None:
        return []
    request = ScanRequest(broker, rule, cel, {partition: at}, {partition: end}, room)
    page = await resources.scanner.scan_page(request)
    events: list[tuple[UnackedEvent, SharedEvent]] = []
    size_bytes = 0
    for located in page.found:
        offset = located.offset
        event = await load_or_none(resources.events, partition, offset)
        cursor.counters.processed += 1
        cursor.history_to(partition, offset + 1)
        if event is None:
            cursor.counters.lost += 1
            continue
        unacked = UnackedEvent(history_position(partition, offset), partition, offset, located.stored_us)
        cursor.leases.add(unacked)
        events.append((unacked, event))
        size_bytes += event.size_bytes
        if size_bytes > PULL_BYTES_MAX:
            return events
    cursor.counters.errors += page.errors
    cursor.history_to(partition, page.positions[partition])
    return events
