"""What a message of Kafka says, to every reader of topics alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from headgate.errors import HeadgateError
from headgate.store.config import KafkaConfig
from headgate.store.kafka.client import Came, Faults, KafkaDeniedError, KafkaUnreachableError, came, polled

CONFIG = KafkaConfig(bootstrap="127.0.0.1:1")


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
def test_what_a_message_says(error: KafkaError | None, what: Came) -> None:
    assert came(message(error), CONFIG, Faults(), "it fails") is what


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaDeniedError),
        (KafkaError._ALL_BROKERS_DOWN, KafkaUnreachableError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, HeadgateError),
    ],
)
def test_an_error_that_does_not_pass_is_raised(code: int, raised: type[HeadgateError]) -> None:
    with pytest.raises(raised, match="it fails"):
        came(message(KafkaError(code)), CONFIG, Faults(), "it fails")


def test_what_has_come_with_a_message_comes_with_it() -> None:
    asked: list[float] = []

    def consume(count: int, timeout_s: float) -> list[str]:
        asked.append(timeout_s)
        return ["b", "c"]

    found: Any = SimpleNamespace(poll=lambda _: "a", consume=consume)
    assert polled(found, 1.0) == ["a", "b", "c"]
    assert asked == [0], "nobody waits for more"
    silent: Any = SimpleNamespace(poll=lambda _: None, consume=consume)
    assert polled(silent, 1.0) == []
