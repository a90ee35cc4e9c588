"""The move of a deployment on Kafka into a data directory of a server without it: `headgate cluster export`.

No server of the deployment runs. What goes over: objects, stored events, deliveries that have not ended, dead letters.
The directory has one dispatcher, which has handed nothing out yet: its outbox holds what is undelivered, and nothing
else. The topics are only read.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from headgate.backend.config import KafkaConfig
from headgate.backend.embedded_state import LeftBehind, objects_by_kind, running_replays, subscription_targets
from headgate.backend.kafka.changelog import restore_all
from headgate.backend.kafka.client import unfinished_partitions
from headgate.backend.kafka.cluster_import import Moved, MoveIncompleteError, Tell
from headgate.backend.kafka.election import GroupMembers
from headgate.backend.kafka.objects import POSITION_TABLE, KafkaObjects
from headgate.backend.kafka.outbox_walk import CheckpointedCursors, Checkpoints, OutboxWalker
from headgate.backend.kafka.scan import KafkaLog
from headgate.backend.kafka.topics import wanted_topics
from headgate.deadletters.store import DeadLetterStore
from headgate.delivery.cursors import CursorStore
from headgate.event.arrow import EVENT_SCHEMA, from_batch
from headgate.ingress.encode import Entries, encode
from headgate.log.directory import LogDirectory, Partition
from headgate.log.files import UnsyncedFileOps
from headgate.log.writer import PartitionWriter
from headgate.objects.kinds.specs import DEFAULT_RULE, LogRule
from headgate.objects.store.store import Store
from headgate.outbox.shards import dispatcher_of
from headgate.outbox.writer import OUTBOX_SCHEMA, RowGroup, encode_chunk
from headgate.scan.source import StoredPage, read_pages
from headgate.storage.files import DispatcherDirectory
from headgate.subscriptions.store import SubscriptionStore
from headgate_api.errors import UnavailableError
from headgate_api.event.names import path_of
from headgate_api.limits import EXPORT_SETTLE_S_MAX, MOVED_EVENTS_AT_ONCE

_PRODUCED: Final = EVENT_SCHEMA.get_field_index("produced")
_SETTLE_LOOK_S: Final = 0.5
"""Between two looks whether Kafka has ended what killed servers have left open."""
_Row = tuple[int, int, int, int]
"""Source partition and offset of an event in Kafka, target, verdict."""


class DeploymentRunsError(UnavailableError):
    """A server of the deployment is at work."""

    code = "deployment-runs"


@dataclass(slots=True)
class _Unfinished:
    """What the dispatchers have not done.

    `passed` has by source partition, as each partition of the outbox says: every event below it has been matched.
    `dead_letters` are files, one a partition of the outbox. `running` counts replays, `unread` events that consumers of
    subscriptions have not acknowledged.
    """

    rows: list[_Row] = field(default_factory=list)
    passed: list[dict[int, int]] = field(default_factory=list)
    dead_letters: list[Path] = field(default_factory=list)
    running: int = 0
    unread: int = 0


def export_state(
    config: KafkaConfig, data: Path, own: DispatcherDirectory, tell: Tell, *, leave_behind: bool = False
) -> Moved:
    """Moves everything into an empty data directory with one dispatcher, `own`; what was written, counted there.

    Blocking. Raises DeploymentRunsError when a dispatcher is at work or a transaction is open, MoveIncompleteError when
    something is missing at the end. Unread events of subscriptions and replays that have not ended are a
    LeftBehindError, or forgotten with `leave_behind`.
    """
    if owners := set(GroupMembers(config).owners().values()):
        raise DeploymentRunsError(
            f"servers of the deployment are running: {', '.join(sorted(owners))}", hint="stop all of them first"
        )
    _wait_settled(config)
    objects = _export_objects(config, data)
    with TemporaryDirectory() as name, closing(Store.open(data / "control.db")) as store:
        unfinished = _unfinished(config, Path(name), subscription_targets(data / "control.db"), tell)
        LeftBehind(unfinished.unread, unfinished.running).check(is_accepted=leave_behind)
        places = _export_events(config, data, store, tell)
        rows = _export_rows(config, own, unfinished, places)
        letters = _export_dead_letters(own, unfinished.dead_letters)
    return Moved(objects, sum(map(len, places.values())), rows, letters)


def _wait_settled(config: KafkaConfig) -> None:
    """Waits until no transaction is open: what is acknowledged behind that of a killed server is not readable."""
    places = [(topic.name, number) for topic in wanted_topics(config) for number in range(topic.partitions)]
    deadline = time.monotonic() + EXPORT_SETTLE_S_MAX
    while places := unfinished_partitions(places, config, "the topics cannot be looked at"):
        if time.monotonic() > deadline:
            topic, number = places[0]
            raise DeploymentRunsError(
                f"a transaction is open in {topic}/{number}, behind which nothing can be read",
                hint="stop every server of the deployment; Kafka ends what a killed one has left open",
            )
        time.sleep(_SETTLE_LOOK_S)


def _export_objects(config: KafkaConfig, data: Path) -> dict[str, int]:
    path = data / "control.db"
    with closing(KafkaObjects(path, config, "")):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for table in ("topic_leader", POSITION_TABLE):  # of a cache alone
            connection.execute(f"DROP TABLE {table}")
        return objects_by_kind(connection)


# --- what is unfinished ---------------------------------------------------------------------------------


def _unfinished(config: KafkaConfig, folder: Path, pulls: frozenset[int], tell: Tell) -> _Unfinished:
    found, count = _Unfinished(), config.topics.outbox.partitions
    with closing(OutboxWalker(config, threading.Event())) as walker:
        for number in range(count):
            own, checkpoints = DispatcherDirectory.of(folder, number), Checkpoints()
            own.path.mkdir(parents=True)
            restore_all(config, number, own, threading.Event())
            CheckpointedCursors(own.cursors, checkpoints).close()
            _walk(config, walker, own, checkpoints, found, pulls)
            found.dead_letters.append(own.dead_letters)
            found.running += running_replays(own.replays)
            tell("undelivered", number + 1, count)
    return found


def _walk(
    config: KafkaConfig,
    walker: OutboxWalker,
    own: DispatcherDirectory,
    checkpoints: Checkpoints,
    found: _Unfinished,
    pulls: frozenset[int],
) -> None:
    """Reads the rows of one partition of the outbox that have not ended."""
    number, saved = len(found.passed), SubscriptionStore.read(own.subscriptions)
    found.unread += sum(len(one.unacked) for one in saved.values())
    cursors = CursorStore.read(own.cursors)
    count = config.topics.outbox.partitions
    unread = {one: saved[one].next if one in saved else 0 for one in pulls if dispatcher_of(one, count) == number}
    walk = walker.begin(number, checkpoints.before(max(0, min([cursors.oldest_needed, *unread.values()]))))
    if walk.is_cut and cursors.oldest_needed < walk.first:
        raise UnavailableError(
            f"retention has removed records of {walker.topic}/{number} that were not delivered",
            hint="start the deployment, which tells of them, and export when its dispatchers have caught up",
        )
    while walk.position < walk.end:
        for match in walk.step():
            record, position = match.matched.record, match.position
            for target, verdict in match.matched.targets:
                if target in unread:
                    found.unread += position >= unread[target]
                elif not cursors.has_ended(target, position):
                    found.rows.append((record.source, record.offset, target, verdict))
    found.passed.append({source: walk.watermark(source) for source in range(config.topics.events.partitions)})


# --- events ---------------------------------------------------------------------------------------------


def _export_events(config: KafkaConfig, data: Path, store: Store, tell: Tell) -> dict[int, array[int]]:
    """Writes every stored event; the offsets that they had, by partition, in order."""
    rules: dict[str, LogRule] = {}

    def rule_of(broker: str) -> LogRule:
        if broker not in rules:
            served = store.served(path_of(broker))
            rules[broker] = served.rule if served is not None and served.identity == broker else DEFAULT_RULE
        return rules[broker]

    log = LogDirectory(data / "log", "stop")
    places: dict[int, array[int]] = {}
    with closing(KafkaLog(config, "stop")) as topic:
        first, end = topic.first_offsets(), topic.end_offsets()
        for number in end:
            now_us, offsets = [0], array("q")
            writing = PartitionWriter(
                log.partition(number), EVENT_SCHEMA, clock_us=partial(now_us.__getitem__, 0), files=UnsyncedFileOps()
            )
            with closing(writing) as writer:
                for _, page in read_pages(topic, {number: first[number]}, {number: end[number]}):
                    for time_us, group in _chunks(page, rule_of):
                        now_us[0] = time_us
                        writer.append(encode(group))
                    offsets.extend(page.offsets)
            places[number] = offsets
            tell("events", number + 1, len(end))
    return places


def _chunks(page: StoredPage, rule_of: Callable[[str], LogRule]) -> Iterator[tuple[int, list[Entries]]]:
    """What becomes a chunk each: events that were stored at one time, by broker."""
    rows = [(page.append_times_us[row], from_batch(page.batch, row), row) for row in range(len(page.offsets))]
    numbers = page.batch.column(_PRODUCED).to_pylist()
    for time_us, together in groupby(rows, key=itemgetter(0)):
        entries = []
        for (broker, _), group in groupby(together, key=lambda one: (one[1].broker, numbers[one[2]] is None)):
            own = list(group)
            produced = [numbers[row] for _, _, row in own if numbers[row] is not None]
            entries.append(Entries(broker, rule_of(broker), [stored.event for _, stored, _ in own], produced))
        yield time_us, entries


# --- rows and dead letters ------------------------------------------------------------------------------


def _export_rows(
    config: KafkaConfig, own: DispatcherDirectory, unfinished: _Unfinished, places: Mapping[int, array[int]]
) -> int:
    """Writes the outbox; how many rows it has. Rows of events that are not matched everywhere come anew."""
    sources = range(config.topics.events.partitions)
    passed = {one: min(marks[one] for marks in unfinished.passed) for one in sources}
    below = {one: bisect_left(places[one], passed[one]) for one in sources}
    rows = sorted({row for row in unfinished.rows if row[1] < passed[row[0]]})
    gone = written = 0
    with closing(PartitionWriter(Partition(own.outbox, "stop"), OUTBOX_SCHEMA, files=UnsyncedFileOps())) as writer:
        for first in range(0, len(rows), MOVED_EVENTS_AT_ONCE):
            groups = []
            for source, group in groupby(rows[first : first + MOVED_EVENTS_AT_ONCE], key=itemgetter(0)):
                placed = [(_place(places[source], offset), target, verdict) for _, offset, target, verdict in group]
                kept = [(offset, target, verdict) for offset, target, verdict in placed if offset is not None]
                gone += len(placed) - len(kept)
                written += len(kept)
                if kept:
                    groups.append(RowGroup(source, 0, kept))
            if groups:
                writer.append(encode_chunk(groups, {}))
        writer.append(encode_chunk([], {source: (offset, 0) for source, offset in below.items()}))
    if gone:
        raise MoveIncompleteError(
            f"retention has removed the events of {gone} deliveries that had not ended",
            hint="start the deployment, which tells of them, and export when its dispatchers have caught up",
        )
    return written


def _place(offsets: array[int], offset: int) -> int | None:
    """Where an event stands now; None when it is gone."""
    row = bisect_left(offsets, offset)
    return row if row < len(offsets) and offsets[row] == offset else None


def _export_dead_letters(own: DispatcherDirectory, files: list[Path]) -> int:
    with ExitStack() as stack:
        store = stack.enter_context(closing(DeadLetterStore(own.dead_letters)))
        sources = [stack.enter_context(closing(DeadLetterStore(path))) for path in files]
        for source in sources:
            store.copy(source, lambda _: True, lambda id_, _target, _position: -1 - id_)
        store.begin_above(max((source.last_id for source in sources), default=0))
        wanted, found = sum(source.totals().count for source in sources), store.totals().count
    if wanted != found:
        raise MoveIncompleteError(f"of {wanted} dead letters {found} were written")
    return found
