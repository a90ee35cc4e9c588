"""A short history of numbers: a point is what the counters of each server have grown by in HISTORY_POINT_S."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from headgate.observe import metrics
from headgate.observe.exposition import ProcessMetrics, read_all
from headgate_api.limits import (
    BROKERS_COUNTED_MAX,
    HISTORY_POINT_S,
    HISTORY_POINTS_MAX,
    NAMESPACES_COUNTED_MAX,
    RATE_WINDOW_S,
)

_T = TypeVar("_T")
_Number = TypeVar("_Number", int, float)
_GIVEN_UP: Final = ("failed", "dead_lettered", "expired", "lost")
_BUCKETS: Final = metrics.NAMESPACE_DELIVERY_SECONDS.buckets


@dataclass(frozen=True, slots=True)
class Sums:
    """Counters of a server or a namespace: events stored, deliveries given up, and the others by bucket of seconds."""

    received: float = 0.0
    given_up: float = 0.0
    delivered: tuple[int, ...] = (0,) * (len(_BUCKETS) + 1)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters at one moment, seconds since 1970; `brokers` are events stored by broker `namespace/name`."""

    time_s: float
    whole: Sums
    namespaces: Mapping[str, Sums] = field(default_factory=dict)
    brokers: Mapping[str, float] = field(default_factory=dict)

    def of(self, namespace: str | None) -> Sums:
        """Those of a namespace, None for the server; one that is not named has had nothing."""
        return self.whole if namespace is None else self.namespaces.get(namespace, _NOTHING)


_NOTHING: Final = Sums()


@dataclass(frozen=True, slots=True)
class Rates:
    """Events stored, deliveries and those given up, a second; quantiles of the seconds that a delivery took, if any."""

    received: float
    delivered: float
    failed: float
    p50: float | None
    p99: float | None


class BrokerCount(msgspec.Struct, frozen=True):
    """Events that a broker has stored since the server's counters began, and a second in the last minute."""

    received: int
    rate: float


@dataclass(frozen=True, slots=True)
class _Moment:
    """The counters of all servers at one moment, by server."""

    time_s: float
    servers: Mapping[str, Snapshot]


class NumbersHistory:
    """The last HISTORY_POINTS_MAX points; `sample` in one thread at a time, the rest anywhere.

    `take` gives the newest counters of each server, by its name; it may block.
    """

    def __init__(self, take: Callable[[], Mapping[str, Snapshot]], clock_s: Callable[[], float] = time.time) -> None:
        self._take = take
        self._clock_s = clock_s
        self._moments: deque[_Moment] = deque(maxlen=HISTORY_POINTS_MAX + 1)

    def sample(self) -> None:
        self._moments.append(_Moment(self._clock_s(), dict(self._take())))

    def points(self, namespace: str | None) -> tuple[float, list[Rates]]:
        """When the first point begins, seconds since 1970, and all points, the oldest first; `namespace` None: all."""
        taken = list(self._moments)
        begin = taken[0].time_s if taken else self._clock_s()
        return begin, [_between(old, new, namespace) for old, new in itertools.pairwise(taken)]

    def broker(self, path: str) -> BrokerCount:
        """What the broker `namespace/name` has taken, as of the last sample."""
        if not (taken := list(self._moments)):
            return BrokerCount(0, 0.0)
        new, old = taken[-1], _before(taken, RATE_WINDOW_S)
        received = sum(one.brokers.get(path, 0.0) for one in new.servers.values())
        more = sum(grown(was.brokers.get(path, 0.0), now.brokers.get(path, 0.0)) for was, now in _pairs(old, new))
        return BrokerCount(int(received), round(more / max(new.time_s - old.time_s, HISTORY_POINT_S), 3))

    def last(self, namespace: str | None, seconds: float) -> Rates:
        """What happened in the last seconds; as far as it is known."""
        taken = list(self._moments)
        if len(taken) < 2:
            return Rates(0.0, 0.0, 0.0, None, None)
        return _between(_before(taken, seconds), taken[-1], namespace)


def _before(taken: Sequence[_Moment], seconds: float) -> _Moment:
    """The moment so long before the last one, or the first."""
    return taken[-1 - min(max(1, round(seconds / HISTORY_POINT_S)), len(taken) - 1)]


def _pairs(old: _Moment, new: _Moment) -> Iterator[tuple[Snapshot, Snapshot]]:
    """The counters of each server that is in both: what one had counted before it was met is of an earlier time."""
    return ((old.servers[name], now) for name, now in new.servers.items() if name in old.servers)


def _between(old: _Moment, new: _Moment, namespace: str | None) -> Rates:
    """What happened between two moments; a counter that began anew in between counts from there."""
    seconds = max(new.time_s - old.time_s, 1e-3)
    received = given_up = 0.0
    counts = [0.0] * (len(_BUCKETS) + 1)
    for before, after in ((was.of(namespace), now.of(namespace)) for was, now in _pairs(old, new)):
        received += grown(before.received, after.received)
        given_up += grown(before.given_up, after.given_up)
        taken = zip(before.delivered, after.delivered, strict=True)
        counts = [count + grown(*one) for count, one in zip(counts, taken, strict=True)]
    return Rates(
        received / seconds, sum(counts) / seconds, given_up / seconds, quantile(counts, 0.5), quantile(counts, 0.99)
    )


def counted_by(directory: Path, clock_s: Callable[[], float] = time.time) -> Snapshot:
    """The sums of what the processes of this server have written in `run/metrics`; blocks some milliseconds."""
    return snapshot(read_all(directory), clock_s())


def snapshot(pages: Iterable[ProcessMetrics], time_s: float) -> Snapshot:
    """The sums of what processes have written."""
    brokers, received, given_up = (defaultdict[str, float](float) for _ in range(3))
    delivered = defaultdict[str, list[int]](lambda: [0] * len(_NOTHING.delivered))
    whole_received = whole_given_up = 0.0
    whole_delivered = [0] * len(_NOTHING.delivered)
    for page in pages:
        whole_received += page.counters.get("headgate_events_accepted_total", {}).get("", 0.0)
        ended = page.counters.get(metrics.DELIVERIES.name, {})
        whole_given_up += sum(ended.get(result, 0.0) for result in _GIVEN_UP)
        for found in page.histograms.get("headgate_delivery_seconds", {}).values():
            _add(whole_delivered, found.counts)
        for broker, count in _named(page.counters.get(metrics.BROKER_EVENTS_ACCEPTED.name, {}), BROKERS_COUNTED_MAX):
            brokers[broker] += count
            received[broker.partition("/")[0]] += count
        for namespace, count in _named(page.counters.get(metrics.NAMESPACE_GIVEN_UP.name, {}), NAMESPACES_COUNTED_MAX):
            given_up[namespace] += count
        taken = page.histograms.get(metrics.NAMESPACE_DELIVERY_SECONDS.name, {})
        for namespace, found in _named(taken, NAMESPACES_COUNTED_MAX):
            _add(delivered[namespace], found.counts)
    named = received.keys() | given_up.keys() | delivered.keys()
    namespaces = {name: Sums(received[name], given_up[name], tuple(delivered[name])) for name in named}
    return Snapshot(time_s, Sums(whole_received, whole_given_up, tuple(whole_delivered)), namespaces, dict(brokers))


def _named(numbers: Mapping[str, _T], labels_max: int) -> Iterator[tuple[str, _T]]:
    """The numbers by label; where there were more labels than are kept, `other` is the rest of them and no name."""
    is_full = len(numbers) >= labels_max
    return ((label, number) for label, number in numbers.items() if not (is_full and label == metrics.OTHER))


def quantile(counts: Sequence[float], share: float) -> float | None:
    """A quantile of a histogram, seconds, linear within its bucket; the last bound where it lies beyond. None of none.

    `counts` are of each bucket, not added up; `share` is from 0 to 1.
    """
    wanted, below = share * sum(counts), 0.0
    if not wanted:
        return None
    for number, count in enumerate(counts[:-1]):
        if below + count >= wanted:
            lower = _BUCKETS[number - 1] if number else 0.0
            return lower + (_BUCKETS[number] - lower) * (wanted - below) / count
        below += count
    return _BUCKETS[-1]


def grown(was: _Number, now: _Number) -> _Number:
    """By how much a counter has grown; one that began anew in between counts from there."""
    return now - was if now >= was else now


def _add(sums: list[int], counts: Sequence[int]) -> None:
    for number, count in enumerate(counts[: len(sums)]):
        sums[number] += count
