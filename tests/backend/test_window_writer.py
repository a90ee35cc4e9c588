"""What a partition's writer says of a window that it does not know whole, without a Kafka."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from unittest.mock import Mock

import pytest

from headgate.backend.kafka.window_writer import PartitionGoesError, StoredName, WindowWriter
from headgate.event.arrow import StoredEvent, to_batch
from headgate.ingress.producers import NumbersMovedError
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded, Numbers
from headgate_api.errors import UnavailableError
from headgate_api.event.model import Event
from tests.simulation.once_world import BROKER, WINDOW_US, WINDOWS, Partition, Transaction, World


@pytest.fixture
def world() -> World:
    """Nobody stops, and nothing fails."""
    found = World(0)
    found.random = Mock(random=lambda: 0.9)
    return found


def was_there(writer: WindowWriter, *ids: str, numbers: Sequence[Numbers] = ()) -> list[bool]:
    rows = [StoredEvent(BROKER, Event("1.0", one, "/s", "t")) for one in ids]
    found = writer.append(Encoded(to_batch(rows), ["" for _ in ids], windows=WINDOWS, numbers=numbers))
    assert isinstance(found, Sifted)
    return list(found.was_there)


class Told(Partition):
    """Its records as a test tells them; an error is raised."""

    def __init__(self, world: World, *told: StoredName | Exception | None) -> None:
        super().__init__(world)
        self.told = told
        self.starts: list[int] = []

    def names(
        self, start: int, end: int, brokers: Container[str], stopped: Callable[[], bool]
    ) -> Iterator[StoredName | None]:
        self.starts.append(start)
        for one in self.told:
            if isinstance(one, Exception):
                raise one
            yield one


def made(partition: Partition, world: World) -> WindowWriter:
    return WindowWriter(partition, lambda: WINDOWS, events_max=10, clock_us=lambda: world.clock_us)


def name(world: World, offset: int, id_: str) -> StoredName:
    return StoredName(offset, world.clock_us, BROKER, "/s", id_)


def test_what_retention_has_taken_of_a_window_is_lacking_until_the_window_is_over(world: World) -> None:
    assert was_there(made(Partition(world), world), "a", "b") == [False, False]
    world.first = world.log.pop(0).offset + 1
    writer = made(Partition(world), world)
    assert was_there(writer, "a", "b") == [False, True]
    assert writer.lacking() == {BROKER}
    world.clock_us += WINDOW_US
    assert writer.lacking() == set()


def test_a_window_whose_beginning_is_kept_lacks_nothing(world: World) -> None:
    was_there(made(Partition(world), world), "a")
    world.first = 0
    world.clock_us += WINDOW_US + 1
    was_there(made(Partition(world), world), "b")
    writer = made(Partition(world), world)
    assert was_there(writer, "b") == [True]
    assert writer.lacking() == set()


def test_a_record_that_cannot_be_read_is_lacking(world: World) -> None:
    writer = made(Told(world, name(world, 0, "a"), None, name(world, 5, "b")), world)
    assert was_there(writer, "a", "b", "c") == [True, True, False]
    assert writer.lacking() == {BROKER}


def test_a_look_that_fails_goes_on_where_it_was(world: World) -> None:
    partition = Told(world, name(world, 3, "a"), UnavailableError("no answer"))
    writer = made(partition, world)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="no answer"):
            was_there(writer, "a")
    partition.told = ()
    assert was_there(writer, "a", "b") == [True, False]
    assert was_there(writer, "b") == [True]
    assert partition.starts == [0, 4, 4]
    writer.stop()
    with pytest.raises(PartitionGoesError):
        was_there(writer, "b")


def numbers(after: int, last: int, stream: int = 1, producer: str = "p") -> Numbers:
    return Numbers(BROKER, producer, stream, after, last)


def test_numbers_are_stored_with_their_events_and_also_without_any_that_is_new(world: World) -> None:
    writer = made(Partition(world), world)
    begins = to_batch([StoredEvent(BROKER, Event("1.0", "x", "/s", "t"))]).slice(0, 0)
    assert writer.append(Encoded(begins, [], numbers=[numbers(-1, -1)])) == Sifted([], [])
    assert world.next_offset == 1, "one transaction"
    assert was_there(writer, "a", "b", numbers=[numbers(-1, 1)]) == [False, False]
    assert world.newest("p") == (1, 1)
    assert was_there(writer, "b", "a", numbers=[numbers(1, 3)]) == [True, True]
    assert world.newest("p") == (3, 1)
    assert was_there(made(Partition(world), world), "b", "c", numbers=[numbers(3, 5)]) == [True, False]


def test_of_a_chunk_in_which_numbers_do_not_follow_nothing_is_stored(world: World) -> None:
    """Group commit tries each submit alone then."""
    writer = made(Partition(world), world)
    was_there(writer, "x", numbers=[numbers(-1, -1), numbers(-1, 0), numbers(0, 2), numbers(-1, -1, producer="q")])
    for wrong in (
        [numbers(1, 3)],
        [numbers(2, 3, stream=0)],
        [numbers(2, 3, stream=2)],
        [numbers(1, 1, stream=2)],
        [numbers(2, 2, stream=0)],
        [numbers(2, 3), numbers(2, 4)],
        [numbers(2, 2, stream=2), numbers(2, 3)],
        [numbers(-1, 0, producer="q"), numbers(-1, 0, producer="r")],
    ):
        with pytest.raises(NumbersMovedError):
            was_there(writer, "y", numbers=wrong)
    assert was_there(writer, "y", numbers=[numbers(2, 2, stream=2), numbers(2, 3, stream=2)]) == [False]
    assert world.newest("p") == (3, 2)


def test_numbers_that_others_have_stored_are_looked_for(world: World) -> None:
    """Fronts that do not know of a window store them without an owner."""
    writer = made(Partition(world), world)
    was_there(writer, "x", numbers=[numbers(-1, -1), numbers(-1, 0)])
    written = Transaction(is_open=False, is_committed=True)
    world.numbers["p"].append((written, 7, 0))
    with pytest.raises(NumbersMovedError):
        was_there(writer, "y", numbers=[numbers(7, 8)])
    assert was_there(writer, "y", numbers=[numbers(7, 7), numbers(7, 8)]) == [False]
