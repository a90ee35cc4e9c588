"""The one writer of a partition, without a Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka import client
from headgate.backend.kafka.records import KafkaRecord
from headgate.backend.kafka.transactions import FencedName, FencedWriter
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.limits import KAFKA_TRANSACTION_S_MAX


class SilentProducer:
    """A producer whose Kafka is asked in vain: it notes how long each question may take."""

    def __init__(self) -> None:
        self.asked: dict[str, float | None] = {}

    def produce(self, *_: object, on_delivery: object, headers: object) -> None: ...

    def poll(self, _: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        def ask(*given: Any) -> int:
            numbers = [one for one in given if isinstance(one, float | int)]
            self.asked[name] = numbers[-1] if numbers else None
            return 0

        return ask


def test_every_question_to_kafka_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the library waits for a Kafka that stands still for as long as it does, and so does who asked."""
    producer = SilentProducer()

    def fenced(hint: str) -> HeadgateError:
        return UnavailableError("fenced", hint=hint)

    monkeypatch.setattr(client, "made_client", lambda *_: producer)
    writer = FencedWriter(KafkaConfig(bootstrap="127.0.0.1:1"), FencedName("events", "n", "it fails", "unsure", fenced))
    writer.send([KafkaRecord(b"k", b"v")])
    writer.add_places([], object())
    writer.commit()
    writer.abort()
    questions = ("init_transactions", "flush", "send_offsets_to_transaction", "commit_transaction", "abort_transaction")
    assert producer.asked == dict.fromkeys(questions, KAFKA_TRANSACTION_S_MAX)
