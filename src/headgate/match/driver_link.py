"""The matcher's connections to the dispatchers (docs/spec/match-link.md), used by one thread."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from headgate.match.errors import DriverLinkError
from headgate.objects.store.database import StoreCommits
from headgate.outbox.link_format import (
    ADDRESS_FILE,
    DRIVER_PARTITION,
    HELLO_ACCEPTED,
    DriverRequest,
    Hello,
    LinkEndpoint,
    Resume,
    RunActive,
    RunRejected,
    encode_hello,
)
from headgate_api import limits
from headgate_api.limits import DRIVER_ANSWER_S_MAX, DRIVER_LINE_BYTES_MAX

_RECEIVE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """Where the dispatchers listen, by their numbers, and the token that all processes were given at start."""

    endpoints: tuple[LinkEndpoint, ...]
    token: bytes

    def __repr__(self) -> str:
        """Without the token: this may end in a log."""
        return f"LinkAddress({', '.join(map(str, self.endpoints))})"


Message = RunActive | RunRejected
"""Messages about runs that a dispatcher sends at any time."""

_decode: Final = msgspec.json.Decoder(Message | Resume).decode
_decode_endpoint: Final = msgspec.json.Decoder(LinkEndpoint).decode


def read_address(run_directory: Path, token: bytes, dispatchers: int) -> LinkAddress:
    """The addresses that the dispatchers have published; DriverLinkError when one has not yet."""
    paths = [run_directory / ADDRESS_FILE.format(number) for number in range(dispatchers)]
    try:
        endpoints = [_decode_endpoint(path.read_bytes()) for path in paths]
    except (OSError, msgspec.DecodeError) as error:
        raise DriverLinkError(f"a dispatcher's address cannot be read: {error}") from error
    return LinkAddress(tuple(endpoints), token)


class DriverLink:
    """An open connection; made by `connect`. Every call raises DriverLinkError when it is broken."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = b""
        self._heard: deque[Message] = deque()

    @classmethod
    def connect(cls, address: LinkAddress, dispatcher: int = 0) -> DriverLink:
        """Connect to a dispatcher by its number, and authenticate."""
        endpoint, dispatchers = address.endpoints[dispatcher], len(address.endpoints)
        try:
            connection = socket.create_connection((endpoint.host, endpoint.port), timeout=DRIVER_ANSWER_S_MAX)
        except OSError as error:
            raise DriverLinkError(f"dispatcher {dispatcher} does not listen at {endpoint}: {error}") from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = Hello(0, 0, DRIVER_PARTITION, 0, 0, dispatcher, dispatchers)
            connection.sendall(encode_hello(hello, address.token))
            answer = connection.recv(1)
        except OSError as error:
            connection.close()
            raise DriverLinkError(f"the dispatcher did not answer: {error}") from error
        if answer != HELLO_ACCEPTED:
            connection.close()
            raise DriverLinkError("the dispatcher refused the driver connection")
        return cls(connection)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_heard(self) -> bool:
        return bool(self._heard)

    def resume(self) -> dict[int, int]:
        """Where the next run must start if none is alive: offset per partition."""
        self._send(DriverRequest("resume"))
        deadline = time.monotonic() + DRIVER_ANSWER_S_MAX
        while (left := deadline - time.monotonic()) > 0:
            answer: Resume | None = None
            for message in self._read(left):
                if isinstance(message, Resume):
                    answer = message
                else:
                    self._heard.append(message)
            if answer is not None:
                return answer.offsets
        raise DriverLinkError(f"the dispatcher did not answer within {DRIVER_ANSWER_S_MAX} s")

    def started(self, run: int, generation: int) -> None:
        self._send(DriverRequest("started", run, generation))

    def receive(self, timeout_s: float) -> list[Message]:
        """Messages, as soon as there are any; none after `timeout_s`."""
        if not self._heard:
            self._heard += [message for message in self._read(timeout_s) if not isinstance(message, Resume)]
        messages = list(self._heard)
        self._heard.clear()
        return messages

    def close(self) -> None:
        self._socket.close()

    def _send(self, request: DriverRequest) -> None:
        try:
            self._socket.settimeout(DRIVER_ANSWER_S_MAX)
            self._socket.sendall(msgspec.json.encode(request) + b"\n")
        except OSError as error:
            raise DriverLinkError(f"the match link broke: {error}") from error

    def _read(self, timeout_s: float) -> list[Message | Resume]:
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except (TimeoutError, BlockingIOError):
            return []
        except OSError as error:
            raise DriverLinkError(f"the match link broke: {error}") from error
        if not data:
            raise DriverLinkError("the dispatcher closed the match link")
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > DRIVER_LINE_BYTES_MAX:
            raise DriverLinkError(f"a line of the dispatcher is over {DRIVER_LINE_BYTES_MAX} bytes")
        try:
            return [_decode(line) for line in lines]
        except msgspec.DecodeError as error:
            raise DriverLinkError(f"the dispatcher sent something unknown: {error}") from error


class DriverLinks:
    """The connections to all dispatchers, as one; every call raises DriverLinkError when one of them is broken.

    A run counts when it counts at every dispatcher. One that is ahead of another drops what it has taken already
    (`outbox/takeover.py`), so a new run starts at the lowest offset that any of them needs. The first dispatcher that
    rejects a run has rejected it for all. A commit to the store of objects (`commits`) ends a wait as well.
    """

    def __init__(
        self, address: LinkAddress, links: tuple[DriverLink, ...], commits: StoreCommits | None = None
    ) -> None:
        self.address = address
        self._links = links
        self._commits = commits
        self._selector = selectors.DefaultSelector()
        for link in links:
            self._selector.register(link, selectors.EVENT_READ)
        if commits is not None and commits.watch >= 0:
            self._selector.register(commits.watch, selectors.EVENT_READ)
        self._active: dict[int, dict[DriverLink, int]] = {}
        """Runs that were told of: the generation at which each is active, by the dispatchers where it is."""

    @classmethod
    def published(
        cls, run_directory: Path, token: bytes, dispatchers: int, commits: StoreCommits | None = None
    ) -> DriverLinks:
        """Those to the addresses that the dispatchers have published, see `read_address`."""
        return cls.connect(read_address(run_directory, token, dispatchers), commits)

    @classmethod
    def connect(cls, address: LinkAddress, commits: StoreCommits | None = None) -> DriverLinks:
        with contextlib.ExitStack() as opened:
            links = []
            for dispatcher in range(len(address.endpoints)):
                links.append(link := DriverLink.connect(address, dispatcher))
                opened.callback(link.close)
            opened.pop_all()
        return cls(address, tuple(links), commits)

    def resume(self) -> dict[int, int]:
        """Where the next run must start if none is alive: the lowest offset of each partition."""
        lowest: dict[int, int] = {}
        for link in self._links:
            for partition, offset in link.resume().items():
                lowest[partition] = min(offset, lowest.get(partition, offset))
        return lowest

    def started(self, run: int, generation: int) -> None:
        """Tell every dispatcher of a run; the answer is a message, now or later."""
        self._active[run] = {}
        while len(self._active) > limits.LINK_RUNS_MAX:
            del self._active[min(self._active)]
        for link in self._links:
            link.started(run, generation)

    def receive(self, timeout_s: float) -> list[Message]:
        ready = [link for link in self._links if link.has_heard]
        if not ready:
            readable = self._readable(timeout_s)
            ready = [link for link in self._links if link.fileno() in readable]
        messages = [(link, message) for link in ready for message in link.receive(0.0)]
        told = (self._active_everywhere(link, each) if isinstance(each, RunActive) else each for link, each in messages)
        return [message for message in told if message is not None]

    def _readable(self, timeout_s: float) -> set[int]:
        readable = {key.fd for key, _ in self._selector.select(timeout_s)}
        if self._commits is not None and self._commits.watch in readable:
            self._commits.hear()
        return readable

    def close(self) -> None:
        self._selector.close()
        for link in self._links:
            link.close()

    def _active_everywhere(self, link: DriverLink, message: RunActive) -> RunActive | None:
        """The generation that a run has come to at every dispatcher, now that one more says so; None: no newer one."""
        active = self._active.get(message.run)
        if active is None:
            return None
        before = self._oldest(active)
        active[link] = message.generation
        now = self._oldest(active)
        return RunActive(message.run, now) if now > before else None

    def _oldest(self, active: Mapping[DriverLink, int]) -> int:
        """-1 while a dispatcher has not told its own."""
        return min(active.values()) if len(active) == len(self._links) else -1
