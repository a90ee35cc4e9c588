"""The changelog: what a dispatcher keeps of an outbox partition's targets, as rows of a compacted topic.

Cursors, dead letters and replays stand in SQLite files; the rows that a transaction changed go to the topic, cursors
together with the group's commit. Who is given the partition makes a `ChangelogWriter`, and then new files
(`restore_all`). docs/spec/changelog-topic.md has the format, docs/adr/0019-deliveries-move-with-their-partition.md the
reasons.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import TopicConsumer, library
from headgate.backend.kafka.outbox_records import Checkpoint, encode_state
from headgate.backend.kafka.outbox_walk import CheckpointedCursors, Checkpoints
from headgate.backend.kafka.rows import CacheTables, RowCapture, RowFormat, RowRecordError, row_headers, table_of
from headgate.backend.kafka.state_topic import StateTopicReader
from headgate.backend.kafka.target_reports import TABLE as REPORTS
from headgate.backend.kafka.target_reports import PartitionReports
from headgate.backend.kafka.transactions import FencedName, FencedWriter, fenced_by
from headgate.deadletters.store import DeadLetterStore
from headgate.replay.store import ReplayStore
from headgate.storage.files import DispatcherDirectory
from headgate.subscriptions.store import SubscriptionStore
from headgate_api.errors import HeadgateError, UnavailableError

CHANGELOG_ROWS: Final = RowFormat(1)
"""The tables of a dispatcher's files, all of them."""


class PartitionFencedError(UnavailableError):
    """Another dispatcher has taken the partition over."""

    code = "partition-fenced"


def group_identity(config: KafkaConfig) -> object:
    """How commits of the dispatchers' group are signed in a transaction: by the group alone, not by a member.

    Who may commit is decided by the transaction's name, which belongs to a partition's newest owner. A member's word
    would be refused while the group changes, which is when a partition that goes has its last commit.
    """
    with closing(TopicConsumer.committed(config, "the group cannot be read", "dispatchers")) as consumer:
        return consumer.raw.consumer_group_metadata()


class ChangelogWriter:
    """The one writer of an outbox partition's state until a newer one is made, wherever; for several threads.

    `partition` is that of the topics `outbox` and `changelog`, `group` what `group_identity` gives. `on_failure` is
    called, in any thread, with the error after which nothing can be stored any more. That the partition is another
    one's is none: the group tells.
    """

    def __init__(self, config: KafkaConfig, partition: int, group: object) -> None:
        self._topic = config.topic("outbox")
        self._partition = partition
        self._group = group
        self._lock = threading.Lock()
        self._is_lost = False
        self.on_failure: Callable[[HeadgateError], object] = lambda _: None
        name = FencedName(
            topic="changelog",
            transactional_id=f"dispatcher-{partition}",
            doing="the state of deliveries cannot be written",
            unsure="the next owner of the partition reads whether it is stored",
            fenced=fenced_by(
                PartitionFencedError,
                f"another dispatcher has taken partition {partition} of {self._topic} over",
                "this process stood still for too long; it begins anew",
            ),
            headers=(CHANGELOG_ROWS.header,),
            partition=partition,
        )
        self._writer = FencedWriter(config, name)

    @contextmanager
    def transaction(
        self, capture: RowCapture, connection: sqlite3.Connection, place: Checkpoint | None
    ) -> Iterator[None]:
        """Stores the rows that a connection's transaction has changed; the block runs before they count.

        Raises PartitionFencedError when another dispatcher has the partition, UnavailableError when Kafka did not take
        them; the hint says where that is not known.
        """
        with self._lock:
            records = [] if self._is_lost else list(capture.records(connection))
            if not records and (place is None or self._is_lost):
                yield
                return
            try:
                self._writer.send(records, [(REPORTS, one) for one in records if table_of(one.key) == REPORTS])
                try:
                    if place is not None:
                        metadata = encode_state(place.state)
                        there = library().TopicPartition(self._topic, self._partition, place.offset, metadata)
                        self._writer.add_places([there], self._group)
                    yield
                except BaseException:
                    if not self._writer.is_failed:
                        self._writer.abort()
                    raise
                self._writer.commit()
            except HeadgateError as error:
                if self._writer.is_failed and not isinstance(error, PartitionFencedError):
                    self.on_failure(error)
                raise

    def lose(self) -> None:
        """The partition is another one's: from now on nothing is stored, and nobody is told that it is not."""
        self._is_lost = True

    def close(self) -> None:
        """Gives the producer back."""
        with self._lock:
            self._writer.close()


class ChangelogCommitter:
    """The `Committer` of one file; `place` says what the group is to commit with its next transaction."""

    is_synced = True

    def __init__(self, writer: ChangelogWriter, place: Callable[[], Checkpoint | None] = lambda: None) -> None:
        self._writer = writer
        self._place = place
        self._capture: RowCapture | None = None

    def attach(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA synchronous = OFF")  # the topic is what is durable; the file is made anew
        self._capture = RowCapture(connection, CHANGELOG_ROWS)

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        capture = self._capture
        assert capture is not None, "`attach` made it"
        with self._writer.transaction(capture, connection, self._place()):
            capture.clear(connection)
        connection.execute("COMMIT")

    def detach(self, connection: sqlite3.Connection) -> None:
        connection.close()


def restore_all(config: KafkaConfig, partition: int, own: DispatcherDirectory, stop: threading.Event) -> int:
    """Makes all files of an outbox partition as its changelog says, in a directory without them; see `restore`."""
    CheckpointedCursors(own.cursors, Checkpoints()).close()
    DeadLetterStore(own.dead_letters).close()
    PartitionReports(own.reports).close()
    ReplayStore(own.replays).close()
    SubscriptionStore(own.subscriptions).close()
    return restore(
        config, partition, [own.cursors, own.dead_letters, own.reports, own.replays, own.subscriptions], stop
    )


def restore(config: KafkaConfig, partition: int, files: Sequence[Path], stop: threading.Event) -> int:
    """Reads a partition's rows into files that have their tables, and no rows of the topic; returns how many. Blocking.

    Whoever wrote the partition before is fenced: nothing comes behind the end that is found. `stop` ends it early.
    Raises RowRecordError for a record that this version cannot apply.
    """
    topic, count = config.topic("changelog"), 0
    with ExitStack() as stack:
        caches: dict[str, CacheTables] = {}
        for path in files:
            connection = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
            cache = CacheTables(connection, CHANGELOG_ROWS)
            stack.enter_context(rows_alone(connection))
            caches |= dict.fromkeys(cache.tables, cache)
        reader = StateTopicReader(config, "changelog", partition)
        stack.callback(reader.close)
        for message in reader.records(0, reader.end()):
            if stop.is_set():
                break
            try:
                table = table_of(message.key())
                if table not in caches:
                    raise RowRecordError(
                        f"no row that Headgate stored: there is no table {table}",
                        hint="all dispatchers of a deployment run the same version of Headgate",
                    )
                caches[table].apply(message.key(), message.value(), row_headers(message))
            except RowRecordError as error:
                place = f"{topic}/{partition} at offset {message.offset()}"
                raise RowRecordError(f"{place}: {error.message}", hint=error.hint) from error
            count += 1
    return count


@contextmanager
def rows_alone(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction in which the file's triggers do nothing: what they had done comes as rows, too."""
    connection.execute("BEGIN IMMEDIATE")
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    yield
    for _, statement in triggers:
        connection.execute(statement)
    connection.execute("COMMIT")
