"""What a target's page shows of the last quarter of an hour: its last attempts, and a course of numbers. In memory."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headgate.delivery.retry import Outcome
from headgate_api.event import rfc3339
from headgate_api.event.model import Event
from headgate_api.limits import (
    HISTORY_POINT_S,
    HISTORY_POINTS_MAX,
    RECENT_ANSWER_BYTES_MAX,
    RECENT_ATTEMPTS_MAX,
)

_POINT_US: Final = int(HISTORY_POINT_S * 1_000_000)


class RecentAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt, and the first event that it carried; it ended at `time` (RFC 3339), and took `seconds`.

    `attempt` is from 1, `status` 0 without an answer. Of one that failed, `reason` and `detail` say why there was no
    answer, and `answer` is the beginning of what the subscriber said.
    """

    time: str
    id: str
    source: str
    attempt: int
    seconds: float
    status: int = 0
    reason: str = ""
    detail: str = ""
    answer: str = ""


class TargetCourse(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """Numbers of points that follow each other, each of `seconds`; the first one begins at `from` (RFC 3339).

    `delivered` are deliveries, `failed` attempts, `latency` the mean time in seconds from stored to delivered, None
    where nothing was delivered.
    """

    from_: str
    seconds: float
    delivered: list[int]
    failed: list[int]
    latency: list[float | None]


_Attempt = tuple[int, str, str, int, float, int, str, str, bytes]
"""When it ended, id and source of the event, its number, how long it took; status, reason, detail and answer."""


def _points(kind: str) -> array[float]:
    return array(kind, [0] * HISTORY_POINTS_MAX)


@dataclass(slots=True)
class Recent:
    """Of one target that had attempts. Times are microseconds since 1970 UTC."""

    _attempts: deque[_Attempt] = field(default_factory=lambda: deque(maxlen=RECENT_ATTEMPTS_MAX))
    _point: int = 0  # the newest
    _delivered: array[float] = field(default_factory=lambda: _points("I"))
    _failed: array[float] = field(default_factory=lambda: _points("I"))
    _seconds: array[float] = field(default_factory=lambda: _points("f"))  # of all that were delivered

    def attempt(self, now_us: int, event: Event, number: int, took_s: float, outcome: Outcome) -> None:
        """An attempt has ended. The outcome itself may hold an event, which must not stay."""
        said = (outcome.status, outcome.reason, outcome.detail, outcome.body[:RECENT_ANSWER_BYTES_MAX])
        self._attempts.append((now_us, event.id, event.source, number, took_s, *said))

    def failed(self, now_us: int) -> None:
        """An attempt to deliver an event has failed."""
        self._failed[self._at(now_us)] += 1

    def delivered(self, now_us: int, took_s: float) -> None:
        """An event was delivered, so long after it was stored."""
        at = self._at(now_us)
        self._delivered[at] += 1
        self._seconds[at] += took_s

    def attempts(self) -> list[RecentAttempt]:
        """The newest first."""
        return [
            RecentAttempt(
                rfc3339.text(time_us),
                id_,
                source,
                number,
                round(took_s, 6),
                status,
                reason,
                detail,
                answer.decode("utf-8", "replace"),
            )
            for time_us, id_, source, number, took_s, status, reason, detail, answer in reversed(self._attempts)
        ]

    def course(self, now_us: int) -> TargetCourse:
        """The last HISTORY_POINTS_MAX points."""
        begin = self._at(now_us) + 1
        order = [(begin + step) % HISTORY_POINTS_MAX for step in range(HISTORY_POINTS_MAX)]
        many = [int(self._delivered[at]) for at in order]
        return TargetCourse(
            rfc3339.text((self._point - HISTORY_POINTS_MAX + 1) * _POINT_US),
            HISTORY_POINT_S,
            many,
            [int(self._failed[at]) for at in order],
            [round(self._seconds[at] / count, 6) if count else None for at, count in zip(order, many, strict=True)],
        )

    def _at(self, now_us: int) -> int:
        """Where the point of a time is; those between it and the newest one were empty. A clock may be set back."""
        point = now_us // _POINT_US
        if point <= self._point:
            return self._point % HISTORY_POINTS_MAX
        for passed in range(max(self._point, point - HISTORY_POINTS_MAX) + 1, point + 1):
            at = passed % HISTORY_POINTS_MAX
            self._delivered[at] = self._failed[at] = 0
            self._seconds[at] = 0.0
        self._point = point
        return point % HISTORY_POINTS_MAX
