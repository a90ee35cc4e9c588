"""The catalogue of a broker, from a log as a front writes it, and the schema of data that anybody made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.filter.cel.errors import FilterError
from headgate.filter.tools.advice import SeenNames
from headgate.inspect import catalogue, flows, log_follower
from headgate.inspect.catalogue import Catalogues, FlowNotFoundError
from headgate.inspect.flows import FlowKey, ObservedSchema
from headgate.inspect.log_follower import LogFollower
from headgate.log.directory import LogDirectory
from headgate.objects.api.admission import Admission
from headgate.scan.chunks import ChunkLog
from headgate_api import limits
from headgate_api.event.model import DataKind, Event
from headgate_api.objects.errors import ObjectNotFoundError
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.inspect.test_why import World, event
from tests.inspect.test_why import world as _world
from tests.objects.support import broker, trigger

KEY = ObjectKey(Kind.BROKER, "default", "default")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Of a machine that is never busy: all samples are looked at."""
    monkeypatch.setattr(catalogue, "CATALOGUE_SAMPLE_S_MAX", 60.0)
    yield from _world.__wrapped__(tmp_path)  # type: ignore[attr-defined]


def catalogues_of(world: World) -> Catalogues:
    follower = LogFollower(ChunkLog(LogDirectory(world.data / "log", "stop")))
    follower.step()
    return Catalogues(follower, world.store, lambda: world.now_us)


def read(world: World, key: ObjectKey = KEY, flow: tuple[str, str] | None = None) -> Any:
    catalogues = catalogues_of(world)
    found = catalogues.read(key) if flow is None else catalogues.read_flow(key, FlowKey(*flow))
    return json.loads(msgspec.json.encode(found))


def test_what_flows_and_who_wants_it(world: World) -> None:
    for number in range(3):
        world.accept(event(f"o{number}", amount=200 + number, note="x" * number))
    world.accept(event("p", "ping"), Event("1.0", "b", "/other", "ping", data_kind=DataKind.TEXT, data=b"plain"))
    Admission(world.store).create(Kind.TRIGGER, trigger("pings", filter={"cel": 'ce.type == "ping"'}))
    found = read(world)
    assert (found["broker"], found["events"], found["complete"], found["leftOut"]) == ("default/default", 5, True, 0)
    orders, other_ping, own_ping = found["items"]
    assert (orders["type"], orders["source"], orders["count"]) == ("order", "/shop", 3)
    assert orders["firstSeen"] < orders["lastSeen"]
    assert not {"example", "schema", "wantedBy"} & orders.keys(), "only of the one that is asked for"
    assert orders["rate"] > 0
    orders, other_ping, own_ping = (
        read(world, flow=(one["type"], one["source"]))["items"][0] for one in (orders, other_ping, own_ping)
    )
    assert orders["example"]["id"] == "o2"
    assert orders["wantedBy"] == ["default/t"]
    assert orders["schema"]["properties"]["amount"] == {"type": "integer", "x-seen": 3}
    assert orders["schema"]["required"] == ["amount", "note"]
    assert own_ping["wantedBy"] == other_ping["wantedBy"] == ["default/pings"]
    assert (other_ping["source"], "schema" in other_ping) == ("/other", False)


def test_nothing_of_another_broker(world: World) -> None:
    Admission(world.store).create(Kind.BROKER, broker("other"))
    other = world.store.snapshot().brokers["default/other"]
    world.accept(event("mine"))
    world.accept(event("theirs", "secret"), broker=other)
    assert [one["type"] for one in read(world)["items"]] == ["order"]
    assert [one["type"] for one in read(world, ObjectKey(Kind.BROKER, "default", "other"))["items"]] == ["secret"]
    with pytest.raises(ObjectNotFoundError):
        read(world, ObjectKey(Kind.BROKER, "default", "nosuch"))


def test_types_that_a_producer_makes_up_are_counted_and_left_out(world: World) -> None:
    for number in range(0, limits.CATALOGUE_ITEMS_MAX + 100, 50):
        world.accept(*(event(str(n), f"made-up-{n}") for n in range(number, number + 50)))
    found = read(world)
    assert len(found["items"]) == limits.CATALOGUE_ITEMS_MAX
    assert (found["leftOut"], found["events"]) == (100, limits.CATALOGUE_ITEMS_MAX + 100)


def test_bounds_of_bytes_and_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    large = Event("1.0", "big", "/s", "big", data_kind=DataKind.JSON, data=json.dumps(["x" * 20_000]).encode())
    world.accept(large)
    for number in range(5):
        world.accept(event(str(number), amount=1))
    (big,) = read(world, flow=("big", "/s"))["items"]
    assert not {"example", "schema"} & big.keys()
    with pytest.raises(FlowNotFoundError):
        read(world, flow=("big", "/elsewhere"))
    monkeypatch.setattr(log_follower, "FOLLOWED_BYTES_MAX", 1)
    found = read(world)
    assert (found["complete"], found["events"]) == (False, 1), "the newest chunk at least"
    monkeypatch.setattr(catalogue, "CATALOGUE_JUDGE_S_MAX", -1.0)
    assert read(world, flow=("order", "/shop"))["items"][0].get("judged", True), "the filter was not to be asked"
    world.accept(event("dear", amount=500))
    assert read(world, flow=("order", "/shop"))["items"][0]["judged"] is False


def test_events_count_as_they_come(world: World) -> None:
    catalogues = catalogues_of(world)
    assert catalogues.read(KEY).events == 0
    for number in range(3):
        world.accept(event(str(number)))
        found = catalogues.read(KEY)
        assert (found.events, found.complete) == (number + 1, True)
    assert found.items[0].count == 3


def test_ceilings_have_their_counts_those_that_were_asked_for_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "CATALOGUE_CEILINGS_MAX", 2)
    catalogues = catalogues_of(world)
    for number in range(4):
        world.accept(event(str(number), amount=number))
        for least in (0, number):
            assert catalogues.read(KEY, f"data.amount >= {least}").events == number + 1 - least
    assert [ceiling for _, ceiling in catalogues._below] == ["data.amount >= 0", "data.amount >= 3"]


def test_what_readers_do_not_see_any_more_is_not_shown(world: World) -> None:
    Admission(world.store).create(Kind.BROKER, broker("short", log={"retention": "PT60S"}))
    short, key = world.store.snapshot().brokers["default/short"], ObjectKey(Kind.BROKER, "default", "short")
    world.accept(event("old", "past"), broker=short)
    assert [one["type"] for one in read(world, key)["items"]] == ["past"]
    world.now_us += 61_000_000
    world.accept(event("new", "present"), broker=short)
    assert [one["type"] for one in read(world, key)["items"]] == ["present"]


def test_an_empty_log(world: World) -> None:
    assert read(world) == {
        "broker": "default/default",
        "since": "",
        "complete": True,
        "events": 0,
        "leftOut": 0,
        "items": [],
        "attributes": [],
    }


# --- names ----------------------------------------------------------------------------------------


def with_extensions(id_: str, **extensions: str) -> Event:
    return Event("1.0", id_, "/shop", "order", extensions=dict(extensions))


def test_attributes_that_events_have_had(world: World) -> None:
    world.accept(with_extensions("1", tenant="a", region="b"))
    world.accept(event("2"), with_extensions("3", partitionkey="c", **{"x" * 200: "long"}))
    assert read(world)["attributes"] == ["partitionkey", "region", "tenant"]
    assert read(world, flow=("order", "/shop"))["attributes"] == ["partitionkey", "region", "tenant"]
    names = catalogues_of(world).names(KEY)
    assert names == SeenNames(
        frozenset({"order"}), frozenset({"/shop"}), frozenset({"partitionkey", "region", "tenant"})
    )


def test_attributes_that_a_producer_makes_up_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "CATALOGUE_ATTRIBUTES_MAX", 10)
    for number in range(30):
        world.accept(with_extensions(str(number), **{f"made{number}": "x", "tenant": "a"}))
    found = read(world)["attributes"]
    assert len(found) == 10
    assert {"tenant", "made29", "made28"} <= set(found), "the newest stay"


def test_names_of_another_broker_and_of_what_is_gone_are_not_known(world: World) -> None:
    Admission(world.store).create(Kind.BROKER, broker("short", log={"retention": "PT60S"}))
    short, key = world.store.snapshot().brokers["default/short"], ObjectKey(Kind.BROKER, "default", "short")
    world.accept(with_extensions("1", secret="a"), broker=short)
    assert catalogues_of(world).names(KEY) == SeenNames()
    assert catalogues_of(world).names(key).attributes == {"secret"}
    world.now_us += 61_000_000
    world.accept(event("2", "present"), broker=short)
    assert catalogues_of(world).names(key) == SeenNames(frozenset({"present"}), frozenset({"/shop"}))


def test_where_not_all_types_are_known_none_is_called_unseen(world: World) -> None:
    world.accept(with_extensions("1", tenant="a"))
    for number in range(0, limits.CATALOGUE_ITEMS_MAX + 50, 50):
        world.accept(*(event(str(n), f"made-up-{n}") for n in range(number, number + 50)))
    assert catalogues_of(world).names(KEY) == SeenNames(attributes=frozenset({"tenant"}))


def test_a_filter_is_looked_up_in_the_catalogue(world: World) -> None:
    world.accept(with_extensions("1", tenant="a"))
    catalogues = catalogues_of(world)
    found = catalogues.unseen(KEY, ({"cel": 'ce.type == "ordr" && ce.tennant == "a"'}, []))
    assert [(one.written, one.meant) for one in found.items] == [("ordr", "order"), ("tennant", "tenant")]
    assert [one.meant for one in catalogues.unseen(KEY, ({"cel": 'tennant == "a"'}, [])).items] == ["ce.tenant"]
    assert catalogues.unseen(KEY, (None, [{"exact": {"type": "order"}}])).items == ()
    with pytest.raises(FilterError):
        catalogues.unseen(KEY, ({"cel": "ce.type =="}, []))
    with pytest.raises(ObjectNotFoundError):
        catalogues.unseen(ObjectKey(Kind.BROKER, "default", "nosuch"), ({"cel": "true"}, []))


# --- schema ---------------------------------------------------------------------------------------


def test_types_that_differ_and_fields_that_come_and_go() -> None:
    seen = ObservedSchema()
    for value in ({"a": 1, "b": [1, "x"]}, {"a": 1.5, "c": None}, {"a": None, "b": []}):
        seen.see(value)
    assert seen.shown() == {
        "type": "object",
        "x-seen": 3,
        "properties": {
            "a": {"type": ["null", "number"], "x-seen": 3},
            "b": {"type": "array", "x-seen": 2, "items": {"type": ["integer", "string"], "x-seen": 2}},
            "c": {"type": "null", "x-seen": 1},
        },
        "required": ["a"],
    }


def places(schema: dict[str, Any]) -> int:
    inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return 1 + sum(map(places, inner))


def test_hostile_data_makes_no_large_schema() -> None:
    seen = ObservedSchema()
    seen.see({f"id-{number}": number for number in range(10_000)})
    seen.see({"x" * 10_000: 1})
    deep: Any = 1
    for _ in range(900):
        deep = {"d": deep}
    seen.see(deep)
    seen.see([[[[[[[[[[1]]]]]]]]]])
    shown = seen.shown()
    assert places(shown) <= limits.SCHEMA_NODES_MAX + 1
    assert shown["x-leftOut"]
    assert len(json.dumps(shown)) < 50_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
)


@given(st.lists(JSON, min_size=1, max_size=5))
def test_any_data_has_a_schema(values: list[Any]) -> None:
    seen = ObservedSchema()
    for value in values:
        seen.see(value)
    shown = seen.shown()
    assert shown["x-seen"] == len(values)
    assert places(shown) <= limits.SCHEMA_NODES_MAX + 1
    json.dumps(shown)
