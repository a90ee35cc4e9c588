"""Subscriptions of a dispatcher whose outbox, disk and clock are a test's own."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headgate.delivery.events import EventGoneError, SharedEvent
from headgate.delivery.given_up import DeadLetterQueue
from headgate.delivery.verdicts import FilterErrors, FinalCheck, evaluate
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.filter.skipping.prune import filter_value_rule
from headgate.log.directory import LogDirectory
from headgate.objects.kinds.routing import PullRules, PullType, RoutingTable, Target
from headgate.outbox.reader import OutboxRow, OutboxView, RowPage, every_row
from headgate.scan.chunks import ChunkLog
from headgate.scan.pages import LogScanner, Scanner
from headgate.subscriptions.messages import PullResult
from headgate.subscriptions.registry import SubscriptionResources, SubscriptionState
from headgate.subscriptions.service import Subscriptions
from headgate.subscriptions.store import SubscriptionStore
from tests.delivery.harness import BROKER, event, spec

NAME = "default/s"
TIMEOUT_S = 30.0
US = 1_000_000
KEPT = "data.n % 2 == 0"


class Outbox:
    """Rows of target 1 and of others in memory; the event of a row has the row's position as its offset."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []  # target, verdict
        self.gone: set[int] = set()
        self.expiry: dict[int, str] = {}
        """The expirytime of events, by offset."""
        self.due: dict[int, str] = {}
        """Their deliverytime."""
        self.key_of: Callable[[int], str] = lambda _: ""
        """The partition key of an event, by its offset."""

    async def read(
        self, number: int, start: int, upto: int, count_max: int, wants: Callable[[int], bool] = every_row
    ) -> RowPage:
        await asyncio.sleep(0)
        found = []
        for position in range(start, upto):
            target, verdict = self.rows[position]
            if target == number:
                found.append(OutboxRow(position, 0, position, verdict))
                if len(found) >= count_max:
                    return RowPage(found, position + 1)
        return RowPage(found, upto)

    def before(self, floor: Mapping[int, int], since_us: int) -> int:
        return 0

    def stored_end(self) -> int:
        return len(self.rows)

    def recent(self, partition: int, offset: int) -> SharedEvent:
        return self.kept(partition, offset)

    def kept(self, partition: int, offset: int) -> SharedEvent:
        if offset in self.gone:
            raise EventGoneError("gone")
        extensions = {"expirytime": self.expiry[offset]} if offset in self.expiry else {}
        if offset in self.due:
            extensions["deliverytime"] = self.due[offset]
        if key := self.key_of(offset):
            extensions["partitionkey"] = key
        return SharedEvent(BROKER, event(offset, data=b'{"n":%d}' % offset, extensions=extensions), offset * US)

    async def load(self, partition: int, offset: int) -> SharedEvent:
        await asyncio.sleep(0)
        return self.kept(partition, offset)


class World:
    """A dispatcher's part, its disk and its clock."""

    def __init__(
        self,
        folder: Path,
        type_: PullType = "shared",
        cel: str = "true",
        *,
        max_deliveries: int | None = None,
        dead_letters: DeadLetterQueue | None = None,
        dead_letter_uri: str | None = None,
    ) -> None:
        self.folder = folder
        self.dead_letters = dead_letters
        self.outbox = Outbox()
        self.now_us = 1_000 * US
        self.scanner: Scanner = LogScanner(ChunkLog(LogDirectory(folder / "log", "stop")), ThreadPoolExecutor(1))
        target = Target(1, NAME, BROKER, CompiledFilter(cel, ()), "", spec(dead_letter_uri=dead_letter_uri))
        self.target = dataclasses.replace(target, pull=PullRules(type_, TIMEOUT_S, max_deliveries=max_deliveries))
        self.start()

    def start(self) -> None:
        self.store = SubscriptionStore(self.folder / "subscriptions.db")
        self.errors = FilterErrors()
        view = OutboxView(self.outbox, self.outbox, lambda: len(self.outbox.rows))
        resources = SubscriptionResources(
            outbox=view,
            log=ChunkLog(LogDirectory(self.folder / "log", "stop")),
            scanner=self.scanner,
            rule_of=lambda _: filter_value_rule("type"),
            events=self.outbox,
            final_check=FinalCheck(evaluate, self.errors, lambda: self.now_us),
            in_force=dict,
            dead_letters=self.dead_letters,
            clock_us=lambda: self.now_us,
        )
        self.subscriptions = Subscriptions(self.store, resources)
        self.subscriptions.update(RoutingTable.of(1, 1, {}, (self.target,)))

    @property
    def state(self) -> SubscriptionState:
        return self.subscriptions._registry.get(NAME)

    def crash(self) -> None:
        self.store.close()
        self.start()

    def add(self, count: int, verdict: Verdict = Verdict.MATCH, target: int = 1) -> None:
        self.outbox.rows += [(target, int(verdict))] * count
        self.subscriptions.wake(1)

    async def pull(self, consumer: str = "a", count: int = 100, wait_s: float = 0.0) -> PullResult:
        return await self.subscriptions.pull(NAME, consumer, count_max=count, wait_s=wait_s)

    async def ack(self, pulled: PullResult, consumer: str = "a") -> int:
        ids = tuple(one.id for one in pulled.events)
        return (await self.subscriptions.ack(NAME, consumer, ids=ids)).acknowledged


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def offsets(pulled: PullResult) -> list[int]:
    return [one.offset for one in pulled.events]
