"""The move of a server without Kafka into a fresh deployment: `headgate cluster import`.

What goes over, in this order: stored events with their undelivered rows, dead letters, and at last every row of
control.db. A deployment without objects delivers nothing and takes nothing, so a move that was broken off has had no
effect but on its topics, which are made anew for another try. The directory is only read.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from headgate.backend.config import KafkaConfig
from headgate.backend.embedded_state import EmbeddedState, UndeliveredRows, objects_by_kind
from headgate.backend.kafka.changelog import ChangelogCommitter, ChangelogWriter, group_identity, restore
from headgate.backend.kafka.client import BOUNDED_SEND, Delivered, TopicConsumer, TopicProducer
from headgate.backend.kafka.objects import OBJECT_ROWS, KafkaObjects
from headgate.backend.kafka.outbox_records import EVENT, HEAD, HEADER, TARGET, OutboxKind
from headgate.backend.kafka.outbox_walk import KnownPlace, OutboxWalker
from headgate.backend.kafka.records import KafkaRecord, encode_record
from headgate.backend.kafka.rows import SEQUENCES, RowTable, tables
from headgate.backend.kafka.runs import OutboxDriver, RunRegistry
from headgate.backend.kafka.topics import wanted_topics
from headgate.deadletters.store import DeadLetterStore
from headgate.event.arrow import EVENT_SCHEMA, from_batch
from headgate.ingress.partitions import partition_of_key
from headgate.log.reader import Chunk
from headgate.objects.store.store import Store
from headgate.outbox.shards import Shard, dispatcher_of
from headgate.storage import sqlite
from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.limits import (
    KAFKA_APPEND_S_MAX,
    MOVED_BYTES_AT_ONCE,
    MOVED_DEAD_LETTERS_AT_ONCE,
    MOVED_EVENTS_AT_ONCE,
    MOVED_ROWS_AT_ONCE,
    OUTBOX_RECORD_TARGETS_MAX,
)

# --- moved events ---------------------------------------------------------------------------------
# Rows go as a matcher's run writes them (docs/spec/outbox-topic.md): a run of its own number matches the events that
# had been matched before, for the targets that have not got them. So dispatchers take them as any other rows, and the
# next run begins behind them. Events get new places; those with one partition key keep their order.

_PRODUCED: Final = EVENT_SCHEMA.get_field_index("produced")


@dataclass(slots=True)
class _Sent:
    """An event on its way, and for whom it is undelivered."""

    source: int
    stored_us: int
    record: KafkaRecord
    targets: list[tuple[int, int]]
    stored: Delivered = field(default_factory=Delivered)


class _Copying:
    """Copies events, and writes the rows of a run for them; counts events by partition of the topic. Blocking."""

    def __init__(self, config: KafkaConfig, run: int, generation: int) -> None:
        own = {**BOUNDED_SEND, "message.timeout.ms": round(KAFKA_APPEND_S_MAX * 1_000), "linger.ms": 1}
        self._producer = TopicProducer(config, "the deployment on Kafka cannot be written", own)
        self._events, self._outbox = config.topic("events"), config.topic("outbox")
        self._matches = Delivered()
        self._run = run
        self._generation = generation
        self._outboxes = config.topics.outbox.partitions
        self.counts = dict.fromkeys(range(config.topics.events.partitions), 0)

    def copy(
        self,
        chunks: Iterable[tuple[int, Chunk, range]],
        undelivered: UndeliveredRows | None,
        tell: Callable[[int], object],
    ) -> None:
        """Copies events and the deliveries of `undelivered`, None where nobody has matched these events."""
        piece: list[_Sent] = []
        size = 0
        for partition, chunk, rows in chunks:
            for row in rows:
                targets = [] if undelivered is None else undelivered.of(partition, chunk.first_offset + row)
                sent = self._send(partition, chunk, row, targets)
                piece.append(sent)
                size += sent.record.size_bytes
                if len(piece) >= MOVED_EVENTS_AT_ONCE or size >= MOVED_BYTES_AT_ONCE:
                    self._finish(piece, tell)
                    piece, size = [], 0
        self._finish(piece, tell)

    def _send(self, partition: int, chunk: Chunk, row: int, targets: list[tuple[int, int]]) -> _Sent:
        stored = from_batch(chunk.batch, row)
        produced: str | None = chunk.batch.column(_PRODUCED)[row].as_py()
        record = encode_record(stored.broker, stored.event, produced)
        count = len(self.counts)
        source = partition % count if record.key is None else partition_of_key(record.key, count)
        sent = _Sent(source, chunk.append_time_us, record, targets)
        self._producer.send(self._events, source, record, sent.stored)
        self.counts[source] += 1
        return sent

    def _finish(self, piece: list[_Sent], tell: Callable[[int], object]) -> None:
        """Waits until the events of a piece are stored, and writes their rows."""
        self._flush(piece)
        for sent in piece:
            by_outbox: dict[int, list[tuple[int, int]]] = {}
            for target, verdict in sent.targets:
                by_outbox.setdefault(dispatcher_of(target, self._outboxes), []).append((target, verdict))
            for outbox, targets in by_outbox.items():
                self._match(sent, outbox, targets)
        self._flush()
        tell(len(piece))

    def _flush(self, piece: Sequence[_Sent] = ()) -> None:
        """Waits until everything that was sent is stored."""
        error = self._producer.flush(KAFKA_APPEND_S_MAX, [*(sent.stored for sent in piece), self._matches])
        if error is not None:
            raise self._producer.error(error)

    def _match(self, sent: _Sent, outbox: int, targets: list[tuple[int, int]]) -> None:
        """The records of an event in one partition of the outbox."""
        starts = range(0, len(targets), OUTBOX_RECORD_TARGETS_MAX)
        for start in starts:
            more = start != starts[-1]
            own = HEAD.pack(OutboxKind.EVENT, more, self._run, self._generation, sent.source, sent.stored.offsets[0])
            own += EVENT.pack(sent.stored_us)
            own += b"".join(TARGET.pack(*one) for one in targets[start : start + OUTBOX_RECORD_TARGETS_MAX])
            record = KafkaRecord(None, sent.record.value, [(HEADER, own), *sent.record.headers])
            self._producer.send(self._outbox, outbox, record, self._matches)


# --- cluster import -------------------------------------------------------------------------------

Tell = Callable[[str, int, int], object]
"""Called with what is done, how many are done, and how many there are."""
_DOING: Final = "the topics cannot be looked at"
_OWN_TABLES: Final = frozenset({"topic_leader"})
"""Of a cache of the topic `objects`: a server without Kafka has none."""


class NotFreshError(HeadgateError):
    """The deployment has been used."""

    code = "not-fresh"


class MoveIncompleteError(HeadgateError):
    """What was counted at the end of a move is not what there was."""

    code = "move-incomplete"


class Moved(NamedTuple):
    """What a move has brought over, counted in the topics: objects by kind, deliveries that had not ended."""

    objects: dict[str, int]
    events: int
    undelivered: int
    dead_letters: int

    def difference(self, other: Moved) -> str:
        """What differs, in words; empty for nothing."""
        pairs = sorted(zip(self._fields, self, other, strict=True))
        return ", ".join(f"{name}: {own} and not {theirs}" for name, own, theirs in pairs if own != theirs)


def check_fresh(config: KafkaConfig) -> None:
    """Looks whether every topic is as it was made; NotFreshError when one has had a record."""
    with closing(TopicConsumer.committed(config, _DOING)) as consumer:
        used = [
            f"{topic.name}/{number}"
            for topic in wanted_topics(config)
            for number in range(topic.partitions)
            if consumer.bounds(topic.name, number)[1]
        ]
    if used:
        raise NotFreshError(
            f"the deployment is not empty: {', '.join(used[:3])}{' and others' if len(used) > 3 else ''} had records",
            hint="set another topic_prefix and run headgate cluster init, or delete its topics and make them anew",
        )


def import_state(config: KafkaConfig, state: EmbeddedState, tell: Tell) -> Moved:
    """Moves everything into a fresh deployment of which no server runs; what has come, counted in Kafka. Blocking.

    Raises NotFreshError, and MoveIncompleteError when something is missing at the end. After any other error the topics
    must be made anew.
    """
    check_fresh(config)
    with TemporaryDirectory() as name:
        folder = Path(name)
        control = _copied(state.control, folder)
        with closing(Store.open(control)) as store:  # brings its tables up to date
            generation = store.snapshot().generation
        _move_events(config, state, max(1, generation), tell)
        _move_dead_letters(config, state, folder, tell)
        _move_objects(config, control, folder, tell)
        wanted = Moved(state.objects(), state.events, state.undelivered.count, state.dead_letters())
        found = count_moved(config, folder)
    if difference := found.difference(wanted):
        raise MoveIncompleteError(
            f"what is in Kafka is not what was moved: {difference}",
            hint="was a server of the deployment running? Stop it, make the topics anew, and begin again",
        )
    return found


def _move_events(config: KafkaConfig, state: EmbeddedState, generation: int, tell: Tell) -> None:
    driver = OutboxDriver(config)
    with closing(RunRegistry(config, driver.partitions)) as runs:
        run, start = runs.newest_run + 1, dict.fromkeys(range(config.topics.events.partitions), 0)
        runs.started(run, generation, start)
        done, copying = [0], _Copying(config, run, generation)

        def told(count: int) -> None:
            done[0] += count
            tell("events", done[0], state.events)

        driver.hello(run, generation, start)
        copying.copy(state.chunks(matched=True), state.undelivered, told)
        passed = dict(copying.counts)
        copying.copy(state.chunks(matched=False), None, told)
        driver.passed(run, generation, passed)
        driver.over(run, generation)
        runs.over(run, generation)


def _move_dead_letters(config: KafkaConfig, state: EmbeddedState, folder: Path, tell: Tell) -> None:
    count, total, done = config.topics.outbox.partitions, state.dead_letters(), 0
    sources = [own.dead_letters for own in state.dispatchers if own.dead_letters.exists()]
    if not total:
        return
    group = group_identity(config)
    with ExitStack() as stack:
        opened = [
            stack.enter_context(closing(DeadLetterStore(_copied(path, folder / str(number)))))
            for number, path in enumerate(sources)
        ]
        last_id = max(one.last_id for one in opened)
        for number in range(count):
            shard = Shard(number, count)
            writer = stack.enter_context(closing(ChangelogWriter(config, number, group)))
            path = folder / f"deadletters-{number}.db"
            store = stack.enter_context(closing(DeadLetterStore(path, shard, ChangelogCommitter(writer))))
            for source in opened:
                for first in range(0, source.last_id + 1, MOVED_DEAD_LETTERS_AT_ONCE):
                    # Its row is not written again: the delivery has ended.
                    ids = range(first, first + MOVED_DEAD_LETTERS_AT_ONCE)
                    store.copy(source, shard.owns, lambda id_, _target, _position: -1 - id_, ids)
            store.begin_above(last_id)
            done += store.totals().count
            tell("dead letters", done, total)


def _move_objects(config: KafkaConfig, control: Path, folder: Path, tell: Tell) -> None:
    path = folder / "cache.db"
    with (
        closing(KafkaObjects(path, config, "")) as objects,
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
    ):
        objects.lead()
        objects.attach(connection)
        connection.execute("ATTACH DATABASE ? AS source", (str(control),))
        moved = [one for name, one in tables(connection, OBJECT_ROWS).items() if name not in _OWN_TABLES]
        query = "SELECT count(*) FROM source."
        counts = {one.name: int(connection.execute(query + one.name).fetchone()[0]) for one in moved}
        done, total = 0, sum(counts.values())
        for table in moved:
            for first in range(0, counts[table.name], MOVED_ROWS_AT_ONCE):
                objects.begin(connection)
                _copy_rows(connection, table, first)
                objects.commit(connection)
                done += min(MOVED_ROWS_AT_ONCE, counts[table.name] - first)
                tell("objects", done, total)


def _copy_rows(connection: sqlite3.Connection, table: RowTable, first: int) -> None:
    """Copies MOVED_ROWS_AT_ONCE rows of a table, in the open transaction."""
    columns, order = ", ".join((*table.key, *table.others)), ", ".join(table.key)
    connection.execute(
        f"INSERT OR REPLACE INTO main.{table.name} ({columns}) SELECT {columns} FROM source.{table.name}"
        f" ORDER BY {order} LIMIT {MOVED_ROWS_AT_ONCE} OFFSET {first}"
    )
    if connection.execute("SELECT 1 FROM source.sqlite_schema WHERE name = ?", (SEQUENCES,)).fetchone():
        number = connection.execute(f"SELECT seq FROM source.{SEQUENCES} WHERE name = ?", (table.name,)).fetchone()
        if number:  # numbers that were given once are not given again
            connection.execute(f"UPDATE main.{SEQUENCES} SET seq = ? WHERE name = ?", (*number, table.name))


def count_moved(config: KafkaConfig, folder: Path) -> Moved:
    """What a deployment has that no server has touched yet; `folder` is for files that are thrown away. Blocking."""
    with closing(KafkaObjects(folder / "counted.db", config, "")):
        pass
    with closing(sqlite3.connect(folder / "counted.db")) as connection:
        objects = objects_by_kind(connection)
    with closing(TopicConsumer.committed(config, _DOING)) as consumer:
        numbers = range(config.topics.events.partitions)
        bounds = [consumer.bounds(config.topic("events"), number) for number in numbers]
    letters = sum(_dead_letters_in(config, number, folder) for number in range(config.topics.outbox.partitions))
    return Moved(objects, sum(end - first for first, end in bounds), sum(_matched(config)), letters)


def _matched(config: KafkaConfig) -> Iterator[int]:
    """Deliveries that count in each partition of the outbox, from its beginning."""
    with closing(OutboxWalker(config, threading.Event())) as walker:
        for number in range(config.topics.outbox.partitions):
            walk = walker.begin(number, KnownPlace())
            while walk.position < walk.end:
                yield sum(len(match.matched.targets) for match in walk.step())


def _dead_letters_in(config: KafkaConfig, number: int, folder: Path) -> int:
    path = folder / f"restored-{number}.db"
    with closing(DeadLetterStore(path)):
        pass
    restore(config, number, [path], threading.Event())
    with closing(DeadLetterStore(path)) as store:
        return store.totals().count


def _copied(path: Path, folder: Path) -> Path:
    """A copy of an SQLite file, with what is in its log; the file stays as it is."""
    if not path.exists():
        raise InvalidInputError(f"there is no {path}", hint="--data is the data directory of a server")
    folder.mkdir(exist_ok=True)
    copy = folder / path.name
    sqlite.copy(path, copy, is_at_rest=True)
    return copy
