"""The owner's end of the link between fronts: stores what others send for its partitions, and tells what it knows."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
import structlog

from headgate.errors import HeadgateError
from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.encode import Entries, Forwarded
from headgate.ingress.front_link import (
    LENGTHS_BYTES,
    AppendChunk,
    AskProducer,
    FrontAnswer,
    FrontLinkError,
    decode,
    encode,
    lengths,
    read_lengths,
)
from headgate.ingress.producers import Producers
from headgate.log.commit import GroupCommit
from headgate.log.writer import Encoded

_log = structlog.get_logger(__name__)


class FrontOwner:
    """Answers other fronts. Belongs to an event loop.

    Args:
        commits: The partitions that this front writes, by number.
        producers: What it knows of the producers whose events they hold.
    """

    def __init__(self, commits: Mapping[int, GroupCommit[Entries | Forwarded]], producers: Producers) -> None:
        self._commits = commits
        self._producers = producers
        self._open: set[asyncio.StreamWriter] = set()
        self._epochs: dict[int, int] = {}
        self._under_way: defaultdict[int, set[asyncio.Future[int]]] = defaultdict(set)

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Answers for as long as the block lasts."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._answer_all, path)
        path.chmod(0o600)
        try:
            yield
        finally:
            server.close()
            for writer in self._open:
                writer.close()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                head, body = read_lengths(await reader.readexactly(LENGTHS_BYTES))
                message = decode(await reader.readexactly(head))
                answer = encode(await self._answer(message, await reader.readexactly(body)))
                writer.write(lengths(len(answer), 0) + answer)
                await writer.drain()
        except (EOFError, OSError):
            return  # the other front is gone, or has opened another connection
        except (FrontLinkError, msgspec.DecodeError, pa.ArrowInvalid) as error:
            _log.error("another front sends what cannot be read", error=str(error))
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, message: AppendChunk | AskProducer, body: bytes) -> FrontAnswer:
        if message.epoch < self._epochs.get(message.front, 0):
            return FrontAnswer("the front that sent it has started again")
        if isinstance(message, AskProducer):
            return await self._tell(message)
        commit = self._commits.get(message.partition)
        if commit is None:
            return FrontAnswer(f"partition {message.partition} is not written here")
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), EVENT_SCHEMA)
        chunk = Encoded(
            batch,
            message.filter_values,
            also=message.also,
            bloom_bytes=message.bloom_bytes,
            codec=message.codec,
            sizes=message.sizes,
        )
        under_way = self._under_way[message.front]
        done = commit.enqueue(Forwarded(chunk), len(body))
        self._producers.forwarded(message.partition, batch, done)
        under_way.add(done)
        done.add_done_callback(under_way.discard)
        try:
            return FrontAnswer(first=await done)
        except HeadgateError as error:
            return FrontAnswer(error.message)

    async def _tell(self, message: AskProducer) -> FrontAnswer:
        self._epochs[message.front] = message.epoch  # nothing of an earlier one is stored from here on
        if waiting := set(self._under_way[message.front]):
            await asyncio.wait(waiting)
        return FrontAnswer(newest=self._producers.newest(message.broker, message.producer))
