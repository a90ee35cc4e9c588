"""What a broker with a window is promised, whichever store it has.

`tests/backend/test_embedded_once.py` and `tests/backend/test_kafka_once.py` run it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from headgate.ingress.partitions import EventPartitions, Stored
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker, log_rule
from headgate_api.event.model import Event
from headgate_api.objects.kinds import DeduplicationSpec
from tests.support import WAIT_S_MAX


def once(name: str, window: str) -> ServedBroker:
    return ServedBroker(f"shop/{name}/u1", log_rule(None, DeduplicationSpec(window=window)))


BROKER, ALSO, SHORT = once("once", "PT10M"), once("also", "PT1H"), once("short", "PT1S")
PLAIN = ServedBroker("shop/plain/u1", DEFAULT_RULE)
WINDOWS = {one.identity: one.rule.window_us for one in (BROKER, ALSO, SHORT)}
IDS = [f"id-{number}" for number in range(12)]


def event(name: str, **extensions: str) -> Event:
    return Event("1.0", name, "/s", "t", extensions=dict(extensions))


class OnceStore(Protocol):
    """A store; each `front` is one that is started on it, and serves all these brokers."""

    def front(self) -> AbstractAsyncContextManager[EventPartitions]: ...

    def stored(self) -> Mapping[tuple[int, int], tuple[str, str]]:
        """Broker and id of everything that can be read, by partition and offset."""


async def sent(front: EventPartitions, broker: ServedBroker, *events: Event) -> Stored:
    return await front.store(broker, events, 100)


def of(store: OnceStore, broker: ServedBroker) -> list[str]:
    return sorted(id_ for one, id_ in store.stored().values() if one == broker.identity)


class OnceContract:
    """The tests, for each store to inherit: `store` is its own."""

    def test_an_event_that_comes_again_is_where_it_was(self, store: OnceStore) -> None:
        async def run() -> None:
            async with store.front() as front:
                first = {one: await sent(front, BROKER, event(one)) for one in IDS}
                await places(front, first)
                some = [event(one) for one in (*IDS[:5], "new", "new")]
                assert (await sent(front, BROKER, *some)).before == 6
                keyed = [await sent(front, BROKER, event(IDS[0], partitionkey=key)) for key in ("k", "k")]
                assert [one.before for one in keyed] == [0, 1], "with a key it is another event"
                for broker, before in ((ALSO, [0, 1]), (PLAIN, [0, 0])):
                    assert [(await sent(front, broker, event(IDS[0]))).before for _ in range(2)] == before
            async with store.front() as front:  # a start knows the same
                await places(front, first)
                assert (await sent(front, BROKER, event("new"), event("newer"))).before == 1

        async def places(front: EventPartitions, first: Mapping[str, Stored]) -> None:
            again = {one: await sent(front, BROKER, event(one)) for one in first}
            assert {one: stored.place for one, stored in again.items()} == {
                one: stored.place for one, stored in first.items()
            }
            assert {stored.before for stored in again.values()} == {1}

        asyncio.run(run())
        assert of(store, BROKER) == sorted([*IDS, IDS[0], "new", "newer"])
        assert (of(store, ALSO), of(store, PLAIN)) == ([IDS[0]], [IDS[0]] * 2)

    def test_many_that_send_the_same_at_once_store_it_once(self, store: OnceStore) -> None:
        async def run() -> Sequence[Stored]:
            async with store.front() as front:
                return await asyncio.gather(*(sent(front, BROKER, event(one)) for one in IDS for _ in range(8)))

        answers = asyncio.run(run())
        assert sum(one.before for one in answers) == 7 * len(IDS)
        assert len({one.place for one in answers}) == len(IDS)
        assert of(store, BROKER) == sorted(IDS)

    def test_an_event_that_comes_after_its_window_is_a_new_one(self, store: OnceStore) -> None:
        async def run() -> None:
            async with store.front() as front:
                first = (await sent(front, SHORT, event("a"))).place
                again, ends = first, time.monotonic() + WAIT_S_MAX
                while again == first:
                    assert time.monotonic() < ends, "the window does not end"
                    stored = await sent(front, SHORT, event("a"))
                    again = stored.place
                    assert stored.before == (again == first)

        asyncio.run(run())
        assert of(store, SHORT) == ["a", "a"]
