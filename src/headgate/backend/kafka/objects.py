"""Objects on Kafka: the topic `objects` holds them, control.db is a cache of it, and one process at a time leads.

Every process follows the topic, so that each answers reads and watches with the same resourceVersions. The leader
writes: a change of control.db goes to the topic as one transaction, and into its own cache once that is committed.
docs/adr/0015-objects-are-rows-of-a-topic.md has the reasons, docs/spec/objects-topic.md the format.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.rows import CacheTables, RowCapture, RowFormat, RowRecordError, row_headers, tables
from headgate.backend.kafka.state_topic import StateTopicReader, TopicLostError
from headgate.backend.kafka.transactions import FencedName, FencedWriter, fenced_by
from headgate.objects.store.database import NotLeaderError, translated_errors
from headgate.objects.store.rows import counter
from headgate.objects.store.schema import MIGRATIONS, migrate
from headgate.objects.store.store import Store
from headgate.storage.keyring import Keyring
from headgate.storage.sqlite import BUSY_TIMEOUT_MS, read_only, write_ahead
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.limits import OBJECT_CACHE_AGE_S_MAX

# --- object rows ----------------------------------------------------------------------------------
# How a row becomes a record and comes back: `rows.py`.

POSITION_TABLE: Final = "topic_position"
OBJECT_ROWS: Final = RowFormat(len(MIGRATIONS), frozenset({POSITION_TABLE}))
"""Every table of control.db, but for the cache's own."""
_OWN_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS topic_leader (id INTEGER PRIMARY KEY, name TEXT NOT NULL, term INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS {POSITION_TABLE} (
  id INTEGER PRIMARY KEY, topic TEXT NOT NULL, next_offset INTEGER NOT NULL, read_at_s INTEGER NOT NULL);
"""
"""Beside those of control.db: who leads, a row of the topic as all others; and how far this cache is, its own."""


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Makes the tables that are not there, in the caller's transaction; writes no object. Raises DatabaseNewerError."""
    migrate(connection, path)
    for statement in filter(str.strip, _OWN_TABLES.split(";")):
        connection.execute(statement)


def empty(connection: sqlite3.Connection) -> None:
    """Leaves every table of a cache as it is in a new file, in the caller's transaction."""
    new = sqlite3.connect(":memory:", isolation_level=None)
    try:
        prepare(new, Path(":memory:"))
        for table in tables(new, OBJECT_ROWS).values():
            connection.execute(f"DELETE FROM {table.name}")
            columns = (*table.key, *table.others)
            insert = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            connection.executemany(insert, new.execute(f"SELECT {', '.join(columns)} FROM {table.name}"))
    finally:
        new.close()


class CachePosition(NamedTuple):
    """How far a cache of the topic with this id is: it has every record below, or a newer one in its place.

    `read_at_s` is when it had everything that there was, seconds since 1970.
    """

    topic: str
    next_offset: int
    read_at_s: int


def position(connection: sqlite3.Connection) -> CachePosition | None:
    """How far the cache is; None in a file that never was one."""
    found = connection.execute(f"SELECT topic, next_offset, read_at_s FROM {POSITION_TABLE} WHERE id = 1").fetchone()
    return CachePosition(*found) if found else None


_WRITER: Final = FencedName(
    topic="objects",
    transactional_id="control",
    doing="objects cannot be written",
    unsure="read the object: the change may be stored all the same",
    fenced=fenced_by(
        NotLeaderError,
        "another control process has taken the lead while this one wrote objects",
        "send the change again, to the process that leads",
    ),
    headers=(OBJECT_ROWS.header,),
)


# --- objects --------------------------------------------------------------------------------------

_WAIT_S: Final = 0.5
"""How long a look for news waits: a stop, and the wish to lead, are noticed so late."""
_RETRY_S: Final = 1.0
"""Between two tries while Kafka does not answer."""
_LOOK_S: Final = 0.05
"""Between two looks for a cache that is being made."""
_log = structlog.get_logger(__name__)


class KafkaObjects:
    """The cache control.db of the topic, and its `Committer` (see `storage/commit.py`).

    A process makes it, which brings the cache to what the topic has now; then the `Store` of the same file with it;
    calls `lead` when it is to write; and lets a thread `follow`. Who leads loses the lead when another process takes
    it, and when Kafka fails in a write: then it may take it again.

    `name` is that of this process, for the others: where writes go while it leads. `on_lost` is called with the reason
    when the lead is lost, by the thread that notices; it must not block.

    Making one blocks. It raises UnavailableError, TopicLostError, RowRecordError, DatabaseNewerError, and
    InvalidInputError when the file holds objects of a server without Kafka.
    """

    def __init__(
        self,
        path: Path,
        config: KafkaConfig,
        name: str,
        *,
        on_lost: Callable[[str], object] = lambda _reason: None,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._config = config
        self._topic = config.topic("objects")
        self._name = name
        self._on_lost = on_lost
        self._clock_s = clock_s
        self._capture: RowCapture | None = None
        # Changes only under SQLite's lock for writing, but for the step from None: a write looks at it under that lock.
        self._writer: FencedWriter | None = None
        self._seen_s = 0.0
        self._asking, self._using = threading.Lock(), threading.Lock()
        with ExitStack() as failing:
            self._reader = failing.enter_context(closing(StateTopicReader(config, "objects")))
            with translated_errors(path):
                opened = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                connection = self._connection = failing.enter_context(closing(opened))
                connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
                write_ahead(connection)
                connection.execute("PRAGMA synchronous = NORMAL")  # what a power cut takes is read again
                with _transaction(connection):
                    _prepare(connection, path)
            self._cache = CacheTables(connection, OBJECT_ROWS)
            self._topic_id = self._reader.topic_id()
            self._restore()
            failing.pop_all()

    # --- following -------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Brings the cache to the end of the topic in one transaction: others read it as it was before, or as it is."""
        with translated_errors(self._path), _transaction(self._connection):
            was = position(self._connection)
            start = was.next_offset if was is not None else 0
            if was is not None and was.topic != self._topic_id:
                raise TopicLostError(self._config, "objects", "Kafka has another topic of this name now")
            if was is not None and self._clock_s() - was.read_at_s > OBJECT_CACHE_AGE_S_MAX:
                empty(self._connection)
                start = 0
            end = self._reader.end()
            if was is not None and was.next_offset > end:
                end = self._reader.very_end()
                if was.next_offset > end:
                    reason = f"it ends at {end}, and the cache has read it up to {was.next_offset}"
                    raise TopicLostError(self._config, "objects", reason)
                end = was.next_offset
            self._apply(start, end)

    def _catch_up(self) -> None:
        """Applies every change that is in the topic and not yet in the cache, in one transaction."""
        if self._clock_s() - self._seen_s > OBJECT_CACHE_AGE_S_MAX:
            self._restore()  # this process stood still
        end = self._reader.end()
        start = self._next_offset()
        if start >= end or not self._reader.has_record(start, end):
            self._seen_s = self._clock_s()
            return
        with translated_errors(self._path), _transaction(self._connection):
            self._apply(self._next_offset(), end)

    def _apply(self, start: int, end: int) -> None:
        """Applies records in the open transaction, which waited for a write of our own that was under way."""
        for message in self._reader.records(start, end):
            if self._writer is not None:
                self._step_down("another control process has taken the lead")
            try:
                self._cache.apply(message.key(), message.value(), row_headers(message))
            except RowRecordError as error:
                place = f"{self._topic} at offset {message.offset()}"
                raise RowRecordError(f"{place}: {error.message}", hint=error.hint) from error
        self._seen_s = self._clock_s()
        self._put_position(self._connection, max(start, end))

    def follow(self, stop: threading.Event) -> None:
        """Applies changes as they come, until told to stop; blocking, for a thread of its own.

        Kafka that does not answer is asked again. Raises TopicLostError, RowRecordError.
        """
        while not stop.is_set():
            try:
                with self._turn():
                    if self._reader.comes(self._next_offset(), _WAIT_S):
                        self._catch_up()
            except UnavailableError as error:
                _log.warning("objects are not followed now", error=error.message, hint=error.hint)
                stop.wait(_RETRY_S)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Uses the reader and the connection alone, in the order of asking: `follow` asks again at once."""
        with self._asking:
            self._using.acquire()
        try:
            yield
        finally:
            self._using.release()

    def _next_offset(self) -> int:
        with translated_errors(self._path):
            found = position(self._connection)
        assert found is not None, "`_restore` has written it"
        return found.next_offset

    def _put_position(self, connection: sqlite3.Connection, next_offset: int) -> None:
        """Remembers how far the cache is, in the open transaction."""
        now = CachePosition(self._topic_id, next_offset, int(self._clock_s()))
        connection.execute(f"INSERT OR REPLACE INTO {POSITION_TABLE} VALUES (1, ?, ?, ?)", now)

    # --- leading ---------------------------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        """Whether this process may write, as far as it knows."""
        return self._writer is not None

    def lead(self) -> None:
        """Takes the lead, whoever has it: others' writes fail then. NotLeaderError: yet another process was faster."""
        with self._turn():
            if self._writer is not None:
                return
            writer = FencedWriter(self._config, _WRITER)  # from here on the topic has the last word of those before
            try:
                self._catch_up()
                with translated_errors(self._path), _transaction(self._connection) as connection:
                    connection.execute(
                        "INSERT OR REPLACE INTO topic_leader"
                        " VALUES (1, ?, ifnull((SELECT term FROM topic_leader), 0) + 1)",
                        (self._name,),
                    )
                    last = writer.send([tables(connection, OBJECT_ROWS)["topic_leader"].record(connection, [1])])
                    self._put_position(connection, last + 1)
                    writer.commit()
            except BaseException:
                writer.close()
                raise
            self._writer = writer
            _log.info("leads the objects", name=self._name)

    def _step_down(self, reason: str) -> None:
        """Writes no more; under SQLite's lock for writing."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            _log.warning("leads the objects no more", name=self._name, reason=reason)
            self._on_lost(reason)

    # --- the committer of the store --------------------------------------------------------------------

    is_synced = True

    def attach(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA synchronous = NORMAL")  # the topic is what is durable
        self._capture = RowCapture(connection, OBJECT_ROWS)

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        if self._writer is None:
            leader = _leader(connection)
            connection.execute("ROLLBACK")
            raise NotLeaderError(
                "this control process does not lead, so it cannot write objects",
                hint=f"{leader} leads" if leader not in ("", self._name) else "no control process leads now",
            )

    def commit(self, connection: sqlite3.Connection) -> None:
        writer, capture = self._writer, self._capture
        assert writer is not None, "`begin` looked"
        assert capture is not None, "`attach` made it"
        records = capture.records(connection)
        first = next(records, None)
        if first is None:
            connection.execute("COMMIT")
            return
        is_stored = False
        try:
            last = writer.send(chain([first], records))
            try:
                capture.clear(connection)
                self._put_position(connection, last + 1)
            except BaseException:
                writer.abort()
                raise
            writer.commit()
            is_stored = True
            connection.execute("COMMIT")
        except BaseException as error:
            if is_stored or writer.is_failed:
                self._step_down(str(error))
            raise

    def detach(self, connection: sqlite3.Connection) -> None:
        connection.close()

    def close(self) -> None:
        """Gives everything back; nobody follows or writes any more. Idempotent."""
        with self._turn():
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            self._reader.close()
            self._connection.close()


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Makes the tables of a cache in a file that is one, or is new."""
    prepare(connection, path)
    if position(connection) is None and counter(connection, "version"):
        raise InvalidInputError(
            f"{path} holds objects of a server without Kafka",
            hint="use another data directory, and apply the objects to the deployment on Kafka",
        )


def _leader(connection: sqlite3.Connection) -> str:
    found = connection.execute("SELECT name FROM topic_leader").fetchone()
    return str(found[0]) if found else ""


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Everything in the block, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # an error of the disk may have ended it
            connection.execute("ROLLBACK")


# --- readers of a cache ---------------------------------------------------------------------------
# The other processes of a server wait until its cache is there, and never write it.


class ReaderCommitter:
    """The `Committer` of a process that only reads: it refuses every write."""

    is_synced = True

    def attach(self, connection: sqlite3.Connection) -> None:
        """See `Committer.attach`."""

    def begin(self, connection: sqlite3.Connection) -> None:
        raise NotLeaderError(
            "this process only reads objects, so it cannot write them", hint="the leading control process writes"
        )

    def commit(self, connection: sqlite3.Connection) -> None:
        raise AssertionError("no transaction was begun")

    def detach(self, connection: sqlite3.Connection) -> None:
        connection.close()


def open_cache(path: Path, is_stopped: Callable[[], bool], keys: Keyring | None = None) -> Store:
    """Opens the cache control.db for reading, once the process that follows the topic has made it; blocking.

    Without `keys` no Secret can be read. UnavailableError when the wait was ended.
    """
    while not _is_there(path):
        if is_stopped():
            raise UnavailableError("the process ends before it has read any objects")
        time.sleep(_LOOK_S)
    return Store.open(path, committer=ReaderCommitter(), keys=keys)


def leader_of(path: Path) -> str:
    """The URL of the control process that took the lead last; empty when none did, or the cache cannot be read now."""
    try:
        with read_only(path) as connection:
            return _leader(connection)
    except sqlite3.OperationalError:
        return ""


def _is_there(path: Path) -> bool:
    """Whether the topic has been read into it once."""
    try:
        with read_only(path) as connection:
            return position(connection) is not None
    except sqlite3.OperationalError:  # there is no file, or it has no tables yet
        return False
