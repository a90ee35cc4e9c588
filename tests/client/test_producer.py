"""Is every event stored once, in order, whatever happens to the connection? Does who publishes hear what was not?"""

import asyncio

import grpc
import pytest

from headgate_api.errors import ConflictError, EventTooLargeError, NotFoundError, OverloadedError
from headgate_api.limits import CLIENT_REQUEST_EVENTS_MAX, CLIENT_UNACKED_EVENTS_MAX, EVENT_BYTES_MAX
from headgate_api.rpc import headgate_pb2 as pb
from headgate_client.aio import AsyncClient
from headgate_client.errors import (
    ClosedError,
    DisconnectedError,
    ProducerNameTakenError,
    RefusedError,
    SequenceUnknownError,
)
from headgate_client.values import new_event
from tests.client.fake import BreakAt, Fake, serving
from tests.support import on_one_loop


def events(count: int, first: int = 0):
    return [new_event("t", "/s", id=str(number)) for number in range(first, first + count)]


@pytest.mark.parametrize("every", [1, 2, 3, 4, 5, 7, 11])
@pytest.mark.parametrize("repeat", [1, 3])
def test_a_named_producer_stores_each_event_once_and_in_order_wherever_the_connection_breaks(every, repeat):
    async def test():
        breaks = BreakAt(every, times=6 if every < 4 else 40)
        fake = Fake(breaks=breaks, repeat=repeat)
        async with (
            serving(fake) as target,
            AsyncClient(target) as client,
            client.producer("orders", name="me") as producer,
        ):
            for number in range(60):
                await producer.send(events(1, number))
                await asyncio.sleep(0.001 * (number % 3))
        assert producer.unacknowledged == 0
        assert fake.log == [(number, str(number)) for number in range(60)]
        assert breaks.broken

    on_one_loop(test())


def test_without_a_name_events_may_be_stored_twice_but_none_is_lost_or_overtaken():
    async def test():
        fake = Fake(breaks=BreakAt(4, times=10))
        async with serving(fake) as target, AsyncClient(target) as client:
            await asyncio.gather(*(client.publish("orders", each) for each in events(40)))
            await client.publish("orders", events(40, 40))
        stored = [int(id_) for _, id_ in fake.log]
        assert set(stored) == set(range(80))
        assert list(dict.fromkeys(stored)) == list(range(80))

    on_one_loop(test())


def test_events_travel_in_requests_of_limited_size():
    async def test():
        fake = Fake()
        async with serving(fake) as target, AsyncClient(target) as client, client.producer("orders") as producer:
            await producer.publish(events(2 * CLIENT_REQUEST_EVENTS_MAX + 1))
            large = [new_event("t", "/s", b"x" * 400_000) for _ in range(5)]
            await producer.publish(large)
        sizes = [last - first + 1 for first, last in fake.requests]
        assert sum(sizes) == 2 * CLIENT_REQUEST_EVENTS_MAX + 6
        assert max(sizes) <= CLIENT_REQUEST_EVENTS_MAX
        assert [last - first + 1 for first, last in fake.requests if first > 2 * CLIENT_REQUEST_EVENTS_MAX] == [2, 2, 1]

    on_one_loop(test())


def test_who_publishes_faster_than_the_server_stores_waits():
    async def test():
        fake = Fake(answers=asyncio.Event())
        async with serving(fake) as target, AsyncClient(target) as client, client.producer("orders") as producer:
            sending = asyncio.create_task(producer.send(events(CLIENT_UNACKED_EVENTS_MAX + 500)))
            while producer.unacknowledged < CLIENT_UNACKED_EVENTS_MAX or not fake.requests:
                await asyncio.sleep(0.01)
            for _ in range(20):
                await asyncio.sleep(0.001)
                assert not sending.done()
                assert producer.unacknowledged == CLIENT_UNACKED_EVENTS_MAX
            fake.answers.set()
            await (await sending)
        assert len(fake.log) == CLIENT_UNACKED_EVENTS_MAX + 500

    on_one_loop(test())


def test_only_a_producer_that_nobody_needs_makes_room_for_another_broker(monkeypatch):
    monkeypatch.setattr("headgate_client.aio.CLIENT_PRODUCERS_MAX", 2)

    async def test():
        fake = Fake()
        async with serving(fake) as target, AsyncClient(target) as client:
            calls = [client.publish(f"b{number}", each) for number, each in enumerate(events(4))]
            found = await asyncio.gather(*calls, return_exceptions=True)  # all begin before any stream has opened
            assert found[:2] == [None, None]
            assert [type(error) for error in found[2:]] == [OverloadedError] * 2
            assert sorted(id_ for _, id_ in fake.log) == ["0", "1"]
            await client.publish("b2", events(1, 2))
        assert fake.streams == 3

    on_one_loop(test())


def test_calls_to_one_broker_share_a_producer_also_when_another_makes_room_for_it(monkeypatch):
    monkeypatch.setattr("headgate_client.aio.CLIENT_PRODUCERS_MAX", 2)

    async def test():
        fake = Fake()
        async with serving(fake) as target, AsyncClient(target) as client:
            for number, each in enumerate(events(2)):
                await client.publish(f"b{number}", each)
            await asyncio.gather(*(client.publish("b2", each) for each in events(3, 2)))
        assert sorted(id_ for _, id_ in fake.log) == [str(number) for number in range(5)]
        assert fake.streams == 3

    on_one_loop(test())


def test_what_may_be_stored_later_is_sent_again():
    async def test():
        refusals = iter([False, True, True, False, True])

        def refuse(_):
            return pb.Problem(code="overloaded", detail="full", retriable=True) if next(refusals, False) else None

        fake = Fake(refuse=refuse)
        async with (
            serving(fake) as target,
            AsyncClient(target) as client,
            client.producer("orders") as producer,
        ):
            for each in events(6):
                await producer.send(each)
                await asyncio.sleep(0.002)
            await producer.flush()
            assert sorted(fake.log) == [(number, str(number)) for number in range(6)]
        assert fake.streams > 1

    on_one_loop(test())


def test_what_will_never_be_stored_is_told_to_who_gave_it_and_the_rest_goes_on():
    async def test():
        def refuse(request):
            bad = any(event.id == "bad" for event in request.events)
            return pb.Problem(code="invalid-event", detail="event 0: id: bad", hint="be good") if bad else None

        fake = Fake(refuse=refuse)
        async with serving(fake) as target, AsyncClient(target) as client:
            bad = new_event("t", "/s", id="bad")
            with pytest.raises(RefusedError, match="id: bad") as refused:
                await client.publish("orders", bad)
            assert (refused.value.code, refused.value.hint, refused.value.retriable) == (
                "invalid-event",
                "be good",
                False,
            )
            await client.publish("orders", events(1))
            async with client.producer("orders") as producer:
                done = await producer.send(bad)
                with pytest.raises(RefusedError):
                    await producer.flush()
                assert isinstance(done.exception(), RefusedError)
                await producer.publish(events(1))  # told once
            with pytest.raises(RefusedError):
                async with client.producer("orders") as producer:
                    await producer.send(bad)  # nobody looks at what it returns
        assert [id_ for _, id_ in fake.log] == ["0", "0"]
        assert fake.streams == 3

    on_one_loop(test())


def test_a_final_status_is_raised_with_its_code_and_hint():
    async def test():
        metadata = (("headgate-error", "broker-not-found"), ("headgate-hint", "create it"))
        fake = Fake(status=(grpc.StatusCode.NOT_FOUND, "no broker default/orders", metadata))
        async with serving(fake) as target, AsyncClient(target) as client:
            with pytest.raises(NotFoundError, match="no broker default/orders") as missing:
                await client.publish("orders", events(1))
            assert (missing.value.code, missing.value.hint) == ("broker-not-found", "create it")
            with pytest.raises(NotFoundError):
                async with client.producer("orders"):
                    raise AssertionError("it did not begin")
            fake.status = None
            await client.publish("orders", events(1))  # the client is as good as new
        assert fake.streams == 3

    on_one_loop(test())


def test_a_name_that_somebody_else_uses_is_noticed():
    async def test():
        fake = Fake(breaks=BreakAt(3, times=1))
        async with serving(fake) as target, AsyncClient(target) as client:
            producer = client.producer("orders", name="me")
            await producer.start()
            fake.taken_over = 10
            with pytest.raises(ProducerNameTakenError):
                await producer.publish(events(1))
            with pytest.raises(ConflictError):
                await producer.publish(events(1))
            await producer.stop()

    on_one_loop(test())


def test_a_producer_that_the_server_has_forgotten_hears_of_it():
    """It sends nothing again by itself: it may be stored a second time."""

    async def test():
        fake = Fake()
        async with serving(fake) as target, AsyncClient(target) as client:
            producer = client.producer("orders", name="me")
            await producer.start()
            await producer.publish(events(2))
            stored = len(fake.log)
            fake.newest.clear()
            fake.breaks = BreakAt(1, times=1)
            with pytest.raises(SequenceUnknownError, match="up to 1 acknowledged") as unknown:
                await producer.publish(events(1))
            assert (unknown.value.code, "first=2" in unknown.value.hint) == ("sequence-unknown", True)
            assert len(fake.log) == stored
            with pytest.raises(SequenceUnknownError):
                await producer.publish(events(1))
            await producer.stop()

    on_one_loop(test())


def test_a_producer_goes_on_where_the_server_is_or_where_it_is_told_to():
    async def test():
        fake = Fake()
        async with (
            serving(fake) as target,
            AsyncClient(target) as client,
            client.producer("orders", name="me") as producer,
        ):
            assert producer.next_sequence == 0
            await producer.publish(events(5))
            async with client.producer("orders", name="me") as producer:
                assert producer.next_sequence == 5
            async with client.producer("orders", name="me", first=3) as producer:
                await producer.publish(events(4, 3))
                assert (producer.duplicates, producer.next_sequence) == (2, 7)
        assert fake.log == [(number, str(number)) for number in range(7)]

    on_one_loop(test())


def test_filter_values_go_with_their_events():
    async def test():
        fake = Fake()
        async with serving(fake) as target, AsyncClient(target) as client, client.producer("orders") as producer:
            await producer.publish(events(2), filter_value="gold")
            await producer.publish(events(1))
        assert fake.filter_values == ["gold", "gold"]

    on_one_loop(test())


def test_without_a_server_the_error_says_so(monkeypatch):
    monkeypatch.setattr("headgate_api.limits.CLIENT_CONNECT_S_MAX", 0.05)

    async def test():
        async with AsyncClient("127.0.0.1:1") as client:
            with pytest.raises(DisconnectedError, match=r"127\.0\.0\.1:1") as gone:
                await client.publish("orders", events(1))
            assert gone.value.retriable
            assert "--grpc" in gone.value.hint

    on_one_loop(test())


def test_patience_ends_and_everybody_who_waits_is_told():
    async def test():
        fake = Fake(answers=asyncio.Event())
        async with AsyncClient("127.0.0.1:1", patience_s=0.05) as client:
            async with serving(fake) as target:
                client._connection.target = target
                producer = client.producer("orders")
                await producer.start()
                done = await producer.send(events(3))
            with pytest.raises(DisconnectedError):
                await done
            with pytest.raises(DisconnectedError):
                await producer.flush()
            with pytest.raises(DisconnectedError):
                await producer.publish(events(1))

    on_one_loop(test())


def test_a_closed_producer_takes_nothing():
    async def test():
        fake = Fake(answers=asyncio.Event())
        async with serving(fake) as target, AsyncClient(target) as client:
            producer = client.producer("orders")
            done = await producer.send(events(1))
            await producer.stop()
            with pytest.raises(ClosedError):
                await done
            with pytest.raises(ClosedError):
                await producer.publish(events(1))
            await producer.stop()

    on_one_loop(test())


def test_an_event_that_is_too_large_is_refused_at_once():
    async def test():
        fake = Fake()
        async with serving(fake) as target, AsyncClient(target) as client:
            with pytest.raises(EventTooLargeError, match="huge"):
                await client.publish("orders", new_event("t", "/s", b"x" * EVENT_BYTES_MAX, id="huge"))
            await client.publish("orders", events(1))
        assert len(fake.log) == 1

    on_one_loop(test())
