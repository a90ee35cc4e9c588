"""The format of the match link (docs/spec/match-link.md), for both of its ends; frames are parsed in bulk. Pure.

An event is handed on only when it is complete: rows of one event are contiguous and an event's last row is known by
what follows it (a row of a later event, or a passed frame). So the outbox never holds half an event, and "complete
below P" is one number per partition.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import Final, NamedTuple

import msgspec

from headgate_api import limits
from headgate_api.errors import HeadgateError

HELLO_MAGIC: Final = b"HGM1"
HELLO_BYTES: Final = 84
HELLO_ACCEPTED: Final = b"\x06"
FRAME_BYTES: Final = 14
DRIVER_PARTITION: Final = -1

FRAME_ROW: Final = 1
FRAME_PASSED: Final = 2
FRAME_GENERATION: Final = 3

_HELLO: Final = struct.Struct("<4s32sqqiiqii8s")
_FRAME: Final = struct.Struct("<BBiq")

ADDRESS_FILE: Final = "match-link-{}.json"
"""Where a dispatcher says that it listens, by its number: the JSON of a `LinkEndpoint`."""

Row = tuple[int, int, int]
"""(offset, target, verdict) of one match; tuples because a busy link makes 40,000 of them a second."""


class LinkProtocolError(HeadgateError):
    """A peer of the match link sent what docs/spec/match-link.md does not allow; its connection is closed."""

    code = "link-protocol"


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a connection, in the order of its bytes; `start` is the offset of its first event."""

    run: int
    generation: int
    partition: int
    partitions: int
    start: int
    dispatcher: int = 0
    dispatchers: int = 1

    @property
    def is_driver(self) -> bool:
        """Whether this is the matcher's own connection, which sends JSON lines."""
        return self.partition == DRIVER_PARTITION


def encode_hello(hello: Hello, token: bytes) -> bytes:
    """The 84 bytes that open a connection."""
    return _HELLO.pack(HELLO_MAGIC, token, *astuple(hello), bytes(8))


def decode_hello(data: bytes) -> tuple[Hello, bytes]:
    """Read a hello of `HELLO_BYTES` bytes, and the token that came with it, which the caller compares."""
    magic, token, *numbers, reserved = _HELLO.unpack(data)
    if magic != HELLO_MAGIC:
        raise LinkProtocolError("the connection does not begin with the match link's magic")
    hello = Hello(*numbers)
    run, generation, partition, partitions, start, dispatcher, dispatchers = numbers
    if reserved != bytes(8):
        raise LinkProtocolError("the reserved bytes of the hello are not zero")
    if not 0 <= dispatcher < dispatchers <= limits.DISPATCHERS_MAX:
        raise LinkProtocolError(f"dispatcher {dispatcher} of {dispatchers} is out of range")
    if hello.is_driver:
        if run != 0 or generation != 0:
            raise LinkProtocolError("a driver connection names a run")
        return hello, token
    if run < 1 or generation < 0 or start < 0:
        raise LinkProtocolError(f"run {run}, generation {generation} or start {start} is out of range")
    if not 0 <= partition < limits.LINK_PARTITIONS_MAX or not 1 <= partitions <= limits.LINK_PARTITIONS_MAX:
        raise LinkProtocolError(f"partition {partition} of {partitions} is out of range")
    return hello, token


# --- lines of the driver connection ---------------------------------------------------------------


class LinkEndpoint(msgspec.Struct, frozen=True):
    """Where one dispatcher listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class DriverRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the matcher asks: `resume`, or what becomes of a run that it has `started`."""

    op: str
    run: int = 0
    generation: int = 0


class Resume(msgspec.Struct, frozen=True, tag="resume", tag_field="op"):
    """Where the next run must start if none is alive: offset per partition."""

    offsets: dict[int, int]


class RunActive(msgspec.Struct, frozen=True, tag="active", tag_field="op"):
    """The run owns all its partitions, which have come to this generation: the run before it may stop.

    Told once of each generation.
    """

    run: int
    generation: int


class RunRejected(msgspec.Struct, frozen=True, tag="rejected", tag_field="op"):
    """The run is dead, or cannot take over: its connections are closed, and it is to stop. Told once."""

    run: int
    reason: str


# --- frames ---------------------------------------------------------------------------------------


class Fed(NamedTuple):
    """Complete events of a connection.

    Attributes:
        rows: In order of offset, one per (event, target), with the highest verdict.
        passed: P: every event below it is complete now.
        then: The generation by which events from P on are matched; None: the same as before.
    """

    rows: list[Row]
    passed: int
    then: int | None = None


class FrameParser:
    """Bytes of one connection in, complete events out; no frame may be of an event below the hello's start offset."""

    __slots__ = ("_generation", "_open", "_open_offset", "_passed", "_rest")

    def __init__(self, start: int, generation: int) -> None:
        self._rest = b""
        self._passed = start
        self._generation = generation
        self._open_offset = -1
        self._open: dict[int, int] = {}

    def feed(self, data: bytes) -> list[Fed]:
        """Take the next bytes: the events that they complete, cut where the generation changes. P never falls.

        Raises LinkProtocolError when the bytes are no frames, or go back behind what was complete.
        """
        buffer = self._rest + data if self._rest else data
        whole = len(buffer) - len(buffer) % FRAME_BYTES
        self._rest = buffer[whole:]
        fed: list[Fed] = []
        rows: list[Row] = []
        passed, open_offset, held = self._passed, self._open_offset, self._open
        for kind, verdict, target, offset in _FRAME.iter_unpack(memoryview(buffer)[:whole]):
            if kind == FRAME_ROW:
                if offset != open_offset:
                    if offset < passed:
                        raise LinkProtocolError(f"a row of event {offset} comes after event {passed - 1} was complete")
                    rows += [(open_offset, t, v) for t, v in held.items()]
                    held.clear()
                    open_offset = passed = offset
                if target < 0 or not 1 <= verdict <= 3:
                    raise LinkProtocolError(f"a row with target {target} and verdict {verdict}")
                if verdict > held.get(target, 0):
                    held[target] = verdict
                    if len(held) > limits.LINK_ROWS_PER_EVENT_MAX:
                        raise LinkProtocolError(f"event {offset} has over {limits.LINK_ROWS_PER_EVENT_MAX} targets")
            elif kind == FRAME_PASSED and verdict == 0 and target == 0 and offset >= 0:
                # A passed frame may trail the rows (it is about what is behind); only a later one is news.
                if offset > open_offset and offset > passed:
                    rows += [(open_offset, t, v) for t, v in held.items()]
                    held.clear()
                    open_offset, passed = -1, offset
            elif kind == FRAME_GENERATION and verdict == 0 and target == 0:
                if held or offset <= self._generation:
                    raise LinkProtocolError(
                        f"generation {offset} after {self._generation}, {'inside' if held else 'before'} event {passed}"
                    )
                self._generation = offset
                fed.append(Fed(rows, passed, offset))
                rows = []
            else:
                raise LinkProtocolError(f"no such frame: kind {kind}, {verdict}, {target}, {offset}")
        self._passed, self._open_offset = passed, open_offset
        fed.append(Fed(rows, passed))
        return fed
