"""What has a lagging target missed? Reads its own rows of the outbox again, past every chunk that has none of them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow.compute as pc

from headgate.delivery.targets import Delivery, Lag
from headgate.log.reader import PartitionReader
from headgate.outbox.writer import OUTBOX_SCHEMA

_THREADS: Final = 2
_TARGET: Final = OUTBOX_SCHEMA.get_field_index("target")


@dataclass(frozen=True, slots=True)
class Refill:
    """A piece of a target's backlog.

    Attributes:
        deliveries: In order of position.
        reached: Everything of the target below it has been read.
    """

    deliveries: list[Delivery]
    reached: int


class Backlog(Protocol):
    """What the scheduler needs of the outbox."""

    async def read(self, target: int, lag: Lag, upto: int, count_max: int) -> Refill:
        """The target's next rows from `lag.next` on and below `upto`, at most about `count_max`."""


class OutboxBacklog:
    """Reads pieces in threads of its own.

    Args:
        directory: The outbox partition.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="backlog")

    async def read(self, target: int, lag: Lag, upto: int, count_max: int) -> Refill:
        """See `Backlog`. The lag must not change while this runs."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._read, target, lag, upto, count_max)

    def close(self) -> None:
        """Wait for the threads."""
        self._threads.shutdown(wait=True)

    def _read(self, target: int, lag: Lag, upto: int, count_max: int) -> Refill:
        wanted = frozenset({str(target)})
        deliveries: list[Delivery] = []
        reached = lag.next
        with PartitionReader.open(self._directory, start=lag.next) as reader:
            while len(deliveries) < count_max and reached < upto:
                chunk = reader.read(wanted=wanted)
                if chunk is None:
                    reached = upto
                    break
                rows = pc.indices_nonzero(pc.equal(chunk.batch.column(_TARGET), target))
                columns = [chunk.batch.column(index).take(rows).to_pylist() for index in (0, 1, 3)]
                for row, partition, offset, verdict in zip(rows.to_pylist(), *columns, strict=True):
                    position = chunk.first_offset + row
                    if position < upto and lag.wants(position):
                        deliveries.append(Delivery(position, partition, offset, verdict))
                        if len(deliveries) >= count_max:
                            return Refill(deliveries, position + 1)
                reached = min(chunk.next_offset, upto)
        return Refill(deliveries, reached)
