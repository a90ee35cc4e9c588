"""What the demo has seen from outside the server, beside the truth."""

from __future__ import annotations

import statistics
import time
from collections import Counter

from rich.table import Table

from headgate.demo.workload import TRIGGERS


class Board:
    """What has happened so far."""

    def __init__(self) -> None:
        self.accepted = 0
        self.expected: Counter[str] = Counter()
        self.expected_errors: Counter[str] = Counter()
        self.received: dict[str, set[str]] = {s.name: set() for s in TRIGGERS}
        self.repeated = 0
        self.latencies_ms: list[float] = []
        self.filter_errors: Counter[str] = Counter()
        self.told = ""

    def accept(self) -> None:
        """Notes one event that the broker answered with 202."""
        self.accepted += 1

    def deliver(self, trigger: str, event_id: str, sent_us: int) -> None:
        """Notes one POST that reached the subscriber."""
        if event_id in self.received[trigger]:
            self.repeated += 1
        self.received[trigger].add(event_id)
        self.latencies_ms.append((time.time_ns() // 1000 - sent_us) / 1000)

    @property
    def settled(self) -> bool:
        """True when everything that should have come has come, or more."""
        return all(
            len(self.received[s.name]) >= self.expected[s.name]
            and self.filter_errors[s.name] >= self.expected_errors[s.name]
            for s in TRIGGERS
        )

    def wrong(self) -> list[str]:
        """The triggers whose counts differ from the truth."""
        return [
            s.name
            for s in TRIGGERS
            if len(self.received[s.name]) != self.expected[s.name]
            or self.filter_errors[s.name] != self.expected_errors[s.name]
        ]

    def percentile_ms(self, percent: int) -> float:
        """Latency from before the POST to the subscriber's receipt."""
        if len(self.latencies_ms) < 2:
            return 0.0
        return statistics.quantiles(self.latencies_ms, n=100, method="inclusive")[percent - 1]

    def headline(self) -> str:
        """One line for logs and the table's title."""
        return (
            f"accepted {self.accepted} events, delivered {sum(map(len, self.received.values()))}, "
            f"latency POST to delivery p50 {self.percentile_ms(50):.1f} ms, p99 {self.percentile_ms(99):.1f} ms"
        )

    def table(self, title: str) -> Table:
        """The whole board."""
        table = Table(title=title or None, title_justify="left")
        for name in ("trigger", "shows"):
            table.add_column(name)
        for name in ("delivered", "expected", "filter errors"):
            table.add_column(name, justify="right")
        for s in TRIGGERS:
            table.add_row(
                s.name,
                s.why,
                str(len(self.received[s.name])),
                str(self.expected[s.name]),
                str(self.filter_errors[s.name]),
            )
        return table
