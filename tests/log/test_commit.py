"""Group commit: what waits together is written together, whole submits or nothing, and nobody waits without bound."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from headgate.log.directory import Partition
from headgate.log.errors import LogUnavailableError
from headgate.log.group_commit import ChunkCommit, GroupCommit, Room, SubmitChain
from headgate.log.reader import PartitionReader
from headgate.log.writer import Encoded
from headgate.storage.threads import Threads
from headgate_api.errors import InvalidInputError, OverloadedError, TooLargeError
from tests.log.support import FaultyFiles, batch, last_segment, open_writer, read_all


class Gate:
    """A writer that waits to be let through, and remembers."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.chunks: list[list[int]] = []
        self.error: Exception | None = None
        self.next = 0

    def append(self, chunk):
        self.entered.set()
        assert self.open.wait(30)
        if self.error is not None:
            raise self.error
        self.chunks.append(chunk.batch.column("n").to_pylist())
        self.next += chunk.batch.num_rows
        return self.next - chunk.batch.num_rows


def encode(groups) -> Encoded:
    items = [item for group in groups for item in group]
    if -1 in items:
        raise InvalidInputError("minus one is not allowed")
    return Encoded(batch(items), ["v"] * len(items), None)


def make(writer, **limits) -> ChunkCommit[int]:
    return ChunkCommit(
        writer, encode, **{"queue_items_max": 100, "queue_bytes_max": 1000, "batch_items_max": 10, **limits}
    )


async def entered(gate: Gate) -> None:
    await asyncio.to_thread(gate.entered.wait, 30)


async def start(*work) -> list[asyncio.Future]:
    futures = [asyncio.ensure_future(each) for each in work]
    await asyncio.sleep(0)
    return futures


def test_what_waits_becomes_the_next_chunk():
    async def run():
        gate = Gate()
        commit = make(gate)
        [first] = await start(commit.enqueue([1], 1))
        await entered(gate)
        others = await start(commit.enqueue([2], 1), commit.enqueue([3, 4], 1), commit.enqueue([5], 1))
        assert commit._room.items == 5
        gate.open.set()
        assert await asyncio.gather(first, *others) == [0, 1, 2, 4]
        assert gate.chunks == [[1], [2, 3, 4, 5]]
        assert commit._room.items == 0
        await commit.close()

    asyncio.run(run())


def test_batches_are_bounded_and_submits_stay_whole():
    async def run():
        gate = Gate()
        commit = make(gate, batch_bytes_max=50)
        [first] = await start(commit.enqueue([0], 1))
        await entered(gate)
        sizes = [(4, 1), (4, 1), (4, 1), (12, 1), (1, 40), (1, 20), (1, 60)]
        tasks = await start(*(commit.enqueue([n] * count, size) for n, (count, size) in enumerate(sizes, 1)))
        gate.open.set()
        await asyncio.gather(first, *tasks)
        assert [sorted(set(chunk)) for chunk in gate.chunks] == [[0], [1, 2], [3], [4], [5], [6], [7]]
        await commit.close()

    asyncio.run(run())


def test_full_queue_refuses_at_once_and_takes_again():
    async def run():
        gate = Gate()
        commit = make(gate, queue_items_max=5, queue_bytes_max=100)
        tasks = await start(commit.enqueue([1, 2], 10), commit.enqueue([3], 80))
        with pytest.raises(OverloadedError) as error:
            await commit.enqueue([1, 2, 3], 1)
        assert error.value.retriable
        with pytest.raises(OverloadedError):
            await commit.enqueue([1], 11)
        with pytest.raises(TooLargeError):
            await commit.enqueue([1] * 6, 1)
        with pytest.raises(TooLargeError):
            await commit.enqueue([1], 101)
        tasks += await start(commit.enqueue([4, 5], 10))
        gate.open.set()
        assert await asyncio.gather(*tasks) == [0, 2, 3]
        assert await commit.enqueue([6] * 5, 100) == 5
        await commit.close()

    asyncio.run(run())


def test_queues_that_share_a_room_are_full_together():
    async def run():
        threads, room, gate = Threads("store", 2), Room("Kafka", 3, 100), threading.Event()

        def store(submits: list[list[int]]) -> list[int]:
            assert gate.wait(30)
            return [sum(items) for items in submits]

        one, other = (GroupCommit(store, threads, room) for _ in range(2))
        under_way = [one.enqueue([1, 2], 10), other.enqueue([3], 10)]
        with pytest.raises(OverloadedError, match="3 events wait for Kafka already"):
            await one.enqueue([4], 1)
        gate.set()
        assert await asyncio.gather(*under_way) == [3, 3]
        assert await other.enqueue([4, 5], 90) == 9
        await asyncio.gather(one.close(), other.close())
        assert room.items == 0
        threads.close()

    asyncio.run(run())


def test_write_failure_reaches_everybody_and_later_submits_work():
    async def run():
        gate = Gate()
        gate.open.set()
        gate.error = LogUnavailableError("disk full", hint="make room")
        commit = make(gate)
        errors = await asyncio.gather(commit.enqueue([1], 1), commit.enqueue([2], 1), return_exceptions=True)
        assert [(type(e), e.message, e.hint) for e in errors] == [(LogUnavailableError, "disk full", "make room")] * 2
        assert errors[0] is not errors[1]
        assert commit._room.items == 0
        gate.error = None
        assert await commit.enqueue([3], 1) == 0
        await commit.close()

    asyncio.run(run())


def test_bad_item_fails_its_own_submit_only():
    async def run():
        gate = Gate()
        commit = make(gate)
        [first] = await start(commit.enqueue([1], 1))
        await entered(gate)
        tasks = await start(commit.enqueue([2], 1), commit.enqueue([3, -1], 1), commit.enqueue([4], 1))
        gate.open.set()
        results = await asyncio.gather(first, *tasks, return_exceptions=True)
        assert [results[i] for i in (0, 1, 3)] == [0, 1, 2]
        assert isinstance(results[2], InvalidInputError)
        assert gate.chunks == [[1], [2], [4]]
        await commit.close()

    asyncio.run(run())


def test_bug_in_encode_reaches_the_submitter():
    async def run():
        commit = ChunkCommit(Gate(), lambda items: 1 / 0, queue_items_max=9, queue_bytes_max=9, batch_items_max=9)
        with pytest.raises(ZeroDivisionError):
            await commit.enqueue([1], 1)
        assert commit._room.items == 0
        await commit.close()

    asyncio.run(run())


def test_cancelled_while_waiting_stores_nothing_cancelled_later_stores_all():
    async def run():
        gate = Gate()
        commit = make(gate)
        [writing] = await start(commit.enqueue([1], 1))
        await entered(gate)
        waiting, other = await start(commit.enqueue([2], 1), commit.enqueue([3], 1))
        writing.cancel()
        waiting.cancel()
        gate.open.set()
        assert await other == 1
        assert gate.chunks == [[1], [3]]
        assert commit._room.items == 0
        await commit.close()

    asyncio.run(run())


def test_close_stores_what_waits_and_refuses_the_rest():
    async def run():
        gate = Gate()
        commit = make(gate)
        tasks = await start(commit.enqueue([1], 1))
        await entered(gate)
        tasks += await start(commit.enqueue([2], 1))
        [closing] = await start(commit.close())
        with pytest.raises(LogUnavailableError):
            await commit.enqueue([3], 1)
        gate.open.set()
        await closing
        assert [task.result() for task in tasks] == [0, 1]
        await commit.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("log-commit")]

    asyncio.run(run())


def test_many_submitters_on_a_real_log(tmp_path):
    async def run():
        files = FaultyFiles()
        with open_writer(tmp_path, files=files) as writer:
            commit = make(writer, queue_items_max=10_000, queue_bytes_max=10_000, batch_items_max=1_000)
            got: dict[int, int] = {}

            async def producer(number):
                for i in range(50):
                    item = number * 1000 + i
                    got[await commit.enqueue([item, item], 1)] = item

            await asyncio.gather(*(producer(n) for n in range(20)))
            await commit.close()
            assert files.calls["fdatasync"] < 500
        with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
            stored = [n for chunk in iter(reader.read, None) for n in chunk.batch.column("n").to_pylist()]
        assert len(stored) == 2_000
        assert all(stored[offset] == stored[offset + 1] == item for offset, item in got.items())
        assert len(got) == 1_000

    asyncio.run(run())


def test_full_disk_passes(tmp_path):
    async def run():
        files = FaultyFiles()
        with open_writer(tmp_path, files=files) as writer:
            commit = make(writer)
            assert await commit.enqueue([0], 1) == 0
            files.write_bytes_max = 100
            with pytest.raises(LogUnavailableError):
                await commit.enqueue([1], 1)
            files.heal()
            assert await commit.enqueue([1], 1) == 1
            await commit.close()

    asyncio.run(run())


def test_nothing_of_a_line_is_stored_behind_what_failed_others_are():
    async def run():
        gate = Gate()
        gate.error = LogUnavailableError("disk full")
        commit = make(gate)
        chain = SubmitChain()
        failing = commit.enqueue([1], 1, chain)
        await entered(gate)
        behind, other = commit.enqueue([2], 1, chain), commit.enqueue([3], 1)
        gate.open.set()
        with pytest.raises(LogUnavailableError, match="disk full"):
            await failing
        gate.error = None  # the writer would take them again
        with pytest.raises(LogUnavailableError, match="one before it was not stored: disk full"):
            await behind
        with pytest.raises(LogUnavailableError, match="one before it"):
            await commit.enqueue([4], 1, chain)
        await asyncio.gather(other, return_exceptions=True)
        assert await commit.enqueue([5], 1, SubmitChain()) >= 0
        assert 2 not in [item for chunk in gate.chunks for item in chunk]
        assert 4 not in [item for chunk in gate.chunks for item in chunk]
        assert commit._room.items == 0
        await commit.close()

    asyncio.run(run())


def test_what_nobody_could_store_ends_its_line_within_one_chunk_too():
    async def run():
        gate = Gate()
        commit = make(gate)
        first = commit.enqueue([0], 1)
        await entered(gate)
        chain = SubmitChain()
        submits = [commit.enqueue([1], 1, chain), commit.enqueue([-1], 1, chain), commit.enqueue([2], 1, chain)]
        other = commit.enqueue([3], 1)
        gate.open.set()
        outcomes = await asyncio.gather(first, *submits, other, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [int, int, InvalidInputError, LogUnavailableError, int]
        assert gate.chunks == [[0], [1], [3]]
        await commit.close()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["full", "given up"])
def test_a_line_ends_with_what_was_never_begun(how):
    async def run():
        gate = Gate()
        commit = make(gate, queue_items_max=4)
        first = commit.enqueue([0], 1)
        await entered(gate)
        chain = SubmitChain()
        if how == "full":
            refused = commit.enqueue([1] * 4, 1, chain)
            with pytest.raises(OverloadedError):
                await refused
        else:
            commit.enqueue([1], 1, chain).cancel()
        behind = commit.enqueue([2], 1, chain)
        gate.open.set()
        assert await first == 0
        with pytest.raises(LogUnavailableError):
            await behind
        assert gate.chunks == [[0]]
        await commit.close()

    asyncio.run(run())


def test_a_log_that_takes_records_again_says_so_without_the_next_one(tmp_path):
    files = FaultyFiles()

    async def run() -> None:
        commit = make(writer)
        await commit.probe()
        assert await commit.enqueue([0, 1], 10) == 0
        size = last_segment(tmp_path).stat().st_size
        files.fail("pwritev", code=errno.ENOSPC)
        with pytest.raises(LogUnavailableError):
            await commit.enqueue([2], 10)
        await commit.probe()
        assert "No space left" in commit.problem
        files.heal()
        await commit.probe()
        assert commit.problem == ""
        assert last_segment(tmp_path).stat().st_size == size, "what was tried has been cut off"
        assert await commit.enqueue([2], 10) == 2
        await commit.close()

    with open_writer(tmp_path, files=files) as writer:
        asyncio.run(run())
    assert read_all(tmp_path) == [0, 1, 2]
