"""What filters that change promise, and whether it was kept: which events each of them had to get, which it might get.

All instants are of one clock, that of the test. A *version* is a filter that a trigger has until its next change. It
is promised every event that is sent after it was seen to be Ready, and acknowledged before the next change was asked
for. It may get those that come until a later version is Ready. In between either may decide.

An *outage* is a time in which no query was sure to run. Events that it found unmatched are decided by the newest
filters behind it (docs/concepts/matching.md). So of these only what all versions take that were asked for meanwhile is
promised.

cel-cpp says what a filter takes.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel
from headgate_api.event.model import Event

NEVER = math.inf


@dataclass(slots=True, eq=False)
class Version:
    """A filter that a trigger has for a while; instants of what has not happened are `NEVER`."""

    cel: str
    asked_at: float
    is_other: bool  # than the version before: else it is Ready whatever else is in force
    ready_at: float = NEVER
    closed_at: float = NEVER  # the next change was decided on
    replaced_at: float = NEVER  # a later version was Ready, or the end of the trigger in force
    is_judged: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether the matcher decides alone. Otherwise cel-cpp does so before each delivery, by the newest filter."""
        return all(row.signature.exact for row in compile_cel(self.cel).rows)


@dataclass(slots=True, eq=False)
class Life:
    """A trigger from its creation to its end; its events come to `path`, and those of no other one."""

    path: str
    versions: list[Version] = field(default_factory=list)
    deleted_at: float = NEVER


@dataclass(slots=True)
class Outage:
    began_at: float
    ended_at: float = NEVER


class Promises:
    """All events, versions and deliveries of a run. Several threads use it.

    Each event is one of a few `kinds`, with an id of its own: cel-cpp answers once for each filter and kind. So no
    filter may read what differs between two events of a kind.
    """

    def __init__(self, kinds: Sequence[Event], clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.lives: list[Life] = []
        self.outages: list[Outage] = []
        self.delivered = 0
        self.promised = 0
        """Pairs of an event and a trigger, of the versions that have been judged."""
        self.wrong: list[str] = []
        self._kinds = [EventView(event) for event in kinds]
        self._lock = threading.Lock()
        self._kind_of: list[int] = []  # by the number of the event
        self._sent_at: list[float] = []
        self._accepted_at: list[float] = []
        self._taken: dict[str, bytearray] = {}  # by filter, for each kind: 0 not asked, 1 no, 2 yes
        self._by_path: dict[str, Life] = {}
        self._ended: list[Life] = []
        self._arrivals: deque[tuple[str, int, float]] = deque()
        self._arrived: defaultdict[str, set[int]] = defaultdict(set)
        self._due: list[tuple[Life, Version, set[int]]] = []

    # --- what happens ---------------------------------------------------------------------------------

    @property
    def accepted(self) -> int:
        return sum(at < NEVER for at in self._accepted_at)

    def sends(self, kinds: Sequence[int]) -> range:
        """Events of these kinds are about to be sent; their numbers."""
        with self._lock:
            first, now = len(self._sent_at), self.clock()
            self._kind_of += kinds
            self._accepted_at += [NEVER] * len(kinds)
            self._sent_at += [now] * len(kinds)
        return range(first, first + len(kinds))

    def acknowledged(self, numbers: range) -> None:
        self._accepted_at[numbers.start : numbers.stop] = [self.clock()] * len(numbers)

    def arrives(self, path: str, number: int) -> None:
        self._arrivals.append((path, number, self.clock()))
        self._arrived[path].add(number)

    def arrived(self, path: str) -> Set[int]:
        """The numbers of the events that have come to a path."""
        return self._arrived[path]

    def begins(self, path: str, cel: str) -> Life:
        """A trigger is about to be created."""
        life = self._by_path[path] = Life(path)
        self.lives.append(life)
        self.changes(life, cel)
        return life

    def changes(self, life: Life, cel: str) -> Version:
        """The life is about to get this filter."""
        before = compile_cel(life.versions[-1].cel) if life.versions else None
        plan = compile_cel(cel)
        is_other = before is None or (before.cel, before.rows) != (plan.cel, plan.rows)
        version = Version(cel, self.clock(), is_other)
        if life.versions:
            self.closes(life)
        life.versions.append(version)
        return version

    def closes(self, life: Life) -> None:
        """What is acknowledged from now on is not promised to the life's last version."""
        last = life.versions[-1]
        last.closed_at = min(last.closed_at, self.clock())

    def is_ready(self, life: Life, version: Version) -> None:
        """The version was seen to be Ready; if it is another one, all is in force that was answered before it."""
        now = self.clock()
        with self._lock:
            version.ready_at = now
            replaced = life.versions[: life.versions.index(version)]
            ended = [gone for gone in self._ended if version.is_other and gone.deleted_at < version.asked_at]
            for gone in ended:
                self._ended.remove(gone)
                replaced += gone.versions
            for one in replaced:
                one.replaced_at = min(one.replaced_at, now)

    def is_deleted(self, life: Life) -> None:
        with self._lock:
            life.deleted_at = self.clock()
            self._ended.append(life)

    # --- what was promised ----------------------------------------------------------------------------

    def takes(self, cel: str, number: int) -> bool:
        answers = self._taken.setdefault(cel, bytearray(len(self._kinds)))
        kind = self._kind_of[number]
        if not answers[kind]:
            answers[kind] = 1 + (program(cel).evaluate_view(self._kinds[kind]).kind is OutcomeKind.TRUE)
        return answers[kind] == 2

    def missing(self, life: Life, versions: Iterable[Version]) -> set[int]:
        """The numbers of what closed versions were promised, and the life has not got so far."""
        promised = {number for version in versions for number in self._promised(life, version)}
        return promised - self._arrived[life.path]

    def check(self, *, is_over: bool = False) -> list[tuple[Life, Version, set[int]]]:
        """Judges what has come, and each version when nothing more can be promised to it; `is_over`: all versions.

        Gives what was promised and has not come yet.
        """
        for _ in range(len(self._arrivals)):
            self.delivered += 1
            self._judge(*self._arrivals.popleft())
        began = min((one.began_at for one in self.outages if one.ended_at == NEVER), default=NEVER)
        for life in self.lives:
            for version in life.versions:
                if not version.is_judged and (is_over or version.replaced_at < began):
                    version.is_judged = True
                    numbers = set(self._promised(life, version))
                    self.promised += len(numbers)
                    self._due.append((life, version, numbers))
        for life, _, numbers in self._due:
            numbers -= self._arrived[life.path]
        self._due = [one for one in self._due if one[2]]
        return self._due

    def lost(self) -> list[str]:
        """Of a run that is over, what was promised and has not come, in words."""
        for life in self.lives:
            self.closes(life)
        return [told for life, _, numbers in self.check(is_over=True) for told in self.told_of_missing(life, numbers)]

    def told_of_missing(self, life: Life, numbers: Iterable[int]) -> list[str]:
        return [
            f"{life.path} lacks event {number}, sent at {self._sent_at[number]:.3f} and acknowledged at"
            f" {self._accepted_at[number]:.3f}; its versions were {_told(life)}"
            for number in sorted(numbers)
        ]

    def _judge(self, path: str, number: int, at: float) -> None:
        life, sent_at = self._by_path[path], self._sent_at[number]
        in_force = [one for one in life.versions if one.asked_at <= at and sent_at <= one.replaced_at]
        if not any(self.takes(one.cel, number) for one in reversed(in_force)):
            self.wrong.append(f"{path} got event {number} at {at:.3f}, sent at {sent_at:.3f}; {_told(life)}")

    def _promised(self, life: Life, version: Version) -> Iterator[int]:
        first, end = bisect_left(self._sent_at, version.ready_at), bisect_right(self._sent_at, version.closed_at)
        for number in range(first, end):
            if self._accepted_at[number] <= version.closed_at and self.takes(version.cel, number):
                others = self._others(life, version, number)
                if all(self.takes(one.cel, number) for one in others):
                    yield number

    def _others(self, life: Life, version: Version, number: int) -> list[Version]:
        """Later versions that may decide about an event which a version is promised, because of outages."""
        ends = [one.ended_at for one in self.outages if one.began_at <= version.replaced_at]
        until = max((at for at in ends if self._sent_at[number] <= at), default=-NEVER)
        later = life.versions[life.versions.index(version) + 1 :]
        return [one for one in later if one.asked_at <= until]


def _told(life: Life) -> str:
    return "; ".join(
        f"{one.cel} asked for at {one.asked_at:.3f}, Ready at {one.ready_at:.3f}, replaced at {one.replaced_at:.3f}"
        for one in life.versions
    )
