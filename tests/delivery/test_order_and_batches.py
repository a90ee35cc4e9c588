"""Order per partition key, parallelism and batches, on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from headgate.delivery.lifecycle import KeyQueues
from headgate_api.event.json_format import decode_batch
from tests.delivery.harness import EventLog, Request, Routes, Subscriber, event, matcher, run, running, target
from tests.support import until


def keyed(count: int, keys: int) -> list:
    return [event(n, extensions={"partitionkey": f"k{n % keys}"}) for n in range(count)]


def key_of(request: Request) -> str:
    return request.header("ce-partitionkey") or ""


def test_a_lane_has_one_at_a_time_and_keeps_the_order():
    queues: KeyQueues[str] = KeyQueues()
    assert queues.enter("x", "a")
    assert queues.enter("y", "d")
    assert not queues.enter("x", "b")
    assert not queues.enter("x", "c")
    assert queues.leave("x") == "b"
    assert queues.leave("x") == "c"
    assert queues.leave("x") is None
    assert queues.enter("x", "b")
    assert not queues.enter("x", "c")
    queues.withdraw("x", "c")
    assert queues.leave("x") is None


def test_of_a_key_the_next_event_goes_only_when_the_last_one_has_ended(tmp_path: Path, log: EventLog):
    """Also over retries; all of k0 goes meanwhile, which e4 and e5 wait for here."""
    busy: Counter[str] = Counter()
    most: Counter[str] = Counter()
    tried: Counter[str] = Counter()

    async def answer(request: Request) -> tuple[int, bytes]:
        key = key_of(request)
        busy[key] += 1
        most[key] = max(most[key], busy[key])
        most["all"] = max(most["all"], sum(busy.values()))
        await asyncio.sleep(0.002)
        busy[key] -= 1
        tried[request.id] += 1
        return (503 if request.id in ("e4", "e5") and "e87" not in tried else 202), b""

    async def work() -> None:
        async with Subscriber(answer) as subscriber:
            routes = Routes(target(1, subscriber.url, ordered=True, retry=1_000, backoff_delay_s=0.001))
            async with running(tmp_path, routes) as work:
                log.append(keyed(90, 3))
                async with matcher(work) as peer:
                    peer.match(*((n, 1) for n in range(90)))
                    await until(lambda: len(tried) == 90 and work.dispatcher.unfinished == 0)
            for key in ("k0", "k1", "k2"):
                ids = [request.id for request in subscriber.requests if key_of(request) == key]
                assert [id_ for n, id_ in enumerate(ids) if ids[:n].count(id_) == 0] == [
                    f"e{n}" for n in range(90) if f"k{n % 3}" == key
                ]
                assert ids == sorted(ids, key=lambda id_: int(id_[1:])), "nothing overtakes a retry"
                assert most[key] == 1
            assert most["all"] == 3

    run(work())


@pytest.mark.parametrize("parallelism", [1, 3, 64])
def test_parallelism_is_a_bound(tmp_path: Path, log: EventLog, parallelism: int):
    busy = most = 0
    full = asyncio.Event()

    async def answer(_: Request) -> tuple[int, bytes]:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        if busy == parallelism:
            full.set()
        await full.wait()
        await asyncio.sleep(0.05)  # time for one too many
        busy -= 1
        return 202, b""

    async def work() -> None:
        async with Subscriber(answer) as subscriber:
            routes = Routes(target(1, subscriber.url, parallelism=parallelism))
            async with running(tmp_path, routes) as work:
                log.append([event(n) for n in range(parallelism + 5)])
                async with matcher(work) as peer:
                    peer.match(*((n, 1) for n in range(parallelism + 5)))
                    await until(lambda: len(subscriber.requests) == parallelism + 5)
                    await until(lambda: work.dispatcher.unfinished == 0)

    run(work())
    assert most == parallelism


def batches(subscriber: Subscriber) -> list[list[str]]:
    return [[one.id for one in decode_batch(request.body)] for request in subscriber.requests]


def test_batches_are_full_or_have_waited(tmp_path: Path, log: EventLog):
    async def work() -> None:
        async with Subscriber() as subscriber:
            rules = {"format": "batch", "batch_size": 4, "batch_wait_s": 0.2, "ordered": True}
            async with running(tmp_path, Routes(target(1, subscriber.url, **rules))) as work:
                log.append([event(n, data=b'{"n": 1.50}') for n in range(10)])
                async with matcher(work) as peer:
                    peer.match(*((n, 1) for n in range(10)))
                    await until(lambda: len(subscriber.requests) == 2)
                    await asyncio.sleep(0.05)
                    assert len(subscriber.requests) == 2, "the last two wait for others"
                    await until(lambda: len(subscriber.requests) == 3 and work.dispatcher.unfinished == 0)
            assert batches(subscriber) == [[f"e{n}" for n in range(first, min(first + 4, 10))] for first in (0, 4, 8)]
            request = subscriber.requests[0]
            assert request.header("content-type") == "application/cloudevents-batch+json"
            assert request.header("headgate-hops") == "1"
            assert b'"data":{"n": 1.50}' in request.body

    run(work())


def test_a_batch_is_tried_again_as_a_whole(tmp_path: Path, log: EventLog):
    left = 2

    async def answer(_: Request) -> tuple[int, bytes]:
        nonlocal left
        left -= 1
        return (503 if left >= 0 else 202), b""

    async def work() -> None:
        async with Subscriber(answer) as subscriber:
            rules = {"format": "batch", "batch_size": 3, "batch_wait_s": 0.01, "ordered": True}
            async with running(tmp_path, Routes(target(1, subscriber.url, **rules))) as work:
                log.append([event(n) for n in range(6)])
                async with matcher(work) as peer:
                    peer.match(*((n, 1) for n in range(6)))
                    await until(lambda: len(subscriber.requests) == 4 and work.dispatcher.unfinished == 0)
            assert batches(subscriber) == [["e0", "e1", "e2"]] * 3 + [["e3", "e4", "e5"]]

    run(work())


def test_of_a_refused_batch_only_what_is_refused_alone_is_given_up(tmp_path: Path, log: EventLog):
    async def answer(request: Request) -> tuple[int, bytes]:
        return (400 if any(one.id == "e2" for one in decode_batch(request.body)) else 202), b"not e2"

    async def work() -> None:
        async with Subscriber(answer) as subscriber, Subscriber() as sink:
            rules = {"format": "batch", "batch_size": 4, "batch_wait_s": 0.01, "dead_letter_uri": sink.url}
            async with running(tmp_path, Routes(target(1, subscriber.url, ordered=True, **rules))) as work:
                log.append([event(n) for n in range(4)])
                async with matcher(work) as peer:
                    peer.match(*((n, 1) for n in range(4)))
                    await until(lambda: len(sink.requests) == 1 and work.dispatcher.unfinished == 0)
            assert batches(subscriber) == [["e0", "e1", "e2", "e3"], ["e0"], ["e1"], ["e2"], ["e3"]]
            (dead,) = json.loads(sink.requests[0].body)
            assert (dead["id"], dead["knativeerrorcode"]) == ("e2", 400)

    run(work())


def test_a_batch_is_bounded_in_bytes_and_holds_only_what_matches(tmp_path: Path, log: EventLog):
    async def work() -> None:
        async with Subscriber() as subscriber:
            rules = {"format": "batch", "batch_size": 8, "batch_wait_s": 0.05}
            routes = Routes(target(1, subscriber.url, cel='ce.id != "e1"', ordered=True, **rules))
            async with running(tmp_path, routes) as work:
                log.append([event(n, data=b'"' + b"x" * 900_000 + b'"') for n in range(4)])
                async with matcher(work) as peer:
                    peer.match(*((n, 1) for n in range(4)), verdict=2)
                    await until(lambda: work.dispatcher.unfinished == 0 and len(subscriber.requests) == 2)
            assert batches(subscriber) == [["e0", "e2"], ["e3"]]

    run(work())


def test_an_ordered_target_is_deleted_while_events_wait_for_one_of_their_key(tmp_path: Path, log: EventLog):
    async def work() -> None:
        let = asyncio.Event()

        async def answer(request: Request) -> tuple[int, bytes]:
            await let.wait()
            return 202, b""

        async with Subscriber(answer) as hanging, Subscriber() as other:
            routes = Routes(target(1, hanging.url, ordered=True))
            async with running(tmp_path, routes) as work:
                log.append(keyed(4, 1))
                async with matcher(work) as peer:
                    peer.match((0, 1), (1, 1), (2, 1))
                    await until(lambda: len(hanging.requests) == 1)
                    routes.delete(1)
                    await until(lambda: work.dispatcher.unfinished == 1)
                    let.set()
                    routes.put(target(2, other.url))
                    await until(lambda: work.dispatcher.unfinished == 0)
                    peer.match((3, 2))
                    await until(lambda: other.ids == ["e3"])

    run(work())
