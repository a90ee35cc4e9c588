"""Where one subscription stands in the outbox and in its history. Pure.

`next` grows; only a seek puts it back, and then the epoch is another one.
"""

from __future__ import annotations

import msgspec

from headgate.subscriptions.consumers import Leases
from headgate.subscriptions.store import SavedCursor, SubscriptionCounters, UnackedEvent


class Cursor:
    """The state of one subscription. It owns `saved`, where an earlier process stopped.

    A row of the outbox that names the subscription and stands below `next` has ended (acknowledged, filtered out, gone)
    or is among the `leases`.

    A filter may count from an earlier place of the log on. Then the subscription has a *history*: of each partition the
    events of a span, which ends where the filter was in force. They come from the log itself, partition by partition
    and in order, before any row of the outbox. Rows of events in the span do not count, so every event comes once.
    Positions of history are below 0, made of partition and offset.
    """

    def __init__(self, saved: SavedCursor) -> None:
        self._saved = saved
        self.leases = Leases(saved)

    def snapshot(self) -> SavedCursor:
        """A copy for the disk."""
        saved = self._saved
        return msgspec.structs.replace(
            saved,
            unacked=[msgspec.structs.replace(event) for event in self.leases],
            counters=msgspec.structs.replace(saved.counters),
            floor=dict(saved.floor),
            history=dict(saved.history),
        )

    @property
    def counters(self) -> SubscriptionCounters:
        return self._saved.counters

    @property
    def epoch(self) -> int:
        return self._saved.epoch

    @property
    def next(self) -> int:
        return self._saved.next

    @property
    def progress(self) -> tuple[int, int, int]:
        """Differs when the cursor has moved: epoch, next row, what is left of the history."""
        return self.epoch, self.next, self.history_left

    # --- rows -----------------------------------------------------------------------------------------

    def wants(self, partition: int, offset: int) -> bool:
        """Whether the event of a row counts: not before the last seek's start, and not of the history."""
        first, end = self._saved.span.get(partition, (0, 0))
        return offset >= self._saved.floor.get(partition, 0) and not first <= offset < end

    def read_to(self, position: int) -> None:
        """Every row below has ended or is among the leases."""
        self._saved.next = max(self._saved.next, position)

    def expire(self, position: int) -> None:
        """Give up the unacknowledged events of rows below a position."""
        self.counters.expired += self.leases.remove(lambda event: 0 <= event.position < position)

    def seek(self, position: int, floor: dict[int, int], *, behind: bool = False, now_us: int = 0) -> None:
        """Go on at an outbox position; what was handed out is read again if it lies behind it.

        Events below the offsets of `floor` are not wanted. With `behind` the history is over.
        """
        self.leases.remove(lambda _: True)
        saved = self._saved
        saved.epoch += 1
        saved.next = position
        saved.floor = floor
        saved.history_us = now_us
        for partition, (first, end) in saved.span.items():
            saved.history[partition] = end if behind else min(max(first, floor.get(partition, 0)), end)

    # --- history --------------------------------------------------------------------------------------

    @property
    def filter_id(self) -> str:
        return self._saved.filter_id

    def without_history(self, filter_id: str) -> None:
        """This filter counts from when it is in force."""
        self._saved.filter_id = filter_id

    def begin_history(self, filter_id: str, span: dict[int, tuple[int, int]], now_us: int) -> None:
        """This filter counts from the span on: what was handed out of it, or acknowledged, is judged anew."""
        saved = self._saved
        saved.filter_id, saved.span, saved.history_us = filter_id, span, now_us
        saved.history = {partition: first for partition, (first, _) in span.items()}
        saved.epoch += 1

        def is_again(event: UnackedEvent) -> bool:
            first, end = span.get(event.partition, (0, 0))
            return _is_of_history(event) or first <= event.offset < end

        self.leases.remove(is_again)

    def next_history(self) -> tuple[int, int, int] | None:
        """Partition, offset to go on at, and the end there; None when the history is over."""
        saved = self._saved
        for partition, (_, end) in sorted(saved.span.items()):
            if saved.history[partition] < end:
                return partition, saved.history[partition], end
        return None

    @property
    def history_left(self) -> int:
        """Events of the log that the history has still to look at."""
        saved = self._saved
        return sum(end - saved.history[partition] for partition, (_, end) in saved.span.items())

    def history_to(self, partition: int, offset: int) -> None:
        """Everything below has ended or is among the leases."""
        self._saved.history[partition] = offset

    def is_history_older(self, before_us: int) -> bool:
        """Whether something is left of a history that began before a time."""
        return self._saved.history_us < before_us and (
            self.history_left > 0 or any(_is_of_history(event) for event in self.leases)
        )

    def expire_history(self, before_us: int) -> None:
        """Give up what is left of a history that began before a time."""
        if self.is_history_older(before_us):
            self.counters.expired += self.leases.remove(_is_of_history)
            self._saved.history = {partition: end for partition, (_, end) in self._saved.span.items()}


def _is_of_history(event: UnackedEvent) -> bool:
    return event.position < 0
