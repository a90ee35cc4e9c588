"""What a broker does not keep any more nobody scans, whatever the log still holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.event.arrow import EVENT_SCHEMA
from headgate.filter.skipping.prune import filter_value_rule
from headgate.ingress.encode import Entries, encode
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import PartitionWriter
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.specs import DEFAULT_RULE
from headgate.objects.store.store import Store
from headgate.scan.chunks import ChunkLog
from headgate.scan.scan import Scan
from headgate.scan.source import Query, RetainedLog
from headgate_api.event.model import Event
from headgate_api.objects.errors import InvalidObjectError
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.objects.support import broker

US = 1_000_000
MINE, OTHER = "ns/a/1", "ns/b/1"


class World:
    """A log with an event of two brokers every second from 1 to 9, in two partitions, and a clock."""

    def __init__(self, folder: Path) -> None:
        for partition in range(2):
            clock = iter(second * US for second in [*range(1, 10), 9])
            with PartitionWriter(
                Partition(folder / str(partition), "stop"), EVENT_SCHEMA, clock_us=lambda clock=clock: next(clock)
            ) as writer:
                for second in range(1, 10):
                    event = Event("1.0", f"{partition}-{second}", "/s", "t")
                    writer.append(encode([Entries(one, DEFAULT_RULE, [event]) for one in (MINE, OTHER)]))
        self.now_us = 10 * US
        self.kept: dict[str, int] = {}
        self.log = RetainedLog(ChunkLog(LogDirectory(folder, "stop")), self.kept.get, lambda: self.now_us)

    def scan(self, identity: str = MINE, start: int = 0) -> Scan:
        return Scan(self.log, Query(identity, filter_value_rule("type")), {0: start, 1: start})

    def seconds(self, scan: Scan, steps: int = 20) -> list[int]:
        found = [event.id for _ in range(steps) for piece in scan.step(100) for event in piece.events()]
        return sorted({int(one.partition("-")[2]) for one in found})

    def read(self, identity: str = MINE, start: int = 0) -> list[int]:
        scan = self.scan(identity, start)
        try:
            found = self.seconds(scan)
            assert scan.at_end()
            return found
        finally:
            scan.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_older_events_are_there_for_no_new_scan_and_back_when_the_broker_keeps_more(world: World) -> None:
    assert world.read() == list(range(1, 10))
    world.kept[MINE] = 4 * US
    assert world.read() == [6, 7, 8, 9], "a chunk of that very time is kept"
    assert world.read(start=4) == [6, 7, 8, 9]
    assert world.read(start=14) == [8, 9]
    assert world.read(OTHER) == list(range(1, 10)), "the log is shared, and the other broker keeps all"
    world.now_us = 100 * US
    assert world.read() == []
    world.kept[MINE] = 98 * US
    assert world.read() == list(range(2, 10))


def test_a_scan_under_way_hands_out_nothing_that_has_become_too_old(world: World) -> None:
    world.kept[MINE] = 9 * US
    scan = world.scan()
    first = [event.id for piece in scan.step(1) for event in piece.events()]
    assert len(first) == 1
    world.now_us = 14 * US
    assert world.seconds(scan) == [5, 6, 7, 8, 9]
    world.kept[MINE] = 1
    assert world.seconds(scan) == []
    assert scan.at_end()
    scan.close()


@pytest.mark.parametrize("written", ["1h", "P1Y", "PT0S", "PT0.5S", "P36501D", "-PT1H", "PT"])
def test_what_is_no_time_to_keep_events_is_refused(tmp_path: Path, written: str) -> None:
    store = Store.open(tmp_path / "control.db")
    with pytest.raises(InvalidObjectError, match=r"spec\.log\.retention: Invalid value"):
        Admission(store).create(Kind.BROKER, broker("b", log={"retention": written}))
    store.close()


def test_everybody_who_must_know_knows_how_long_a_broker_keeps_events(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "control.db")
    admission = Admission(store)
    admission.create(Kind.BROKER, broker("b", log={"retention": "P1DT1S"}))
    own = {"delivery": {"retry": 1}}
    for name, more in (("inherits", {}), ("own", own)):
        spec = {"broker": "b", "subscriber": {"uri": "http://127.0.0.1:9/"}, **more}
        made = {"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "metadata": {"name": name}, "spec": spec}
        admission.create(Kind.TRIGGER, made)

    def kept() -> set[int | None]:
        served = store.served("default/b")
        assert served is not None
        return {
            served.rule.retention_us,
            *(target.delivery.retention_us for target in store.snapshot().targets.values()),
        }

    assert kept() == {86_401 * US}
    key = ObjectKey(Kind.BROKER, "default", "b")
    admission.merge(key, {"spec": {"log": {"retention": "PT5S"}}})
    assert kept() == {5 * US}
    admission.merge(key, {"spec": {"log": None}})
    assert kept() == {None}
    store.close()
