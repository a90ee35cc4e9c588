"""Errors of an invalid event."""

from __future__ import annotations

from typing import Self

from headgate_api.errors import InvalidInputError


class EventError(InvalidInputError):
    """A request that holds no valid CloudEvent: the `attribute` ("data", "" for the whole message) breaks the `rule`.

    `index` is the position of the event in its batch, None outside a batch.
    """

    code = "invalid-event"

    def __init__(self, rule: str, *, attribute: str = "", index: int | None = None, hint: str = "") -> None:
        place = "" if index is None else f"event {index}: "
        super().__init__(f"{place}{attribute}: {rule}" if attribute else f"{place}{rule}", hint=hint)
        self.attribute = attribute
        self.rule = rule
        self.index = index

    def at(self, index: int) -> Self:
        return type(self)(self.rule, attribute=self.attribute, index=index, hint=self.hint)


class EventTooLargeError(EventError):
    """An event, a batch or its headers are over a named limit."""

    code = "event-too-large"
    http_status = 413


class EventFormatError(EventError):
    """A media type, charset or content coding that Headgate does not read."""

    code = "unsupported-format"
    http_status = 415
