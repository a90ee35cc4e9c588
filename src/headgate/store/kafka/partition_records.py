"""What the owner of an outbox partition knows of an event: rows from the topic, the rest from its files."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import UnavailableError
from headgate.filter.compile.plan import Verdict
from headgate.inspect.file_records import DeliveryRecords
from headgate.inspect.records import EventRecords, MatchRow
from headgate.limits import WHY_SECONDS_MAX
from headgate.outbox.shards import dispatcher_of
from headgate.storage.dispatcher_directory import DispatcherDirectory
from headgate.store.config import KafkaConfig
from headgate.store.kafka.checkpoints import Checkpoints
from headgate.store.kafka.outbox_walk import OutboxWalker, WalkedMatch


class OutboxLookups:
    """The thread and the consumer by which a process looks for rows of events, one event at a time.

    Args:
        config: Of the deployment.

    Attributes:
        thread: In which `walker` is used.
        walker: Reads the outbox again.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._closing = threading.Event()
        self.walker = OutboxWalker(config, self._closing)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="lookups")

    def close(self) -> None:
        """Ends what is looked for, and gives everything back; blocks."""
        self._closing.set()
        self.thread.shutdown(wait=True, cancel_futures=True)
        self.walker.close()


@dataclass(frozen=True, slots=True)
class _FoundRows:
    """What a search for an event's rows brought."""

    rows: list[MatchRow]
    is_matched: bool = True
    is_trimmed: bool = False


class PartitionRecords(DeliveryRecords):
    """See `inspect/records.py`. Blocking; in the thread of `lookups`.

    Args:
        number: Of the partition.
        own: Its files.
        attempts: Directory of the journal of its process.
        checkpoints: Of the partition.
        lookups: Of the process.
        partitions: How many the outbox has.
    """

    def __init__(
        self,
        number: int,
        own: DispatcherDirectory,
        attempts: Path,
        checkpoints: Checkpoints,
        lookups: OutboxLookups,
        partitions: int,
    ) -> None:
        super().__init__(own, attempts)
        self._number = number
        self._checkpoints = checkpoints
        self._walker = lookups.walker
        self._partitions = partitions

    def of_event(self, source: int, offset: int, target: int | None) -> EventRecords:
        """What is known of an event.

        Args:
            source: Its partition of the topic `events`.
            offset: In that partition.
            target: Whose row is looked for; None: all of them.

        Raises:
            UnavailableError: Kafka does not answer, a file is busy, or the rows of a target that lags are too far away.
        """
        cursors = self.cursors()
        found = self._rows(source, offset, target)
        if found is None:
            if any(one.target == target for one in cursors.targets):
                raise UnavailableError(
                    f"the outbox holds more since this event than can be read in {WHY_SECONDS_MAX:.0f} s",
                    hint="ask again when the trigger has caught up",
                )
            found = _FoundRows([], is_trimmed=True)
        attempts = [one for one in self.attempts(source, offset) if self._is_own(one.target)]
        return EventRecords(found.is_matched, found.is_trimmed, self.of_rows(found.rows, cursors), attempts)

    def _rows(self, source: int, offset: int, target: int | None) -> _FoundRows | None:
        """The rows of an event; None where they are too far away."""
        place = self._checkpoints.of_event(source, offset)
        if place is None:
            return _FoundRows([], is_trimmed=True)
        deadline = time.monotonic() + WHY_SECONDS_MAX
        walk = self._walker.begin(self._number, place)
        if walk.is_cut:
            return _FoundRows([], is_trimmed=True)
        rows: list[MatchRow] = []
        while walk.watermark(source) <= offset and walk.position < walk.end:
            if self._walker.closing.is_set() or time.monotonic() > deadline:
                return None
            for match in walk.step():
                record = match.matched.record
                if (record.source, record.offset) == (source, offset):
                    rows += _rows_of(match, target)
        return _FoundRows(rows, is_matched=walk.watermark(source) > offset)

    def _is_own(self, target: int) -> bool:
        """Whether attempts for a target are this partition's; those of replays to a URL are the first one's."""
        return self._number == (dispatcher_of(target, self._partitions) if target else 0)


def _rows_of(match: WalkedMatch, target: int | None) -> list[MatchRow]:
    generation = match.matched.record.generation
    return [
        MatchRow(match.position, match.time_us, generation, one, Verdict(verdict))
        for one, verdict in match.matched.targets
        if target in (None, one)
    ]
