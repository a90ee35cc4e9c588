"""What is said where a topic is no longer the one that was read."""

from __future__ import annotations

from typing import ClassVar, Final

from headgate.errors import FatalError, UnavailableError

_HINT: Final = "was the topic deleted and created again?"


class TopicLostError(FatalError):
    """A topic of state is not the one that was read, or has lost its end while it was read.

    Args:
        topic: Its name in Kafka.
        reason: What does not fit.
    """

    remedy: ClassVar[str] = ""

    def __init__(self, topic: str, reason: str) -> None:
        hint = f"{_HINT} {self.remedy}".rstrip()
        super().__init__(f"{topic} is not what this process has read: {reason}", hint=hint)


def ends_before(doing: str, topic: str, partition: int, offset: int) -> UnavailableError:
    """The error of a reader that has come further than the partition goes now."""
    return UnavailableError(
        f"{doing}: {topic}/{partition} ends before offset {offset}", hint=f"acknowledged records are gone: {_HINT}"
    )
