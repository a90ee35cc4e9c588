"""Do the counted bytes of namespaces follow what the log holds: through retention, restarts, kills and other fronts?"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from pathlib import Path

import pytest

from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.intake import Intake
from headgate.ingress.publish_http import Ingress
from headgate.ingress.publish_quota import PublishQuotas
from headgate.ingress.stored_bytes import StoredBytes
from headgate.log.directory import LogDirectory
from headgate.log.retention import retain
from headgate.log.writer import PartitionWriter
from headgate.objects.kinds.quotas import STORED_BYTES
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.objects.store.quota_usage import QuotaBoard, usage_in
from headgate.objects.store.store import Store
from headgate.server.processes.front import FrontLog, front_log
from headgate.settings import Settings
from headgate_api.event.http import encode_binary
from headgate_api.event.model import Event
from headgate_api.limits import QUOTA_RETRY_AFTER_S_MAX
from tests.ingress.support import call, fallback
from tests.match.events import append, event
from tests.objects.quotas import limit, unlimit

BROKERS = {path: ServedBroker(f"{path}/1", DEFAULT_RULE) for path in ("ns/b", "ns/c", "free/b")}


def settings_of(folder: Path, fronts: int = 1) -> Settings:
    (folder / "run").mkdir(exist_ok=True)
    return Settings(data=folder, fronts=fronts, partitions=2, segment_mb=1)


async def put(log: FrontLog, path: str, size_bytes: int, count: int = 1, key: str = "") -> None:
    intake = Intake(log.partitions, BROKERS.get)
    more = {"partitionkey": key} if key else {}
    events = [Event("1.0", f"{n}", "/s", "t", extensions=more, data=bytes(100)) for n in range(count)]
    await intake.store(BROKERS[path], events, size_bytes, started_s=intake.clock_s())


@contextlib.asynccontextmanager
async def kept(log: FrontLog):
    """The log's count is tended meanwhile, and whole."""
    task = asyncio.create_task(log.stored.keep())
    while not log.stored._is_whole:
        await asyncio.sleep(0.01)
    yield
    task.cancel()


def test_what_is_stored_is_counted_and_known_again_after_a_start(tmp_path: Path) -> None:
    async def first() -> None:
        async with front_log(settings_of(tmp_path), 0) as log, kept(log):
            for _ in range(5):
                await put(log, "ns/b", 1_000)
            await put(log, "ns/c", 500, 3)
            await put(log, "free/b", 70)
            assert (log.stored.of("ns"), log.stored.of("free"), log.stored.of("none")) == (5_500, 70, 0)

    async def again() -> None:
        async with front_log(settings_of(tmp_path), 0) as log:
            assert (log.stored.of("ns"), log.stored.of("free")) == (5_500, 70), "before anything is read"
            async with kept(log):
                await put(log, "ns/b", 1)
                assert (log.stored.of("ns"), log.stored.of("free")) == (5_501, 70)

    asyncio.run(asyncio.wait_for(first(), 60))
    asyncio.run(asyncio.wait_for(again(), 60))


@pytest.mark.parametrize("snapshot", ["none", "old", "damaged", "of a longer log"])
def test_what_a_kill_left_unwritten_is_counted_from_the_log(tmp_path: Path, snapshot: str) -> None:
    path = tmp_path / "log" / "stored-bytes-0"
    found: list[int] = []

    async def first() -> None:
        async with front_log(settings_of(tmp_path), 0) as log, kept(log):
            await put(log, "ns/b", 250, 2)
        old = path.read_bytes()
        async with front_log(settings_of(tmp_path), 0) as log, kept(log):
            await put(log, "ns/b", 5_000, 20)
            await put(log, "free/b", 5_000, 20)
            found.append(log.stored.of("ns"))
        newest = path.read_bytes()
        contents = {"none": None, "old": old, "damaged": newest[:-3], "of a longer log": newest}[snapshot]
        if contents is None:
            path.unlink()
        else:
            path.write_bytes(contents)
        if snapshot == "of a longer log":
            for segment in tmp_path.glob("log/*/*"):
                segment.unlink()

    async def again() -> None:
        async with front_log(settings_of(tmp_path), 0) as log, kept(log):
            found.append(log.stored.of("ns"))
            found.append(log.stored.of("free"))

    asyncio.run(asyncio.wait_for(first(), 60))
    asyncio.run(asyncio.wait_for(again(), 60))
    exact, ns, free = found
    if snapshot == "of a longer log":
        assert (ns, free) == (0, 0)
    else:
        assert exact == 5_250
        assert exact / 2 < ns < exact * 2, "from the log it is about as much"
        assert 2_500 < free < 10_000


def test_retention_frees_what_it_removes(tmp_path: Path) -> None:
    async def work() -> None:
        async with front_log(settings_of(tmp_path), 0) as log, kept(log):
            for _ in range(60):
                await put(log, "ns/b", 100_000, 300)
            assert log.stored.of("ns") == 6_000_000
            for writer in log.writers.values():
                done = retain(writer, now_us=time.time_ns() // 1_000, floor_offset=1 << 60, bytes_max=0)
                assert done.segments_removed
            ends = time.monotonic() + 30
            while log.stored.of("ns") == 6_000_000:
                assert time.monotonic() < ends
                await asyncio.sleep(0.05)
            assert 0 < log.stored.of("ns") < 3_000_000, "the last segment of each partition stays"
            left = log.stored.of("ns")
        async with front_log(settings_of(tmp_path), 0) as log, kept(log):
            assert log.stored.of("ns") == left

    asyncio.run(asyncio.wait_for(work(), 120))


def test_what_goes_to_another_fronts_partition_counts_there(tmp_path: Path) -> None:
    async def work() -> None:
        settings = settings_of(tmp_path, 2)
        async with front_log(settings, 0) as one, front_log(settings, 1) as other, kept(one), kept(other):
            for number in range(40):
                await put(one, "ns/b", 10, key=f"k{number}")
            assert one.stored.of("ns") + other.stored.of("ns") == 400
            assert one.stored.of("ns") > 0
            assert other.stored.of("ns") > 0

    asyncio.run(asyncio.wait_for(work(), 60))
    shutil.rmtree(tmp_path / "run")  # as a server does that begins

    async def as_one() -> None:
        async with front_log(settings_of(tmp_path), 0) as log, kept(log):
            assert log.stored.of("ns") == 400, "another number of fronts"

    asyncio.run(asyncio.wait_for(as_one(), 60))


def test_publishing_is_refused_while_a_namespace_has_all_that_it_may(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.ingress.publish_quota.QUOTA_REFUSAL_S", 0.0)
    elsewhere = QuotaBoard(tmp_path / "usage", "front-1")

    async def work() -> None:
        async with front_log(settings_of(tmp_path), 0) as log, kept(log):
            board = QuotaBoard(tmp_path / "usage", "front-0")
            quotas = PublishQuotas(store, 1, board=board, stored=log.stored.of)
            quotas.refresh()
            app = Ingress(Intake(log.partitions, BROKERS.get, quotas=quotas), fallback)

            async def publish(path: str = "/ns/b"):
                headers, body = encode_binary(Event("1.0", "1", "/s", "t"))
                answer, _ = await call(app, path=path, headers=headers, pieces=(body,))
                assert answer is not None
                return answer

            assert (await publish()).status == 202
            limit(store, quotas, {STORED_BYTES: log.stored.of("ns") + 1})
            assert (await publish("/ns/c")).status == 202, "a request is let in while it is below"
            refused = await publish()
            assert (refused.status, refused.problem["code"]) == (429, "stored-bytes-quota")
            assert refused.headers["retry-after"] == str(QUOTA_RETRY_AFTER_S_MAX)
            assert "headgate.dev/stored-bytes is limited to" in refused.problem["detail"]
            assert (await publish("/free/b")).status == 202, "nobody else's"
            limit(store, quotas, {STORED_BYTES: 1 << 20})
            assert (await publish()).status == 202, "a wider quota counts at once"
            elsewhere.exchange({STORED_BYTES: {"ns": 1 << 20}})
            assert (await publish()).status == 202, "not known yet"
            board.exchange(quotas.show())
            assert (await publish()).status == 429, "other fronts have some, too"
            assert usage_in(tmp_path / "usage")[STORED_BYTES]["ns"] == (1 << 20) + log.stored.of("ns")
            (tmp_path / "usage" / "front-1.json").write_text("{")
            board.exchange(quotas.show())
            assert (await publish()).status == 202
            unlimit(store, quotas)
            assert quotas.show() == {}
            assert (await publish()).status == 202

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_process_that_stops_does_not_count_a_large_log_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may, counted = threading.Event(), threading.Event(), 0

    def slow(_: object) -> dict[str, int]:
        nonlocal counted
        counted += 1
        begun.set()
        assert may.wait(60)
        return {}

    monkeypatch.setattr("headgate.ingress.stored_bytes.sizes_of", slow)
    log = LogDirectory(tmp_path, "stop")

    async def work() -> None:
        with PartitionWriter(log.partition(0), EVENT_SCHEMA) as writer:
            for number in range(5):
                append(writer, [event(number)])
            stored = StoredBytes(log, 0, {0: writer})
            keeping = asyncio.create_task(stored.keep())
            assert await asyncio.to_thread(begun.wait, 60)
            keeping.cancel()
            await asyncio.wait([keeping])
            may.set()
            await asyncio.get_running_loop().shutdown_default_executor()
            assert counted == 1
            stored.close()
            assert not list(tmp_path.glob("stored-bytes*")), "what is not all is not written down"

    asyncio.run(work())
