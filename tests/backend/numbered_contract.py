"""What a producer that numbers its events is promised, whichever store they go to: over gRPC, a front of its own.

`tests/backend/test_embedded_numbered.py` and `tests/backend/test_kafka_numbered.py` run it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import grpc
import pytest

from headgate.event.arrow import StoredEvent
from headgate.ingress.partitions import partition_of_key
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker, log_rule
from headgate_api.objects.kinds import DeduplicationSpec
from headgate_api.rpc.headgate_pb2 import PublishResponse
from tests.calls import Client, Refused
from tests.ingress.publisher import BROKER, answered, names, opened, replaced, request, run, said

KEYS = ("a", "b", "c", "d", "e")
ONCE = ServedBroker("ns/once/1", log_rule(None, DeduplicationSpec(window="PT10M")))


class NumberedFront(Protocol):
    """A front that runs. `brokers` are those that it serves, by path."""

    brokers: dict[str, ServedBroker]

    async def serve_once(self) -> None:
        """Serves `ONCE` from now on."""

    async def stop_in_order(self) -> None:
        """Does what a front does when it is stopped; without it, it is as if it were killed."""


class NumberedStore(Protocol):
    """A store; each `publishing` is a front that is started on it."""

    count: int
    """Of its partitions."""

    def publishing(self) -> AbstractAsyncContextManager[tuple[NumberedFront, Client]]: ...

    def stored(self) -> list[list[StoredEvent]]:
        """Everything, by partition."""


def ids(store: NumberedStore) -> list[list[str]]:
    return [[one.event.id for one in events] for events in store.stored()]


class NumberedContract:
    """The tests, for each store to inherit: `store` is its own."""

    @pytest.mark.parametrize("producer", ["", "p"])
    def test_a_broker_made_anew_begins_its_producers_numbers_anew(self, store: NumberedStore, producer: str) -> None:
        """A stream of the old one ends: no event goes into a broker that its producer has not opened."""

        async def work() -> None:
            async with store.publishing() as (front, client):
                stream, _ = await opened(client, producer)
                assert await answered(stream, request(0, 5)) == (0, 4, 0)
                front.brokers[BROKER] = ServedBroker(f"{BROKER}/2", DEFAULT_RULE)
                await stream.write(request(5))
                with pytest.raises(Refused) as refused:
                    await stream.rest()
                assert (refused.value.status, refused.value.code) == (grpc.StatusCode.UNAVAILABLE, "broker-replaced")
                stream, following = await opened(client, producer)
                assert following == 0
                await stream.write(request(0, 2))
                assert [said(message) for message in await stream.rest()] == [(0, 1, 0)]

        run(work())
        found = [(one.broker, one.event.id) for events in store.stored() for one in events]
        assert sorted(found) == [(f"{BROKER}/1", name) for name in names(0, 5)] + [
            (f"{BROKER}/2", name) for name in names(0, 2)
        ]

    @pytest.mark.parametrize("keys", [(), KEYS])
    @pytest.mark.parametrize("restart", ["none", "clean", "killed"])
    def test_what_is_sent_again_is_stored_once(self, store: NumberedStore, keys: Sequence[str], restart: str) -> None:
        async def work() -> None:
            async with contextlib.AsyncExitStack() as stack:
                front, client = await stack.enter_async_context(store.publishing())
                stream, first = await opened(client, "p")
                assert first == 0
                for number in range(0, 40, 10):
                    await stream.write(request(number, 10, keys=keys))
                for number in range(0, 40, 10):
                    assert said(await stream.read()) == (number, number + 9, 0)
                stream.cancel()
                if restart == "clean":
                    await front.stop_in_order()
                if restart != "none":
                    await stack.aclose()
                    front, client = await stack.enter_async_context(store.publishing())
                stream, following = await opened(client, "p")
                assert following == 40
                await stream.write(request(20, 10, keys=keys))
                await stream.write(request(35, 10, keys=keys))
                other, other_first = await opened(client, "p", "ns/other")
                assert other_first == 0
                await other.write(request(20, 10, keys=keys))
                assert [said(message) for message in await other.rest()] == [(20, 29, 0)]
                assert [said(message) for message in await stream.rest()] == [(20, 29, 10), (35, 44, 5)]

        run(work())
        own = [[one for one in events if one.broker == f"{BROKER}/1"] for events in store.stored()]
        for number, events in enumerate(own):
            kept = [int(one.event.id[1:]) for one in events]
            assert kept == sorted({*kept}), "in order, each once"
            places = {partition_of_key(KEYS[n % len(KEYS)] if keys else "p", store.count) for n in kept}
            assert places <= {number}, "without keys a producer's events stay together"
        assert sorted(one.event.id for events in own for one in events) == sorted(names(0, 45))
        assert all(one.event.extensions.keys() <= {"partitionkey"} for events in own for one in events)

    @pytest.mark.parametrize("is_restarted", [False, True])
    def test_a_broker_with_a_window_knows_an_event_by_its_number_and_by_its_id(
        self, store: NumberedStore, is_restarted: bool
    ) -> None:
        async def work() -> None:
            async with contextlib.AsyncExitStack() as stack:
                front, client = await stack.enter_async_context(store.publishing())
                await front.serve_once()
                stream, _ = await opened(client, "p", "ns/once")
                assert await answered(stream, request(0, 10)) == (0, 9, 0)
                other, _ = await opened(client, "q", "ns/once")
                assert await answered(other, request(0, 12)) == (0, 11, 10), "by their ids"
                assert await answered(stream, request(10, 5, keys=[""])) == (10, 14, 2)
                plain, _ = await opened(client, "", "ns/once")
                assert await answered(plain, request(14, 2)) == (14, 15, 1)
                if is_restarted:
                    await stack.aclose()
                    front, client = await stack.enter_async_context(store.publishing())
                    await front.serve_once()
                stream, following = await opened(client, "p", "ns/once")
                assert following == 15
                assert await answered(stream, request(10, 8)) == (10, 17, 6), "five by their numbers, one by its id"

        run(work())
        assert sorted(name for each in ids(store) for name in each) == sorted(names(0, 18))
        assert all(ids(store)), "events go to all partitions"

    def test_a_producer_that_has_had_the_largest_number_is_told_so(self, store: NumberedStore) -> None:
        async def work() -> None:
            largest = (1 << 64) - 2
            for restarted in (False, True):
                async with store.publishing() as (front, client):
                    stream, first = await opened(client, "p")
                    if not restarted:
                        assert await answered(stream, request(largest - 1, 2)) == (largest - 1, largest, 0)
                        stream, first = await opened(client, "p")
                    assert first == largest + 1
                    assert await answered(stream, request(largest)) == (largest, largest, 1)
                    await stream.write(request(first))
                    with pytest.raises(Refused, match="the largest one is 18446744073709551614") as refused:
                        await stream.rest()
                    assert refused.value.status is grpc.StatusCode.INVALID_ARGUMENT
                    await front.stop_in_order()

        run(work())

    def test_a_new_stream_of_a_producer_ends_the_old_one_and_knows_what_it_stored(self, store: NumberedStore) -> None:
        async def work() -> None:
            async with store.publishing() as (_, client):
                old, _ = await opened(client, "p")
                assert await answered(old, request(0, 10)) == (0, 9, 0)
                new, following = await opened(client, "p")
                assert following == 10
                assert (await replaced(old.rest())).hint
                await new.write(request(5, 10))
                assert [said(message) for message in await new.rest()] == [(5, 14, 5)]

        run(work())
        assert sorted(ids(store)) == [*[[]] * (store.count - 1), names(0, 15)]

    def test_a_name_that_is_too_long_is_refused(self, store: NumberedStore) -> None:
        async def work() -> None:
            async with store.publishing() as (_, client):
                with pytest.raises(Refused, match="at most") as refused:
                    await opened(client, "p" * 1_000)
                assert refused.value.status is grpc.StatusCode.INVALID_ARGUMENT

        run(work())

    def test_requests_under_way_are_answered_in_order(self, store: NumberedStore) -> None:
        async def work() -> None:
            async with store.publishing() as (_, client):
                stream, _ = await opened(client, "p")
                for number in range(0, 300, 3):
                    await stream.write(request(number, 3, keys=KEYS))
                answers: list[Any] = await stream.rest()
                assert [said(one) for one in answers] == [(number, number + 2, 0) for number in range(0, 300, 3)]
                assert all(isinstance(one, PublishResponse) for one in answers)

        run(work())
        for found in ids(store):
            numbers = [int(name[1:]) for name in found]
            assert numbers == sorted({*numbers})
        assert sum(map(len, ids(store))) == 300
