"""The connection from the matcher's process to one dispatcher: the driver connection of docs/spec/match-link.md.

One thread reads and writes; nothing here starts another. `driver_links.py` has the connections to all of them.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from headgate.limits import DRIVER_ANSWER_S_MAX, DRIVER_LINE_BYTES_MAX
from headgate.match.errors import DriverLinkError

ADDRESS_FILE: Final = "match-link-{}.json"
"""Of each dispatcher, by its number."""
_HELLO: Final = struct.Struct("<4s32sqqiiqii8x")
_MAGIC: Final = b"HGM1"
_ACCEPTED: Final = b"\x06"
_DRIVER_PARTITION: Final = -1
_RECEIVE_BYTES: Final = 1 << 16


class LinkEndpoint(msgspec.Struct, frozen=True):
    """Where one dispatcher listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """`HOST:PORT`."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """Where the dispatchers listen, by their numbers, and the token that all processes were given at start."""

    endpoints: tuple[LinkEndpoint, ...]
    token: bytes

    def __repr__(self) -> str:
        """Without the token: this may end in a log."""
        return f"LinkAddress({', '.join(map(str, self.endpoints))})"


class Active(msgspec.Struct, frozen=True, tag="active", tag_field="op"):
    """Every partition of the run has been taken over; the run before it may stop."""

    run: int
    generation: int


class Rejected(msgspec.Struct, frozen=True, tag="rejected", tag_field="op"):
    """The run cannot take over, or no longer counts: stop it."""

    run: int
    reason: str


class _Resume(msgspec.Struct, frozen=True, tag="resume", tag_field="op"):
    offsets: dict[int, int]


Message = Active | Rejected
"""Messages about runs that a dispatcher sends at any time."""

_decode: Final = msgspec.json.Decoder(Active | Rejected | _Resume).decode
_decode_endpoint: Final = msgspec.json.Decoder(LinkEndpoint).decode


def read_address(run_directory: Path, token: bytes, dispatchers: int) -> LinkAddress:
    """The addresses that the dispatchers have published.

    Args:
        run_directory: Where their files are.
        token: What every end must show.
        dispatchers: How many there are.

    Raises:
        DriverLinkError: One has not published its own yet.
    """
    paths = [run_directory / ADDRESS_FILE.format(number) for number in range(dispatchers)]
    try:
        endpoints = [_decode_endpoint(path.read_bytes()) for path in paths]
    except (OSError, msgspec.DecodeError) as error:
        raise DriverLinkError(f"a dispatcher's address cannot be read: {error}") from error
    return LinkAddress(tuple(endpoints), token)


class DriverLink:
    """An open connection; made by `connect`."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = b""
        self._heard: deque[Message] = deque()

    @classmethod
    def connect(cls, address: LinkAddress, dispatcher: int = 0) -> DriverLink:
        """Connect to a dispatcher by its number, and authenticate.

        Raises:
            DriverLinkError: Nobody listens, or the token is refused.
        """
        endpoint, dispatchers = address.endpoints[dispatcher], len(address.endpoints)
        try:
            connection = socket.create_connection((endpoint.host, endpoint.port), timeout=DRIVER_ANSWER_S_MAX)
        except OSError as error:
            raise DriverLinkError(f"dispatcher {dispatcher} does not listen at {endpoint}: {error}") from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = _HELLO.pack(_MAGIC, address.token, 0, 0, _DRIVER_PARTITION, 0, 0, dispatcher, dispatchers)
            connection.sendall(hello)
            answer = connection.recv(1)
        except OSError as error:
            connection.close()
            raise DriverLinkError(f"the dispatcher did not answer: {error}") from error
        if answer != _ACCEPTED:
            connection.close()
            raise DriverLinkError("the dispatcher refused the driver connection")
        return cls(connection)

    def fileno(self) -> int:
        """Of the socket, for `select`."""
        return self._socket.fileno()

    @property
    def has_heard(self) -> bool:
        """Whether `receive` would return messages at once."""
        return bool(self._heard)

    def resume(self) -> dict[int, int]:
        """Where the next run must start if none is alive: offset per partition.

        Raises:
            DriverLinkError: The link is broken, or no answer came in time.
        """
        self._send(b'{"op":"resume"}\n')
        deadline = time.monotonic() + DRIVER_ANSWER_S_MAX
        while (left := deadline - time.monotonic()) > 0:
            answer: _Resume | None = None
            for message in self._read(left):
                if isinstance(message, _Resume):
                    answer = message
                else:
                    self._heard.append(message)
            if answer is not None:
                return answer.offsets
        raise DriverLinkError(f"the dispatcher did not answer within {DRIVER_ANSWER_S_MAX} s")

    def started(self, run: int, generation: int) -> None:
        """Tell of a run; the answer is a message, now or later.

        Raises:
            DriverLinkError: The link is broken.
        """
        self._send(msgspec.json.encode({"op": "started", "run": run, "generation": generation}) + b"\n")

    def receive(self, timeout_s: float) -> list[Message]:
        """Messages, as soon as there are any; none after `timeout_s`.

        Raises:
            DriverLinkError: The link is broken.
        """
        if not self._heard:
            self._heard += [message for message in self._read(timeout_s) if not isinstance(message, _Resume)]
        messages = list(self._heard)
        self._heard.clear()
        return messages

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._socket.close()

    def _send(self, line: bytes) -> None:
        try:
            self._socket.settimeout(DRIVER_ANSWER_S_MAX)
            self._socket.sendall(line)
        except OSError as error:
            raise DriverLinkError(f"the match link broke: {error}") from error

    def _read(self, timeout_s: float) -> list[Message | _Resume]:
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
