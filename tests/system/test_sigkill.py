"""Does an event that was answered 202 survive SIGKILL of the whole server at any instant?

One server, killed again and again under load at random instants (while starting, matching, delivering, changing
generation), then started a last time: every acknowledged event must have reached every trigger whose filter is true.
"""

from __future__ import annotations

import http.client
import itertools
import os
import random
import threading
import time
from pathlib import Path

import pytest

from headgate.testing import Server
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.system, pytest.mark.crash, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("HEADGATE_CRASH_KILLS", "20"))
SEED = int(os.environ.get("HEADGATE_CRASH_SEED", "0")) or random.randrange(1, 1 << 31)
START_SHARE = 0.3
"""Share of the kills that fall into the start (some 10 s, Spark's mostly); the others fall into the work after it."""
START_S_MAX = 12.0
WORK_S_MAX = 4.0
DUPLICATE_SHARE_MAX = 0.05
RATE_PER_S = 200
CONNECTIONS = 4

TRIGGERS = {
    "by-type": ({"attributes": {"type": "crash.even"}}, lambda n: n % 2 == 0),
    "by-data": ({"expression": 'ce.source == "/test" && data.n % 3 == 0'}, lambda n: n % 3 == 0),
    "by-list": ({"expression": 'ce.type.startsWith("crash.") && data.tags.exists(t, t == "a")'}, lambda n: n % 5 == 0),
    "by-range": ({"expression": 'ce.type == "crash.odd" && data.n >= 100'}, lambda n: n % 2 == 1 and n >= 100),
}


class Load:
    """Publishes numbered events over several connections for as long as the server answers; notes what was accepted."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self.accepted: list[int] = []

    def until_killed(self, seconds: float, *, ready: bool) -> None:
        """Publishes; kills the server after `seconds`, counted from its readiness or from now."""
        self._stop.clear()
        threads = [threading.Thread(target=self._publish) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        if ready:
            self._server.wait_ready()
        time.sleep(seconds)
        self._server.kill()
        self._stop.set()
        for thread in threads:
            thread.join()

    def _publish(self) -> None:
        while not self._stop.is_set():
            publisher = Publisher(self._server)
            try:
                while not self._stop.is_set():
                    number = next(self._numbers)
                    type_ = "crash.even" if number % 2 == 0 else "crash.odd"
                    data = {"n": number, "tags": ["a"] if number % 5 == 0 else ["b"]}
                    if publisher.publish(f"n{number}", type_, data) == 202:
                        self.accepted.append(number)
                    time.sleep(CONNECTIONS / RATE_PER_S)
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)  # the server is down, or not up yet; what was in flight was not acknowledged
            finally:
                publisher.close()


def test_acknowledged_events_reach_every_matching_trigger(tmp_path: Path, subscriber: Subscriber) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED} (HEADGATE_CRASH_SEED={SEED} repeats it)")
    server = Server(tmp_path / "data", log=tmp_path / "server.log")
    server.start()
    for name, (filter_, _) in TRIGGERS.items():
        spec = {"broker": "default", "filter": filter_, "subscriber": {"uri": subscriber.url(name)}}
        server.create("triggers", "default", name, spec)
    for name in TRIGGERS:
        server.wait_trigger_ready("default", name)
    load = Load(server)
    for kill in range(KILLS):
        if kill:
            server.start(wait=False)
        if rng.random() < START_SHARE:
            load.until_killed(rng.uniform(0.5, START_S_MAX), ready=False)
        else:
            load.until_killed(rng.uniform(0.0, WORK_S_MAX), ready=True)
        print(f"kill {kill + 1}: {len(load.accepted)} accepted, {len(subscriber.deliveries)} deliveries")
    server.start()
    expected = {name: {f"n{n}" for n in load.accepted if wanted(n)} for name, (_, wanted) in TRIGGERS.items()}
    deadline = time.monotonic() + 60
    while not all(ids <= set(subscriber.ids(name)) for name, ids in expected.items()):
        missing = {name: len(ids - set(subscriber.ids(name))) for name, ids in expected.items()}
        assert time.monotonic() < deadline, f"lost after {KILLS} kills (seed {SEED}): {missing}"
        time.sleep(0.2)
    server.stop()
    deliveries = sum(subscriber.ids(name).total() for name in TRIGGERS)
    distinct = sum(len(subscriber.ids(name)) for name in TRIGGERS)
    print(f"{len(load.accepted)} accepted, {distinct} delivered, {deliveries - distinct} repeated")
    assert len(load.accepted) > 10 * KILLS, "the load must be real"
    assert deliveries - distinct < DUPLICATE_SHARE_MAX * distinct
    unwanted = {name: set(subscriber.ids(name)) - ids for name, ids in expected.items()}
    for name, (_, wanted) in TRIGGERS.items():
        assert all(wanted(int(event_id[1:])) for event_id in unwanted[name]), "only unacknowledged events may be extra"
