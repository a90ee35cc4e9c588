"""What a producer was promised and what subscribers got: every event by name, the order of keys, the silences."""

from __future__ import annotations

import time
from collections import defaultdict

from headgate.demo.run import TRIGGERS, Sample

ORDERED = frozenset({"paid-orders", "hot-sensors"})
"""Triggers whose deliveries keep the order of the events' keys (`delivery.order`)."""


class Ledger:
    """Expected and received events by trigger; one event loop writes it.

    An event's id is KEY-NUMBER: numbers of one key grow, and the next is published when the one before was accepted.

    Attributes:
        accepted: Events that were answered with 202.
        repeated: Deliveries of an event that its trigger had already.
        disordered: First deliveries of an ordered trigger that came after a later event of their key.
    """

    def __init__(self) -> None:
        self._expected: dict[str, set[str]] = {one.name: set() for one in TRIGGERS}
        self._received: dict[str, set[str]] = {one.name: set() for one in TRIGGERS}
        self._newest: defaultdict[tuple[str, str], int] = defaultdict(lambda: -1)
        self.accepted = self.repeated = self.disordered = 0
        self._delivered_at = time.monotonic()
        self._silence_s = self._wait_s = 0.0

    def expect(self, event_id: str, sample: Sample) -> None:
        """Notes an event that is about to be published, and who wants it."""
        for one in TRIGGERS:
            if one.wanted(sample):
                self._expected[one.name].add(event_id)

    def accept(self, waited_s: float) -> None:
        """Notes an event that was answered with 202, after so many seconds and perhaps several requests."""
        self.accepted += 1
        self._wait_s = max(self._wait_s, waited_s)

    def deliver(self, trigger: str, event_id: str, _sent_us: int) -> None:
        """Notes a POST that reached the subscriber."""
        self._silence_s, self._delivered_at = self._longest_s(), time.monotonic()
        if event_id in self._received[trigger]:
            self.repeated += 1
            return
        self._received[trigger].add(event_id)
        if trigger in ORDERED:
            key, _, number = event_id.rpartition("-")
            self.disordered += int(number) < self._newest[trigger, key]
            self._newest[trigger, key] = max(self._newest[trigger, key], int(number))

    def _longest_s(self) -> float:
        return max(self._silence_s, time.monotonic() - self._delivered_at)

    def silences(self) -> tuple[float, float]:
        """The longest time without a delivery, and the longest wait for a 202, in seconds; both count anew then."""
        found = self._longest_s(), self._wait_s
        self._delivered_at, self._silence_s, self._wait_s = time.monotonic(), 0.0, 0.0
        return found

    def due(self) -> dict[str, set[str]]:
        """The events that each trigger must have got when everything of now has come."""
        return {name: set(ids) for name, ids in self._expected.items()}

    def has(self, due: dict[str, set[str]]) -> bool:
        """Whether all of that has come."""
        return all(ids <= self._received[name] for name, ids in due.items())

    @property
    def to_come(self) -> int:
        """Deliveries that are expected and have not come."""
        return sum(len(ids - self._received[name]) for name, ids in self._expected.items())

    @property
    def delivered(self) -> int:
        """Deliveries that have come, repeats left out."""
        return sum(map(len, self._received.values()))

    def counts(self) -> list[tuple[str, int, int, int, int]]:
        """Of each trigger: its name, how many it got, how many it should have got, how many are lost and wrong."""
        rows = []
        for name, expected in self._expected.items():
            received = self._received[name]
            rows.append((name, len(received), len(expected), len(expected - received), len(received - expected)))
        return rows

    @property
    def is_exact(self) -> bool:
        """Every trigger has its events and no others, in order where that was asked for."""
        return self._expected == self._received and self.disordered == 0
