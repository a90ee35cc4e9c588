"""The dispatcher's side of the match link, as far as tests need it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import queue
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from headgate.log.directory import LogDirectory
from headgate.match.driver_link import LinkAddress
from headgate.match.query import SparkRun, start_run
from headgate.outbox.link_format import LinkEndpoint

TOKEN = bytes(range(32))
HELLO = struct.Struct("<4s32sqqiiqii8x")
FRAME = struct.Struct("<BBiq")
PATIENCE_S = 60
T = TypeVar("T")


@dataclass
class Connection:
    """One connection of a run and everything it said."""

    run: int
    generation: int
    partition: int
    partitions: int
    start: int
    dispatcher: tuple[int, ...]
    sock: socket.socket
    frames: list[tuple[int, int, int, int]] = field(default_factory=list)
    received_ns: list[int] = field(default_factory=list)
    closed: bool = False

    @property
    def passed(self) -> int:
        return max((frame[3] for frame in self.frames if frame[0] == 2), default=-1)

    @property
    def rows(self) -> list[tuple[int, int, int]]:
        """(offset, target, verdict) in the order of arrival."""
        return [(offset, target, verdict) for kind, verdict, target, offset in self.frames if kind == 1]


class FakeDispatcher:
    """Listens as the dispatcher does; keeps what it hears. Use as a context manager."""

    def __init__(self, token: bytes = TOKEN) -> None:
        self._token = token
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = LinkEndpoint("127.0.0.1", self._server.getsockname()[1])
        self.address = LinkAddress((self.endpoint,), TOKEN)
        self.connections: list[Connection] = []
        self.refused = 0
        self.paused = threading.Event()
        self.closing = threading.Event()
        self.driver_says: queue.Queue[dict[str, object]] = queue.Queue()
        self.driver: socket.socket | None = None
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> FakeDispatcher:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self.connections:
            self.drop(connection)
        if self.driver is not None:
            self.drop_driver()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def drop(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)

    def drop_driver(self) -> None:
        assert self.driver is not None
        with contextlib.suppress(OSError):
            self.driver.shutdown(socket.SHUT_RDWR)

    def tell_driver(self, **message: object) -> None:
        assert self.driver is not None
        self.driver.sendall(json.dumps(message).encode() + b"\n")

    def of(self, run: int, partition: int = 0) -> Connection:
        """The connection of a partition of a run, as soon as it is there."""
        return self.wait(lambda: next((c for c in self.connections if (c.run, c.partition) == (run, partition)), None))

    def wait(self, what: Callable[[], T | None]) -> T:
        """The first true value of `what`, looked at whenever something was heard."""
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while not (found := what()):
                assert self._changed.wait(max(0.0, deadline - time.monotonic())), "the fake dispatcher waited in vain"
            return found

    def is_stuck(self, connection: Connection) -> bool:
        """Whether a paused connection's bytes have piled up and no more come."""

        def unread() -> int:
            return struct.unpack("i", fcntl.ioctl(connection.sock, termios.FIONREAD, bytes(4)))[0]

        before = unread()
        time.sleep(0.1)
        return before > 0 and unread() == before

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self._spawn(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(ConnectionError):
            hello = sock.recv(HELLO.size, socket.MSG_WAITALL)
            magic, token, run, generation, partition, partitions, start, *shard = HELLO.unpack(hello)
            if magic != b"HGM1" or token != self._token:
                with self._changed:
                    self.refused += 1
                    self._changed.notify_all()
                return
            sock.sendall(b"\x06")
            if partition == -1:
                self._serve_driver(sock)
                return
            connection = Connection(run, generation, partition, partitions, start, tuple(shard), sock)
            with self._changed:
                self.connections.append(connection)
                self._changed.notify_all()
            while self.paused.is_set() and not self.closing.wait(0.01):
                pass
            self._read(connection)
            with self._changed:
                connection.closed = True
                self._changed.notify_all()

    def _read(self, connection: Connection) -> None:
        rest = b""
        with contextlib.suppress(ConnectionError):
            while data := connection.sock.recv(1 << 16):
                now = time.perf_counter_ns()
                rest += data
                whole = len(rest) - len(rest) % FRAME.size
                frames = list(FRAME.iter_unpack(rest[:whole]))
                rest = rest[whole:]
                with self._changed:
                    connection.frames += frames
                    connection.received_ns += [now] * len(frames)
                    self._changed.notify_all()

    def _serve_driver(self, sock: socket.socket) -> None:
        self.driver = sock
        with sock.makefile("rb") as lines:
            for line in lines:
                self.driver_says.put(json.loads(line))


def address_of(*dispatchers: FakeDispatcher) -> LinkAddress:
    """Where several of them listen."""
    return LinkAddress(tuple(one.endpoint for one in dispatchers), TOKEN)


@contextlib.contextmanager
def running(
    spark: SparkSession,
    matches: Callable[[DataFrame], DataFrame],
    dispatcher: FakeDispatcher,
    scratch: Path,
    *,
    log: Path,
    start: Mapping[int, int],
    number: int = 1,
    generation: int = 1,
    others: tuple[FakeDispatcher, ...] = (),
    wakeups: Path | None = None,
) -> Iterator[SparkRun]:
    """A run that is stopped at the end; `others` are dispatchers beside the first one."""
    run = start_run(
        spark,
        matches,
        log=LogDirectory(log, "stop"),
        start=start,
        run=number,
        generation=generation,
        link=address_of(dispatcher, *others),
        scratch=scratch,
        wakeups=wakeups,
    )
    try:
        yield run
    finally:
        run.stop()
