"""Other numbers of fronts and dispatchers on a real server: a restart loses nothing and keeps the order of a key."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headgate.ingress.partitions import partition_of_key
from headgate.testing.server import Server, free_port
from tests.support import eventually
from tests.system.kills import stored
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(900)]

EVENTS = 60
KEYS = 6
NUMBERS = ((1, 1), (4, 3), (2, 2))
"""Of fronts and dispatchers, one start after the other; the first ends in order, the second is killed."""
PARTITIONS = 4
NAMES = [f"t{number}" for number in range(4)]
SECONDS_MAX = 120.0


def arguments(fronts: int, dispatchers: int) -> tuple[str, ...]:
    return "--fronts", str(fronts), "--dispatchers", str(dispatchers), "--partitions", str(PARTITIONS)


def test_what_was_not_taken_is_delivered_by_the_next_ones_in_order(tmp_path: Path) -> None:
    port, server = free_port(), Server(tmp_path / "data", arguments=arguments(*NUMBERS[0]), log=tmp_path / "log")
    delivery = {"order": "ordered", "retry": 1_000, "backoffDelay": "PT0.2S", "backoffPolicy": "linear"}
    server.start()
    for name in NAMES:
        to = {"uri": f"http://127.0.0.1:{port}/{name}"}  # where nobody listens yet
        spec = {"broker": "default", "filter": {"attributes": {"type": "a"}}, "subscriber": to, "delivery": delivery}
        server.create("triggers", "default", name, spec)
    server.create("subscriptions", "default", "s", {"broker": "default", "filter": {"attributes": {"type": "a"}}})
    for kind, name in [*(("triggers", name) for name in NAMES), ("subscriptions", "s")]:
        server.wait_object_ready(kind, "default", name)

    def publish(numbers: range) -> None:
        publisher = Publisher(server)
        for number in numbers:
            assert publisher.publish(f"e{number}", "a", {"n": number}, partitionkey=f"k{number % KEYS}") == 202
        publisher.close()

    pulls = f"{server.url}/apis/headgate.dev/v1/namespaces/default/subscriptions/s"
    pulled: list[str] = []
    before: list[tuple[int, int, int]] = []
    for turn, (fronts, dispatchers) in enumerate(NUMBERS):
        if turn:
            if turn == 1:
                assert server.stop() == 0
            else:
                server.kill()
            more = arguments(fronts, dispatchers)
            server = Server(server.data, server.port, arguments=more, log=tmp_path / "log")
            server.start()
        publish(range(turn * EVENTS, (turn + 1) * EVENTS))
        found = stored(server)
        assert [one for one in found if one in set(before)] == before
        assert sorted(number for _, _, number in found) == list(range((turn + 1) * EVENTS))
        assert all(at == partition_of_key(f"k{number % KEYS}", PARTITIONS) for at, _, number in found)
        before = found
        answer = server.call("POST", f"{pulls}/pull", {"consumer": "c", "max": 20, "wait": 20})
        ids = [one["ackId"] for one in answer["events"]]
        assert ids
        assert server.call("POST", f"{pulls}/ack", {"consumer": "c", "ids": ids})["stale"] == []
        pulled += [one["event"]["id"] for one in answer["events"]]
    everything = {f"e{number}" for number in range(3 * EVENTS)}
    with Subscriber(port=port) as subscriber:
        eventually(
            lambda: all(subscriber.ids(name).keys() == everything for name in NAMES),
            lambda: {name: len(subscriber.ids(name)) for name in NAMES},
        )
        deadline = time.monotonic() + SECONDS_MAX
        while set(pulled) != everything:
            answer = server.call("POST", f"{pulls}/pull", {"consumer": "c", "max": 100, "wait": 5})
            server.call("POST", f"{pulls}/ack", {"consumer": "c", "ids": [one["ackId"] for one in answer["events"]]})
            pulled += [one["event"]["id"] for one in answer["events"]]
            assert time.monotonic() < deadline
        server.stop()
    assert len(pulled) == len(everything), "what was acknowledged is not handed out again"
    for name in NAMES:
        first = list(dict.fromkeys(one.id for one in subscriber.at(name)))
        for key in range(KEYS):
            numbers = [int(id_[1:]) for id_ in first if int(id_[1:]) % KEYS == key]
            assert numbers == sorted(numbers), (name, key)
