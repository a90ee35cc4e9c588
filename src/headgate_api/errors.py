"""The tree of errors, each with what a client and an operator need to know."""

from __future__ import annotations

from typing import ClassVar, Self


class HeadgateError(Exception):
    """Root of every error that Headgate raises on purpose.

    `code` names it for machines (kebab-case, stable), `retriable` tells whether the same call may succeed later,
    `http_status` is the answer where it crosses HTTP. `message` says what was wrong and where, in one sentence, `hint`
    what the reader can do about it. `detail` is for the operator's eyes alone, such as a file and the system's words:
    it is in the exception's text, and so in the log, but never in an answer to a client.
    """

    code: str = "internal"  # of the class, but a client sets the code that its server sent
    retriable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message} ({self.detail})" if self.detail else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """As it is, whatever its constructor takes: errors cross from one process to another."""
        return _with_state, (type(self), self.args, self.__dict__)


def _with_state(error: type[HeadgateError], args: tuple[object, ...], state: dict[str, object]) -> HeadgateError:
    made = error.__new__(error, *args)
    made.args = args
    made.__dict__.update(state)
    return made


class FatalError(HeadgateError):
    """A part of the server cannot work until a person has changed something: the server ends with this message."""

    code = "fatal"


class InvalidInputError(HeadgateError):
    """The caller's input breaks a rule; the message names the rule and the place."""

    code = "invalid"
    http_status = 400


class UnauthenticatedError(HeadgateError):
    """Who makes the call did not show who he is, or not so that it could be believed."""

    code = "unauthenticated"
    http_status = 401


class NotFoundError(HeadgateError):
    """The named thing does not exist."""

    code = "not-found"
    http_status = 404


class ConflictError(HeadgateError):
    """The named thing exists already, or changed since the caller read it."""

    code = "conflict"
    http_status = 409


class TooLargeError(HeadgateError):
    """An input is over a named limit."""

    code = "too-large"
    http_status = 413


class OverloadedError(HeadgateError):
    """A bounded queue is full: come back later."""

    code = "overloaded"
    retriable = True
    http_status = 429
    retry_after_s: int | None = None
    """Seconds after which the same call may succeed, where they are known."""


class UnavailableError(HeadgateError):
    """A part that the call needs is not working now (disk full, starting, stopping)."""

    code = "unavailable"
    retriable = True
    http_status = 503


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


def own_copy(error: BaseException) -> BaseException:
    """An exception for one of several who wait: one object raised in many tasks would collect all their tracebacks."""
    if isinstance(error, HeadgateError) and type(error).__init__ is HeadgateError.__init__:
        copy = type(error)(error.message, hint=error.hint, detail=error.detail)
        copy.__cause__ = error
        return copy
    return error
