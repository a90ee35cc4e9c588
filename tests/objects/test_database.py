"""Do threads that write at the same time share a commit, and nothing else?"""

from __future__ import annotations

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.objects.store.database import WRITES_SHARED_MAX, Database, StoreUnavailableError


@pytest.fixture
def database(tmp_path: Path):
    database = Database(tmp_path / "control.db")
    with database.write() as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY)")
    yield database
    database.close()


def numbers(path: Path) -> list[int]:
    """As another process sees them."""
    with sqlite3.connect(path) as other:
        found = [number for (number,) in other.execute("SELECT number FROM numbers ORDER BY number")]
    other.close()
    return found


def waiting(database: Database, count: int) -> None:
    while database._waiting < count:
        time.sleep(0.001)


def together(database: Database, count: int, work) -> list[BaseException | None]:
    """Runs `work(connection, number)` in as many threads, all of which wait for one more; the errors, its own last."""
    begun, go = threading.Event(), threading.Event()

    def first() -> None:
        with database.write():
            begun.set()
            go.wait()

    def one(number: int) -> None:
        with database.write() as connection:
            work(connection, number)

    with ThreadPoolExecutor(count + 1) as pool:
        held = pool.submit(first)
        begun.wait()
        futures = [pool.submit(one, number) for number in range(count)]
        waiting(database, count)
        go.set()
        return [future.exception() for future in (*futures, held)]


def commits(database: Database) -> list[str]:
    seen: list[str] = []
    database._writer.set_trace_callback(lambda text: seen.append(text) if text == "COMMIT" else None)
    return seen


def test_those_who_wait_share_one_commit_which_all_wait_for(database: Database, tmp_path: Path) -> None:
    seen = commits(database)
    done: list[int] = []

    def work(connection: sqlite3.Connection, number: int) -> None:
        assert numbers(tmp_path / "control.db") == []  # nobody was told yet
        connection.execute("INSERT INTO numbers VALUES (?)", (number,))
        done.append(number)

    assert together(database, 20, work) == [None] * 21
    assert (len(done), seen) == (20, ["COMMIT"])
    assert numbers(tmp_path / "control.db") == list(range(20))


def test_a_commit_has_a_limit(database: Database) -> None:
    seen = commits(database)
    together(database, 2 * WRITES_SHARED_MAX, lambda connection, number: None)
    assert len(seen) == 3  # the first one's thread counts, too


def test_one_that_fails_takes_nobody_with_it(database: Database, tmp_path: Path) -> None:
    def work(connection: sqlite3.Connection, number: int) -> None:
        connection.execute("INSERT INTO numbers VALUES (?)", (number,))
        if number % 2:
            connection.execute("INSERT INTO numbers VALUES (?)", (1_000 + number,))
            raise KeyError(number)

    errors = together(database, 10, work)
    assert [type(error) for error in errors] == [*[type(None), KeyError] * 5, type(None)]
    assert numbers(tmp_path / "control.db") == [0, 2, 4, 6, 8]


def test_a_commit_that_fails_is_told_to_all(database: Database, tmp_path: Path) -> None:
    def work(connection: sqlite3.Connection, number: int) -> None:
        connection.execute("INSERT INTO numbers VALUES (?)", (number,))
        if number == 3:
            connection.execute("ROLLBACK")  # as SQLite does by itself when the disk is full
            raise sqlite3.OperationalError("disk full")

    errors = together(database, 8, work)
    assert isinstance(errors[3], StoreUnavailableError)
    assert isinstance(errors[-1], StoreUnavailableError)
    assert len({id(error) for error in errors if error}) == sum(error is not None for error in errors)
    # Who came before it was told as well, who came behind it began anew.
    assert numbers(tmp_path / "control.db") == [number for number in range(8) if errors[number] is None]


@pytest.mark.parametrize("use", [Database.read, Database.write])
def test_a_thread_that_comes_too_late_fails_and_does_not_wait_for_ever(tmp_path: Path, use) -> None:
    """A process waits for its threads when it ends."""
    database = Database(tmp_path / "control.db")
    database.close()

    def late() -> None:
        with use(database):
            pass

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(late)
        try:
            with pytest.raises((StoreUnavailableError, sqlite3.ProgrammingError)):
                future.result(20)
        finally:
            database._readers.put(sqlite3.connect(":memory:"))  # whoever waits all the same


def test_a_write_that_left_its_commit_to_a_later_one_is_stored_where_the_file_closes_before_that(
    tmp_path: Path,
) -> None:
    database = Database(tmp_path / "control.db")
    with database.write() as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY)")
    database._waiting += 1  # a write that waits for its turn, which the one who closes gets
    with ThreadPoolExecutor(1) as threads:

        def write() -> None:
            with database.write() as connection:
                connection.execute("INSERT INTO numbers VALUES (1)")

        written = threads.submit(write)
        while database._shared is None or not database._write_lock.acquire(blocking=False):
            time.sleep(0.001)
        database._write_lock.release()
        assert not written.done()
        database.close()
        written.result(30)
    assert numbers(tmp_path / "control.db") == [1]


def test_several_may_make_a_database_at_the_same_time(tmp_path: Path) -> None:
    """As the processes of a server may: SQLite itself refuses one of two that begin a write-ahead log together."""

    def opened(number: int, begin: threading.Barrier) -> None:
        begin.wait()
        Database(tmp_path / f"{number}.db").close()

    with ThreadPoolExecutor(4) as threads:
        for number in range(20):
            begin = threading.Barrier(4)
            for one in [threads.submit(opened, number, begin) for _ in range(4)]:
                one.result()
