"""EventTypes of what flows: one for each type and source, again when somebody deletes it, never too many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.inspect.catalogue import EventTypeCreator
from headgate.inspect.log_follower import LogFollower
from headgate.log.directory import LogDirectory
from headgate.objects.api.admission import Admission
from headgate.objects.store import writes
from headgate.scan.chunks import ChunkLog
from headgate_api import limits
from headgate_api.objects.kinds import EventType, Kind, ObjectKey, decode_stored
from tests.inspect.test_why import World, event
from tests.inspect.test_why import world as _world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from _world.__wrapped__(tmp_path)  # type: ignore[attr-defined]


def types(world: World) -> list[tuple[str, str]]:
    found = [decode_stored(Kind.EVENT_TYPE, item.body) for item in world.store.page(Kind.EVENT_TYPE).items]
    return sorted((one.spec.type, one.metadata.name) for one in found if isinstance(one, EventType))


def test_each_flow_gets_one(world: World) -> None:
    follower = LogFollower(ChunkLog(LogDirectory(world.data / "log", "stop")))
    creator = EventTypeCreator(Admission(world.store), follower, lambda: world.now_us)
    assert creator.step() == 0
    world.accept(event("1"), event("2"), event("3", "ping"))
    assert creator.step() == 2
    assert creator.step() == 0
    made = types(world)
    assert [type_ for type_, _ in made] == ["order", "ping"]
    world.store.delete(ObjectKey(Kind.EVENT_TYPE, "default", made[0][1]))
    world.now_us += int(limits.EVENT_TYPES_AGAIN_S * 1_000_000)
    assert creator.step() == 0, "nothing new flows"
    world.accept(event("4"))
    world.now_us += int(limits.EVENT_TYPES_AGAIN_S * 1_000_000)
    assert creator.step() == 1
    assert types(world) == made


def test_a_full_namespace_stops_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(writes._NAMESPACE_QUOTAS, Kind.EVENT_TYPE, 2)
    follower = LogFollower(ChunkLog(LogDirectory(world.data / "log", "stop")))
    creator = EventTypeCreator(Admission(world.store), follower, lambda: world.now_us)
    world.accept(*(event(str(number), f"t{number}") for number in range(5)))
    follower.step()
    assert creator.step() == 2
    assert len(types(world)) == 2


def test_an_event_of_a_deleted_broker_makes_none(world: World) -> None:
    follower = LogFollower(ChunkLog(LogDirectory(world.data / "log", "stop")))
    world.accept(event("1"), broker="default/gone/77")
    follower.step()
    assert EventTypeCreator(Admission(world.store), follower, lambda: world.now_us).step() == 0
