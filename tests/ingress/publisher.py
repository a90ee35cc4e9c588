"""Producers over gRPC: a log on disk and its service, and what streams say and are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from headgate.event.arrow import EVENT_SCHEMA, from_batch_all
from headgate.ingress.deduplication import DeduplicatingWriter
from headgate.ingress.encode import event_commit
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.producers import Producers
from headgate.ingress.publish_rpc import PublishRpc
from headgate.log.directory import LogDirectory, Partition
from headgate.log.reader import PartitionReader
from headgate.log.writer import PartitionWriter
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate_api.event.model import Event
from headgate_api.rpc.events import to_message
from headgate_api.rpc.headgate_pb2 import PublishRequest, PublishResponse
from tests.calls import Client, Refused, Stream, served

BROKER = "ns/b"


class Log:
    """A log on disk and the service that publishes into it; opened again it is what a restart finds."""

    def __init__(
        self, directory: Path, partitions: int = 1, files: Any = None, tracing: Any = None, windows: Any = None
    ) -> None:
        self.directory = directory
        self.writers = [
            PartitionWriter(Partition(directory / str(number), "stop"), EVENT_SCHEMA, files=files)
            for number in range(partitions)
        ]
        once = [DeduplicatingWriter(writer) for writer in self.writers]
        for one, writer in zip(once, self.writers, strict=True):
            one.recover(writer.partition, windows or {})
        self.commits = [event_commit(one) for one in once]
        self.partitions = Partitions(self.commits)
        self.brokers = {path: ServedBroker(f"{path}/1", DEFAULT_RULE) for path in (BROKER, "ns/other")}
        self.producers = Producers(LogDirectory(directory, "stop"))
        self.producers.recover(self.ends())
        self.rpc = PublishRpc(Intake(self.partitions, self.brokers.get, tracing=tracing), self.producers)

    def ends(self) -> dict[int, int]:
        return {number: writer.next_offset for number, writer in enumerate(self.writers)}

    async def close(self) -> None:
        for commit in self.commits:
            await commit.close()
        for writer in self.writers:
            writer.close()

    def ids(self) -> list[list[str]]:
        return [[stored.event.id for stored in stored_of(self.directory / str(n))] for n in range(len(self.writers))]


def stored_of(partition: Path) -> list[Any]:
    found: list[Any] = []
    with PartitionReader(Partition(partition, "stop"), start=0) as reader:
        while (chunk := reader.read()) is not None:
            found += from_batch_all(chunk.batch)
    return found


@contextlib.asynccontextmanager
async def publishing(directory: Path, **options: Any) -> AsyncIterator[tuple[Log, Client]]:
    log = Log(directory, **options)
    try:
        async with served(log.rpc.service()) as client:
            yield log, client
    finally:
        await log.close()


async def opened(client: Client, producer: str = "", broker: str = BROKER) -> tuple[Stream, int]:
    stream = client.call("Publisher/Publish", PublishResponse)
    await stream.write(PublishRequest(open=PublishRequest.Open(broker=broker, producer=producer)))
    return stream, (await stream.read()).opened.next_sequence


def request(first: int, count: int = 1, *, keys: Sequence[str] = (), **options: Any) -> PublishRequest:
    """Events that are called as they are numbered."""
    events = [
        to_message(Event("1.0", f"e{n}", "/s", "t", extensions={"partitionkey": keys[n % len(keys)]} if keys else {}))
        for n in range(first, first + count)
    ]
    return PublishRequest(sequence=first, events=events, **options)


def said(message: PublishResponse) -> tuple[int, int, int | str]:
    """First, last, and how many were stored before or why they were not."""
    if message.WhichOneof("what") == "refused":
        return message.refused.first, message.refused.last, message.refused.problem.code
    done = message.acknowledged
    return done.first, done.last, done.duplicates


async def answered(stream: Stream, sent: PublishRequest) -> tuple[int, int, int | str]:
    """What the next answer says when a request was sent."""
    await stream.write(sent)
    return said(await stream.read())


async def replaced(ending: Awaitable[object]) -> Refused:
    """How a stream ends whose producer has a newer one."""
    with pytest.raises(Refused) as refused:
        await ending
    assert (refused.value.status, refused.value.code) == (grpc.StatusCode.ABORTED, "producer-replaced")
    return refused.value


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def names(first: int, last: int) -> list[str]:
    return [f"e{number}" for number in range(first, last)]
