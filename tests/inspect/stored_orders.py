"""A data directory with thousands of orders of several brokers and hours, and a plain count of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.log.directory import LogDirectory
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.api.admission import Admission
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate_api.event.model import DataKind, Event
from headgate_api.objects.kinds import Kind
from tests.objects.support import trigger

START_US = 1_767_225_600_000_000  # 2026-01-01
HOUR_US = 3_600_000_000
PARTITIONS = 2
TRIGGERS = {"paid": 'ce.type == "order.paid"', "large": "data.n > 900", "none": 'ce.type == "nosuch"'}


@dataclass(frozen=True)
class StoredOrder:
    """An event of the broker, and when it was stored."""

    partition: int
    offset: int
    event: Event
    stored_us: int

    @cached_property
    def view(self) -> EventView:
        return EventView(self.event)


def fill(data: Path, *, chunks: int = 40, most: int = 120) -> list[StoredOrder]:
    """Makes the directory; returns the events of the broker default/default."""
    data.mkdir(exist_ok=True)
    store = Store.open(data / "control.db")
    for name, cel in TRIGGERS.items():
        Admission(store).create(Kind.TRIGGER, trigger(name, filter={"cel": cel}))
    Reconciler(store).step()
    identity = store.snapshot().brokers["default/default"]
    store.close()
    rng = random.Random(7)
    stored: list[StoredOrder] = []
    for partition in range(PARTITIONS):
        times = [START_US + chunk * HOUR_US // 4 for chunk in range(chunks)]
        clock, place = iter(times), LogDirectory(data / "log", "stop").partition(partition)
        with PartitionWriter(place, EVENT_SCHEMA, clock_us=lambda clock=clock: next(clock)) as log:
            offset = 0
            for stored_us in times:
                kind = rng.choice(["order.paid", "order.created"])
                entries = [StoredEvent(identity if rng.random() < 0.8 else "other/other/1", order(rng, kind))
                           for _ in range(rng.randint(1, most))]  # fmt: skip
                log.append(Encoded(to_batch(entries), [entry.event.type for entry in entries]))
                stored += [
                    StoredOrder(partition, offset + number, entry.event, stored_us)
                    for number, entry in enumerate(entries)
                    if entry.broker == identity
                ]
                offset += len(entries)
    return stored


def order(rng: random.Random, kind: str) -> Event:
    members: dict[str, object] = {"n": rng.randrange(1_000)} if rng.random() < 0.9 else {}
    data = msgspec.json.encode(members)
    return Event("1.0", str(rng.random()), "/shop", kind, data_kind=DataKind.JSON, data=data)


@dataclass(frozen=True)
class PlainCount:
    """What a filter says of each event."""

    orders: list[StoredOrder]
    cel: str

    def _of(self, kind: OutcomeKind) -> Iterator[StoredOrder]:
        one = program(self.cel)
        return (order for order in self.orders if one.evaluate_view(order.view).kind is kind)

    @property
    def places(self) -> set[tuple[int, int]]:
        return {(one.partition, one.offset) for one in self._of(OutcomeKind.TRUE)}

    @property
    def errors(self) -> int:
        return sum(1 for _ in self._of(OutcomeKind.ERROR))

    @property
    def hours(self) -> Counter[int]:
        return Counter((one.stored_us - START_US) // HOUR_US for one in self._of(OutcomeKind.TRUE))
