"""What became of an event, asked of both stores: the same deliveries, and `why` and `trace` read the same of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from clusters.kafka import Kafka
from starlette.requests import Request as ClientRequest

from headgate.backend.kafka.scan import InspectedTopic, KafkaLog
from headgate.deadletters.store import DeadLetterState
from headgate.delivery.journal import Origin
from headgate.filter.compile.plan import Verdict
from headgate.inspect.file_records import FileRecords
from headgate.inspect.find import EventSearch, KnownEvent, Records, find_event
from headgate.log.directory import LogDirectory
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.server.peers import local_http
from headgate.server.peers.dispatcher_group import DispatcherQuestion, asked
from headgate.server.peers.local_http import WholeAnswer
from headgate.server.peers.partition_owners import OwnerRefusedError, RemoteRecords, partition_path
from headgate.server.processes.kafka.partition_answers import partitions_api
from headgate_api.event.names import path_of
from tests.backend.dispatch_feed import Feed, made_event, made_target
from tests.backend.outbox_stream import BROKER, OUTBOX_PARTITIONS, outbox_config
from tests.backend.stores import deployed
from tests.backend.test_kafka_dispatch import dispatching
from tests.delivery.harness import EventLog, Request, Routes, Subscriber, matcher, run, running
from tests.support import until

GOOD, LATE, DEAD, DROPPED, HANGING = 1, 2, 3, 4, 5
TARGETS = [GOOD, LATE, DEAD, DROPPED, HANGING]
WANTED = 0
"""Offset of the event of which the targets get a delivery."""
PASSED = 1
"""Of one that nobody wants."""
COMING = 2
"""Of one that the matcher has not come to."""


@dataclass
class World:
    """A dispatcher at work on events 0, 1 and 2 of partition 0, and where what became of them is asked."""

    records: Callable[[str], Records]
    """By the path of the question."""
    catch_up: Callable[[], Awaitable[object]]
    """The matcher comes to the event COMING."""


@contextlib.asynccontextmanager
async def embedded(data: Path, routes: Routes, _kafka: Callable[[], Kafka]) -> AsyncIterator[World]:
    log = EventLog(data)
    log.append([made_event(0, offset) for offset in (WANTED, PASSED, COMING)], broker=BROKER)
    async with running(data, routes) as work, matcher(work, 1) as peer:
        peer.match(*((WANTED, target) for target in TARGETS))
        peer.passed(COMING)

        async def catch_up() -> None:
            peer.match((COMING, GOOD))

        yield World(lambda _: FileRecords(data, LogDirectory(data / "log", "stop")), catch_up)
    log.close()


class Owners:
    """See `DispatcherReach`: one process has all partitions."""

    count = OUTBOX_PARTITIONS

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def ask(self, number: int, question: DispatcherQuestion) -> WholeAnswer:
        path = partition_path(number, question.target)
        return await asked(self._socket, DispatcherQuestion("GET", path, b"", question.client), ())

    def routes(self, routes: Any) -> Any:
        return routes


@contextlib.asynccontextmanager
async def on_kafka(data: Path, routes: Routes, kafka: Callable[[], Kafka]) -> AsyncIterator[World]:
    config = deployed(kafka(), "events", "outbox", "changelog", "reports", like=outbox_config)

    def wants(source: int, offset: int) -> list[int]:
        if source or offset == PASSED:
            return []
        return TARGETS if offset == WANTED else [GOOD]

    feed = Feed(config, wants)
    await asyncio.to_thread(feed.store, 2)
    await asyncio.to_thread(feed.append, 1)
    socket = data / "d.sock"
    async with dispatching(config, data / "dispatcher", routes) as dispatcher:
        await until(lambda: len(dispatcher.partitions) == OUTBOX_PARTITIONS)
        await until(lambda: all(one.api is not None for one in dispatcher.partitions.values()))
        log = KafkaLog(config, "stop")
        async with local_http.answering(partitions_api(dispatcher.partitions), socket):

            def records(path: str) -> Records:
                scope = {"type": "http", "path": path, "raw_path": path.encode(), "headers": [], "method": "GET"}
                return RemoteRecords(InspectedTopic(log), Owners(socket), ClientRequest(scope))

            yield World(records, lambda: asyncio.to_thread(feed.match))
        await asyncio.to_thread(log.close)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Routes], Any]:
    opened = embedded if request.param == "embedded" else on_kafka
    return lambda routes: opened(tmp_path, routes, lambda: cast(Kafka, request.getfixturevalue("kafka")))


_PREFIX = "/apis/eventing.knative.dev/v1/namespaces/default"
TRACE = f"{_PREFIX}/brokers/{path_of(BROKER).partition('/')[2]}/trace"


async def known(world: World, offset: int, target: int | None = None) -> KnownEvent:
    """What is known of an event."""
    records = world.records(TRACE if target is None else f"{_PREFIX}/triggers/t{target}/why")

    def look() -> KnownEvent:
        found = find_event(records.log, BROKER, EventSearch(f"0-{offset}")).found
        assert found is not None
        assert (found.partition, found.stored.broker) == (0, BROKER)
        return records.of_event(found, target)

    return await asyncio.to_thread(look)


def test_what_became_of_an_event(opens: Callable[[Routes], Any]) -> None:
    hangs = asyncio.Event()

    async def answer(request: Request) -> tuple[int, bytes]:
        target = int(request.path.strip("/"))
        if target == HANGING:
            await hangs.wait()
        return {GOOD: 202, LATE: 503, DEAD: 400, DROPPED: 400}.get(target, 202), b"no such customer"

    async def main() -> None:
        async with Subscriber(answer) as subscriber:
            rules: dict[int, dict[str, object]] = {
                LATE: {"retry": None, "backoff_delay_s": 300.0},
                DEAD: {"retry": 0, "dead_letter_uri": ""},
                DROPPED: {"retry": 0},
                HANGING: {"timeout_s": 300.0},
            }
            routes = Routes(
                *(made_target(number, f"{subscriber.url}{number}", **rules.get(number, {})) for number in TARGETS)
            )
            routes.brokers[path_of(BROKER)] = ServedBroker(BROKER, DEFAULT_RULE)
            async with opens(routes) as world:
                await until(lambda: len(subscriber.requests) == len(TARGETS))

                async def settled() -> KnownEvent:
                    """What is known once cursors and journal are written, which happens a few times a second."""
                    while True:
                        found = await known(world, WANTED)
                        by_target = {one.row.target: one for one in found.rows}
                        open_ = {number for number, one in by_target.items() if one.unfinished is not None}
                        tried = {one.target for one in found.attempts if not one.result}
                        given_up = {one.target for one in found.attempts if one.result}
                        noted = tried == {GOOD, LATE, DEAD, DROPPED} and given_up == {DEAD, DROPPED}
                        if open_ == {LATE, HANGING} and noted:
                            late = by_target[LATE].unfinished
                            if late is not None and late.failed and by_target[DEAD].dead_letter is not None:
                                return found
                        await asyncio.sleep(0.05)

                found = await settled()
                assert (found.is_matched, [one.is_trimmed for one in found.records.values()].count(True)) == (True, 0)
                rows = {one.row.target: one for one in found.rows}
                assert sorted(rows) == TARGETS
                assert {one.row.generation for one in found.rows} == {1}
                assert all(isinstance(one.row.verdict, Verdict) for one in found.rows)
                assert len({one.row.position for one in found.rows}) <= len(TARGETS)
                late = rows[LATE].unfinished
                assert late is not None
                assert late.failed == 1
                assert late.due_us
                hanging = rows[HANGING].unfinished
                assert hanging is not None
                assert (hanging.failed, hanging.due_us) == (0, 0)
                letter = rows[DEAD].dead_letter
                assert letter is not None
                assert (letter.code, letter.data, letter.state) == (400, b"no such customer", DeadLetterState.KEPT)
                assert [one.dead_letter for number, one in rows.items() if number != DEAD] == [None] * 4
                said = {(one.target, one.attempt, one.status, one.result, one.origin) for one in found.attempts}
                assert said == {
                    (GOOD, 1, 202, "", Origin.DELIVERY),
                    (LATE, 1, 503, "", Origin.DELIVERY),
                    (DEAD, 1, 400, "", Origin.DELIVERY),
                    (DEAD, 0, 0, "dead_lettered", Origin.DELIVERY),
                    (DROPPED, 1, 400, "", Origin.DELIVERY),
                    (DROPPED, 0, 0, "failed", Origin.DELIVERY),
                }
                for target in TARGETS:
                    one = await known(world, WANTED, target)
                    assert [each.row for each in one.rows] == [rows[target].row]
                    assert one.of(target).is_matched

                passed = await known(world, PASSED)
                assert (passed.is_matched, passed.rows, passed.attempts) == (True, [], [])
                coming = await known(world, COMING)
                assert (coming.is_matched, coming.rows) == (False, [])
                await world.catch_up()
                await until(lambda: [one.id for one in subscriber.requests].count(f"0-{COMING}") == 1)
                while not (coming := await known(world, COMING)).is_matched:  # its row is on disk later than it is sent
                    await asyncio.sleep(0.05)
                assert (coming.is_matched, [one.row.target for one in coming.rows]) == (True, [GOOD])
                hangs.set()

    run(main())


@pytest.mark.kafka
def test_who_asks_for_another_brokers_event_gets_nothing(kafka: Kafka, tmp_path: Path) -> None:
    """A place is named by who asks: the owner looks whether the event is one of the path's broker."""

    async def main() -> None:
        routes = Routes(made_target(GOOD, "http://127.0.0.1:9/"))
        async with on_kafka(tmp_path, routes, lambda: kafka) as world:
            other = f"{_PREFIX}/brokers/other/trace"
            routes.brokers["default/other"] = ServedBroker("default/other/99", DEFAULT_RULE)
            records = world.records(other)
            found = await asyncio.to_thread(lambda: find_event(records.log, BROKER, EventSearch("0-0")).found)
            assert found is not None
            with pytest.raises(OwnerRefusedError, match="no event of this broker"):
                await asyncio.to_thread(records.of_event, found)

    run(main())
