"""What dispatchers count, asked of both stores: the same deliveries, and the same numbers of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from clusters.kafka import Kafka
from starlette.applications import Starlette
from starlette.requests import Request as ClientRequest

from headgate.server.peers import local_http
from headgate.server.peers.dispatcher_group import DispatcherQuestion, DispatcherReach, LocalDispatchers
from headgate.server.peers.local_http import PartUnavailableError, WholeAnswer
from headgate.server.peers.target_stats import (
    SUMMARY,
    SUMMARY_OF_NAMESPACE,
    BacklogCount,
    MatchCount,
    RemoteStats,
    TargetStats,
    TargetStatsApi,
    Undelivered,
    matches,
    stats_paths,
    undelivered,
)
from headgate.server.processes.kafka.partition_answers import partitions_api
from headgate.settings import Settings
from headgate.storage.files import DispatcherDirectory
from headgate_api.errors import InvalidInputError
from headgate_api.event.names import path_of
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.backend.dispatch_feed import Feed, made_event, made_target
from tests.backend.outbox_stream import BROKER, OUTBOX_PARTITIONS, outbox_config
from tests.backend.stores import deployed
from tests.backend.test_kafka_dispatch import dispatching
from tests.backend.test_records_contract import Owners
from tests.delivery.harness import EventLog, Request, Routes, Subscriber, matcher, run, running
from tests.support import until

GOOD, LATE, DEAD, HANGING, QUIET = 1, 2, 3, 4, 5
"""Targets: what becomes of their one event; QUIET gets none."""
SENT = (GOOD, LATE, DEAD, HANGING)
NAMES = frozenset(f"default/t{number}" for number in (*SENT, QUIET))
EVERYWHERE, IN_NAMESPACE, OF_ONE = stats_paths(Kind.TRIGGER)


@dataclass(frozen=True)
class Counters:
    """The dispatchers of a store, and their dead letters and sockets where these are files of the same server."""

    reach: DispatcherReach
    files: Sequence[Path] = ()
    sockets: Sequence[Path] = ()

    async def stats(self, path: str, names: frozenset[str]) -> dict[str, TargetStats]:
        return await RemoteStats(self.reach, target_id, request(path)).stats(names)

    async def undelivered(self, namespace: str = "") -> Undelivered:
        path = SUMMARY_OF_NAMESPACE.format(namespace=namespace) if namespace else SUMMARY
        return await undelivered(self.reach, request(path, namespace), self.files)


def request(path: str, namespace: str = "") -> ClientRequest:
    given = {"path_params": {"namespace": namespace} if namespace else {}, "headers": [], "query_string": b""}
    return ClientRequest({"type": "http", "path": path, "raw_path": path.encode(), "method": "HEAD", **given})


def target_id(key: ObjectKey) -> int | None:
    """Of the routes' triggers `default/tNUMBER`."""
    return int(key.name[1:]) if key.path in NAMES else None


@contextlib.asynccontextmanager
async def embedded(data: Path, routes: Routes, _kafka: Callable[[], Kafka]) -> AsyncIterator[Counters]:
    log = EventLog(data)
    log.append([made_event(0, 0)], broker=BROKER)
    async with running(data, routes) as work, matcher(work, 1) as peer:
        peer.match(*((0, target) for target in SENT))
        settings = Settings(data=data, dispatchers=1)
        api = Starlette(routes=list(work.dispatcher.deliveries.routes(None)))
        socket = settings.dispatcher_socket(0)
        async with local_http.answering(api, socket):
            yield Counters(LocalDispatchers(settings), [DispatcherDirectory.of(data, 0).dead_letters], [socket])
    log.close()


@contextlib.asynccontextmanager
async def on_kafka(data: Path, routes: Routes, kafka: Callable[[], Kafka]) -> AsyncIterator[Counters]:
    config = deployed(kafka(), "events", "outbox", "changelog", "reports", like=outbox_config)
    feed = Feed(config, lambda source, _: [] if source else SENT)
    await asyncio.to_thread(feed.store, 1)
    socket = data / "d.sock"
    async with dispatching(config, data / "dispatcher", routes) as dispatcher:
        await until(lambda: len(dispatcher.partitions) == OUTBOX_PARTITIONS)
        await until(lambda: all(one.api is not None for one in dispatcher.partitions.values()))
        async with local_http.answering(partitions_api(dispatcher.partitions), socket):
            yield Counters(Owners(socket))


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Routes], Any]:
    opened = embedded if request.param == "embedded" else on_kafka
    return lambda routes: opened(tmp_path, routes, lambda: cast(Kafka, request.getfixturevalue("kafka")))


def test_what_was_counted(opens: Callable[[Routes], Any]) -> None:
    hangs = asyncio.Event()

    async def answer(request: Request) -> tuple[int, bytes]:
        target = int(request.path.strip("/"))
        if target == HANGING:
            await hangs.wait()
        return {LATE: 503, DEAD: 400}.get(target, 202), b""

    async def main() -> None:
        async with Subscriber(answer) as subscriber:
            rules: dict[int, dict[str, object]] = {
                LATE: {"retry": None, "backoff_delay_s": 300.0},
                DEAD: {"retry": 0, "dead_letter_uri": ""},
                HANGING: {"timeout_s": 300.0},
            }
            made = {one: made_target(one, f"{subscriber.url}{one}", **rules.get(one, {})) for one in (*SENT, QUIET)}
            cut = dataclasses.replace(made[LATE].filter, ceiling="true")
            made[LATE] = dataclasses.replace(made[LATE], filter=cut)
            routes = Routes(*made.values())
            async with opens(routes) as counters:
                await until(lambda: len(subscriber.requests) == len(SENT))

                async def settled() -> dict[str, TargetStats]:
                    """The counters once the answers are heard, and what was given up is stored."""
                    while True:
                        found = await counters.stats(EVERYWHERE, NAMES)
                        good, late, dead = (found[f"default/t{one}"] for one in (GOOD, LATE, DEAD))
                        if (good.delivered, late.attempts_failed, dead.failed) == (1, 1, 1):
                            return found
                        await asyncio.sleep(0.02)

                found = await settled()
                assert found.keys() == NAMES
                good, late, dead, hanging, quiet = (found[f"default/t{one}"] for one in (*SENT, QUIET))
                assert (good.delivered, good.failed, good.backlog, good.oldest_undelivered) == (1, 0, 0, "")
                assert good.rate > 0
                assert (late.delivered, late.attempts_failed, late.backlog) == (0, 1, 1)
                assert late.oldest_undelivered
                assert (dead.delivered, dead.failed, dead.backlog) == (0, 1, 0)
                assert (hanging.attempts_failed, hanging.backlog) == (0, 1)
                assert quiet == TargetStats(0, 0, 0, 0, 0, 0.0, 0, False, "closed", quiet.since)
                assert quiet.since
                one = await counters.stats(OF_ONE.format(namespace="default", name="t1"), frozenset({"default/t1"}))
                assert (list(one), one["default/t1"].delivered) == (["default/t1"], 1)
                assert await counters.stats(EVERYWHERE, frozenset()) == {}
                for namespace in ("", "default"):
                    while not (left := await counters.undelivered(namespace)).letters.kept:
                        await asyncio.sleep(0.02)  # that it has no sink is written a little later
                    assert {one.ceiling: one.count for one in left.backlogs} == dict.fromkeys(
                        ("", "true"), BacklogCount(1)
                    )
                    assert {one.broker for one in left.backlogs} == {path_of(BROKER)}
                    assert [(one.trigger, one.state, one.count) for one in left.letters.items] == [("t3", "kept", 1)]
                    assert (left.letters.total, left.letters.kept) == (1, 1)
                if counters.files:  # on Kafka nobody compares them with what brokers took
                    ended, waits = MatchCount(1, False), MatchCount(0, True)
                    assert await matches(counters.sockets) == {GOOD: ended, LATE: waits, DEAD: ended, HANGING: waits}
                silent = await Counters(Away(), counters.files).undelivered()
                assert silent.letters.kept == len(counters.files), "a dispatcher that is away has left its file"
                other = await counters.undelivered("other")
                assert (other.backlogs, other.letters.total) == ([], 0)
                hangs.set()

    run(main())


class Away:
    """See `DispatcherReach`: one partition has no owner, another one's owner refuses."""

    count = 2

    async def ask(self, number: int, question: DispatcherQuestion) -> WholeAnswer:
        if number:
            raise PartUnavailableError
        return WholeAnswer(403, b"{}")

    def routes(self, routes: Any) -> Any:
        return routes

    def subscriptions(self, group: Any) -> Any:
        raise AssertionError


def test_nothing_is_said_of_triggers_whose_owner_does_not_answer() -> None:
    async def main() -> None:
        assert await Counters(Away()).stats(EVERYWHERE, NAMES) == {}
        assert (await Counters(Away()).undelivered()).backlogs == []

    run(main())


class Known:
    """See `Scheduler.find`: it knows no target."""

    def find(self, _: int) -> None:
        return None

    def states_of(self, _: object) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("query", ["", "targets=", "targets=a", "targets=1,,2", "targets=-1", f"targets={'1,' * 600}1"])
def test_a_question_that_names_no_targets_is_refused(query: str) -> None:
    (route, *_) = TargetStatsApi(cast(Any, Known()), cast(Any, None), Path(), lambda: 0).routes()
    asked = ClientRequest({"type": "http", "path_params": {}, "query_string": query.encode(), "headers": []})
    with pytest.raises(InvalidInputError, match="names no targets"):
        run(cast(Any, route.endpoint)(asked))
