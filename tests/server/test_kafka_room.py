"""Which partitions of the outbox a dispatcher on Kafka reads on, by the size of what waits."""

from __future__ import annotations

import pytest

from headgate.backend.kafka.outbox_records import Checkpoint, OutboxEvent, OutboxPage, OutboxState
from headgate.event.arrow import StoredEvent
from headgate.server.processes.kafka.dispatcher import without_room
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import OUTBOX_PARTITION_WAITING_BYTES_MAX as OF_ONE
from headgate_api.limits import OUTBOX_WAITING_BYTES_MAX as OF_ALL


@pytest.mark.parametrize(
    ("waiting", "paused", "found"),
    [
        ({}, set(), set()),
        ({0: 1, 1: 0}, set(), set()),
        ({0: OF_ONE - 1, 1: OF_ONE}, set(), {1}),
        ({0: 1, 1: 1, 2: 0}, {1, 2}, {1}),
        ({0: OF_ALL - 1, 1: 1, 2: 0}, set(), {0, 1, 2}),
        ({0: 1}, {7}, set()),
    ],
    ids=["none", "little waits", "one is full", "paused until walked", "all are full", "one that has gone"],
)
def test_what_waits_decides(waiting: dict[int, int], paused: set[int], found: set[int]) -> None:
    assert without_room(waiting, paused) == found


def test_a_page_without_events_has_a_size_and_more_events_have_a_larger_one() -> None:
    checkpoint = Checkpoint(0, 1, OutboxState())
    stored = StoredEvent("default/default", Event("1.0", "1", "/s", "t", data_kind=DataKind.BINARY, data=bytes(5_000)))
    event = OutboxEvent(0, 0, 0, 1, ((1, 3),), stored, 0)
    none, one, two = (OutboxPage([event] * count, [], checkpoint).size_bytes for count in range(3))
    assert 0 < none < none + 5_000 < one < two
