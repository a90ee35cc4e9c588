"""What the servers of `ceilings.py` keep of their events: dead letters, events that wait, and replays.

Of hidden events one server has many and the other one few, and what a transform has made of them looks like blue's.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec
from starlette.applications import Starlette

from headgate.deadletters.api import DeadLettersApi, PendingApi
from headgate.deadletters.own import LetterRights
from headgate.deadletters.pending import Pending
from headgate.deadletters.sink_sender import DeadLetters
from headgate.deadletters.store import DeadLetterState, DeadLetterStore, StoredDeadLetter
from headgate.delivery.cursors import CursorChange, CursorStore
from headgate.delivery.events import LogEvents
from headgate.delivery.retry import SYSTEM
from headgate.log.directory import LogDirectory
from headgate.objects.api.grants import Grants
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.kinds.routing import Target
from headgate.objects.views.copies import RbacCopy
from headgate.replay.api import ReplaysApi
from headgate.replay.sender import Replaying
from headgate.storage.files import directories_of
from headgate_api.event.model import Event
from tests.deadletters.letters import letter
from tests.delivery.harness import attempt_service
from tests.server.ceilings import START_US, World, shown

WAIT_US = 3_600 * 1_000_000


def looks_like(event: Event, other: Event) -> Event:
    """What a transform may have made of an event: it has the data of another one."""
    return msgspec.structs.replace(event, type="made", data=other.data, data_kind=other.data_kind)


def red(number: int) -> Event:
    """One of the broker of which blue has all."""
    return msgspec.structs.replace(shown(number), id=f"open-{number}", source="/open", data=b'{"tenant":"red"}')


class KeptWorld:
    """`letters` and `pending` are all that there are, by their places; `of` gives a trigger's number."""

    def __init__(self, world: World, variant: str, triggers: dict[str, int]) -> None:
        self.world = world
        self.variant = variant
        self._targets = triggers
        self._positions = iter(range(10**6))
        own = directories_of(world.folder, 1)[0]
        self.path, self.cursors = own.dead_letters, own.cursors
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(DeadLetterStore(self.path)) as store:
            store.apply(list(self._letters()), [], [])
            store.apply(list(self._pending()), [], [])
        roles = RbacCopy(world.store)  # its own, as of another process
        rights = Grants(world.store, UrlPolicy(), roles.authorizer, roles.refresh)
        self.letters = DeadLetters(self.path, attempt_service(None), self._find, find_trigger=self._trigger)
        self.pending = Pending(self.path, self.letters, SYSTEM)
        self._events = LogEvents(LogDirectory(world.folder / "log", "stop"))
        self.replays = Replaying(
            own.replays,
            scanner=world.scanner,
            events=self._events,
            service=attempt_service(None),
            dead_letters=self.letters,
            trigger=self._trigger,
            rule_of=lambda broker: world.store.served(broker.rpartition("/")[0]).rule.value,  # type: ignore[union-attr]
            rights=rights,
        )
        whose = LetterRights(rights, world.store.server_secret, SYSTEM.now_us)
        apis = (
            DeadLettersApi(self.path, self.letters, whose),
            PendingApi(self.path, self.pending, whose),
            ReplaysApi(self.replays, world.chunks, world.store, UrlPolicy(), rights),
        )
        routes = [route for api in apis for route in api.routes()]
        world.dispatcher.kept = Starlette(routes=routes, exception_handlers=ERROR_HANDLERS)
        self._running = asyncio.get_running_loop().create_task(self.replays.run())

    def match(self, offset: int) -> None:
        """The matcher has found an event for both triggers; of one server after it had found many others."""
        before = [(at, 999) for at in range(offset if self.variant == "crimson" else 1)]
        rows = [*before, (offset, self._targets["mine"]), (offset, self._targets["every"])]
        self.world.match(rows)
        with closing(CursorStore(self.cursors)) as cursors:
            cursors.flush(CursorChange(len(rows), {0: offset + 1}, [], []))
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("UPDATE letters SET position = position + 1000")
            for position, (at, target) in enumerate(rows):
                where = "target = ? AND event_offset = ? AND state != 'pending'"
                connection.execute(f"UPDATE letters SET position = ? WHERE {where}", (position, target, at))
            connection.commit()

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        self.replays.close()
        await self.pending.close()
        await self.letters.close()
        self._events.close()

    def _find(self, target: int) -> Target | None:
        return self.world.store.snapshot().targets.get(target)

    def _trigger(self, name: str) -> Target | None:
        return self.world.store.snapshot().trigger(name)

    def _letter(self, trigger: str, number: int, event: Event, **more: object) -> StoredDeadLetter:
        time_us = START_US + number * 1_000_000
        plain = {"position": next(self._positions), "offset": number, "broker": "shop/orders", "data": b"no"}
        plain |= {"state": DeadLetterState.KEPT, "died_us": time_us, "stored_us": time_us, "event": event}
        return letter(target=self._targets[trigger], trigger=f"shop/{trigger}", **(plain | more))

    def _letters(self) -> Iterator[StoredDeadLetter]:
        many = self.variant == "crimson"
        for number, event in enumerate(self.world.events):
            if number % 3 == 0:
                words = f"{self.variant}-1 is wrong".encode()
                yield self._letter("mine", number, event)
                yield self._letter("every", number, event, data=words, is_shared=True, reason="503", code=503)
                yield self._letter("gone", number, looks_like(event, red(0)), original=event, reason="404")
            elif many or number % 9 == 1:
                claimed = looks_like(event, shown(0))
                for trigger in ("mine", "every", "gone")[: 3 if many else 1]:
                    yield self._letter(trigger, number, claimed, original=event, reason="503", data=b"secret")
                yield self._letter("every", number, shown(0), stored_us=None)  # of which nobody knows what it was
                yield self._letter("every", number, shown(0), broker="far/away")
        for number in range(3):  # of a broker of which blue has all
            yield self._letter("gone", 60 + number, red(number), broker="open/all", reason="timeout")

    def _pending(self) -> Iterator[StoredDeadLetter]:
        orders = self.world.store.snapshot().brokers["shop/orders"]
        many = self.variant == "crimson"
        for number, event in enumerate(self.world.events):
            if number % 3 == 0 or many or number % 9 == 1:
                state, due_us = DeadLetterState.PENDING, START_US + WAIT_US - number * 1_000_000
                more = {"state": state, "due_us": due_us, "stored_us": None, "data": b"", "reason": ""}
                for trigger in ("mine", "every"):
                    yield self._letter(trigger, number, event, broker=orders, **more)


@contextmanager
def keeping(world: World, variant: str, triggers: dict[str, int]) -> Iterator[KeptWorld]:
    async def made() -> KeptWorld:
        return KeptWorld(world, variant, triggers)

    found = world.loop.run_until_complete(made())
    try:
        yield found
    finally:
        world.loop.run_until_complete(found.close())
