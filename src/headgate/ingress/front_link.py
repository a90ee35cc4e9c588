"""The link between fronts: a chunk goes to the front that writes its partition, and a question to whoever knows.

A message is two lengths (little-endian, 32 bits), a MessagePack head and a body; a chunk's body is an Arrow record
batch without its schema. Each message has one answer, in order. Who sends is a thread that waits: group commit's, which
has one chunk of a partition under way at a time.

`epoch` tells the starts of a front, and the times that it lost an answer: what it sent in an earlier epoch and has not
arrived when it asks for a producer's numbers is refused, else it could be stored behind the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import structlog

from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.encode import Entries, Forwarded
from headgate.ingress.producers import Producers
from headgate.log.errors import LogUnavailableError
from headgate.log.format import Codec
from headgate.log.group_commit import ChunkCommit, Sifted
from headgate.log.writer import Encoded, Numbers
from headgate_api.errors import HeadgateError
from headgate_api.limits import FRONT_LINK_BYTES_MAX, FRONT_LINK_S_MAX

_log = structlog.get_logger(__name__)
_LENGTHS: Final = struct.Struct("<II")


class AppendChunk(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """Store a chunk, see `log.writer.Encoded`; `sizes` is about its bytes, by namespace, `windows` by broker."""

    front: int
    epoch: int
    partition: int
    filter_values: list[str | None]
    also: list[str | None]
    bloom_bytes: int | None
    codec: Codec | None
    sizes: dict[str, int] = {}
    windows: dict[str, int] = {}
    numbers: list[Numbers] = []


class AskProducer(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Which of a producer's events are stored? When the answer comes, what `front` sent before is, or never will be."""

    front: int
    epoch: int
    broker: str  # its identity
    producer: str  # empty: nothing but a sign of life is asked for


class FrontAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The answer to either."""

    problem: str = ""  # why nothing was done, empty when it was
    first: int = 0  # offset of the chunk's first event
    offsets: list[int] = []  # of each of its events, where some were stored before; else empty
    was_there: list[bool] = []
    newest: dict[int, int] = {}  # the producer's newest number by partition


def append_chunk(chunk: Encoded, partition: int, front: int = 0, epoch: int = 0) -> AppendChunk:
    """The head of a chunk's message; its body is the serialized batch."""
    return AppendChunk(
        front,
        epoch,
        partition,
        list(chunk.filter_values),
        list(chunk.also),
        chunk.bloom_bytes,
        chunk.codec,
        dict(chunk.sizes),
        dict(chunk.windows),
        list(chunk.numbers),
    )


def chunk_of(message: AppendChunk, body: bytes) -> Encoded:
    """The chunk of a message; raises ArrowInvalid."""
    return Encoded(
        pa.ipc.read_record_batch(pa.py_buffer(body), EVENT_SCHEMA),
        message.filter_values,
        also=message.also,
        bloom_bytes=message.bloom_bytes,
        codec=message.codec,
        sizes=message.sizes,
        windows=message.windows,
        numbers=message.numbers,
    )


def answer_of(stored: int | Sifted) -> FrontAnswer:
    """The answer to a chunk that is stored."""
    if isinstance(stored, Sifted):
        return FrontAnswer(offsets=list(stored.offsets), was_there=list(stored.was_there))
    return FrontAnswer(first=stored)


def stored_of(answer: FrontAnswer) -> int | Sifted:
    """What an answer says that is none of a problem."""
    return Sifted(answer.offsets, answer.was_there) if answer.offsets else answer.first


Message = AppendChunk | AskProducer
decode_answer: Final = msgspec.msgpack.Decoder(FrontAnswer).decode
encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(Message).decode


class FrontLinkError(HeadgateError):
    """Bytes on the link between fronts that no front sends."""

    code = "front-link"


class FrontUnavailableError(LogUnavailableError):
    """The front that writes the partition does not take events now."""


lengths: Final = _LENGTHS.pack
"""What a message begins with: the lengths of head and body."""
LENGTHS_BYTES: Final = _LENGTHS.size


def read_lengths(data: bytes) -> tuple[int, int]:
    """The lengths of head and body. Raises FrontLinkError over FRONT_LINK_BYTES_MAX."""
    head, body = _LENGTHS.unpack(data)
    if head + body > FRONT_LINK_BYTES_MAX:
        raise FrontLinkError(f"a message of {head + body} bytes is over {FRONT_LINK_BYTES_MAX}")
    return head, body


class OwnerLink:
    """What one front, by its number, knows of another one that it sends chunks to, at that one's socket."""

    def __init__(self, socket: Path, front: int) -> None:
        self.socket = socket
        self.front = front
        self.epoch = time.time_ns()

    def renew(self) -> None:
        """An answer was lost: what was sent may be stored later."""
        self.epoch = max(self.epoch + 1, time.time_ns())

    def newest(self, broker: str, producer: str) -> dict[int, int]:
        """The numbers of a producer in the other front's partitions; blocks. Raises FrontUnavailableError."""
        with contextlib.closing(FrontConnection(self.socket)) as connection:
            return connection.call(AskProducer(self.front, self.epoch, broker, producer)).newest


class RemotePartition:
    """A partition that another front writes, as group commit's writer. Called in one thread."""

    def __init__(self, owner: OwnerLink, partition: int) -> None:
        self._owner = owner
        self._partition = partition
        self._connection = FrontConnection(owner.socket)

    def append(self, chunk: Encoded) -> int | Sifted:
        """Raises FrontUnavailableError when it is not known to be stored."""
        message = append_chunk(chunk, self._partition, self._owner.front, self._owner.epoch)
        try:
            return stored_of(self._connection.call(message, chunk.batch.serialize()))
        except FrontUnavailableError:
            self._owner.renew()
            raise

    def probe(self) -> None:
        self._owner.newest("", "")

    def close(self) -> None:
        self._connection.close()


class FrontConnection:
    """A connection that waits for each answer; opened when it is needed, and anew where it broke meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None

    def call(self, message: Message, body: memoryview | bytes = b"") -> FrontAnswer:
        """Sends a message and waits FRONT_LINK_S_MAX for its answer; FrontUnavailableError also if nothing was done."""
        head = encode(message)
        body = memoryview(body)
        try:
            connection = self._open()
            connection.sendall(lengths(len(head), body.nbytes) + head)
            connection.sendall(body)
            size, _ = read_lengths(_read(connection, LENGTHS_BYTES))
            answer = decode_answer(_read(connection, size))
        except (OSError, EOFError, msgspec.DecodeError, FrontLinkError) as error:
            self.close()
            raise FrontUnavailableError(
                "the process that writes this partition does not answer",
                hint="try again in a few seconds",
                detail=f"{self._path}: {error}",
            ) from error
        if answer.problem:
            raise FrontUnavailableError(answer.problem, hint="try again in a few seconds")
        return answer

    def _open(self) -> socket.socket:
        if self._socket is not None and _is_readable(self._socket):
            self.close()  # nothing is due to come: the other end is gone
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(FRONT_LINK_S_MAX)
            self._socket.connect(str(self._path))
        return self._socket

    def close(self) -> None:
        """Ends it; the next call opens another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _is_readable(connection: socket.socket) -> bool:
    poll = select.poll()  # not `select`, which takes no file above 1,023
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _read(connection: socket.socket, count: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < count:
        piece = connection.recv(count - len(pieces))
        if not piece:
            raise EOFError("the other end is gone")
        pieces += piece
    return bytes(pieces)


class FrontOwner:
    """Answers other fronts. Belongs to an event loop."""

    def __init__(self, commits: Mapping[int, ChunkCommit[Entries | Forwarded]], producers: Producers) -> None:
        self._commits = commits
        self._producers = producers
        self._open: set[asyncio.StreamWriter] = set()
        self._epochs: dict[int, int] = {}
        self._under_way: defaultdict[int, set[asyncio.Future[int | Sifted]]] = defaultdict(set)

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
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

    async def _answer(self, message: Message, body: bytes) -> FrontAnswer:
        if message.epoch < self._epochs.get(message.front, 0):
            return FrontAnswer("the front that sent it has started again")
        if isinstance(message, AskProducer):
            return await self._tell(message)
        commit = self._commits.get(message.partition)
        if commit is None:
            return FrontAnswer(f"partition {message.partition} is not written here")
        chunk = chunk_of(message, body)
        under_way = self._under_way[message.front]
        done = commit.enqueue(Forwarded(chunk), len(body))
        self._producers.forwarded(message.partition, chunk.batch, done)
        under_way.add(done)
        done.add_done_callback(under_way.discard)
        try:
            return answer_of(await done)
        except HeadgateError as error:
            return FrontAnswer(error.message)

    async def _tell(self, message: AskProducer) -> FrontAnswer:
        self._epochs[message.front] = message.epoch  # nothing of an earlier one is stored from here on
        if waiting := set(self._under_way[message.front]):
            await asyncio.wait(waiting)
        return FrontAnswer(newest=self._producers.newest(message.broker, message.producer))
