"""The event model: one frozen struct, the same for every mode and version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final, overload

import msgspec

ExtensionValue = str | int | bool | dict[str, Any]
"""What an extension attribute can be: a string, an integer (int32), a boolean; in events of version 0.3 a map, too."""


class DataKind(IntEnum):
    """How the bytes in `Event.data` are to be read; stored as int8, so the numbers never change."""

    NONE = 0  # there is no data
    JSON = 1  # one JSON text in UTF-8, byte for byte as it came
    TEXT = 2  # UTF-8 text: a string in the JSON format whose media type is not JSON
    BINARY = 3  # anything else


_extensions_of: Final = attrgetter("extensions")


class Event(msgspec.Struct, frozen=True, gc=False):
    """A CloudEvent. Values are valid: only `headgate.event`'s decoders and tests make one.

    Attributes:
        specversion: "1.0" or "0.3"; an event keeps the version it came in.
        id: Unique within `source`; never empty.
        source: A URI-reference; never empty.
        type: The kind of occurrence; never empty.
        subject: Never empty when present.
        time: RFC 3339, verbatim (nanoseconds and offsets are kept).
        datacontenttype: Media type of the data, verbatim with its parameters.
        dataschema: An absolute URI; in an event of version 0.3 this is `schemaurl`, a URI-reference.
        extensions: Every other attribute by name. From HTTP headers all are strings. Never mutated.
        data_kind: How `data` is to be read.
        data: None exactly when `data_kind` is NONE.
    """

    specversion: str
    id: str
    source: str
    type: str
    subject: str | None = None
    time: str | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    extensions: dict[str, ExtensionValue] = msgspec.field(default_factory=dict)
    data_kind: DataKind = DataKind.NONE
    data: bytes | None = None


def holds_map(event: Event) -> bool:
    """Whether an extension is a map: such an event has no binary mode, a header cannot hold it."""
    for value in event.extensions.values():  # noqa: SIM110 - `any` makes a generator, for nothing mostly
        if type(value) is dict:
            return True
    return False


class EventColumns(Sequence[Event]):
    """Events held column by column: a batch so read is stored without making an object an event.

    There is a column for each field of `Event`, in that order, and at least one event. The names of every event's
    extensions are among `extension_names`.
    """

    __slots__ = ("columns", "extension_names")

    def __init__(self, columns: Sequence[Sequence[Any]], extension_names: frozenset[str]) -> None:
        self.columns = columns
        self.extension_names = extension_names

    def __len__(self) -> int:
        return len(self.columns[0])

    def column(self, name: str) -> Sequence[Any]:
        return self.columns[Event.__struct_fields__.index(name)]

    def __iter__(self) -> Iterator[Event]:
        return map(Event, *self.columns)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return list(self)[index]
        return Event(*[column[index] for column in self.columns])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def may_have_extension(events: Sequence[Event], names: frozenset[str]) -> bool:
    """False: none of the events has one of these extensions. Costs nothing for events held by columns."""
    if isinstance(events, EventColumns):
        return not names.isdisjoint(events.extension_names)
    return not all(map(names.isdisjoint, map(_extensions_of, events)))
