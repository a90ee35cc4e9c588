"""The dispatcher's side of the match link (docs/spec/match-link.md), on loopback.

Backpressure is not reading: while the outbox is full no run is read, while a run holds too many rows for its turn, that
run is not read. TCP does the rest, up to the Spark task that writes.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, cast

import msgspec
import structlog

from headgate.outbox.link_format import (
    ADDRESS_FILE,
    HELLO_ACCEPTED,
    HELLO_BYTES,
    DriverRequest,
    FrameParser,
    Hello,
    LinkEndpoint,
    LinkProtocolError,
    Resume,
    RunActive,
    RunRejected,
    decode_hello,
)
from headgate.outbox.shards import WHOLE, Shard
from headgate.outbox.takeover import Accepted, Step, Takeover
from headgate.storage.files import replace_whole
from headgate_api import limits

_log = structlog.get_logger(__name__)


class MatchSink(Protocol):
    """Takes the rows that the link accepts."""

    def take(self, accepted: Accepted) -> None:
        """Take accepted rows; never refuses."""

    def is_full(self) -> bool:
        """Whether the link should stop reading for now; who changes that calls `MatchLinkServer.resume_reading`."""

    def end_offset(self, partition: int) -> int:
        """Offset behind the last event of the partition: nothing above it can have been matched."""


_decode_request: Final = msgspec.json.Decoder(DriverRequest).decode


class MatchLinkServer:
    """The listening side: all connections, the takeover between runs, and what the matcher's driver wants to know.

    Every peer must show `token`. `resume` gives start offsets for a run when no other is alive, per partition. Rows of
    another shard's targets would reach nobody here.
    """

    def __init__(
        self,
        token: bytes,
        takeover: Takeover,
        sink: MatchSink,
        resume: Callable[[], dict[int, int]],
        shard: Shard = WHOLE,
    ) -> None:
        self.token = token
        self.sink = sink
        self.shard = shard
        self._takeover = takeover
        self._resume = resume
        self._connections: set[_LinkConnection] = set()
        self._outcomes: dict[int, RunActive | RunRejected] = {}  # run -> the last word about it
        self._server: asyncio.Server | None = None
        self._watch: asyncio.TimerHandle | None = None

    async def start(self, run_directory: Path) -> int:
        """Listen on a free loopback port and publish it as `run/match-link-N.json`; returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _LinkConnection(self), "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        run_directory.mkdir(parents=True, exist_ok=True)
        address = msgspec.json.encode(LinkEndpoint("127.0.0.1", port))
        replace_whole(run_directory / ADDRESS_FILE.format(self.shard.index), address)
        self._watch = loop.call_later(1.0, self._close_silent)
        _log.info("listens for the matcher", port=port)
        return port

    async def close(self) -> None:
        """Stop listening and close every connection: every run is dead."""
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
        if self._server is not None:
            await self._server.wait_closed()

    def resume_reading(self) -> None:
        """Rows may have left the sink, or been accepted: read those connections again that may be read."""
        if self.sink.is_full():
            return
        for connection in self._connections:
            if connection.paused:
                self._pause_or_resume(connection)

    # --- what connections call --------------------------------------------------------------------

    def connected(self, connection: _LinkConnection) -> bool:
        """A socket was accepted; False when there are too many."""
        if len(self._connections) >= limits.LINK_CONNECTIONS_MAX:
            return False
        self._connections.add(connection)
        return True

    def greeted(self, connection: _LinkConnection, hello: Hello) -> None:
        """A connection has shown the token and sent its hello."""
        if hello.is_driver:
            _log.info("the matcher has connected")
            return
        what = "a run of the match query has connected"
        _log.info(what, run=hello.run, generation=hello.generation, partition=hello.partition)
        self._apply(self._takeover.open(hello))

    def received(self, connection: _LinkConnection, hello: Hello, parser: FrameParser, data: bytes) -> None:
        """Bytes of a run's connection; LinkProtocolError when they are no frames, or of events that do not exist."""
        for rows, passed, then in parser.feed(data):
            if passed > self.sink.end_offset(hello.partition):
                raise LinkProtocolError(f"partition {hello.partition} has no event {passed - 1} yet")
            self._apply(self._takeover.frames(hello.run, hello.partition, rows, passed, then=then))
        self._pause_or_resume(connection)

    def requested(self, connection: _LinkConnection, line: bytes) -> None:
        """One JSON line of the driver; raises LinkProtocolError."""
        try:
            request = _decode_request(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LinkProtocolError(f"the driver sent no request: {error}") from error
        if request.op == "resume":
            connection.send(Resume(self._resume()))
        elif request.op == "started":
            connection.runs.add(request.run)
            outcome = self._outcomes.get(request.run)
            if outcome is not None:
                connection.send(outcome)
        else:
            raise LinkProtocolError(f"the driver sent an unknown request {request.op!r}")

    def disconnected(self, connection: _LinkConnection, reason: str) -> None:
        self._connections.discard(connection)
        hello = connection.hello
        if hello is None or hello.is_driver:
            return
        if reason:
            self._apply(self._takeover.reject(hello.run, reason))
        self._apply(self._takeover.close(hello.run, hello.partition))

    # --- inside -----------------------------------------------------------------------------------

    def _apply(self, steps: list[Step]) -> None:
        for step in steps:
            if type(step) is Accepted:
                self.sink.take(step)
            elif isinstance(step, RunActive):
                _log.info("the matches of a run count from now on", run=step.run, generation=step.generation)
                self._send_outcome(step)
            elif isinstance(step, RunRejected):
                # The matcher knows whether it meant to end the run, and warns when it did not.
                _log.info("a run is over", run=step.run, reason=step.reason)
                self._send_outcome(step)
                for connection in list(self._connections):
                    if connection.hello is not None and connection.hello.run == step.run:
                        connection.close()
        if steps:
            self.resume_reading()

    def _send_outcome(self, outcome: RunActive | RunRejected) -> None:
        self._outcomes[outcome.run] = outcome
        while len(self._outcomes) > limits.LINK_DEAD_RUNS_MAX:
            del self._outcomes[next(iter(self._outcomes))]
        for connection in self._connections:
            if outcome.run in connection.runs:
                connection.send(outcome)

    def _pause_or_resume(self, connection: _LinkConnection) -> None:
        hello = connection.hello
        if hello is None or hello.is_driver:
            return
        held = self._takeover.held_rows(hello.run, hello.partition)
        bound = limits.LINK_HELD_ROWS_MAX // 2 if connection.paused else limits.LINK_HELD_ROWS_MAX
        connection.pause(self.sink.is_full() or held > bound)

    def _close_silent(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections):
            connection.check_silence(now)
        self._watch = asyncio.get_running_loop().call_later(1.0, self._close_silent)


class _LinkConnection(asyncio.Protocol):
    """One socket: hello, then frames or JSON lines. A driver gets the outcomes of `runs`, those that it has started."""

    def __init__(self, link: MatchLinkServer) -> None:
        self.runs: set[int] = set()
        self.hello: Hello | None = None
        self.paused = False
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._parser: FrameParser | None = None
        self._received_at = time.monotonic()
        self._closing_reason = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without declaring it
        if not self._link.connected(self):
            _log.warning("match link has too many connections")
            self.close()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._received_at = time.monotonic()
        try:
            if self._parser is not None and self.hello is not None:
                self._link.received(self, self.hello, self._parser, data)
            elif self.hello is not None:
                self._lines(data)
            else:
                self._greet(data)
        except LinkProtocolError as error:
            _log.warning("match link connection closed", reason=error.message, run=self.hello and self.hello.run)
            self._closing_reason = error.message
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._link.disconnected(self, self._closing_reason)

    def send(self, line: Resume | RunActive | RunRejected) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > limits.LINK_LINE_BYTES_MAX:
            _log.warning("match link connection closed", reason="the driver does not read")
            self.close()
            return
        transport.write(msgspec.json.encode(line) + b"\n")

    def pause(self, paused: bool) -> None:
        if paused == self.paused or self._transport is None or self._transport.is_closing():
            return
        self.paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._received_at = time.monotonic()
            self._transport.resume_reading()

    def check_silence(self, now: float) -> None:
        """Close what has not sent a hello, and a run that has sent nothing for too long while it was read."""
        silent_s = now - self._received_at
        if self.hello is None:
            late = silent_s > limits.LINK_HELLO_S_MAX
        else:
            late = self._parser is not None and not self.paused and silent_s > limits.LINK_SILENCE_S_MAX
        if late:
            self._closing_reason = f"silent for {silent_s:.0f} s"
            _log.warning("match link connection closed", reason=self._closing_reason, run=self.hello and self.hello.run)
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _greet(self, data: bytes) -> None:
        data = self._rest + data
        if len(data) < HELLO_BYTES:
            self._rest = data
            return
        self._rest = b""
        hello, token = decode_hello(data[:HELLO_BYTES])
        if not hmac.compare_digest(token, self._link.token):
            raise LinkProtocolError("wrong token")
        shard = self._link.shard
        if (hello.dispatcher, hello.dispatchers) != (shard.index, shard.count):
            meant = f"dispatcher {hello.dispatcher} of {hello.dispatchers}"
            raise LinkProtocolError(f"the connection is meant for {meant}, this is {shard.index} of {shard.count}")
        self.hello = hello
        assert self._transport is not None
        self._transport.write(HELLO_ACCEPTED)
        if not hello.is_driver:
            self._parser = FrameParser(hello.start, hello.generation)
        self._link.greeted(self, hello)
        if len(data) > HELLO_BYTES:
            self.data_received(data[HELLO_BYTES:])

    def _lines(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > limits.LINK_LINE_BYTES_MAX or any(len(x) > limits.LINK_LINE_BYTES_MAX for x in lines):
            raise LinkProtocolError(f"a line is over {limits.LINK_LINE_BYTES_MAX} bytes")
        for line in lines:
            self._link.requested(self, line)
