"""What the follower of a log needs, held by both stores: the past from its end on, what comes, events by place."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from functools import partial
from inspect import GEN_CREATED, getgeneratorstate
from pathlib import Path
from typing import cast

import msgspec
import pytest
from clusters.kafka import Kafka
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headgate.backend.kafka import scan
from headgate.backend.kafka.scan import KafkaLog
from headgate.event.arrow import from_batch
from headgate.inspect import log_follower
from headgate.inspect.flows import FlowKey
from headgate.inspect.log_follower import LogFollower
from headgate.scan.scan import rows_taken
from headgate.scan.source import SearchableLog
from headgate_api.errors import UnavailableError
from headgate_api.event.model import DataKind, Event
from tests.backend.contract import BROKER, PARTITIONS
from tests.backend.stores import EmbeddedStore, KafkaStore, deployed, make_topics
from tests.backend.test_inspected_log import OTHER, store_events

ON_KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)


@pytest.fixture(params=["embedded", ON_KAFKA])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedStore | KafkaStore]:
    store: EmbeddedStore | KafkaStore = EmbeddedStore(tmp_path)
    if request.param == "kafka":
        kafka: Kafka = request.getfixturevalue("kafka")
        store = KafkaStore(deployed(kafka, "events"))
    yield store
    store.close()


def typed(type_: str, *ids: object) -> list[Event]:
    return [Event("1.0", str(one), "/s", type_, data_kind=DataKind.JSON, data=b'{"a":1}') for one in ids]


def counted(follower: LogFollower, broker: str = BROKER) -> dict[str, int]:
    with follower.flows() as sketch:
        return {key.type: flow.count for key, flow in sketch.of(broker).flows.items()}


def followed(follower: LogFollower) -> None:
    """Until there is nothing more to read."""
    for _ in range(20):
        follower.step()


def walked(log: SearchableLog) -> list[tuple[int, int, int]]:
    """Time, partition and offset of everything that a log has, as a walk from its end on comes to it."""
    return [
        (page.append_times_us[row], partition, page.offsets[row])
        for partition, page in log.newest(log.end_offsets())
        for row in reversed(range(len(page.offsets)))
    ]


def test_every_event_is_counted_once_whether_it_was_there_or_came(store: EmbeddedStore | KafkaStore) -> None:
    early = store_events(
        store,
        (0, BROKER, typed("a", 1, 2)),
        (1, BROKER, typed("b", 3)),
        (0, OTHER, typed("a", 4, 5, 6)),
    )
    log = store.log()
    follower, began_us = LogFollower(log), time.time_ns() // 1_000
    followed(follower)
    assert counted(follower) == {"a": 2, "b": 1}
    assert counted(follower, OTHER) == {"a": 3}
    assert (follower.is_complete, 0 < follower.since_us < began_us) == (True, True)
    (late,) = store_events(store, (1, BROKER, typed("a", *range(10, 20))))
    assert counted(follower) == {"a": 12, "b": 1}, "who asks reads on"
    assert [follower.covered(number) for number in range(PARTITIONS)] == [
        (early[0][0], log.end_offsets()[0]),
        (early[1][0], log.end_offsets()[1]),
    ]
    assert list(follower.index.with_id(1, "15")) == [late[5]]
    with follower.flows() as sketch:
        flow = sketch.of(BROKER).flows[FlowKey("a", "/s")]
    assert flow.places[-1] == (1, late[-1])
    offsets = [offset for number, offset in flow.places if number == 1]
    (page,) = log.holding(1, offsets)
    assert from_batch(page.batch, page.offsets.index(late[-1])).event.id == "19"
    follower.close()


def test_events_below_a_ceiling_are_counted_as_if_there_were_no_others(
    store: EmbeddedStore | KafkaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were there, a page a call, and those that come; of a page that holds both, too."""
    monkeypatch.setattr(log_follower, "FOLLOW_TURN_BYTES", 1)

    def of(tenant: str, *ids: int) -> list[Event]:
        return [msgspec.structs.replace(one, data=b'{"tenant":"%s"}' % tenant.encode()) for one in typed("t", *ids)]

    store_events(store, (0, BROKER, of("red", 1)), *((n % 2, BROKER, of("blue", n) + of("red", n)) for n in range(6)))
    store_events(store, (1, OTHER, of("blue", 7)), (0, BROKER, typed("t", 8)))
    log = store.log()
    follower = LogFollower(log, partial(rows_taken, broker=BROKER, cel='data.tenant == "blue"'))
    counts = []
    while not counts or not follower.is_complete:
        follower.read_for(0.0)
        past = cast(Generator[object, None, None], follower._past)
        assert past is None or getgeneratorstate(past) == GEN_CREATED, "nothing is open"
        counts.append(counted(follower).get("t", 0))
    assert counts == sorted(counts)
    assert (len(counts) > 1, counts[-1]) == (True, 6)
    assert counted(follower, OTHER) == {}
    first, _ = store_events(store, (1, BROKER, of("red", 9) + of("blue", 10)), (0, BROKER, of("red", 11)))
    followed(follower)
    assert (counted(follower), follower.is_complete) == ({"t": 7}, True)
    with follower.flows() as sketch:
        places = sketch.of(BROKER).flows[FlowKey("t", "/s")].places
    assert places[-1] == (1, first[1])
    assert list(follower.index.with_id(1, "10")) == []
    follower.close()


def test_a_walk_from_the_end_comes_to_everything_once(
    store: EmbeddedStore | KafkaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "KAFKA_WINDOW_EVENTS", 3)
    monkeypatch.setattr(scan, "KAFKA_WINDOW_EVENTS_MAX", 12)
    placed = store_events(store, *((n % PARTITIONS, BROKER, typed("t", *range(1 + n % 4))) for n in range(12)))
    wanted = [(n % PARTITIONS, offset) for n, offsets in enumerate(placed) for offset in offsets]
    for bytes_max in (1 << 20, 1):
        monkeypatch.setattr(scan, "KAFKA_WINDOWS_BYTES_MAX", bytes_max)
        found = walked(store.log())
        assert sorted((partition, offset) for _, partition, offset in found) == sorted(wanted)
        for number in range(PARTITIONS):
            own = [offset for _, partition, offset in found if partition == number]
            assert own == sorted(own, reverse=True)
    half_us = sorted(found)[len(found) // 2][0]
    log = store.log()
    late = {
        (partition, offset) for partition, page in log.newest(log.end_offsets(), half_us) for offset in page.offsets
    }
    assert late >= {(partition, offset) for time_us, partition, offset in found if time_us >= half_us}
    assert late < set(wanted)


@pytest.mark.parametrize("store", [ON_KAFKA], indirect=True)
def test_what_is_no_event_in_a_topic_is_counted_by_nobody(store: KafkaStore) -> None:
    """Ends of transactions, records of others, and what retention has taken."""
    placed = store_events(store, *((0, BROKER, typed(f"t{n}", n)) for n in range(4)))
    log = KafkaLog(store.config, "skip")
    early = LogFollower(log)
    early.step()
    foreign = Producer({"bootstrap.servers": store.config.bootstrap})
    foreign.produce(store.config.topic("events"), b"?", partition=0, headers=[("ce_id", b"\xff")])
    assert foreign.flush(30) == 0
    store_events(store, (0, BROKER, typed("last", 9)))
    followed(early)
    admin = AdminClient({"bootstrap.servers": store.config.bootstrap})
    place = TopicPartition(store.config.topic("events"), 0, placed[2][0])
    admin.delete_records([place])[place].result()
    late = LogFollower(log)
    followed(late)
    left = {"t2": 1, "t3": 1, "last": 1}
    assert (counted(early), early.is_complete) == ({"t0": 1, "t1": 1, **left}, True)
    assert (counted(late), late.is_complete) == (left, True)
    assert list(log.holding(0, [placed[0][0]])) == [], "its example is left out"
    assert early.covered(0)[1] == late.covered(0)[1] == log.end_offsets()[0]
    for follower in (early, late):
        follower.close()
    assert not log._consumers._kept, "every consumer was given back"
    log.close()


@pytest.mark.parametrize("store", [ON_KAFKA], indirect=True)
def test_a_topic_that_is_another_one_is_told(store: KafkaStore) -> None:
    store_events(store, (0, BROKER, typed("t", *range(5))))
    follower = LogFollower(store.log())
    followed(follower)
    admin, name = AdminClient({"bootstrap.servers": store.config.bootstrap}), store.config.topic("events")
    admin.delete_topics([name])[name].result()
    while name in admin.list_topics(timeout=10).topics:
        time.sleep(0.05)
    make_topics(store.config, "events")
    with pytest.raises(UnavailableError, match=r"partition 0 of the log ends at 0, and was read up to \d"):
        follower.step()
