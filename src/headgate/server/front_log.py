"""The event log as one of several fronts has it: the partitions that it writes, and the ways to those of the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass

from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.encode import Entries, Forwarded, check_events, event_commit
from headgate.ingress.front_link import FrontOwner, OwnerLink, RemotePartition
from headgate.ingress.partitions import Partitions
from headgate.ingress.producers import Elsewhere, Producers
from headgate.ingress.stored_bytes import CountingWriter, StoredBytes
from headgate.log.commit import ChunkCommit
from headgate.log.directory import LogDirectory, Partition
from headgate.log.wakeups import Wakeups
from headgate.log.writer import PartitionWriter
from headgate.server.parts import front_of
from headgate.settings import Settings
from headgate_api.limits import LOG_PROBE_S


@dataclass(frozen=True)
class FrontLog:
    """What is open: writers of this front's partitions by number, and over each a commit that many requests share."""

    writers: Mapping[int, PartitionWriter]
    commits: Mapping[int, ChunkCommit[Entries | Forwarded]]
    partitions: Partitions
    producers: Producers
    stored: StoredBytes

    def ends(self) -> dict[int, int]:
        """The next offset of each partition of this front."""
        return {partition: writer.next_offset for partition, writer in self.writers.items()}

    @property
    def problem(self) -> str:
        """Why one of this front's partitions takes nothing; empty when all do."""
        return next((commit.problem for commit in self.commits.values() if commit.problem), "")

    async def probe(self) -> None:
        """Notices that a disk has room again, also when no event comes; until it is cancelled."""
        while True:
            await asyncio.sleep(LOG_PROBE_S)
            for commit in self.commits.values():
                await commit.probe()


@contextlib.asynccontextmanager
async def front_log(settings: Settings, number: int) -> AsyncIterator[FrontLog]:
    """Opens the log for a front; at the block's end everything that waits is stored and closed."""
    directory = LogDirectory(settings.log_directory, settings.on_corrupt)
    async with contextlib.AsyncExitStack() as stack:
        writers = {}
        for one in range(settings.partitions):
            if front_of(one, settings.fronts) == number:
                wakeups = Wakeups()
                writer = _writer(directory.partition(one), settings, wakeups)
                writers[one] = stack.enter_context(contextlib.closing(writer))
                await stack.enter_async_context(wakeups.listening(settings.log_wakeups(one)))
        stored = StoredBytes(directory, number, writers)
        commits = {one: event_commit(CountingWriter(writer, stored, one)) for one, writer in writers.items()}
        owners = {
            one: OwnerLink(settings.front_log_socket(one), number) for one in range(settings.fronts) if one != number
        }
        producers = Producers(directory, number, _elsewhere(owners.values()) if owners else None)
        log = FrontLog(writers, commits, _partitions(settings, commits, owners, stack), producers, stored)
        await asyncio.to_thread(producers.recover, log.ends())
        stack.push_async_callback(_close, log)
        if owners:
            others = FrontOwner(commits, producers)
            await stack.enter_async_context(others.listening(settings.front_log_socket(number)))
        yield log


async def _close(log: FrontLog) -> None:
    for commit in log.commits.values():
        await commit.close()
    await log.producers.try_snapshot(log.ends())
    await asyncio.to_thread(log.stored.close)


def _partitions(
    settings: Settings,
    commits: Mapping[int, ChunkCommit[Entries | Forwarded]],
    owners: Mapping[int, OwnerLink],
    stack: contextlib.AsyncExitStack,
) -> Partitions:
    """All partitions; the chunks of those that other fronts write go there."""
    logs = []
    for one in range(settings.partitions):
        commit = commits.get(one)
        if commit is None:
            remote = RemotePartition(owners[front_of(one, settings.fronts)], one)
            stack.callback(remote.close)
            commit = event_commit(remote)
            stack.push_async_callback(commit.close)
        logs.append(commit)
    return Partitions(logs, tuple(commits))


def _elsewhere(owners: Iterable[OwnerLink]) -> Elsewhere:
    """What the other fronts know of a producer; all are asked at the same time."""

    async def newest(broker: str, producer: str) -> dict[int, int]:
        asked = [asyncio.to_thread(owner.newest, broker, producer) for owner in owners]
        return {partition: number for one in await asyncio.gather(*asked) for partition, number in one.items()}

    return newest


def _writer(partition: Partition, settings: Settings, wakeups: Wakeups) -> PartitionWriter:
    check_events(partition)
    segment_bytes_max = settings.segment_mb << 20
    return PartitionWriter(partition, EVENT_SCHEMA, segment_bytes_max=segment_bytes_max, on_growth=wakeups.grown)
