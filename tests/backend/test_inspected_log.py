"""What `why` and `trace` need of an event log, held by both stores: an event by its id, its place, what came since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from clusters.kafka import Kafka

from headgate.backend.kafka import scan
from headgate.backend.kafka.scan import InspectedTopic, KafkaLog
from headgate.event.hops import place_root, with_lineage
from headgate.ingress.encode import Entries
from headgate.inspect import find as find_module
from headgate.inspect import log_follower
from headgate.inspect.file_records import InspectedChunks
from headgate.inspect.find import EventSearch, InspectedLog, find_event
from headgate.inspect.log_follower import LogFollower
from headgate.inspect.why import tree_of
from headgate.log.directory import LogDirectory
from headgate.objects.kinds.specs import DEFAULT_RULE
from headgate_api.event.model import Event
from tests.backend.contract import BROKER, PARTITIONS, OpenStore, event
from tests.backend.stores import EmbeddedStore, KafkaStore, deployed

OTHER = "default/other/77"
Opened = tuple[OpenStore, Callable[[], InspectedLog]]


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedStore | KafkaStore]:
    store: EmbeddedStore | KafkaStore = EmbeddedStore(tmp_path)
    if request.param == "kafka":
        kafka: Kafka = request.getfixturevalue("kafka")
        store = KafkaStore(deployed(kafka, "events"))
    yield store
    store.close()


@pytest.fixture(params=["alone", "followed", "followed in part"])
def opened(
    request: pytest.FixtureRequest,
    store: EmbeddedStore | KafkaStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Opened]:
    if request.param == "followed in part":
        monkeypatch.setattr(log_follower, "FOLLOWED_BYTES_MAX", 1)
    followers = []

    def open_log() -> InspectedLog:
        log = store.log()
        if request.param != "alone":
            followers.append(LogFollower(log))
            for _ in range(3):
                followers[-1].step()
        follower = followers[-1] if followers else None
        if isinstance(log, KafkaLog):
            return InspectedTopic(log, follower)
        return InspectedChunks(LogDirectory(tmp_path, "stop"), follower)

    yield store, open_log
    for follower in followers:
        follower.close()


def store_events(store: OpenStore, *parts: tuple[int, str, Sequence[Event]]) -> list[list[int]]:
    """Stores events one batch after the other, each by partition and broker; their offsets."""

    async def run() -> list[list[int]]:
        appender = await store.appender()
        found = []
        for partition, broker, events in parts:
            offsets = await appender.append({partition: Entries(broker, DEFAULT_RULE, list(events))}, 1_000)
            await asyncio.to_thread(store.settle, offsets)
            found.append(list(offsets[partition]))
        await appender.close()
        return found

    return asyncio.run(run())


def places(log: InspectedLog, search: EventSearch) -> list[tuple[str, int, int]]:
    """Broker and place of every event that a search comes to, the newest first."""
    found = []
    while True:
        result = find_event(log, BROKER, search)
        if result.found is None or result.found.stored.broker != BROKER:
            return found
        one = result.found
        found.append((one.stored.broker, one.partition, one.offset))
        search = EventSearch(search.id, search.source, search.since_us, before=result.next)


def test_the_newest_event_of_an_id_and_the_ones_before_it(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    store, open_log = opened
    first, second, third, fourth = store_events(
        store,
        (0, BROKER, [event("a"), event("b")]),
        (1, BROKER, [event("x"), event("a")]),
        (0, OTHER, [event("a"), event("only-there")]),
        (0, BROKER, [event("a"), event("a"), event("z")]),
    )
    del third
    monkeypatch.setattr(scan, "KAFKA_WINDOW_EVENTS", 3)
    monkeypatch.setattr(scan, "KAFKA_WINDOWS_BYTES_MAX", 1)
    log = open_log()
    own = [(BROKER, 0, fourth[1]), (BROKER, 0, fourth[0]), (BROKER, 1, second[1]), (BROKER, 0, first[0])]
    assert places(log, EventSearch("a")) == own
    assert places(log, EventSearch("a", "/s")) == own
    assert places(log, EventSearch("a", "/elsewhere")) == []
    assert places(log, EventSearch("nobody")) == []
    found = find_event(log, BROKER, EventSearch("a")).found
    assert found is not None
    assert found.stored.event == event("a")
    at = log.at(found.partition, found.offset)
    assert at is not None
    assert (at.partition, at.offset, at.append_time_us, at.stored) == (0, fourth[1], found.append_time_us, found.stored)
    assert places(log, EventSearch("a", since_us=found.append_time_us))[-1][2] >= fourth[0]
    assert places(log, EventSearch("a", since_us=found.append_time_us + 1_000_000)) == []
    elsewhere = find_event(log, BROKER, EventSearch("only-there"))
    assert elsewhere.found is not None
    assert elsewhere.found.stored.broker == OTHER
    for partition, offset in ((0, fourth[2] + 1), (0, 1 << 40), (PARTITIONS, 0)):
        assert log.at(partition, offset) is None


def test_a_search_is_bounded_and_goes_on(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    store, open_log = opened
    store_events(store, *((n % PARTITIONS, BROKER, [event(n)]) for n in range(20)))
    monkeypatch.setattr(scan, "KAFKA_WINDOW_EVENTS", 2)
    monkeypatch.setattr(scan, "KAFKA_WINDOW_EVENTS_MAX", 2)
    monkeypatch.setattr(find_module, "WHY_CHUNKS_MAX", 3)
    log, search, calls = open_log(), EventSearch("0"), 1
    result = find_event(log, BROKER, search)
    while result.found is None:
        assert result.next
        assert result.searched_to_us
        result, calls = find_event(log, BROKER, EventSearch("0", before=result.next)), calls + 1
    assert calls > 2 or request.node.callspec.params["opened"] == "followed"
    assert (result.found.partition, result.found.stored.event.id) == (0, "0")


def test_an_empty_log(opened: Opened) -> None:
    log = opened[1]()
    result = find_event(log, BROKER, EventSearch("1"))
    assert (result.found, dict(result.next), result.searched_to_us) == (None, {}, 0)
    assert list(log.descendants("0-0-00000000", 0)) == []


def test_what_an_event_descends_from_and_what_came_of_it(opened: Opened) -> None:
    store, open_log = opened
    ((first,),) = store_events(store, (1, BROKER, [event("root")]))
    root = place_root(event("root"), 1, first)
    store_events(
        store,
        (0, BROKER, [with_lineage(event("child"), 1, root), event("stranger")]),
        (1, BROKER, [with_lineage(event("grandchild"), 2, root)]),
        (1, OTHER, [with_lineage(event("elsewhere"), 1, root)]),
    )
    log = open_log()
    for id_, family in (("root", ["child", "grandchild"]), ("child", ["root", "grandchild"]), ("stranger", [])):
        found = find_event(log, BROKER, EventSearch(id_)).found
        assert found is not None
        tree = tree_of(log, found)
        assert tree.complete
        assert [one.stored.event.id for one in tree.events] == family
