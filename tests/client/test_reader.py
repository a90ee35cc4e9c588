"""Does a reader get each event once and in order, wherever the connection breaks, and does it know where it is?"""

import asyncio

import grpc
import pytest

from headgate_api.errors import InvalidInputError, NotFoundError
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc.events import to_message
from headgate_client import connection
from headgate_client.aio import AsyncClient
from headgate_client.errors import ClosedError, ServerError
from headgate_client.values import new_event
from tests.client.fake import BreakAt, Fake, connected, serving
from tests.support import on_one_loop


def log(count: int) -> list[tuple[int, str]]:
    return [(number, str(number)) for number in range(count)]


@pytest.mark.parametrize("every", [3, 4, 5, 7, 11, 100])
@pytest.mark.parametrize("window", [1, 2, 7, 1000])
def test_each_event_once_and_in_order_wherever_the_connection_breaks(every, window):
    async def test():
        breaks = BreakAt(every, times=100)
        fake = Fake(log=log(50), breaks=breaks)  # every 3rd point: no event comes before they end
        async with connected(fake) as client:
            reader = client.read("orders", follow=False, window=window)
            found = [(read.offset, read.event.id) async for read in reader]
            assert found == log(50)
            assert reader.position == "0:50"
            await reader.stop()
        assert breaks.broken or every == 100

    on_one_loop(test())


def test_a_reader_goes_on_at_any_position_that_it_has_told():
    async def test():
        fake = Fake(log=log(20))
        async with connected(fake) as client, client.read("orders", follow=False) as reader:
            assert reader.position == "0:0"
            for number in range(20):
                read = await anext(reader)
                assert read.offset == number
                async with client.read("orders", start=reader.position, follow=False) as other:
                    assert [one.offset async for one in other] == list(range(number + 1, 20))
            with pytest.raises(StopAsyncIteration):
                await anext(reader)
        assert reader.progress.at_end is False  # the fake says so with its first response only

    on_one_loop(test())


def test_the_search_for_the_first_event_is_not_repeated_after_a_reconnect():
    async def test():
        fake = Fake(log=log(30), breaks=BreakAt(6))
        async with (
            connected(fake) as client,
            client.read("orders", start="earliest", first="5", follow=False) as reader,
        ):
            assert [read.offset async for read in reader] == list(range(5, 30))
        assert fake.starts[0] == ("earliest", "5")
        assert len(fake.starts) > 2
        assert all(first == "" and start.startswith("0:") for start, first in fake.starts[1:])

    on_one_loop(test())


def test_who_follows_waits_and_may_give_up_waiting():
    async def test():
        fake = Fake(log=log(3))
        async with connected(fake) as client, client.read("orders", start="next") as reader:
            assert await reader.next_batch(wait_s=0.05) == []
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(reader), 0.05)
            fake.log += [(3, "3"), (4, "4")]
            assert [read.event.id for read in await reader.next_batch()] == ["3", "4"]
            assert reader.position == "0:5"
        assert fake.streams == 1  # waiting in vain ends nothing

    on_one_loop(test())


def test_credits_follow_what_was_handed_out():
    async def test():
        fake = Fake(log=log(100))
        async with connected(fake) as client, client.read("orders", follow=False, window=10) as reader:
            for _ in range(10):
                await anext(reader)
            await asyncio.sleep(0.02)
            given = sum(fake.credits)
            assert 10 <= given <= 20
            assert len([read async for read in reader]) == 90
        assert sum(fake.credits) <= 100 + 10

    on_one_loop(test())


def test_what_the_server_refuses_is_raised():
    async def test():
        fake = Fake(status=(grpc.StatusCode.NOT_FOUND, "no such broker", (("headgate-error", "not-found"),)))
        async with connected(fake) as client:
            with pytest.raises(NotFoundError):
                await client.read("orders").start()
            with pytest.raises(NotFoundError):
                await anext(client.read("orders"))
            with pytest.raises(InvalidInputError):
                client.read("orders", window=0)

    on_one_loop(test())


def test_an_error_ends_a_reader_and_another_goes_on_at_its_position():
    async def test():
        fake = Fake(log=log(6), breaks=lambda point: fake.status is not None)
        async with connected(fake) as client:
            reader = client.read("orders", window=2)
            assert [(await anext(reader)).offset for _ in range(2)] == [0, 1]
            fake.status = (grpc.StatusCode.NOT_FOUND, "deleted", (("headgate-error", "not-found"),))
            with pytest.raises(NotFoundError):
                async for _ in reader:
                    pass
            fake.status = None
            streams = fake.streams
            with pytest.raises(NotFoundError):
                await anext(reader)
            assert fake.streams == streams
            async with client.read("orders", start=reader.position, follow=False) as other:
                assert [read.offset async for read in other] == list(range(int(reader.position[2:]), 6))

    on_one_loop(test())


def test_a_server_with_too_many_calls_is_asked_again():
    async def test():
        fake = Fake(log=log(1))
        async with serving(fake, calls_max=1) as target, AsyncClient(target) as client:
            async with client.read("orders"):
                other = client.read("orders", follow=False)
                waiting = asyncio.create_task(anext(other))
                while other._retry._failing_since_s is None and not waiting.done():
                    await asyncio.sleep(0.005)
            assert (await waiting).event.id == "0"
            await other.stop()

    on_one_loop(test())


def test_a_message_over_the_client_s_limit_is_not_asked_for_again(monkeypatch):
    options = [(name, 5 if name == "grpc.max_receive_message_length" else value) for name, value in connection._OPTIONS]
    monkeypatch.setattr(connection, "_OPTIONS", options)

    async def test():
        fake = Fake(log=log(1))
        async with connected(fake) as client:
            with pytest.raises(ServerError, match="larger than max") as refused:
                await anext(client.read("orders", follow=False))
            assert not refused.value.retriable
        assert fake.streams == 1

    on_one_loop(test())


def test_a_closed_reader_says_so():
    async def test():
        fake = Fake(log=log(1))
        async with connected(fake) as client:
            reader = client.read("orders")
            await anext(reader)
            waiting = asyncio.create_task(anext(reader))
            await asyncio.sleep(0.01)
            await reader.stop()
            with pytest.raises((ClosedError, asyncio.CancelledError)):
                await waiting
            with pytest.raises(ClosedError):
                await anext(reader)

    on_one_loop(test())


def test_the_position_is_before_the_first_event_that_was_not_handed_out_of_each_partition():
    async def test():
        async with connected(Fake()) as client, client.read("orders", follow=False) as reader:
            places = [(0, 4), (1, 7), (0, 5), (1, 8)]
            response = pb.ReadResponse()
            response.progress.position = "0:6,1:9"
            for partition, offset in places:
                message = to_message(new_event("t", "/s", id=str(offset)))
                response.events.add(event=message, partition=partition, offset=offset)
            reader._take(response)
            told = [reader.position]
            while reader.take() is not None:
                told.append(reader.position)
            assert told == ["0:4,1:7", "0:5,1:7", "0:5,1:8", "0:6,1:8", "0:6,1:9"]

    on_one_loop(test())
