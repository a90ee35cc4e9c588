"""Which partitions of the outbox a dispatcher on Kafka reads on."""

from __future__ import annotations

import pytest

from headgate.limits import OUTBOX_PARTITION_WAITING_BYTES_MAX as OF_ONE
from headgate.limits import OUTBOX_WAITING_BYTES_MAX as OF_ALL
from headgate.server.kafka.group import without_room


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
