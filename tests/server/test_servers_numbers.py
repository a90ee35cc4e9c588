"""The numbers of all servers of a deployment: what each tells, what the others know of it, and for how long."""

from __future__ import annotations

import asyncio
import queue
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import pytest
from clusters.kafka import Kafka

from headgate.backend.kafka.server_numbers import NumbersWriter, hear_numbers
from headgate.backend.kafka.topics import Admin
from headgate.objects.store.quota_usage import LACKING, QuotaBoard
from headgate.observe.history import Snapshot, Sums
from headgate.server.processes.kafka.numbers import ServerNumbers, ServersNumbers, tell_numbers
from headgate.server.summary import PartView
from headgate.settings import Settings
from headgate_api import limits
from headgate_api.errors import UnavailableError
from tests.backend.outbox_stream import outbox_config
from tests.support import until

OWN, OTHER, THIRD = "http://127.0.0.1:8080", "http://two:8080", "http://three:8080"


class World:
    """What one server knows, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_000.0
        own = {"listen": "127.0.0.1:8080", "grpc": "off", "kafka": "127.0.0.1:1", "role": "front,control"}
        self.settings = Settings(data=folder, **own)
        self.numbers = ServersNumbers(self.settings, lambda: self.now)

    def tell(self, server: str, received: float, *, ready: bool = True, lacking: str = "") -> None:
        counted = Snapshot(self.now, Sums(received), {"a": Sums(received)}, {"a/x": received})
        parts = [PartView("front-0", ready, "", server)]
        self.numbers.hear(
            server, msgspec.msgpack.encode(ServerNumbers(parts, counted, {lacking: 2} if lacking else {})), self.now
        )

    def parts(self) -> dict[str, list[tuple[str, bool]]]:
        found: dict[str, list[tuple[str, bool]]] = {}
        for one in self.numbers.parts():
            found.setdefault(one.server, []).append((one.name, one.ready))
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_servers_tell_is_known(world: World) -> None:
    world.tell(OTHER, 7.0)
    world.tell(THIRD, 9.0, ready=False)
    world.tell(OTHER, 8.0)
    assert {name: one.whole.received for name, one in world.numbers.counted().items()} == {
        OWN: 0.0,
        OTHER: 8.0,
        THIRD: 9.0,
    }
    assert world.numbers.counted()[OTHER].brokers == {"a/x": 8.0}
    parts = world.parts()
    assert list(parts) == [OWN, THIRD, OTHER]
    assert [name for name, _ in parts[OWN]] == ["control", "front-0"]
    assert (parts[OTHER], parts[THIRD]) == ([("front-0", True)], [("front-0", False)])


def test_a_window_that_is_incomplete_anywhere_is_known_until_its_server_says_no_more(world: World) -> None:
    front = QuotaBoard(world.settings.usage_directory, "front-0")
    world.tell(OTHER, 1.0, lacking="a/x")
    world.tell(THIRD, 1.0, lacking="a/x")
    front.exchange({LACKING: {"a/y": 1}})
    assert world.numbers.usage() == {LACKING: {"a/x": 4, "a/y": 1}}
    world.tell(OTHER, 1.0)
    world.tell(THIRD, 1.0)
    front.exchange({})
    assert not world.numbers.usage()[LACKING]


def test_its_own_numbers_are_not_those_that_it_has_told(world: World) -> None:
    world.tell(OWN, 99.0)
    assert world.numbers.counted()[OWN].whole.received == 0.0


def test_a_server_that_stops_is_forgotten_and_one_that_is_silent_is_not_ready(world: World) -> None:
    world.tell(OTHER, 7.0)
    world.tell(THIRD, 7.0)
    world.numbers.hear(THIRD, None, world.now)
    assert list(world.parts()) == [OWN, OTHER]
    world.now += limits.SERVER_SILENT_S_MAX + 1
    assert world.parts()[OTHER] == [("front-0", False)]
    assert "silent for 31 s" in world.numbers.parts()[-1].note
    assert OTHER in world.numbers.counted(), "its counters have not gone back"
    world.tell(OTHER, 8.0)
    assert world.parts()[OTHER] == [("front-0", True)]
    world.now += limits.SERVER_FORGOTTEN_S + 1
    assert list(world.parts()) == [OWN]
    assert list(world.numbers.counted()) == [OWN]


@pytest.mark.parametrize("value", [b"", b"\xff", b"\x80", b"[]", b'{"parts": 1}', msgspec.msgpack.encode([1, 2])])
def test_what_cannot_be_read_changes_nothing(world: World, value: bytes) -> None:
    world.tell(OTHER, 7.0)
    world.numbers.hear(OTHER, value, world.now)
    assert world.numbers.counted()[OTHER].whole.received == 7.0


def test_servers_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.server.processes.kafka.numbers.SERVERS_MAX", 2)
    for number in range(4):
        world.tell(f"http://{number}:1", 1.0)
    world.tell("http://0:1", 5.0)
    found = world.numbers.counted()
    assert set(found) == {OWN, "http://0:1", "http://1:1"}
    assert found["http://0:1"].whole.received == 5.0


def test_numbers_that_cannot_be_told_are_told_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else in the process depends on them: it goes on, and says in the end that it stops."""
    told: list[str] = []

    class Refusing:
        def __init__(self, *_: object) -> None: ...

        def put(self, _: bytes | None) -> None:
            told.append("put")
            if len(told) == 1:
                raise UnavailableError("Kafka takes nothing")

        def close(self) -> None:
            told.append("close")

    monkeypatch.setattr("headgate.server.processes.kafka.numbers.NumbersWriter", Refusing)
    monkeypatch.setattr("headgate.server.processes.kafka.numbers.HISTORY_POINT_S", 0.001)
    settings = Settings(data=tmp_path, listen="127.0.0.1:8080", grpc="off", kafka="127.0.0.1:1", role="front,control")

    async def main() -> None:
        telling = asyncio.create_task(tell_numbers(settings, outbox_config("127.0.0.1:1", "n.")))
        await until(lambda: len(told) > 1)
        telling.cancel()
        await asyncio.wait([telling])
        assert telling.cancelled()

    asyncio.run(main())
    assert told[-1] == "close"


@pytest.mark.kafka
def test_servers_hear_each_other_over_kafka(kafka: Kafka) -> None:
    """From when they listen on; a server that stops says so."""
    config = outbox_config(kafka.bootstrap, f"n{uuid.uuid4().hex[:8]}.")
    Admin(config).create_missing()
    heard: queue.Queue[tuple[str, bytes | None, float]] = queue.Queue()
    stop = threading.Event()
    one, two = NumbersWriter(config, OWN), NumbersWriter(config, OTHER)
    one.put(b"before anybody listens")
    one._producer.raw.flush()
    with ThreadPoolExecutor(1) as threads:
        hearing = threads.submit(partial(hear_numbers, config, lambda *told: heard.put(told), stop))
        found: list[tuple[str, bytes | None]] = []
        try:
            while (OTHER, b"2") not in found:  # what is told before it listens is lost
                two.put(b"2")
                while not heard.empty():
                    found.append(heard.get()[:2])
                stop.wait(0.1)
            one.put(b"1")
            two.close()
            one.close()
            while (OWN, None) not in found or (OTHER, None) not in found:
                server, value, told_s = heard.get(timeout=30)
                found.append((server, value))
                assert told_s > 1_700_000_000
        finally:
            stop.set()
        hearing.result()
    assert set(found) == {(OTHER, b"2"), (OWN, b"1"), (OTHER, None), (OWN, None)}
