"""Errors of an invalid event; each names the attribute and the rule it breaks."""

from __future__ import annotations

from typing import Self

from headgate_api.errors import InvalidInputError


class EventError(InvalidInputError):
    """A request that holds no valid CloudEvent.

    Attributes:
        attribute: The attribute that breaks the rule, "data" for the payload, "" when it is the message as a whole.
        rule: The rule, in the words of the specification where it has them.
        index: Position of the event in its batch, None outside a batch.
    """

    code = "invalid-event"

    def __init__(self, rule: str, *, attribute: str = "", index: int | None = None, hint: str = "") -> None:
        place = "" if index is None else f"event {index}: "
        super().__init__(f"{place}{attribute}: {rule}" if attribute else f"{place}{rule}", hint=hint)
        self.attribute = attribute
        self.rule = rule
        self.index = index

    def at(self, index: int) -> Self:
        """The same error of the event at `index` of a batch."""
        return type(self)(self.rule, attribute=self.attribute, index=index, hint=self.hint)


class EventTooLargeError(EventError):
    """An event, a batch or its headers are over a named limit."""

    code = "event-too-large"
    http_status = 413


class EventFormatError(EventError):
    """A media type, charset or content coding that Headgate does not read."""

    code = "unsupported-format"
    http_status = 415
