"""What does a subscriber's answer mean? Pure: the data plane's table of statuses, and the pauses between attempts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate import limits
from headgate.control.routing import DeliverySpec

_RETRIED_CLIENT_ERRORS: Final = frozenset({404, 408, 409, 429})
_SHIFT_MAX: Final = 32


class Fate(StrEnum):
    """What follows from one attempt."""

    DELIVERED = "delivered"
    AGAIN = "again"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended.

    Attributes:
        status: The HTTP status; 0 when no answer came.
        reason: Why none came: `timeout`, `connection`, `protocol` or `url`; empty with a status.
        detail: For people; never event data.
    """

    status: int
    reason: str = ""
    detail: str = ""

    @property
    def answered(self) -> bool:
        """Whether somebody answered at all."""
        return self.status != 0

    @property
    def label(self) -> str:
        """A bounded name for metrics: the status or the reason."""
        return self.reason or (str(self.status) if self.status in _NAMED else f"{self.status // 100}xx")


_NAMED: Final = frozenset({400, 401, 403, 404, 408, 409, 429, 500, 502, 503, 504})


def judge(outcome: Outcome) -> Fate:
    """The broker contract's table: 2xx taken; 404, 408, 409, 429, 5xx and unknown ones again; the rest never."""
    status = outcome.status
    if status == 0:
        return Fate.FAILED if outcome.reason == "url" else Fate.AGAIN
    if 200 <= status < 300:
        return Fate.DELIVERED
    if 100 <= status < 200 or 300 <= status < 400:
        return Fate.FAILED
    if 400 <= status < 500 and status not in _RETRIED_CLIENT_ERRORS:
        return Fate.FAILED
    return Fate.AGAIN


def backoff_s(spec: DeliverySpec, retry: int) -> float:
    """Seconds before the retry number `retry` (from 1): linear delay x retry, exponential delay x 2^retry."""
    factor = retry if spec.backoff_policy == "linear" else 1 << min(retry, _SHIFT_MAX)
    return min(spec.backoff_delay_s * factor, float(limits.BACKOFF_SECONDS_MAX))
