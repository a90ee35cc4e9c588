"""The move between a deployment on Kafka and a data directory, both ways, without a matcher: its records are played."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clusters.kafka import Kafka

from headgate.backend.config import KafkaConfig
from headgate.backend.embedded_state import EmbeddedState
from headgate.backend.kafka import cluster_export
from headgate.backend.kafka.appender import KafkaAppender, NumberedWriter
from headgate.backend.kafka.cluster_export import DeploymentRunsError, export_state
from headgate.backend.kafka.cluster_import import Moved, NotFreshError, import_state
from headgate.backend.kafka.match_run import OutboxPlaces
from headgate.backend.kafka.objects import KafkaObjects
from headgate.backend.kafka.records import records_of
from headgate.backend.kafka.topics import Admin
from headgate.deadletters.store import DeadLetterStore
from headgate.event.arrow import from_batch_all
from headgate.ingress.encode import Entries
from headgate.log.reader import PartitionReader
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.specs import DEFAULT_RULE
from headgate.objects.store.store import Store
from headgate.server.datadir import new_directory, stopped_server
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.event.model import Event
from headgate_api.objects.kinds import Kind
from tests.backend.dispatch_feed import SOURCES, Feed, made_target
from tests.backend.outbox_stream import OUTBOX_PARTITIONS, outbox_config
from tests.backend.test_kafka_dispatch import dispatching
from tests.deadletters.letters import page
from tests.delivery.harness import Request, Routes, Subscriber, run
from tests.objects.support import broker, trigger
from tests.support import until

pytestmark = pytest.mark.kafka
GOOD, FAILING, REFUSING = 1, 2, 3
TARGETS = [GOOD, FAILING, REFUSING]
MATCHED, UNMATCHED = 40, 7
"""Events of each source partition."""


@pytest.fixture
def configs(kafka: Kafka) -> tuple[KafkaConfig, KafkaConfig]:
    """Two deployments with fresh topics."""
    found = [outbox_config(kafka.bootstrap, f"v{uuid.uuid4().hex[:8]}{number}.") for number in range(2)]
    for one in found:
        Admin(one).create_missing()
    return found[0], found[1]


def silent(*_: object) -> None:
    """Tells nobody."""


def put_objects(config: KafkaConfig, path: Path) -> list[tuple[str, str]]:
    """Makes objects as the leading control process does; kinds and uids."""
    with (
        closing(KafkaObjects(path, config, "http://127.0.0.1:1")) as objects,
        closing(Store.open(path, committer=objects)) as store,
    ):
        objects.lead()
        store.make_default_broker()
        admission = Admission(store)
        admission.create(Kind.BROKER, broker("b"))
        for number in range(30):
            admission.create(Kind.TRIGGER, trigger(f"t{number}", filter={"expression": f"data.n > {number}"}))
        admission.store.delete(min(store.targets.keys().items())[1])
        return uids(store)


def uids(store: Store) -> list[tuple[str, str]]:
    found = []
    for kind in (Kind.BROKER, Kind.TRIGGER):
        found += [(str(kind), store.get(item.key).metadata.uid) for item in store.page(kind).items]
    return found


def events_of(state: EmbeddedState) -> dict[str, int]:
    """Every event of a directory by id, and when it was stored."""
    found: dict[str, int] = {}
    for number in state.log.partitions():
        with PartitionReader(state.log.partition(number), start=0) as reader:
            while (chunk := reader.read()) is not None:
                found |= {one.event.id: chunk.append_time_us for one in from_batch_all(chunk.batch)}
    return found


def undelivered(state: EmbeddedState) -> dict[int, set[str]]:
    """Ids of events by target."""
    found: dict[int, set[str]] = {}
    for partition, chunk, rows in state.chunks(matched=True):
        events = from_batch_all(chunk.batch)
        for row in rows:
            for target, _ in state.undelivered.of(partition, chunk.first_offset + row):
                found.setdefault(target, set()).add(events[row].event.id)
    return found


def shown(moved: Moved) -> dict[str, Any]:
    return moved._asdict()


@pytest.mark.slow
def test_there_and_back(configs: tuple[KafkaConfig, KafkaConfig], tmp_path: Path) -> None:
    first, second = configs
    made = put_objects(first, tmp_path / "cache.db")
    feed = Feed(first, lambda source, offset: TARGETS)
    heals = asyncio.Event()

    async def answer(request: Request) -> tuple[int, bytes]:
        target = int(request.path.strip("/"))
        return {GOOD: 202, FAILING: 202 if heals.is_set() else 503, REFUSING: 400}[target], b""

    def routes(url: str) -> Routes:
        rules: dict[int, dict[str, object]] = {
            FAILING: {"retry": None, "backoff_delay_s": 0.3},
            REFUSING: {"retry": 0, "dead_letter_uri": ""},
        }
        made = Routes(*(made_target(number, f"{url}{number}", **rules.get(number, {})) for number in TARGETS))
        made.generation = 1_000  # as new as the objects are
        return made

    async def main() -> None:
        async with Subscriber(answer) as subscriber:

            def ids(target: int, since: int = 0) -> list[str]:
                return [one.id for one in subscriber.requests[since:] if one.path == f"/{target}"]

            async with dispatching(first, tmp_path / "first", routes(subscriber.url)) as dispatcher:
                await asyncio.to_thread(feed.store, MATCHED)
                await until(lambda: set(ids(GOOD)) == feed.expected(GOOD) and set(ids(REFUSING)) == feed.expected(GOOD))

                def kept() -> int:
                    found = [one.deliveries for one in dispatcher.partitions.values()]
                    return sum(one.dead_letters.totals.kept for one in found if one is not None)

                await until(lambda: kept() == SOURCES * MATCHED)
                with pytest.raises(DeploymentRunsError), new_directory(tmp_path / "early") as own:
                    await asyncio.to_thread(export_state, first, tmp_path / "early", own, silent)
            await asyncio.to_thread(feed.append, UNMATCHED)
            data = tmp_path / "data"
            with new_directory(data) as own:
                there = await asyncio.to_thread(export_state, first, data, own, silent)
            expected = {"events": SOURCES * (MATCHED + UNMATCHED), "dead_letters": SOURCES * MATCHED}
            assert {name: shown(there)[name] for name in expected} == expected
            assert there.undelivered == SOURCES * MATCHED
            with stopped_server(data) as state:
                assert undelivered(state) == {FAILING: feed.expected(FAILING)}
                assert len(events_of(state)) == there.events
                assert sum(state.passed.values()) == SOURCES * MATCHED
                with closing(Store.open(data / "control.db")) as store:
                    assert uids(store) == made
                with closing(DeadLetterStore(own.dead_letters)) as letters:
                    assert {one.event.id for one in page(letters.reader)} == feed.expected(GOOD)
                with pytest.raises(NotFreshError):
                    await asyncio.to_thread(import_state, first, state, silent)
                told: dict[str, int] = {}
                back = await asyncio.to_thread(
                    import_state, second, state, lambda what, done, total: told.update({what: total - done})
                )
            assert shown(back) == shown(there)
            assert told == {"events": 0, "dead letters": 0, "objects": 0}
            with closing(KafkaObjects(tmp_path / "back.db", second, "http://127.0.0.1:1")):
                pass
            with closing(Store.open(tmp_path / "back.db")) as store:
                assert uids(store) == made
            since = len(subscriber.requests)
            heals.set()
            async with dispatching(second, tmp_path / "second", routes(subscriber.url)) as dispatcher:
                await until(lambda: set(ids(FAILING, since)) == feed.expected(FAILING))
                await until(lambda: len(dispatcher.partitions) == OUTBOX_PARTITIONS)
                with closing(OutboxPlaces(second)) as places:
                    # The next run begins behind what was matched, once every partition was read and committed.
                    while sum((await asyncio.to_thread(places.starts)).values()) != SOURCES * MATCHED:
                        await asyncio.sleep(0.05)
                    assert await asyncio.to_thread(places.newest_run) == 1
            assert ids(GOOD, since) == ids(REFUSING, since) == [], "what has ended does not come again"
            assert len(ids(FAILING, since)) == SOURCES * MATCHED

    run(main(), seconds_max=200)


def left_open(config: KafkaConfig) -> NumberedWriter:
    """A front that was killed within a batch: its transaction is open, and an event is acknowledged behind it."""
    first, second = (Entries("ns/b/1", DEFAULT_RULE, [Event("1.0", id_, "/s", "t")]) for id_ in ("open", "stored"))
    killed = NumberedWriter(config, "ns/b/1", "p")
    assert killed._writer is not None
    killed._writer.send_records(("events", 0, record) for record in records_of(first))

    async def store() -> None:
        appender = KafkaAppender(config, "other")
        await appender.append({0: second}, 100)
        await appender.close()

    asyncio.run(store())
    return killed


def test_what_is_acknowledged_behind_an_open_transaction_is_exported(
    configs: tuple[KafkaConfig, KafkaConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configs[0]
    put_objects(config, tmp_path / "cache.db")
    killed = left_open(config)
    waits = itertools.count()

    def sleep(_: float) -> None:
        if next(waits) == 0:  # as Kafka does by itself, after some time
            NumberedWriter(config, "ns/b/1", "p").close()

    monkeypatch.setattr(cluster_export, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    data = tmp_path / "data"
    with new_directory(data) as own:
        assert export_state(config, data, own, silent).events == 1
    with stopped_server(data) as state:
        assert list(events_of(state)) == ["stored"]
    killed.close()


def test_an_export_says_where_a_transaction_stays_open(
    configs: tuple[KafkaConfig, KafkaConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configs[0]
    killed = left_open(config)
    monkeypatch.setattr(cluster_export, "EXPORT_SETTLE_S_MAX", 0.0)
    with (
        pytest.raises(DeploymentRunsError, match=f"a transaction is open in {config.topic('events')}/0") as refused,
        new_directory(tmp_path / "data") as own,
    ):
        export_state(config, tmp_path / "data", own, silent)
    assert refused.value.hint
    assert list((tmp_path / "data").iterdir()) == []
    killed.close()


def test_a_directory_that_is_none_or_holds_something_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no data directory"), stopped_server(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="not empty"), new_directory(tmp_path):
        pass

    def fails() -> None:
        with new_directory(tmp_path / "new") as own:
            (own.path / "half").touch()
            raise UnavailableError("broken off")

    with pytest.raises(UnavailableError, match="broken off"):
        fails()
    assert list((tmp_path / "new").iterdir()) == []
