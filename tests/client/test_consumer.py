"""Is each event handed out once, and each acknowledgement on disk at last, wherever the connection breaks?"""

import asyncio

import grpc
import pytest

from headgate_api.errors import ConflictError, InvalidInputError
from headgate_client.aio import AsyncClient
from headgate_client.errors import ClosedError, DisconnectedError
from tests.client.fake import BreakAt, Fake, connected, serving
from tests.support import on_one_loop


def ids(count: int) -> list[str]:
    return [str(number) for number in range(count)]


async def settled(fake: Fake, expected: list[str]) -> None:
    while sorted(fake.acked, key=int) != expected:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("every", [4, *(pytest.param(one, marks=pytest.mark.slow) for one in (5, 6, 9)), 7, 13, 100])
@pytest.mark.parametrize("window", [1, pytest.param(4, marks=pytest.mark.slow), 1000])
@pytest.mark.parametrize("repeat", [1, 2])
def test_each_event_is_handed_out_once_and_ends_wherever_the_connection_breaks(every, window, repeat):
    async def test():
        breaks = BreakAt(every, times=60)
        fake = Fake(wanted=ids(40), breaks=breaks, repeat=repeat)
        found = []
        async with connected(fake) as client, client.subscribe("jobs", consumer="me", window=window) as consumer:
            async for received in consumer:
                found.append(received.event.id)
                done = consumer.ack(received)
                if len(found) % 3 == 0:
                    await done
                if len(found) == 40:
                    break
        assert found == ids(40)
        assert sorted(fake.acked, key=int) == ids(40)
        assert breaks.broken or every == 100

    on_one_loop(test())


def test_what_is_not_acknowledged_comes_again_only_to_who_comes_next():
    async def test():
        fake = Fake(wanted=ids(6))
        async with connected(fake) as client:
            consumer = client.subscribe("jobs", consumer="me")
            batch = [await anext(consumer) for _ in range(6)]
            assert [one.event.id for one in batch] == ids(6)
            await consumer.ack_up_to(batch[2])
            assert sorted(fake.acked) == ids(3)
            fake.breaks = breaks = BreakAt(1, times=1)
            await consumer.ack(batch[3])  # on a second stream, where the server hands out the last ones again
            while len(fake.handed) < 8:
                await asyncio.sleep(0.005)
            assert breaks.broken
            assert await consumer.next_batch(wait_s=0.05) == []
            await consumer.ack(batch[4])
            await consumer.stop()
            other = client.subscribe("jobs", consumer="other")
            assert (await anext(other)).event.id == "5"
            assert await other.next_batch(wait_s=0.05) == []
            await other.stop()
        assert sorted(fake.acked) == ids(5)

    on_one_loop(test())


def test_acknowledgements_are_on_disk_when_they_say_so_and_stale_ones_are_named():
    async def test():
        fake = Fake(wanted=ids(3))
        async with connected(fake) as client, client.subscribe("jobs", consumer="me") as consumer:
            batch = [await anext(consumer) for _ in range(3)]
            assert await consumer.ack(*batch[:2]) == []
            assert fake.acked == ["0", "1"]
            assert await consumer.ack(batch[0], batch[2]) == ["1:0"]
            assert await consumer.ack() == []
            await consumer.flush()

    on_one_loop(test())


def test_refused_events_are_handed_out_again():
    async def test():
        fake = Fake(wanted=ids(2))
        async with connected(fake) as client, client.subscribe("jobs", consumer="me") as consumer:
            first, second = await anext(consumer), await anext(consumer)
            consumer.nack(first, delay_s=5)
            consumer.nack(second)
            await consumer.flush()
            assert sorted(fake.nacked) == [("1:0", 5.0), ("1:1", 0.0)]
            fake.breaks = BreakAt(1, times=1)  # the server has forgotten that it handed them out
            await consumer.ack(first)
            assert (await anext(consumer)).event.id == "1"

    on_one_loop(test())


def test_a_seek_voids_what_was_handed_out_before():
    async def test():
        fake = Fake(wanted=ids(5))
        async with connected(fake) as client, client.subscribe("jobs", consumer="me") as consumer:
            first = await anext(consumer)
            await consumer.ack(first)
            while len(fake.handed) < 5:
                await asyncio.sleep(0.005)
            fake.acked.clear()
            fake.epoch = 2
            while consumer.epoch == 1:
                await asyncio.sleep(0.005)
            again = [await anext(consumer) for _ in range(5)]
            assert [one.event.id for one in again] == ids(5)
            assert all(one.ack_id.startswith("2:") for one in again)
            assert await consumer.ack(first) == ["1:0"]
            await consumer.ack(*again)
        assert sorted(fake.acked) == ids(5)

    on_one_loop(test())


def test_a_consumer_that_works_slowly_has_few_events():
    async def test():
        fake = Fake(wanted=ids(200))
        async with connected(fake) as client, client.subscribe("jobs", consumer="me", window=10) as consumer:
            for _ in range(30):
                await anext(consumer)
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            assert len(fake.handed) <= 30 + 10

    on_one_loop(test())


def test_what_the_server_refuses_is_raised():
    async def test():
        metadata = (("headgate-error", "consumer-busy"), ("headgate-hint", "wait"))
        fake = Fake(status=(grpc.StatusCode.ABORTED, "'other' has it", metadata))
        async with connected(fake) as client:
            with pytest.raises(ConflictError, match="'other' has it") as busy:
                async with client.subscribe("jobs", consumer="me"):
                    raise AssertionError("it did not begin")
            assert (busy.value.code, busy.value.hint) == ("consumer-busy", "wait")
            consumer = client.subscribe("jobs", consumer="me")
            with pytest.raises(ConflictError):
                await anext(consumer)
            with pytest.raises(InvalidInputError):
                client.subscribe("jobs", window=0)

    on_one_loop(test())


@pytest.mark.parametrize("refused", ["ack received", "begun"])
def test_a_server_that_opens_and_then_refuses_is_given_up(refused):
    async def test():
        fake = Fake(wanted=ids(1))
        async with (
            serving(fake) as target,
            AsyncClient(target, patience_s=0.05) as client,
        ):
            consumer = client.subscribe("jobs", consumer="me", window=1)
            received = await anext(consumer)
            fake.breaks = lambda point: point in ("ack received", refused)
            done = consumer.ack(received)
            with pytest.raises(DisconnectedError, match=r"broken (at|off)"):
                await done
            with pytest.raises(DisconnectedError):
                await anext(consumer)
            await consumer.stop()
        assert fake.acked == []

    on_one_loop(test())


def test_a_server_that_opens_and_then_fails_is_given_up_also_when_nothing_is_to_be_told():
    async def test():
        fake = Fake(wanted=ids(1), breaks=lambda point: point == "credits")
        async with serving(fake) as target, AsyncClient(target, patience_s=0.05) as client:
            consumer = client.subscribe("jobs", consumer="me")
            with pytest.raises(DisconnectedError, match=r"broken (at credits|off)"):
                await anext(consumer)
            await consumer.stop()
        assert fake.streams > 1

    on_one_loop(test())


def test_a_closed_consumer_says_so():
    async def test():
        fake = Fake(wanted=ids(1))
        async with connected(fake) as client:
            consumer = client.subscribe("jobs", consumer="me")
            received = await anext(consumer)
            waiting = asyncio.create_task(anext(consumer))
            await asyncio.sleep(0.01)
            await consumer.stop()
            with pytest.raises(ClosedError):
                await waiting
            with pytest.raises(ClosedError):
                consumer.ack(received)
            with pytest.raises(ClosedError):
                await anext(consumer)

    on_one_loop(test())


def test_a_body_that_fails_does_not_wait_for_acknowledgements():
    async def test():
        fake = Fake(wanted=ids(1))
        async with connected(fake) as client:
            consumer = client.subscribe("jobs", consumer="me")
            await anext(consumer)
            await consumer.__aexit__(RuntimeError, RuntimeError("mine"), None)
            with pytest.raises(ClosedError):
                consumer.ack()

    on_one_loop(test())
