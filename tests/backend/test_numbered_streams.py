"""Streams of numbered producers of one front, without a Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka import appender
from headgate.backend.kafka.appender import FencedProducers
from headgate.backend.kafka.transactions import EventRecords
from headgate.ingress.producers import ProducerReplacedError
from headgate_api.errors import OverloadedError, UnavailableError
from tests.backend.contract import entries

STEP_S = 30.0


class Writers:
    """Writers as they are made: each fences those that were made before it."""

    def __init__(self) -> None:
        self.begun = 0
        self.made: list[Writer] = []
        self.may_go_on = threading.Event()


class Writer:
    """One of them; the first takes its time."""

    def __init__(self, writers: Writers) -> None:
        self.is_closed = False
        self.stored: list[object] = []
        self.error: Exception | None = None
        writers.begun += 1
        if writers.begun == 1:
            assert writers.may_go_on.wait(STEP_S)
        writers.made.append(self)

    def store(self, submits: Sequence[EventRecords]) -> list[int]:
        self.stored += [submit.newest for submit in submits]
        if self.error is not None:
            raise self.error
        return [0] * len(submits)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> Writers:
    made = Writers()
    monkeypatch.setattr(appender, "NumberedWriter", lambda *_: Writer(made))
    monkeypatch.setattr(appender, "read_numbers", lambda *_: {})
    return made


def test_a_stream_that_was_given_up_while_it_was_opened_fences_no_later_one(writers: Writers) -> None:

    async def main() -> None:
        producers = FencedProducers(KafkaConfig(bootstrap="127.0.0.1:1"))
        given_up = asyncio.create_task(producers.open("ns/b/1", "p"))
        while not writers.begun:
            await asyncio.sleep(0.001)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert given_up.cancelled(), "its client does not wait for it"
        opening = asyncio.create_task(producers.open("ns/b/1", "p"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert writers.begun == 1, "the next one waits for it"
        writers.may_go_on.set()
        opened = await opening
        assert getattr(opened, "writer", None) is writers.made[-1], "the newest one is that of the newest stream"
        assert not writers.made[-1].is_closed
        await producers.stop()
        assert [one.is_closed for one in writers.made] == [True, True]

    asyncio.run(asyncio.wait_for(main(), STEP_S))


def test_one_namespace_leaves_room_for_others(writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    writers.may_go_on.set()
    monkeypatch.setattr(appender, "KAFKA_PRODUCER_STREAMS_MAX", 4)

    async def main() -> None:
        producers = FencedProducers(KafkaConfig(bootstrap="127.0.0.1:1"))
        for name in ("a", "b", "b", "c"):
            await producers.open("loud/b/1", name)
        with pytest.raises(OverloadedError, match=r"'loud'.*KAFKA_PRODUCER_STREAMS_MAX"):
            await producers.open("loud/c/1", "d")
        await producers.open("quiet/b/1", "p")
        await producers.stop()

    asyncio.run(asyncio.wait_for(main(), STEP_S))


def test_what_was_refused_ends_a_stream_and_is_not_tried_again(writers: Writers) -> None:
    writers.may_go_on.set()

    async def main() -> None:
        producers = FencedProducers(KafkaConfig(bootstrap="127.0.0.1:1"))
        stream: Any = await producers.open("ns/b/1", "p")

        async def append(last: int) -> None:
            await stream.append({3: replace(entries(last), numbers=[stream.numbers(3, last)])}, 100)

        await append(7)
        [writer] = writers.made
        writer.error = ProducerReplacedError("there is another stream")
        refused = await asyncio.gather(append(8), append(9), return_exceptions=True)
        assert [type(one) for one in refused] == [ProducerReplacedError] * 2
        assert refused[0] is not refused[1], "each has its own"
        with pytest.raises(UnavailableError, match="one before it was not stored: there is another stream"):
            await append(10)
        assert writer.stored == [{3: 7}, {3: 8}, {3: 9}]
        await asyncio.sleep(0)
        assert (stream.newest, stream.replaced.is_set(), stream.under_way) == ({3: 7}, True, set())
        await producers.stop()

    asyncio.run(asyncio.wait_for(main(), STEP_S))
