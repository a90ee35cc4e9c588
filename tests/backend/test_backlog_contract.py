"""What the scheduler needs of its backlog and of the log, held by both stores: rows by target, events by place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from clusters.kafka import Kafka
from confluent_kafka import TopicPartition

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import TopicConsumer, offset_of
from headgate.backend.kafka.events import TopicEvents, headers_of
from headgate.backend.kafka.outbox_records import OutboxEvent, decode
from headgate.backend.kafka.outbox_takeover import OutboxTakeover
from headgate.backend.kafka.outbox_walk import Checkpoints, KnownPlace, TopicBacklog
from headgate.backend.kafka.partition_views import CheckpointRowPlaces, RowsAhead
from headgate.delivery.events import EventGoneError, Events, LogEvents
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.outbox.reader import Backlog, ChunkRowPlaces, OutboxReader, OutboxRow, RowPlaces
from headgate.outbox.shards import dispatcher_of
from headgate.outbox.writer import OUTBOX_SCHEMA, RowGroup, encode_chunk
from tests.backend.dispatch_feed import SOURCES, Feed, made_event
from tests.backend.outbox_stream import BROKER, OUTBOX_PARTITIONS, outbox_config
from tests.backend.stores import deployed
from tests.delivery.harness import run

EVENTS = 150
"""Of each source partition."""
SHARD = 1
TARGETS = [number for number in range(1, 40) if dispatcher_of(number, OUTBOX_PARTITIONS) == SHARD][:4]
NOBODY = 2_000_000


def wanted(source: int, offset: int) -> list[int]:
    return [target for index, target in enumerate(TARGETS) if (offset + source + index) % (index + 2) == 0]


@dataclass
class OpenStore:
    backlog: Backlog
    events: Events
    end: int
    """Behind the last row."""
    places: RowPlaces


@asynccontextmanager
async def embedded(directory: Path) -> AsyncIterator[OpenStore]:
    partition = Partition(directory / "outbox", "stop")
    log = LogDirectory(directory / "log", "stop")
    with closing(PartitionWriter(partition, OUTBOX_SCHEMA)) as writer:
        for source in range(SOURCES):
            with closing(PartitionWriter(log.partition(source), EVENT_SCHEMA)) as events:
                batch = to_batch([StoredEvent(BROKER, made_event(source, offset)) for offset in range(EVENTS)])
                events.append(Encoded(batch, ["t"] * EVENTS))
            for first in range(0, EVENTS, 30):
                rows = [(offset, t, 3) for offset in range(first, first + 30) for t in wanted(source, offset)]
                writer.append(encode_chunk([RowGroup(source, 1, rows)], {source: (first + 30, 1)}))
        with closing(OutboxReader(partition)) as backlog, closing(LogEvents(log)) as found:
            yield OpenStore(backlog, found, writer.next_offset, ChunkRowPlaces(partition))


@asynccontextmanager
async def on_kafka(kafka: Kafka, *, is_ahead: bool) -> AsyncIterator[OpenStore]:
    config = deployed(kafka, "events", "outbox", like=outbox_config)
    feed = Feed(config, wanted)
    for _ in range(0, EVENTS, 30):
        feed.store(30)
    with closing(TopicEvents(config)) as events:
        kept: list[OutboxEvent] = []
        places = Checkpoints()
        backlog = TopicBacklog(
            config, SHARD, places, on_event=kept.append, on_removed=lambda *_: pytest.fail("nothing was removed")
        )
        try:
            end = (await backlog.read(NOBODY, 0, 1 << 40, 1)).reached
            assert end == 1 << 40, "nobody asks beyond what is handed over: the answer is what was asked for"
            _, end = await backlog.bounds()
            await asyncio.to_thread(add_places, config, places, end)
            rows = RowsAhead(backlog) if is_ahead else backlog
            yield OpenStore(rows, events, end, CheckpointRowPlaces(places, end))
            assert {(each.source, each.offset) for each in kept}, "events come with their rows"
        finally:
            await asyncio.to_thread(backlog.close)


def add_places(config: KafkaConfig, places: Checkpoints, end: int) -> None:
    """Checkpoints as a dispatcher would make them, one every few records."""
    takeover = OutboxTakeover(OUTBOX_PARTITIONS, lambda _: 0)
    with closing(TopicConsumer.committed(config, "a test reads").raw) as consumer:
        consumer.assign([TopicPartition(config.topic("outbox"), SHARD, 0)])
        while takeover.next_position < end:
            message = consumer.poll(1)
            if message is None or message.error() is not None:
                continue
            record = decode(headers_of(message), message.key(), message.value(), SHARD, OUTBOX_PARTITIONS)
            takeover.feed(offset_of(message), record)
            if takeover.next_position % 10 == 0:
                places.add(KnownPlace(takeover.next_position, takeover.resume_at, takeover.state))


@pytest.fixture(params=["embedded", *(pytest.param(one, marks=pytest.mark.kafka) for one in ("kafka", "ahead"))])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Callable:
    if request.param == "embedded":
        return lambda: embedded(tmp_path)
    kafka = request.getfixturevalue("kafka")
    return lambda: on_kafka(kafka, is_ahead=request.param == "ahead")


async def all_rows(backlog: Backlog, target: int, upto: int, count_max: int) -> list[OutboxRow]:
    rows: list[OutboxRow] = []
    start = 0
    while start < upto:
        page = await backlog.read(target, start, upto, count_max)
        assert start < page.reached <= upto
        assert all(start <= row.position < page.reached for row in page.rows)
        rows += page.rows
        start = page.reached
    return rows


def test_backlog_and_events(opens: Callable) -> None:
    async def main() -> None:
        async with opens() as store:
            pages = [all_rows(store.backlog, target, store.end, 7 + target % 20) for target in TARGETS]
            by_target = dict(zip(TARGETS, await asyncio.gather(*pages), strict=True))
            for target, rows in by_target.items():
                positions = [row.position for row in rows]
                assert positions == sorted({*positions}), "in order, each once"
                for source in range(SOURCES):
                    offsets = [row.offset for row in rows if row.partition == source]
                    assert offsets == [offset for offset in range(EVENTS) if target in wanted(source, offset)]
                assert all(row.verdict == 3 for row in rows)
            one = by_target[TARGETS[0]]
            middle, some = one[len(one) // 2].position, {row.position for row in one[::3]}
            page = await store.backlog.read(TARGETS[0], middle, store.end, 10_000)
            assert page.rows == [row for row in one if row.position >= middle]
            page = await store.backlog.read(TARGETS[0], 0, middle, 10_000, some.__contains__)
            assert page.rows == [row for row in one if row.position < middle and row.position in some]
            assert page.reached == middle
            assert (await store.backlog.read(NOBODY, 0, middle, 5)).rows == []

            for source, offset in [(0, 0), (1, 77), (0, EVENTS - 1), (1, 78)]:
                found = await store.events.load(source, offset)
                assert found.event == made_event(source, offset)
                assert (found.broker, found.key) == (BROKER, f"{source}-{offset % 3}")
                assert store.events.kept(source, offset) is found
                assert store.events.recent(source, offset) is found
            with pytest.raises(EventGoneError):
                await store.events.load(0, EVENTS + 5)

    run(main())


def test_no_row_of_an_event_stands_before_the_place_from_which_it_is_looked_for(opens: Callable) -> None:
    async def main() -> None:
        async with opens() as store:
            rows = [row for target in TARGETS for row in await all_rows(store.backlog, target, store.end, 500)]
            assert store.places.stored_end() >= store.end
            assert store.places.before({}, 0) == 0
            found = []
            for offset in (0, 1, 29, 30, 100, EVENTS - 1, EVENTS):
                for floor in ({0: offset, 1: offset}, {0: offset, 1: EVENTS}, {0: EVENTS, 1: 0}):
                    since_us = 1 if offset else 0
                    place = store.places.before(floor, since_us)
                    found.append(place)
                    assert all(row.position >= place for row in rows if row.offset >= floor[row.partition])
            assert all(place <= store.end for place in found)
            if isinstance(store.places, CheckpointRowPlaces):
                assert max(found) > store.end // 2, "what is long over is not read again"

    run(main())
