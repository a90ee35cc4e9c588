"""The contract of scans on Kafka, and what is Kafka's own: gaps, records that went, topics made anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from clusters.kafka import Kafka
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headgate.backend.kafka import scan as kafka_scan
from headgate.backend.kafka.client import KafkaUnreachableError
from headgate.backend.kafka.records import RecordError
from headgate.backend.kafka.scan import KafkaLog
from headgate.objects.kinds.specs import DEFAULT_RULE
from headgate.scan.scan import Scan
from headgate.scan.source import EARLIEST, Query, ReadableLog, start_offsets
from headgate.stream.follow import Turn
from headgate.stream.request import read_request
from headgate.testing.server import free_port
from headgate_api.errors import UnavailableError
from tests.backend.contract import BROKER, entries
from tests.backend.scan_contract import (
    SERVED,
    Filled,
    ScanContract,
    filled_with,
    known,
    offsets_of,
    places,
    scanned,
    wanted,
)
from tests.backend.stores import KafkaStore, deployed, kafka_config, make_topics

pytestmark = pytest.mark.kafka
QUERY = Query(BROKER, DEFAULT_RULE.value)


@pytest.fixture
def store(kafka: Kafka) -> Iterator[KafkaStore]:
    store = KafkaStore(deployed(kafka, "events"))
    yield store
    store.close()


@pytest.fixture(scope="module")
def filled(kafka: Kafka) -> Iterator[Filled]:
    store = KafkaStore(deployed(kafka, "events"))
    yield filled_with(store)
    store.close()


class TestKafkaScan(ScanContract):
    @pytest.fixture
    def store(self, store: KafkaStore) -> KafkaStore:
        return store

    def test_a_client_that_leaves_ends_its_scan(self, log: ReadableLog, tmp_path: Path) -> None:
        super().test_a_client_that_leaves_ends_its_scan(log, tmp_path)
        assert isinstance(log, KafkaLog)
        assert log._consumers._count == 0, "every consumer was given back, and closed"


def test_aborted_batches_and_ends_of_transactions_are_gaps_and_nothing_else(store: KafkaStore) -> None:
    async def run() -> None:
        await ScanContract.fill(store, 7, 10)
        appender = await store.appender()
        with pytest.raises(UnavailableError):  # partition 7 does not exist: the rest is aborted
            await appender.append({0: entries("x", "y"), 7: entries("z")}, 100)
        await appender.close()
        await ScanContract.fill(store, 8, 10)

    asyncio.run(run())
    log = store.log()
    scan = Scan(log, QUERY, start_offsets(log, EARLIEST))
    found = scanned(scan)
    assert offsets_of(found) == places(wanted(known(store), None))
    assert scan.positions == log.end_offsets()


def test_what_retention_took_is_counted_and_passed_over(store: KafkaStore) -> None:
    asyncio.run(ScanContract.fill(store, 9, 20))
    everything, log = known(store), store.log()
    own = [one for one in wanted(everything, None) if one.partition == 0]
    cut = own[len(own) // 2].offset
    admin = AdminClient({"bootstrap.servers": store.config.bootstrap})
    for done in admin.delete_records([TopicPartition(store.config.topic("events"), 0, cut)]).values():
        done.result()
    scan = Scan(log, QUERY, {0: 1, 1: 0})
    assert offsets_of(scanned(scan)) == places(o for o in wanted(everything, None) if o.partition or o.offset >= cut)
    assert scan.counters.events_missed == cut - 1
    assert start_offsets(log, EARLIEST) == {0: cut, 1: 0}


def test_a_topic_made_anew_ends_a_reader_that_follows_with_the_reason(store: KafkaStore) -> None:
    async def run() -> None:
        await ScanContract.append(store, 0, "a", "b", "c")
        log = store.log()
        async with (
            ScanContract.readers(log) as readers,
            aclosing(readers.reading(read_request(SERVED, [("from", "next")], follow=True))) as reading,
        ):
            await anext(reading)
            admin, name = AdminClient({"bootstrap.servers": store.config.bootstrap}), store.config.topic("events")
            admin.delete_topics([name])[name].result()
            while name in (await asyncio.to_thread(admin.list_topics, timeout=10)).topics:
                await asyncio.sleep(0.05)
            await asyncio.to_thread(make_topics, store.config, "events")
            with pytest.raises(UnavailableError, match=r"events/0 ends before offset \d|Unknown topic"):
                await exhausted(reading)

    asyncio.run(asyncio.wait_for(run(), 60))


async def exhausted(reading: AsyncGenerator[Turn, None]) -> None:
    async for _ in reading:
        pass


def test_a_foreign_record_stops_a_scan_or_is_passed_over(store: KafkaStore) -> None:
    asyncio.run(ScanContract.append(store, 0, "a"))
    foreign = Producer({"bootstrap.servers": store.config.bootstrap})
    foreign.produce(store.config.topic("events"), b"?", partition=0, headers=[("ce_id", b"\xff"), ("n\u00e9", b"")])
    assert foreign.flush(30) == 0
    asyncio.run(ScanContract.append(store, 0, "b"))
    scan = Scan(store.log(), QUERY, {0: 0, 1: 0})
    with pytest.raises(RecordError, match=r"events/0 at offset 1"):
        scanned(scan)
    assert scan.positions[0] == 1
    tolerant = Scan(KafkaLog(store.config, "skip"), QUERY, {0: 0, 1: 0})
    assert offsets_of(scanned(tolerant)) == {0: [0, 2]}
    assert tolerant.counters.events_corrupt == 1


def test_more_scans_than_consumers_all_get_everything(store: KafkaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_scan, "KAFKA_SCAN_CONSUMERS_MAX", 2)
    asyncio.run(ScanContract.fill(store, 10, 30))
    log, truth = store.log(), places(wanted(known(store), None))
    scans = [Scan(log, QUERY, start_offsets(log, EARLIEST)) for _ in range(5)]
    found: list[list[object]] = [[] for _ in scans]
    left, deadline = set(range(5)), time.monotonic() + 60
    while left:
        for number in list(left):
            pieces = scans[number].step(20)
            found[number] += pieces
            if not pieces and scans[number].at_end():
                left.discard(number)
        assert time.monotonic() < deadline
    for scan, pieces in zip(scans, found, strict=True):
        scan.close()
        assert offsets_of(pieces) == truth  # type: ignore[arg-type]
    assert log._consumers._count == len(log._consumers._idle) == 2


def test_a_bound_of_bytes_holds_no_partition_up(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_scan, "KAFKA_FETCH_BYTES_MAX", 500)
    log = filled.store.log()
    truth = places(wanted(filled.events, None))
    assert offsets_of(scanned(Scan(log, QUERY, start_offsets(log, EARLIEST)), 10)) == truth


@pytest.mark.slow  # as it is for readers of events
def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_scan, "KAFKA_READ_S_MAX", 0.4)
    log = KafkaLog(kafka_config(f"127.0.0.1:{free_port()}", "x."), "stop")
    with pytest.raises(KafkaUnreachableError, match=r"127\.0\.0\.1"):
        log.end_offsets()
    with pytest.raises(UnavailableError, match="events cannot be read"):
        scanned(Scan(log, QUERY, {0: 0, 1: 0}))
    log.close()
