"""What a message of Kafka says, to every reader of topics alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import (
    Came,
    Delivered,
    GroupConsumer,
    KafkaDeniedError,
    KafkaUnreachableError,
    TopicConsumer,
    TopicProducer,
)
from headgate.backend.kafka.records import KafkaRecord
from headgate_api.errors import HeadgateError, UnavailableError


@pytest.fixture
def consumer() -> Iterator[TopicConsumer]:
    consumer = TopicConsumer.committed(KafkaConfig(bootstrap="127.0.0.1:1"), "it fails")
    yield consumer
    consumer.close()


def message(error: KafkaError | None = None) -> Any:
    return SimpleNamespace(error=lambda: error)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (None, Came.RECORD),
        (KafkaError(KafkaError._PARTITION_EOF), Came.END),
        (KafkaError(KafkaError.OFFSET_OUT_OF_RANGE), Came.REMOVED),
        (KafkaError(KafkaError._AUTO_OFFSET_RESET), Came.REMOVED),
        (KafkaError(KafkaError._MAX_POLL_EXCEEDED), Came.NOTHING),
        (KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "", False, True), Came.NOTHING),
    ],
)
def test_what_a_message_says(consumer: TopicConsumer, error: KafkaError | None, what: Came) -> None:
    assert consumer.came(message(error)) is what


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaDeniedError),
        (KafkaError._ALL_BROKERS_DOWN, KafkaUnreachableError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, HeadgateError),
    ],
)
def test_an_error_that_does_not_pass_is_raised(consumer: TopicConsumer, code: int, raised: type[HeadgateError]) -> None:
    with pytest.raises(raised, match="it fails"):
        consumer.came(message(KafkaError(code)))


def test_what_has_come_with_a_message_comes_with_it(consumer: TopicConsumer) -> None:
    asked: list[float] = []
    first, second, trouble = message(), message(), message(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "", False, True))

    def consume(count: int, timeout_s: float) -> list[Any]:
        asked.append(timeout_s)
        return [trouble, second]

    library, consumer.raw = consumer.raw, cast(Any, SimpleNamespace(poll=lambda _: first, consume=consume))
    assert consumer.polled(1.0) == [(Came.RECORD, first), (Came.RECORD, second)]
    assert asked == [0], "nobody waits for more"
    consumer.raw = cast(Any, SimpleNamespace(poll=lambda _: None, consume=consume))
    assert consumer.polled(1.0) == []
    consumer.raw = library


@pytest.mark.parametrize("offset", [None, 7])
def test_a_record_is_stored_where_kafka_names_its_offset(offset: int | None) -> None:
    """The library says of a refused batch that it is stored when the batch behind it is, and then names no offset."""
    producer = TopicProducer(KafkaConfig(bootstrap="127.0.0.1:1"), "it fails", {})

    def produce(*_: object, on_delivery: Callable[[KafkaError | None, Any], None], headers: object) -> None:
        on_delivery(None, SimpleNamespace(offset=lambda: offset))

    library, producer.raw = producer.raw, cast(Any, SimpleNamespace(produce=produce, flush=lambda _: 0))
    done = Delivered()
    producer.send("events", 0, KafkaRecord(None, b"{}"), done)
    error = producer.flush(1.0, [done])
    assert (done.offsets, error is None) == (([], False) if offset is None else ([7], True))
    if error is not None:
        assert isinstance(producer.error(error), UnavailableError)
    producer.raw = library


def test_a_reader_that_gets_too_little_is_told(consumer: TopicConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.backend.kafka.client.KAFKA_READ_S_MAX", 0.0)
    library, consumer.raw = consumer.raw, cast(Any, SimpleNamespace(poll=lambda _: None))
    with pytest.raises(UnavailableError, match="it fails: events/0 does not answer"):
        list(consumer.answers("events/0", 0.0))
    consumer.raw = library


@pytest.fixture
def member() -> Iterator[GroupConsumer]:
    member = GroupConsumer(KafkaConfig(bootstrap="127.0.0.1:1"), "it fails", "group", 10.0, {}, name="me")
    library = member.raw
    yield member
    member.raw = library
    member.close()


class Sized:
    """A message of so many bytes, or an error."""

    def __init__(self, size_bytes: int, error: KafkaError | None = None) -> None:
        self._size_bytes = size_bytes
        self.error = lambda: error

    def __len__(self) -> int:
        return self._size_bytes


@pytest.mark.parametrize(("count_max", "bytes_max", "found"), [(9, 99, 4), (2, 99, 2), (9, 30, 3), (9, 41, 4)])
def test_a_batch_is_what_has_come_within_its_bounds(
    member: GroupConsumer, count_max: int, bytes_max: int, found: int
) -> None:
    trouble = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
    come, asked = [Sized(10), Sized(10, trouble), Sized(20), Sized(10)], list[float]()

    def poll(timeout_s: float) -> Sized | None:
        asked.append(timeout_s)
        return come[len(asked) - 1] if len(asked) <= len(come) else None

    member.raw = cast(Any, SimpleNamespace(poll=poll))
    assert list(member.batch(0.5, count_max, bytes_max)) == come[:found]
    assert asked == [0.5, *[0.0] * (found - 1 if found < len(come) else found)], "it waits for the first alone"


def test_what_a_callback_fails_with_is_raised_once_by_the_poll_that_called_it(member: GroupConsumer) -> None:
    def poll(_: float) -> None:
        with member.calling_back():
            raise UnavailableError("the callback fails")

    member.raw = cast(Any, SimpleNamespace(poll=poll))
    with pytest.raises(UnavailableError, match="the callback fails"):
        member.next(0.0)
    member.raise_problem()
