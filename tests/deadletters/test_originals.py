"""A dead letter knows what its event was in the log, whatever was made of it, and whether others share its answer."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from pathlib import Path

from headgate.deadletters.store import DeadLetterState, DeadLetterStore, Ended, StoredDeadLetter
from headgate.delivery.verdicts import gives
from headgate.server.processes.shard_deliveries import SenderIdentity
from headgate_api.event.model import Event
from tests.deadletters.letters import letter, letters, page
from tests.delivery.harness import (
    BROKER,
    EventLog,
    Request,
    Routes,
    Subscriber,
    event,
    log,
    matcher,
    refuse,
    run,
    running,
    target,
)
from tests.replay.test_sender import asked
from tests.support import until

__all__ = ["log"]
OTHER = "default/other/7"


async def fail(_: Request) -> tuple[int, bytes]:
    return 503, b"e0 is wrong, and so is e1"


def was(one: StoredDeadLetter) -> tuple[Event, bool]:
    """What it was in the log, and whether its answer was that to others, too."""
    stored = one.as_stored
    assert stored is not None
    assert stored.append_time_us > 1_000_000
    return stored.event, one.is_shared


def test_a_dead_letter_knows_the_stored_event(tmp_path: Path, log: EventLog) -> None:
    events = [event(n, data=b'{"n":%d}' % n) for n in range(3)]

    async def work() -> None:
        async with Subscriber(refuse) as refusing, Subscriber(fail) as failing:
            rules = {"retry": 0, "dead_letter_uri": failing.url}
            made = dataclasses.replace(target(1, refusing.url, **rules), transform='{"id": "made", "data": 7}')
            several = target(2, failing.url, format="batch", batch_size=2, batch_wait_s=5.0, **rules)
            async with running(tmp_path, Routes(made, several, target(3, refusing.url, **rules))) as at_work:
                log.append(events)
                async with matcher(at_work) as peer:
                    peer.match((0, 1), (0, 2), (1, 2), (2, 3))
                    await until(lambda: len(letters(tmp_path)) == 4)
                spec = asked(trigger="t3", start={0: 1}, end={0: 2})
                await at_work.dispatcher.deliveries.replays.create(spec)
                await until(lambda: len(letters(tmp_path)) == 5)

    run(work())
    found = {(one.target, one.offset): one for one in letters(tmp_path)}
    assert {place: was(one) for place, one in found.items()} == {
        (1, 0): (events[0], False),
        (2, 0): (events[0], True),
        (2, 1): (events[1], True),
        (3, 1): (events[1], False),  # of the replay, whose number it bears
        (3, 2): (events[2], False),
    }
    assert {one.broker for one in found.values()} == {"default/default"}
    assert found[1, 0].event.id == "made"
    assert "headgatereplay" in found[3, 1].event.extensions


def rows(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM originals").fetchone()
    return int(count)


def test_it_moves_and_goes_with_the_dead_letter(tmp_path: Path) -> None:
    path, to = tmp_path / "deadletters.db", tmp_path / "moved.db"
    changed = letter(1, original=event(1, data=b"1" * 1_000), is_shared=True)
    waiting = letter(3, state=DeadLetterState.PENDING, broker=BROKER, stored_us=None)
    unknown = letter(4, stored_us=None)
    with contextlib.closing(DeadLetterStore(path)) as store, contextlib.closing(DeadLetterStore(to)) as moved:
        store.apply([letter(0), changed, waiting, unknown], [], [])
        moved.copy(store, lambda _: True, lambda _id, _target, position: position)
        for each in (store, moved):
            plain, other, pending, nobodys = page(each.reader)
            assert plain.as_stored is not None
            assert (plain.as_stored.event, plain.original, plain.is_shared) == (event(0), None, False)
            assert other.as_stored is not None
            assert (other.as_stored.event, other.event, other.is_shared) == (changed.original, event(1), True)
            assert pending.as_stored is not None, "it is as it was stored"
            assert (pending.as_stored.event, pending.as_stored.append_time_us) == (pending.event, pending.died_us)
            assert (nobodys.as_stored, nobodys.is_shared) == (None, True), "written down by nobody"
            assert [one.bytes > 1_000 for one in each.reader.summaries("TRUE", (), after=0, limit=9)] == [
                False,
                True,
                False,
                False,
            ]
            brokers = [one.broker_path for one in each.reader.summaries("TRUE", (), after=0, limit=9)]
            assert brokers == ["default/default"] * 4
        assert (rows(path), rows(to)) == (2, 2)
        store.discard([one.id for one in page(store.reader)])
        moved.apply([], [Ended(one.id, one.state) for one in page(moved.reader)], [])
        assert (rows(path), rows(to)) == (0, 0)


def test_a_right_gives_what_was_stored_when_it_was_stored() -> None:
    found = letter(0, original=event(0, data=b'{"tenant":"blue"}'), stored_us=1_767_225_600_000_000).as_stored
    assert found is not None
    told = {
        cel: gives(cel, found)
        for cel in (
            "",
            'data.tenant == "blue"',
            'data.tenant == "red"',
            "data.nosuch == 1",
            "data.n == 1",
            "publish_time == timestamp('2026-01-01T00:00:00Z')",
        )
    }
    assert list(told.values()) == [True, True, False, False, False, True]


def test_what_a_redriven_one_is_answered_goes_to_the_broker_of_its_new_trigger(tmp_path: Path) -> None:
    async def reply(_: Request) -> tuple[object, ...]:
        return 200, b"hello", ("ce-specversion", "1.0"), ("ce-id", "r"), ("ce-source", "/r"), ("ce-type", "t")

    async def work() -> None:
        async with Subscriber(reply) as subscriber, Subscriber() as ingress:
            routes = Routes(target(77, subscriber.url, broker=OTHER))
            async with running(tmp_path, routes, identity=SenderIdentity(url=ingress.url.rstrip("/"))) as at_work:
                letters_ = at_work.dispatcher.deliveries.dead_letters
                await letters_.put(letter(-5))
                await until(lambda: [one.state for one in letters(tmp_path)] == ["kept"])
                (kept,) = letters(tmp_path)
                assert await letters_.redrive([kept.id], pace_us=0, to=routes.targets[77]) == 1
                assert [one.broker for one in letters(tmp_path)] == ["default/default"], "its event is that broker's"
                await until(lambda: letters(tmp_path) == [])
            assert [one.path for one in ingress.requests] == ["/default/other"]

    run(work())
