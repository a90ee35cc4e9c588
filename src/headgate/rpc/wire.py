"""Protobuf messages of clients, read in bounded steps: one read is one call of the library, and everybody waits for it.

What a read costs goes by the fields of a message and not by its bytes: two bytes may be an event, seven an attribute,
and each takes a microsecond and more. So the fields of what is not small are counted before it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from headgate_api.limits import RPC_BYTES_UNCOUNTED, RPC_FIELDS_MAX
from headgate_api.rpc.errors import ProtocolError
from headgate_api.rpc.headgate_pb2 import PublishRequest

_MessageT = TypeVar("_MessageT", bound=Message)
_EVENTS: Final = PublishRequest.EVENTS_FIELD_NUMBER
_VARINT: Final = 0
_PREFIXED: Final = 2
_OF_FIXED: Final = {1: 8, 5: 4}
_GROUPS: Final = frozenset({3, 4})


def parsed(type_: type[_MessageT], data: bytes) -> _MessageT:
    """Reads a message of at most RPC_FIELDS_MAX fields, nested ones too; raises ProtocolError otherwise."""
    if len(data) > RPC_BYTES_UNCOUNTED:
        _check_fields(type_.DESCRIPTOR, data)
    try:
        return type_.FromString(data)  # type: ignore[no-any-return]
    except DecodeError as error:
        raise ProtocolError(f"no {type_.DESCRIPTOR.full_name}: {error}") from None


class Publishing(NamedTuple):
    """A request to publish whose events are still to be read; `head` is all of it but them."""

    head: PublishRequest
    events: list[bytes]


def publishing(data: bytes) -> Publishing:
    """A request to publish; raises ProtocolError above RPC_FIELDS_MAX events and other fields, or where it is none."""
    head: list[bytes] = []
    events: list[bytes] = []
    kept = 0
    for count, (number, begin, content, end) in enumerate(_fields(data, 0, len(data))):
        if count == RPC_FIELDS_MAX:
            _refuse()
        if number == _EVENTS and content:
            head.append(data[kept:begin])
            events.append(data[content:end])
            kept = end
    head.append(data[kept:])
    return Publishing(parsed(PublishRequest, b"".join(head)), events)


def _check_fields(descriptor: Descriptor, data: bytes) -> None:
    left = RPC_FIELDS_MAX
    messages = [(descriptor, 0, len(data))]
    while messages:
        kind, first, last = messages.pop()
        types = kind.fields_by_number
        for number, _, content, end in _fields(data, first, last):
            if not left:
                _refuse()
            left -= 1
            if content and (field := types.get(number)) is not None and field.message_type is not None:
                messages.append((field.message_type, content, end))


def _refuse() -> NoReturn:
    raise ProtocolError(
        f"a message has more than {RPC_FIELDS_MAX} fields (RPC_FIELDS_MAX)", hint="send less in one message"
    )


def _fields(data: bytes, at: int, last: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, begin, begin of the content (0: no length is before it) and end of each field that can be read."""
    try:
        while at < last:
            begin = at
            tag, at = _varint(data, at)
            kind, content = tag & 7, 0
            if kind == _PREFIXED:
                size, content = _varint(data, at)
                at = content + size
            elif kind == _VARINT:
                _, at = _varint(data, at)
            elif kind not in _GROUPS:
                at += _OF_FIXED[kind]
            if at > last:
                return
            yield tag >> 3, begin, content, at
    except LookupError:
        return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise LookupError
