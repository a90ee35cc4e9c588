"""Several fronts over one log: each event where it belongs, once, in order, whichever front takes it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headgate.event.arrow import from_batch
from headgate.ingress.front_link import AppendChunk, AskProducer, FrontConnection, FrontUnavailableError
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import partition_of_key
from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.server import child, preflight
from headgate.server.parts import front_of
from headgate.server.processes.front import FrontLog, front_log
from headgate.settings import Settings
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.event.model import Event

WAIT_S_MAX = 60.0
PARTITIONS = 4
BROKER = ServedBroker("ns/b/1", DEFAULT_RULE)
KEYS = [f"k{number}" for number in range(16)]


def settings_of(folder: Path, fronts: int, partitions: int = PARTITIONS) -> Settings:
    (folder / "run").mkdir(exist_ok=True)
    return Settings(data=folder, fronts=fronts, partitions=partitions)


@contextlib.asynccontextmanager
async def fronts_of(folder: Path, fronts: int) -> AsyncIterator[list[FrontLog]]:
    settings = settings_of(folder, fronts)
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(front_log(settings, number)) for number in range(fronts)]


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), WAIT_S_MAX))


def intake_of(log: FrontLog) -> Intake:
    return Intake(log.partitions, {"ns/b": BROKER}.get)


async def store(log: FrontLog, *events: Event) -> None:
    intake = intake_of(log)
    await intake.store(BROKER, events, 1_000 * len(events), started_s=intake.clock_s())


async def send(log: FrontLog, producer: str, first: int, *events: Event) -> int:
    """Publishes as a new stream of a producer; says how many were stored before."""
    producing = await log.producers.open(BROKER.identity, producer)
    try:
        intake = intake_of(log)
        stored = await intake.store(
            BROKER, events, 1_000, started_s=intake.clock_s(), producing=producing, first=first, protocol="grpc"
        )
        return stored.before
    finally:
        log.producers.close(producing)


def event(id_: str, key: str = "") -> Event:
    return Event("1.0", id_, "/s", "t", extensions={"partitionkey": key} if key else {})


def stored(folder: Path, partition: int) -> list[str]:
    found: list[str] = []
    with PartitionReader(Partition(folder / "log" / str(partition), "stop"), start=0) as reader:
        while (chunk := reader.read()) is not None:
            found += [from_batch(chunk.batch, row).event.id for row in range(chunk.batch.num_rows)]
    return found


@pytest.mark.parametrize("fronts", [1, 2, 3, 4])
def test_events_with_a_key_are_in_its_partition_in_order_and_others_stay(tmp_path: Path, fronts: int) -> None:
    async def work() -> None:
        async with fronts_of(tmp_path, fronts) as logs:

            async def producer(key: str) -> None:
                for number in range(30):  # from front to front, each after the last one's answer
                    await store(logs[number % fronts], event(f"{key}-{number}", key))

            await asyncio.gather(*map(producer, KEYS))
            for number, log in enumerate(logs):
                await asyncio.gather(*(store(log, event(f"free-{number}-{one}")) for one in range(20)))
            batch = [event(f"batch-{key}", key) for key in KEYS]
            await store(logs[-1], *batch)

    run(work)
    found = {partition: stored(tmp_path, partition) for partition in range(PARTITIONS)}
    for key in KEYS:
        own = found[partition_of_key(key, PARTITIONS)]
        assert [one for one in own if one.startswith(f"{key}-")] == [f"{key}-{number}" for number in range(30)]
        assert own.count(f"batch-{key}") == 1
    for number in range(fronts):
        where = [partition for partition, ids in found.items() for one in ids if one.startswith(f"free-{number}-")]
        assert len(where) == 20
        assert {front_of(partition, fronts) for partition in where} == {number}
    assert sum(map(len, found.values())) == len(KEYS) * 31 + fronts * 20


def test_while_the_owner_is_away_its_keys_are_refused_for_later_and_no_others(tmp_path: Path) -> None:
    key_of = {front_of(partition_of_key(key, PARTITIONS), 2): key for key in KEYS}

    async def work() -> None:
        settings = settings_of(tmp_path, 2)
        async with front_log(settings, 0) as log:
            await store(log, event("own", key_of[0]), event("free"))
            for number in range(3):
                with pytest.raises(FrontUnavailableError) as refusal:
                    await store(log, event(f"away{number}", key_of[1]))
                assert (refusal.value.retriable, refusal.value.http_status) == (True, 503)
            assert log.problem == "", "what another front cannot do is no fault of this one's"
            with pytest.raises(UnavailableError):
                await log.producers.open(BROKER.identity, "p")
            for life in range(2):
                async with front_log(settings, 1):
                    await store(log, event(f"back{life}", key_of[1]))
                    assert await log.producers.open(BROKER.identity, "p")

    run(work)
    found = sorted(one for partition in range(PARTITIONS) for one in stored(tmp_path, partition))
    assert found == ["back0", "back1", "free", "own"]


def test_a_front_with_thousands_of_connections_reaches_the_others(tmp_path: Path) -> None:
    """`select` takes no file above 1,023."""
    key_of = {front_of(partition_of_key(key, PARTITIONS), 2): key for key in KEYS}

    async def work() -> None:
        with contextlib.ExitStack() as files:
            child.raise_file_limit(2_048)
            for _ in range(1_100):
                files.enter_context(Path("/dev/null").open())
            async with fronts_of(tmp_path, 2) as logs:
                for number in range(3):
                    await store(logs[0], event(f"e{number}", key_of[1]))

    run(work)
    assert stored(tmp_path, partition_of_key(key_of[1], PARTITIONS)) == ["e0", "e1", "e2"]


def test_a_numbered_event_is_stored_once_whoever_owned_its_partition(tmp_path: Path) -> None:
    """Fronts come and go and their number changes; the producer sends everything again each time."""
    everything = [event(f"e{number}", key) for number, key in enumerate(KEYS)]
    home = partition_of_key("p", PARTITIONS)

    async def work() -> None:
        sent = 0
        for fronts in (1, 3, 2, 4, 2, 1, 3, 2):
            async with fronts_of(tmp_path, fronts) as logs:
                log = logs[front_of(home, fronts)]
                before, sent = sent, sent + 2
                assert await send(log, "p", 0, *everything[:sent]) == before
                assert await send(log, "p", 0, *everything[:sent]) == sent
                assert (await log.producers.open(BROKER.identity, "p")).next_number == sent
                assert (await log.producers.open(BROKER.identity, "other")).next_number == 0
                (tmp_path / "log" / "producers-0").unlink(missing_ok=True)  # a start without its snapshot reads the log

    run(work)
    for partition in range(PARTITIONS):
        wanted = [f"e{number}" for number, key in enumerate(KEYS) if partition_of_key(key, PARTITIONS) == partition]
        assert stored(tmp_path, partition) == wanted
    assert sum(len(stored(tmp_path, partition)) for partition in range(PARTITIONS)) == len(KEYS)


def test_what_a_front_sent_before_it_asks_is_stored_before_the_answer_or_never(tmp_path: Path) -> None:
    async def work() -> None:
        async with fronts_of(tmp_path, 2):
            link = FrontConnection(settings_of(tmp_path, 2).front_log_socket(1))
            await asyncio.to_thread(link.call, AskProducer(0, 7, "ns/b/1", "p"))
            late = AppendChunk(0, 6, 1, [None], [], None, None)
            with pytest.raises(FrontUnavailableError, match="started again"):
                await asyncio.to_thread(link.call, late)
            with pytest.raises(FrontUnavailableError, match="not written here"):
                await asyncio.to_thread(link.call, AppendChunk(0, 7, 0, [None], [], None, None))
            link.close()

    run(work)


@pytest.mark.parametrize(
    "data", [b"\xff" * 8, b"\1\0\0\0\0\0\0\0\xc1", b"\5\0\0\0\1\0\0\0\x95\0\0\1\1\1x", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_bytes_that_no_front_sends_end_the_connection_and_nothing_else(tmp_path: Path, data: bytes) -> None:
    key = next(key for key in KEYS if front_of(partition_of_key(key, PARTITIONS), 2) == 1)

    async def work() -> None:
        async with fronts_of(tmp_path, 2) as logs:

            def speak() -> bytes:
                with socket.socket(socket.AF_UNIX) as client:
                    client.settimeout(WAIT_S_MAX)
                    client.connect(str(settings_of(tmp_path, 2).front_log_socket(1)))
                    client.sendall(data)
                    return client.recv(100)

            with capture_logs() as told:
                assert await asyncio.to_thread(speak) == b""
            assert [line["event"] for line in told] == ["another front sends what cannot be read"]
            await store(logs[0], event("after", key))

    run(work)


def test_more_fronts_than_partitions_are_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="3 fronts need as many partitions") as refusal:
        preflight.check_settings(settings_of(tmp_path, 3, partitions=2))
    assert refusal.value.hint.startswith("--fronts 2, or --partitions 3")
