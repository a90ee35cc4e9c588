"""A candidate that leaves its election, without a Kafka."""

from __future__ import annotations

import threading
import time

import pytest

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka import client
from headgate.backend.kafka.election import Election
from headgate_api.limits import ELECTION_LEAVE_S_MAX


class HeldConsumer:
    """A consumer whose group waits for a member that has died: Kafka lets nobody go meanwhile."""

    def __init__(self) -> None:
        self.let_go, self.gone = threading.Event(), threading.Event()

    def subscribe(self, *_: object, **__: object) -> None: ...

    def close(self) -> None:
        self.let_go.wait()
        self.gone.set()


def test_a_candidate_that_kafka_does_not_let_go_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, stop = HeldConsumer(), threading.Event()
    monkeypatch.setattr(client, "made_client", lambda *_: consumer)
    config = KafkaConfig(bootstrap="127.0.0.1:1")
    candidate = Election(config, topic="objects", group="control", on_gained=lambda: None, on_lost=lambda _: None)
    stop.set()
    began = time.monotonic()
    taking_part = threading.Thread(target=candidate.run, args=(stop,), daemon=True)
    taking_part.start()
    taking_part.join(2 * ELECTION_LEAVE_S_MAX)
    took_s = time.monotonic() - began
    consumer.let_go.set()
    assert took_s < 2 * ELECTION_LEAVE_S_MAX
    assert consumer.gone.wait(30)
