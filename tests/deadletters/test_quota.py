"""A namespace with all the dead letters of its quota: its deliveries go on, nothing is lost, and nobody else waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from headgate.deadletters.sink_sender import DeadLetters
from headgate.deadletters.store import DeadLetterStore, Ended, StorePart
from headgate.objects.kinds.quotas import DEAD_LETTERS
from headgate.objects.store.store import Store
from headgate.objects.views.shared_quotas import SharedQuotas
from headgate.observe.metrics import QUOTA_DEAD_LETTERS
from headgate_api import limits
from tests.deadletters.letters import letter, page
from tests.delivery.harness import (
    EventLog,
    Routes,
    Subscriber,
    attempt_service,
    event,
    log,
    matcher,
    refuse,
    run,
    running,
    target,
)
from tests.objects.quotas import limit, unlimit
from tests.support import until

__all__ = ["log"]


def test_the_store_knows_what_each_namespace_has_through_everything(tmp_path: Path) -> None:
    path = tmp_path / "deadletters.db"
    opened = DeadLetterStore(path)
    opened.apply(
        [letter(n, trigger="a/t") for n in range(5)] + [letter(n, target=2, trigger="b/t") for n in range(3)], [], []
    )
    opened.apply([letter(0, trigger="a/t")], [], [])  # it is there already
    each = opened.totals().bytes // 8
    assert opened.held == {"a": 5, "b": 3}
    assert opened.held_bytes == {"a": 5 * each, "b": 3 * each}
    (first, second, *_) = page(opened.reader)
    opened.apply([], [Ended(first.id, first.state), Ended(first.id, first.state), Ended(999, first.state)], [])
    assert opened.held == {"a": 4, "b": 3}
    assert opened.discard([second.id, second.id, 888]) == 1
    assert opened.held["a"] == 3
    assert opened.held_bytes == {"a": 3 * each, "b": 3 * each}
    opened.close()
    again = DeadLetterStore(path)
    assert again.held == {"a": 3, "b": 3}
    assert again.held_bytes == {"a": 3 * each, "b": 3 * each}
    again.close()


def test_one_more_waits_until_there_is_room_or_the_limit_is_raised(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEADLETTER_RETRY_S", 0.01)

    async def work() -> None:
        quotas = SharedQuotas(store)
        limit(store, quotas, {DEAD_LETTERS: 2}, "default")
        dead = DeadLetters(tmp_path / "d.db", attempt_service(None), lambda _: None, quotas=quotas)
        await asyncio.gather(*(dead.put(letter(n, trigger="default/t")) for n in range(2)))
        assert not dead.has_room("default")
        assert dead.has_room("other")
        waiting = asyncio.create_task(dead.put(letter(2, trigger="default/t")))
        await dead.put(letter(0, target=9, trigger="other/t"))  # nobody else waits
        assert not waiting.done()
        assert quotas.show() == {DEAD_LETTERS: {"default": 2}}
        assert {name: gauge.value for name, gauge in QUOTA_DEAD_LETTERS.children.items()} == {"default": 2}
        (first, *_) = page(dead._store.reader)
        await dead.discard([first.id])
        await waiting
        waiting = asyncio.create_task(dead.put(letter(3, trigger="default/t")))
        await dead.put(letter(1, target=9, trigger="other/t"))
        assert not waiting.done()
        limit(store, quotas, {DEAD_LETTERS: 3}, "default")
        await waiting
        limit(store, quotas, {DEAD_LETTERS: 0}, "default")
        assert dead.is_over_quota("default"), "a lowered limit takes nothing away"
        assert dead._store.held["default"] == 3
        unlimit(store, quotas, "default")
        assert dead.has_room("default")
        await dead.close()

    run(work())


@pytest.mark.parametrize("limited", ["DEADLETTERS_MAX", "DEADLETTERS_BYTES_MAX"])
def test_without_a_quota_a_namespace_has_its_share_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limited: str
) -> None:
    monkeypatch.setattr(limits, "DEADLETTER_RETRY_S", 0.01)

    async def work() -> None:
        dead = DeadLetters(tmp_path / "d.db", attempt_service(None), lambda _: None)
        await dead.put(letter(0, trigger="loud/t"))
        each = dead.totals.bytes if limited == "DEADLETTERS_BYTES_MAX" else 1
        monkeypatch.setattr(limits, limited, 8 * each)
        for number in range(1, 6):
            assert dead.has_room("loud")
            await dead.put(letter(number, trigger="loud/t"))
        assert dead.is_over_quota("loud"), "six of eight: the rest is for others"
        waiting = asyncio.create_task(dead.put(letter(6, trigger="loud/t")))
        await dead.put(letter(0, target=9, trigger="quiet/t"))
        assert not waiting.done()
        assert dead._store.held == {"loud": 6, "quiet": 1}
        ids = [one.id for one in page(dead._store.reader, limit=3)]
        await dead.discard(ids)
        await waiting
        await asyncio.gather(*(dead.put(letter(n, target=n, trigger=f"ns{n}/t")) for n in range(3)))
        assert dead.totals.is_full(StorePart.DEAD)
        assert not dead.is_over_quota("loud"), "a full store is for nobody, and who waits for it is told that"
        assert not dead.has_room("quiet")
        await dead.close()

    run(work())


def test_a_place_is_taken_before_the_outbox_is_on_disk(tmp_path: Path, store: Store) -> None:
    async def work() -> None:
        quotas = SharedQuotas(store)
        limit(store, quotas, {DEAD_LETTERS: 1}, "default")
        waiting: list[Callable[[], None]] = []
        dead = DeadLetters(
            tmp_path / "d.db",
            attempt_service(None),
            lambda _: None,
            quotas=quotas,
            when_durable=lambda _, call: waiting.append(call),
        )
        first = asyncio.create_task(dead.put(letter(0, trigger="default/t")))
        await until(lambda: len(waiting) == 1)
        assert dead.is_over_quota("default"), "else a second delivery would be given up, and wait with its permit"
        assert not dead._store.held["default"]
        waiting.pop()()
        await first
        assert dead._store.held["default"] == 1
        broken_off = asyncio.create_task(dead.put(letter(0, target=9, trigger="other/t")))
        await until(lambda: len(waiting) == 1)
        broken_off.cancel()
        with suppress(asyncio.CancelledError):
            await broken_off
        limit(store, quotas, {DEAD_LETTERS: 1}, "other")
        assert dead.has_room("other"), "what was broken off has no place"
        await dead.close()

    run(work())


def test_deliveries_over_the_quota_are_tried_again_and_hold_no_place(
    tmp_path: Path, log: EventLog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that fail for ever, with more events than there are attempts; the quota has room for one dead letter."""
    monkeypatch.setattr(limits, "DEADLETTER_QUOTA_PAUSE_S", 0.05)

    async def work() -> None:
        quotas = SharedQuotas(store)
        limit(store, quotas, {DEAD_LETTERS: 1}, "default")

        async with Subscriber(refuse) as failing, Subscriber() as fine:
            bad = [target(n, failing.url, dead_letter_uri="http://127.0.0.1:9/") for n in (1, 2)]
            good = target(3, fine.url)
            routes = Routes(*bad, good)
            async with running(tmp_path, routes, quotas=quotas) as work_, matcher(work_) as rows:
                events = [event(n) for n in range(40)]
                log.append(events)
                rows.match(*((n, t) for n in range(40) for t in (1, 2, 3)))
                rows.passed(40)
                await until(lambda: len(fine.ids) == 40)
                dead = work_.dispatcher.deliveries.dead_letters
                await until(lambda: len(failing.ids) > 120)
                await until(lambda: work_.dispatcher.unfinished <= 79)  # the last good answer is heard, too
                assert dead._store.held == {"default": 1}
                assert work_.dispatcher.unfinished == 79, "all others are still there"
                unlimit(store, quotas, "default")
                await until(lambda: dead._store.held == {"default": 80})
                await until(lambda: work_.dispatcher.unfinished == 0)

    run(work())
