"""A partition that a front has just been given: what comes for it waits, in order, without a Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from headgate.backend.kafka import once
from headgate.backend.kafka.once import FrontPartition, WindowNotReadError
from headgate.backend.kafka.window_writer import WindowWriter
from headgate.event.arrow import from_batch_all
from headgate.log.group_commit import Sifted, SubmitChain
from headgate.log.writer import Encoded
from headgate.storage.threads import Threads
from tests.backend.contract import entries


class Writer:
    """It may take the partition once a test says so."""

    def __init__(self) -> None:
        self.may_take = threading.Event()
        self.stored: list[str] = []

    def take(self) -> None:
        assert self.may_take.wait(30)

    def append(self, chunk: Encoded) -> Sifted:
        ids = [one.event.id for one in from_batch_all(chunk.batch)]
        self.stored += ids
        return Sifted(range(len(ids)), [False] * len(ids))

    def stop(self) -> None:
        self.may_take.set()

    def close(self) -> None: ...


def run(work: Callable[[Writer, FrontPartition], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        threads, writer = Threads("takeover"), Writer()
        partition = FrontPartition(0, cast(WindowWriter, writer), threads)
        await work(writer, partition)
        await partition.close()
        threads.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_waits_for_a_partition_is_stored_before_what_comes_when_it_is_ready() -> None:
    async def work(writer: Writer, partition: FrontPartition) -> None:
        chain = SubmitChain()
        waiting = [partition.enqueue(entries(number), 1, chain) for number in range(3)]
        await asyncio.sleep(0)
        writer.may_take.set()
        await partition._ready.wait()
        partition._ready.clear()
        waiting += [partition.enqueue(entries(number), 1, chain) for number in range(3, 5)]
        await asyncio.sleep(0)
        partition._ready.set()
        waiting.append(partition.enqueue(entries(5), 1, chain))
        await asyncio.gather(*waiting)
        assert writer.stored == [f"{number}" for number in range(6)]

    run(work)


def test_nothing_of_a_stream_is_stored_behind_what_has_waited_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "PARTITION_OWNER_S_MAX", 0.05)

    async def work(writer: Writer, partition: FrontPartition) -> None:
        chain = SubmitChain()
        with pytest.raises(WindowNotReadError):
            await partition.enqueue(entries("a"), 1, chain)
        assert isinstance(chain.problem, WindowNotReadError)

    run(work)
