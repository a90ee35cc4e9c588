"""The shortest proof that an installed server works: a trigger gets the event that it wants, and no other."""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.testing import Server
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

SECONDS_MAX = 60.0


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def delivers(server: Server, subscriber: Subscriber) -> None:
    """A trigger is made, and gets an event that it wants."""
    uri, wanted = subscriber.url("wheel"), {"expression": 'ce.type == "wheel" && data.n > 1'}
    spec = {"broker": "default", "subscriber": {"uri": uri}, "filter": wanted}
    server.create("triggers", "default", "wheel", spec)
    server.wait_trigger_ready("default", "wheel", seconds=SECONDS_MAX)
    publisher = Publisher(server)
    assert [publisher.publish(f"w{n}", "wheel", {"n": n}) for n in (1, 2)] == [202, 202]
    eventually(lambda: subscriber.ids("wheel") == {"w2": 1})
