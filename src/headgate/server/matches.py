"""The dispatcher's end of the match link: where runs start, and what becomes of the rows that count."""

from __future__ import annotations

import structlog

from headgate import limits
from headgate.delivery.scheduler import Scheduler
from headgate.log.ends import LogEnds
from headgate.observe import metrics
from headgate.outbox.takeover import Accepted, Takeover
from headgate.outbox.writer import Outbox
from headgate.server.routing_cache import RoutingCache

_log = structlog.get_logger(__name__)


class MatchReceiver:
    """Takes matches into the outbox: the link's `MatchSink`.

    Args:
        outbox: Makes them durable.
        scheduler: Delivers them then.
        routing: Is brought up to date before a row of newer filters is taken.
        takeover: Knows what has been matched.
        ends: Of the event log.
    """

    def __init__(
        self, outbox: Outbox, scheduler: Scheduler, routing: RoutingCache, takeover: Takeover, ends: LogEnds
    ) -> None:
        self._outbox = outbox
        self._scheduler = scheduler
        self._routing = routing
        self._takeover = takeover
        self._ends = ends
        self._passed: dict[int, int] = {}

    def recovered(self, watermarks: dict[int, int]) -> None:
        """The outbox has been read: every event below these offsets, by partition, has passed."""
        self._passed.update(watermarks)
        for partition, watermark in watermarks.items():
            self._takeover.raise_floor(partition, watermark)

    def resume(self) -> dict[int, int]:
        """Where the next run must start; a partition that has never been matched starts at its first event."""
        for partition in self._ends.partitions():
            self._takeover.raise_floor(partition, self._ends.first_offset(partition))
        watermarks = self._takeover.watermarks()
        for partition, watermark in watermarks.items():
            if watermark > self._ends.end_offset(partition):
                _log.error("matching is ahead of the log: events are missing", partition=partition, offset=watermark)
        return watermarks

    def take(self, accepted: Accepted) -> None:
        """Take rows that count."""
        if accepted.generation > self._routing.generation:
            self._routing.refresh_now()  # the broker and the filter that a row was matched by
        passed = self.passed(accepted.partition)
        wanted = len({row[0] for row in accepted.rows})
        metrics.EVENTS_EVALUATED.labels("wanted").inc(wanted)
        metrics.EVENTS_EVALUATED.labels("unwanted").inc(max(0, accepted.passed - passed - wanted))
        self._passed[accepted.partition] = max(passed, accepted.passed)
        self._outbox.add(accepted)

    def is_full(self) -> bool:
        """Whether the link should stop reading for now."""
        return self._outbox.rows_pending + self._scheduler.rows_waiting > limits.OUTBOX_PENDING_ROWS_MAX

    def end_offset(self, partition: int) -> int:
        """Offset behind the last event of the partition."""
        return self._ends.end_offset(partition)

    def passed(self, partition: int) -> int:
        """The offset below which every event of a partition has passed."""
        return self._passed.get(partition, 0)
