"""Delivered events leave the disk, undelivered ones stay: on a real server with small segments."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headgate.testing.server import Server
from tests.support import eventually
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

pytestmark = pytest.mark.system

EVENT_BYTES = 60_000
EVENTS = 60
"""Of which 17 fill a segment of 1 MiB."""


def first_kept(data: Path) -> int:
    """First offset of the only partition that is still on disk."""
    return min(int(path.stem) for path in (data / "log" / "0").glob("*.seg"))


@pytest.mark.slow
def test_what_is_delivered_goes_and_what_is_not_stays(tmp_path: Path, monkeypatch, subscriber: Subscriber):
    monkeypatch.setenv("HEADGATE_SEGMENT_MB", "1")
    arguments = ("--partitions", "1", "--retain-hours", "0")
    with Server(tmp_path / "data", arguments=arguments, log=tmp_path / "server.log") as server:
        server.create(
            "triggers",
            "default",
            "stubborn",
            {
                "broker": "default",
                "filter": {"attributes": {"type": "kept"}},
                "subscriber": {"uri": subscriber.url("stubborn")},
                "delivery": {"retry": 1_000, "backoffPolicy": "linear", "backoffDelay": "PT0.05S"},
            },
        )
        server.wait_trigger_ready("default", "stubborn")
        subscriber.status = 503
        publisher = Publisher(server)
        for number in range(EVENTS):
            kind = "kept" if number == EVENTS // 2 else "other"
            assert publisher.publish(str(number), kind, "x" * EVENT_BYTES) == 202
        eventually(lambda: 0 < first_kept(server.data) <= EVENTS // 2)
        time.sleep(6.0)  # another look of retention
        assert first_kept(server.data) <= EVENTS // 2
        subscriber.status = 202
        eventually(lambda: first_kept(server.data) > EVENTS // 2)
        assert subscriber.deliveries[-1].headers["ce-id"] == str(EVENTS // 2)
