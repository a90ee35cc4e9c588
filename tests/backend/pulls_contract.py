"""What consumers get, whichever store their events are in: what users of Pulsar expect, over HTTP.

The scenarios of Pulsar's subscription and seek tests. A real dispatcher behind the front's proxy; the matcher is
played.
`tests/backend/test_embedded_pulls.py` and `tests/backend/test_kafka_pulls.py` run them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import pytest

from headgate.filter.compile.plan import Verdict
from tests.delivery.harness import EPOCH, run
from tests.subscriptions.test_http import Client, ids

BATCH = 5


class Consuming(Protocol):
    """A shared subscription `s` with a backlog of `events`; event n is e<n> at offset n, its data.n too."""

    def __call__(
        self, events: int, *, cel: str = "true", verdict: int = Verdict.MATCH
    ) -> AbstractAsyncContextManager[Client]: ...


async def stats(ask: Client) -> dict[str, Any]:
    status, answer = await ask("stats")
    assert status == 200
    return answer  # type: ignore[no-any-return]


async def drain(ask: Client, consumer: str, size: int = 100) -> list[str]:
    """Everything there is, acknowledged pull by pull."""
    found: list[str] = []
    while True:
        status, pulled = await ask("pull", consumer=consumer, max=size)
        assert status == 200
        if not pulled["events"]:
            return found
        found += [one["event"]["id"] for one in pulled["events"]]
        assert (await ask("ack", ids=[one["ackId"] for one in pulled["events"]]))[0] == 200


def names(*numbers: int) -> list[str]:
    return [f"e{number}" for number in numbers]


class PullsContract:
    """The tests, for each store to inherit: `consuming` is its own."""

    @pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, BATCH, 7))])
    def test_competing_consumers_share_and_repeat_nothing(self, consuming: Consuming, size: int) -> None:
        """The size of a pull need not be that of the stored batch: a batch is taken apart, not handed out twice."""

        async def work() -> None:
            async with consuming(60) as ask:
                shares = await asyncio.gather(*[drain(ask, f"c{number}", size) for number in range(4)])
                assert Counter(name for share in shares for name in share) == Counter(names(*range(60)))
                for share in shares:
                    assert share == sorted(share, key=lambda name: int(name[1:])), "each gets its share in order"
                after = await stats(ask)
                assert (after["backlog"], after["unacknowledged"]) == (0, 0)
                assert (after["acknowledged"], after["redelivered"]) == (60, 0)

        run(work(), 60)

    def test_backlog_before_while_and_after(self, consuming: Consuming) -> None:
        """Batches of five, mixed: what the filter refuses ends by itself, and is in no number afterwards."""

        async def work() -> None:
            async with consuming(50, cel="data.n % 5 < 2", verdict=Verdict.CANDIDATE) as ask:
                before = await stats(ask)
                assert (before["backlog"], before["candidates"], before["unacknowledged"]) == (50, 50, 0)
                first = await ask("pull", consumer="a", max=8)
                assert ids(first) == names(0, 1, 5, 6, 10, 11, 15, 16)
                between = await stats(ask)
                assert between["unacknowledged"] == 8
                assert between["backlog"] == 8 + between["candidates"], "read: held; unread: still to be decided"
                handed = [one["ackId"] for one in first[1]["events"]]
                assert (await ask("ack", ids=handed[1::2]))[1] == {"acknowledged": 4, "stale": []}
                assert (await ask("nack", ids=handed[0::2], delay=0))[1] == {"acknowledged": 4, "stale": []}
                rest = await drain(ask, "b")
                assert rest[:4] == names(0, 5, 10, 15), "what was refused comes before what is new"
                assert rest[4:] == names(*[n for n in range(20, 50) if n % 5 < 2])
                after = await stats(ask)
                assert (after["backlog"], after["candidates"], after["oldestUnacknowledged"]) == (0, 0, None)
                counted = [after[name] for name in ("processed", "accepted", "rejected", "acknowledged", "redelivered")]
                assert counted == [50, 20, 30, 20, 4]

        run(work(), 60)

    def test_seek_to_each_event_of_a_batch_inclusive_and_exclusive(self, consuming: Consuming) -> None:
        """A position is inclusive; the next one is the same place exclusively. An expression is either, as asked."""

        async def work() -> None:
            async with consuming(3 * BATCH) as ask:
                assert len(await drain(ask, "a")) == 3 * BATCH
                for at in range(3 * BATCH):
                    rest = names(*range(at, 3 * BATCH))
                    for place, expected in (
                        ({"to": f"0:{at}"}, rest),
                        ({"to": f"0:{at + 1}"}, rest[1:]),
                        ({"first": f"data.n == {at}"}, rest),
                        ({"first": f"data.n == {at}", "after": True}, rest[1:]),
                    ):
                        assert (await ask("seek", **place))[0] == 200, place
                        assert ids(await ask("pull", consumer="a")) == expected, place

        run(work(), 60)

    def test_seek_by_time_gives_all_or_nothing(self, consuming: Consuming) -> None:
        async def work() -> None:
            async with consuming(2 * BATCH) as ask:
                everything = names(*range(2 * BATCH))
                for place, expected in (
                    ("1970-01-01T00:00:00Z", everything),
                    ("2999-01-01T00:00:00Z", []),
                    ("earliest", everything),
                    ("latest", []),
                ):
                    assert (await ask("seek", to=place))[0] == 200
                    assert ids(await ask("pull", consumer="a")) == expected, place
                # Back from the end, what was acknowledged before comes again: whoever seeks wants it.
                assert (await ask("seek", to="earliest"))[0] == 200
                assert await drain(ask, "a") == everything
                assert (await ask("seek", to="earliest"))[0] == 200
                assert await drain(ask, "b") == everything

        run(work(), 60)

    def test_of_concurrent_seeks_one_wins_and_the_others_are_told(self, consuming: Consuming) -> None:
        async def work() -> None:
            events = 300
            async with consuming(events) as ask:
                refused = 0
                epoch = EPOCH
                while not refused:  # they overlap unless the machine runs one after the other to its end
                    answers = await asyncio.gather(
                        *[ask("seek", to="earliest", first=f"data.n == {events - 1 - n}") for n in range(8)]
                    )
                    won = [number for number, (status, _) in enumerate(answers) if status == 200]
                    epoch += len(won)
                    assert won, "one wins"
                    for status, answer in answers:
                        assert status in (200, 409)
                        if status == 409:
                            refused += 1
                            assert "another seek" in answer["message"]
                    assert max(answer["epoch"] for status, answer in answers if status == 200) == epoch
                    pulled = await ask("pull", consumer="a")
                    assert pulled[1]["epoch"] == epoch
                    last = max(won, key=lambda number: answers[number][1]["epoch"])
                    assert ids(pulled) == names(*range(events - 1 - last, events)), "no mixture of two places"

        run(work(), 60)

    def test_a_filter_of_the_backlog_is_counted_and_nothing_is_consumed(self, consuming: Consuming) -> None:
        async def work() -> None:
            async with consuming(30, cel="data.n % 2 == 0", verdict=Verdict.CANDIDATE) as ask:
                status, found = await ask("analyze", filter={"expression": "data.n >= 20"})
                assert status == 200
                assert found == {"events": 15, "accepted": 5, "rejected": 10, "errors": 0, "complete": True}
                assert (await stats(ask))["processed"] == 0
                assert len(await drain(ask, "a")) == 15

        run(work(), 60)

    def test_a_lease_ends_and_the_event_goes_to_another_consumer_with_its_count(self, consuming: Consuming) -> None:
        async def work() -> None:
            async with consuming(4) as ask:
                _, first = await ask("pull", consumer="a", max=2)
                _, second = await ask("pull", consumer="b", max=9)
                assert [one["event"]["id"] for one in second["events"]] == names(2, 3)
                assert (await ask("leave", consumer="a"))[1] == {"released": 2}
                _, again = await ask("pull", consumer="b", max=9)
                assert [(one["ackId"], one["deliveries"]) for one in again["events"]] == [
                    (one["ackId"], 2) for one in first["events"]
                ]
                last = second["events"][-1]["ackId"]
                assert (await ask("ack", consumer="b", upTo=last))[1] == {"acknowledged": 2, "stale": []}
                assert (await ask("ack", consumer="b", ids=[last]))[1] == {"acknowledged": 0, "stale": [last]}
                assert (await stats(ask))["backlog"] == 2
                assert (await ask("pull", name="nobody"))[0] == 404

        run(work(), 60)
