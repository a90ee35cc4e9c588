"""The meaning of a subscriber's answer: the data plane's table of statuses, and the pauses between attempts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final

from headgate.objects.kinds.routing import DeliveryRules
from headgate_api import limits

RETRY_AFTER_STATUSES: Final = frozenset({429, 503})
"""Answers whose Retry-After counts."""
JITTER: Final = 0.1
"""A pause is up to this part longer than the rules say, never shorter: what failed together does not come together."""

CREDENTIALS: Final = "credentials"
"""Reason of an attempt that was not made, because what it authenticates by is missing."""
HANDSHAKE: Final = "handshake"
"""Reason of an attempt that was not made, because its receiver has not agreed to it."""
UNSENT: Final = frozenset({"url", "policy", CREDENTIALS, HANDSHAKE})
"""Reasons for which nothing was sent: they say nothing about the subscriber."""
_RETRIED_CLIENT_ERRORS: Final = frozenset({404, 408, 409, 429})
_SHIFT_MAX: Final = 32
_NEVER: Final = frozenset({"url", "reply-hops", "reply-tree"})
"""Reasons that no further attempt would change."""


class Fate(StrEnum):
    """What follows from one attempt."""

    DELIVERED = "delivered"
    AGAIN = "again"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Decision:
    """A fate, and after how long an attempt follows."""

    fate: Fate
    pause_s: float = 0.0


DELIVERED: Final = Decision(Fate.DELIVERED)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's event as it came; its headers are `content-type` and those of the event's attributes."""

    headers: list[tuple[str, str]]
    body: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended.

    `reason` says why it failed other than by its status: `dns`, `refused`, `certificate`, `tls`, `connection`,
    `timeout`, `protocol`, `url`, `policy`, `credentials`, `handshake`, and `reply...` when the answer was a reply that
    could not be stored. It is empty otherwise.
    """

    status: int  # the HTTP status; 0 when no answer came
    reason: str = ""
    detail: str = ""  # for people; never event data
    retry_after: str = ""  # the header as it came, of an answer for which it counts
    body: bytes = b""  # the first ERROR_BODY_BYTES_MAX bytes of an answer that says no
    reply: Answer | None = None  # the event in a 200 answer that says that it holds one
    unsent: bool = False  # there was no connection to send by: another address may be tried
    headers: tuple[tuple[str, str], ...] = ()  # those of the answer that were asked for, names in lower case

    @property
    def answered(self) -> bool:
        return self.status != 0

    @property
    def why(self) -> str:
        """Why the attempt failed, for people."""
        if not self.reason:
            return f"status {self.status}"
        return f"{self.reason}: {self.detail}" if self.detail else self.reason

    @property
    def label(self) -> str:
        """A bounded name for metrics: the status or the reason."""
        return self.reason or (str(self.status) if self.status in _NAMED else f"{self.status // 100}xx")


_NAMED: Final = frozenset({400, 401, 403, 404, 408, 409, 429, 500, 502, 503, 504})


def judge(outcome: Outcome) -> Fate:
    """The broker contract's table: 2xx taken; 404, 408, 409, 429, 5xx and unknown ones again; the rest never."""
    status = outcome.status
    if outcome.reason:
        return Fate.FAILED if outcome.reason in _NEVER else Fate.AGAIN
    if 200 <= status < 300:
        return Fate.DELIVERED
    if 100 <= status < 200 or 300 <= status < 400:
        return Fate.FAILED
    if 400 <= status < 500 and status not in _RETRIED_CLIENT_ERRORS:
        return Fate.FAILED
    return Fate.AGAIN


def decide(
    spec: DeliveryRules, outcome: Outcome, failures: int, tried_s: float, *, now_s: float, chance: float
) -> Decision:
    """What follows from an attempt that failed; the arguments are those of `is_left` and `pause_s`."""
    if is_left(spec, outcome, failures, tried_s):
        return Decision(Fate.AGAIN, pause_s(spec, failures, outcome, now_s=now_s, chance=chance))
    return Decision(Fate.FAILED)


def is_left(spec: DeliveryRules, outcome: Outcome, failures: int, tried_s: float) -> bool:
    """Whether there is another attempt after this outcome: by number where the rules say `retry`, else by time.

    `failures` include this one; `tried_s` seconds have passed since the first attempt began.
    """
    if judge(outcome) is not Fate.AGAIN:
        return False
    return tried_s < limits.RETRY_S_DEFAULT if spec.retry is None else failures <= spec.retry


def backoff_s(spec: DeliveryRules, retry: int) -> float:
    """Seconds before the retry number `retry` (from 1): linear delay x retry, exponential delay x 2^retry."""
    factor = retry if spec.backoff_policy == "linear" else 1 << min(retry, _SHIFT_MAX)
    longest_s = float(limits.BACKOFF_SECONDS_MAX)
    if spec.retry is None:  # who is tried for a time is to be met soon after its return
        longest_s = max(spec.backoff_delay_s, limits.BACKOFF_DEFAULT_S_MAX)
    return min(spec.backoff_delay_s * factor, longest_s)


def pause_s(spec: DeliveryRules, retry: int, outcome: Outcome, *, now_s: float, chance: float) -> float:
    """Seconds before retry number `retry` (from 1): the back-off, or what the subscriber asked for if that is longer.

    `now_s` counts from 1970, for a Retry-After that is a date; `chance`, from 0 to 1, is for the jitter.
    """
    pause = backoff_s(spec, retry)
    if outcome.retry_after:
        asked = retry_after_s(outcome.retry_after, now_s=now_s)
        pause = max(pause, min(asked or 0.0, spec.retry_after_max_s))
    return pause * (1.0 + JITTER * chance)


def left_s(spec: DeliveryRules, failures: int, due_us: int, *, now_us: int) -> float:
    """Seconds left of a pause that an earlier process began, until `due_us` (since 1970 UTC); 0 or less when over."""
    # A clock that was set back must not make a pause of days.
    longest_s = max(backoff_s(spec, failures), spec.retry_after_max_s) * (1.0 + JITTER)
    return min((due_us - now_us) / 1e6, longest_s)


def retry_after_s(value: str, *, now_s: float) -> float | None:
    """Seconds that a Retry-After header asks to wait; None when it is neither a number nor a date (RFC 9110)."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - now_s)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Clocks:
    """The dispatcher's clocks and its dice; a simulation has its own."""

    now: Callable[[], float] = time.monotonic  # monotonic seconds
    now_us: Callable[[], int] = lambda: time.time_ns() // 1_000  # microseconds since 1970 UTC; may jump
    chance: Callable[[], float] = random.random  # from 0 to 1, for the jitter of pauses


SYSTEM: Final = Clocks()
