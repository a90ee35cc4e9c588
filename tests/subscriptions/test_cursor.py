"""Do consumers of a subscription get every event, and none again that they acknowledged? Over restarts and crashes."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.filter.compile.plan import Verdict
from headgate.log.directory import Partition
from headgate.log.writer import PartitionWriter
from headgate.objects.kinds.routing import PullRules, PullType, RoutingTable
from headgate.outbox.writer import OUTBOX_SCHEMA, RowGroup, encode_chunk
from headgate.subscriptions.messages import AckIdError, ConsumerBusyError, PullResult, SubscriptionNotFoundError
from headgate.subscriptions.store import SubscriptionStore
from headgate_api import limits
from headgate_api.event import rfc3339
from tests.delivery.harness import EPOCH
from tests.subscriptions.world import KEPT, NAME, TIMEOUT_S, US, World, offsets, run


def key_of(offset: int) -> str:
    """Of an event, where consumers share by key: every third has none."""
    return ("", "x", "y")[offset % 3]


class Consumers(RuleBasedStateMachine):
    """Any order of pulling, acknowledging, waiting and dying; the model is a set of offsets."""

    @initialize(type_=st.sampled_from(["shared", "keyShared", "exclusive", "failover"]))
    def begin(self, type_: PullType) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self.folder.name), type_)
        self.world.outbox.key_of = key_of
        self.added: set[int] = set()
        self.acked: set[int] = set()
        self.out: dict[str, tuple[int, int]] = {}  # id -> offset, when it is due again; in the order of handing out
        self.with_: dict[str, str] = {}  # id -> who has it
        self.reached = 0

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @rule(count=st.integers(1, 6), mine=st.booleans())
    def add(self, count: int, mine: bool) -> None:
        first = len(self.world.outbox.rows)
        self.world.add(count, target=1 if mine else 2)
        if mine:
            self.added |= set(range(first, first + count))

    @rule(consumer=st.sampled_from("ab"), count=st.integers(1, 5))
    def pull(self, consumer: str, count: int) -> None:
        cursor = self.world.state.cursor
        type_ = self.world.state.rules.type
        moved = type_ in ("exclusive", "failover") and cursor.leases.consumer != consumer
        try:
            pulled = self.do(self.world.pull(consumer, count))
        except ConsumerBusyError:
            assert self.world.target.pull == PullRules("exclusive", TIMEOUT_S)
            return
        found = offsets(pulled)
        assert found == sorted(found)
        assert len(found) == len(set(found)) <= count
        assert set(found) <= self.added - self.acked
        due_us = self.world.now_us + int(TIMEOUT_S * US)
        for one in pulled.events:
            if one.id in self.out and not moved:
                assert self.out[one.id][1] <= self.world.now_us, "handed out while another consumer had it"
            self.out.pop(one.id, None)
            self.out[one.id] = one.offset, due_us
            self.with_[one.id] = consumer
        if type_ == "keyShared":
            self.each_key_is_whole(consumer, set(found))

    def each_key_is_whole(self, consumer: str, found: set[int]) -> None:
        """Nobody else holds an event of a key that was handed out, and the consumer has all before it."""
        now_us = self.world.now_us
        held = {offset: self.with_[one] for one, (offset, due_us) in self.out.items() if due_us > now_us}
        for offset in filter(key_of, found):
            of_key = {other for other in self.added - self.acked if key_of(other) == key_of(offset)}
            assert {held[other] for other in of_key & held.keys()} <= {consumer, ""}
            assert {held.get(other) for other in of_key if other < offset} <= {consumer}

    @rule(consumer=st.sampled_from("ab"))
    def leave(self, consumer: str) -> None:
        self.world.subscriptions.leave(NAME, consumer)
        for one, (offset, due_us) in self.out.items():
            if self.with_[one] == consumer and due_us > self.world.now_us:
                self.out[one] = offset, self.world.now_us

    @precondition(lambda self: self.out)
    @rule(data=st.data(), up_to=st.booleans())
    def ack(self, data: st.DataObject, up_to: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.out)), min_size=1, unique=True))
        if up_to:
            ids, last = list(self.out), chosen[0]
            held = self.held()
            done = self.do(self.world.subscriptions.ack(NAME, "a", up_to=last))
            ended = held - self.held()
            before = [one for one in ids[: ids.index(last) + 1] if self.with_[one] == "a"]
            assert ended <= {self.out[one][0] for one in before}, "nobody else's, and none handed out later"
            assert done.acknowledged == len(ended)
            assert bool(done.stale) == (self.out[last][0] not in ended)
            self.acked |= ended
        else:
            done = self.do(self.world.subscriptions.ack(NAME, "a", ids=tuple(chosen)))
            assert done.acknowledged == len(chosen) - len(done.stale)
            self.acked |= {self.out[one][0] for one in chosen if one not in done.stale}

    @precondition(lambda self: self.out)
    @rule(data=st.data(), delay_s=st.sampled_from([0.0, 5.0]))
    def nack(self, data: st.DataObject, delay_s: float) -> None:
        one = data.draw(st.sampled_from(sorted(self.out)))
        done = self.do(self.world.subscriptions.nack(NAME, (one,), delay_s))
        if done.acknowledged:
            self.out[one] = self.out[one][0], self.world.now_us + int(delay_s * US)
            self.with_[one] = ""

    def held(self) -> set[int]:
        return {held.position for held in self.world.state.cursor.leases}

    @rule(seconds=st.sampled_from([1, 4, 31]))
    def wait(self, seconds: int) -> None:
        self.world.now_us += seconds * US

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.do(self.world.subscriptions.flush())
        self.world.crash()
        known = {one.position: one for one in self.world.state.cursor.leases}
        for one, (offset, _) in self.out.items():
            left = known.get(offset)
            self.out[one] = offset, left.due_us if left is not None else 0
            self.with_[one] = left.consumer if left is not None else ""

    @rule()
    def flush(self) -> None:
        self.do(self.world.subscriptions.flush())

    @invariant()
    def the_cursor_on_disk_never_moves_back(self) -> None:
        if hasattr(self, "world"):
            saved = SubscriptionStore.read(Path(self.folder.name) / "subscriptions.db").get(1)
            if saved is not None:
                assert saved.next >= self.reached
                self.reached = saved.next

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.now_us += 100 * US
            while (pulled := self.do(self.world.pull("last"))).events:
                assert not set(offsets(pulled)) & self.acked
                self.acked |= set(offsets(pulled))
                assert self.do(self.world.ack(pulled, "last")) == len(pulled.events)
            assert self.acked == self.added
            stats = self.do(self.world.subscriptions.stats(NAME))
            assert (stats.backlog, stats.oldest_unacknowledged) == (0, None)
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            self.world.store.close()
            self.folder.cleanup()


Consumers.TestCase.settings = settings(max_examples=30, stateful_step_count=25)
TestConsumers = Consumers.TestCase


def test_an_acknowledgement_is_on_disk_when_it_is_answered(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        world.add(3)
        pulled = await world.pull()
        await world.subscriptions.flush()
        assert await world.ack(pulled) == 3
        world.crash()
        world.now_us += int(2 * TIMEOUT_S * US)
        assert offsets(await world.pull()) == []

    run(work())


def test_competing_consumers_each_get_exactly_their_share(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path, "shared")
        world.add(20)
        a, b = await asyncio.gather(world.pull("a", 5), world.pull("b", 5))
        c = await world.pull("c", 100)
        assert [len(one.events) for one in (a, b, c)] == [5, 5, 10]
        assert sorted(offsets(a) + offsets(b) + offsets(c)) == list(range(20))
        assert (await world.subscriptions.stats(NAME)).backlog == 20
        assert await world.ack(b, "b") == 5
        stats = await world.subscriptions.stats(NAME)
        assert (stats.backlog, stats.unacknowledged, stats.acknowledged) == (15, 15, 5)
        assert stats.oldest_unacknowledged == rfc3339.text(min(offsets(a) + offsets(c)) * US)

    run(work())


def test_consumers_that_share_by_key(tmp_path: Path) -> None:
    """Each has whole keys in order; a key moves when its consumer leaves, or has acknowledged and another one comes."""

    async def work() -> None:
        world = World(tmp_path, "keyShared")
        world.outbox.key_of = lambda offset: f"k{offset % 10}"
        world.add(100)
        assert offsets(await world.pull("a", 10)) == list(range(10)), "who is alone has every key"
        assert offsets(await world.pull("b", 100)) == [], "each key is with a, which holds an event of it"
        rest = await world.pull("a", 100)
        assert offsets(rest) == list(range(10, 100))
        assert world.subscriptions.leave(NAME, "a") == 100
        (a, b) = [await world.pull(name, 100) for name in "ab"]
        keys = [{one % 10 for one in offsets(pulled)} for pulled in (a, b)]
        assert (keys[0] & keys[1], keys[0] | keys[1]) == (set(), set(range(10)))
        assert min(map(len, keys)) > 0, "both have some"
        assert offsets(a) == [one for one in range(100) if one % 10 in keys[0]]
        assert await world.ack(b, "b") == len(b.events)
        assert world.subscriptions.leave(NAME, "b") == 0
        world.add(10)
        moved = offsets(await world.pull("a", 100))
        assert moved == list(range(100, 110)), "what was b's, and what comes after what it holds of its own"

    run(work())


def test_a_key_waits_for_its_event_that_was_given_back(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path, "keyShared")
        world.outbox.key_of = lambda offset: f"k{offset % 2}"
        world.add(2)
        (first, second) = (await world.pull("a")).events
        await world.subscriptions.nack(NAME, (first.id,), 5.0)
        await world.subscriptions.ack(NAME, "a", ids=(second.id,))
        world.add(2)
        assert offsets(await world.pull("a")) == [3], "2 comes after 0"
        world.now_us += 6 * US
        assert offsets(await world.pull("a")) == [0, 2]

    run(work())


def test_more_consumers_than_can_share_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.subscriptions.consumers.KEY_CONSUMERS_MAX", 2)

    async def work() -> None:
        world = World(tmp_path, "keyShared")
        for name in "aab":
            await world.pull(name)
        with pytest.raises(ConsumerBusyError, match="2 consumers share"):
            await world.pull("c")
        world.now_us += int(TIMEOUT_S * US)
        assert (await world.pull("c")).active

    run(work())


def test_a_pull_has_bounded_bytes_and_the_next_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        world = World(tmp_path)
        world.add(10)
        monkeypatch.setattr(limits, "PULL_BYTES_MAX", 3 * world.outbox.kept(0, 0).size_bytes)
        assert [offsets(await world.pull()) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    run(work())


def test_batches_of_five_with_mixed_content(tmp_path: Path) -> None:
    """Candidates that cel-cpp refuses are gone: never handed out, no holes, not in the backlog once read."""

    async def work() -> None:
        world = World(tmp_path, "exclusive", KEPT)
        for _ in range(4):
            world.add(5, Verdict.CANDIDATE)
        before = await world.subscriptions.stats(NAME)
        assert (before.backlog, before.candidates) == (20, 20)
        analysis = await world.subscriptions.analyze(NAME, "data.n >= 10")
        assert (analysis.events, analysis.accepted, analysis.rejected, analysis.complete) == (10, 5, 5, True)
        first = await world.pull(count=3)
        assert offsets(first) == [0, 2, 4]
        last = first.events[1].id
        assert (await world.subscriptions.ack(NAME, "a", up_to=last)).acknowledged == 2
        rest = await world.pull()
        assert offsets(rest) == list(range(6, 20, 2))
        after = await world.subscriptions.stats(NAME)
        assert (after.backlog, after.candidates, after.unacknowledged) == (8, 0, 8)
        assert (after.processed, after.accepted, after.rejected, after.errors) == (20, 10, 10, 0)

    run(work())


def test_errors_and_lost_events_are_counted_and_hold_nothing_up(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path, "exclusive", "data.missing == 1 || data.n == 3")
        world.add(4, Verdict.CANDIDATE)
        world.add(2)
        world.outbox.gone = {4}
        assert offsets(await world.pull()) == [3, 5]
        stats = await world.subscriptions.stats(NAME)
        assert (stats.errors, stats.lost, stats.backlog) == (3, 1, 2)
        (report,) = world.errors.take()
        assert report.filter_errors == 3

    run(work())


def test_a_pull_waits_for_the_first_event_and_for_what_is_due(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        waiting = asyncio.create_task(world.pull(wait_s=20))
        await asyncio.sleep(0)
        assert not waiting.done()
        world.add(1)
        pulled = await waiting
        assert offsets(pulled) == [0]
        waiting = asyncio.create_task(world.pull("b", wait_s=20))
        await asyncio.sleep(0)
        await world.subscriptions.nack(NAME, (pulled.events[0].id,), 0.0)
        again = await waiting
        assert (offsets(again), again.events[0].deliveries) == ([0], 2)
        assert (await world.subscriptions.stats(NAME)).redelivered == 1

    run(work())


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("type_", ["exclusive", "failover"])
def test_one_consumer_at_a_time(tmp_path: Path, type_: PullType, leaves: bool) -> None:
    async def work() -> None:
        world = World(tmp_path, type_)
        world.add(3)
        first = await world.pull("a", 2)
        if type_ == "exclusive":
            with pytest.raises(ConsumerBusyError):
                await world.pull("b")
        else:
            assert await world.pull("b") == PullResult([], EPOCH, active=False)
        if leaves:
            assert (await world.subscriptions.stats(NAME)).consumer == "a"
            assert world.subscriptions.leave(NAME, "a") == 2
            assert (await world.subscriptions.stats(NAME)).consumer is None
        else:
            world.now_us += int(TIMEOUT_S * US)
        second = await world.pull("b")
        assert offsets(second) == [0, 1, 2]
        assert [one.deliveries for one in second.events] == [2, 2, 1]
        # What the first one did all the same counts: it is done.
        assert await world.ack(first, "a") == 2

    run(work())


def test_a_deleted_subscription_is_forgotten_and_a_new_one_begins_now(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        world.add(2)
        await world.ack(await world.pull())
        world.subscriptions.update(RoutingTable.of(2, 2, {}, ()))
        await world.subscriptions.flush()
        assert world.store.load() == {}
        with pytest.raises(SubscriptionNotFoundError):
            await world.pull()
        world.subscriptions.update(RoutingTable.of(3, 3, {}, (world.target,)))
        world.add(1)
        assert offsets(await world.pull()) == [2]

    run(work())


@pytest.mark.parametrize("id_", ["", "1", "x:1", "1:x", f"{EPOCH + 1}:0", "1:-1", "1:1:1", "9" * 60 + ":1"])
def test_an_id_that_pull_cannot_have_given_is_refused(tmp_path: Path, id_: str) -> None:
    async def work() -> None:
        world = World(tmp_path)
        world.add(1)
        pulled = await world.pull()
        with pytest.raises(AckIdError):
            await world.subscriptions.ack(NAME, "a", ids=(pulled.events[0].id, id_))
        assert await world.ack(pulled) == 1

    run(work())


def test_what_nobody_takes_is_given_up_and_told(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        with PartitionWriter(Partition(tmp_path / "outbox", "stop"), OUTBOX_SCHEMA) as writer:
            for first in (0, 3):
                writer.append(encode_chunk([RowGroup(0, 1, [(first + n, 1, 3) for n in range(3)])], {}))
        world.add(3, target=2)
        assert await world.subscriptions.sweep({1}, 0, 0, 0, 0) == set()
        cursor = world.state.cursor
        assert (cursor.next, cursor.counters.expired) == (3, 0), "what is not its own is not kept for it"
        world.add(3)
        assert offsets(await world.pull(count=1)) == [3]
        far = 1 << 60
        assert await world.subscriptions.sweep(set(), far, far, far, far) == {1}
        assert (cursor.next, cursor.counters.expired) == (4, 0), "people are told first"
        assert await world.subscriptions.sweep({1}, far, far, far, far) == set()
        assert (cursor.next, len(cursor.leases), cursor.counters.expired) == (6, 0, 3)
        (report,) = world.errors.take()
        assert (report.dropped, report.last_dropped) == (3, "nobody took them within the bounds of a backlog")
        assert (await world.subscriptions.stats(NAME)).backlog == 0

    run(work())


def test_up_to_ends_what_its_own_consumer_was_handed_before(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        world.add(7)
        first, second, third = [await world.pull(consumer, 2) for consumer in "aba"]
        assert (offsets(first), offsets(second), offsets(third)) == ([0, 1], [2, 3], [4, 5])
        await world.subscriptions.nack(NAME, (first.events[1].id,), 5.0)

        async def up_to(consumer: str, id_: str) -> tuple[int, bool]:
            done = await world.subscriptions.ack(NAME, consumer, up_to=id_)
            return done.acknowledged, bool(done.stale)

        assert await up_to("b", third.events[0].id) == (0, True), "it is another's"
        assert await up_to("a", third.events[0].id) == (2, False)
        assert await up_to("a", third.events[0].id) == (0, True)
        world.now_us += 5 * US
        assert offsets(await world.pull("c")) == [1, 6], "what was refused comes again"

    run(work())


def test_a_pull_goes_on_past_many_that_nobody_wants_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PULL_REJECTED_MAX", 4)

    async def work() -> None:
        world = World(tmp_path, cel="data.n == 90")
        world.add(91, Verdict.CANDIDATE)
        assert offsets(await world.pull()) == [90]
        monkeypatch.setattr(limits, "PULL_SEARCH_S", 0.0)
        world.add(9, Verdict.CANDIDATE)
        assert offsets(await world.pull()) == []
        assert world.state.cursor.next == 95, "one turn"

    run(work())


def test_late_acknowledgements_of_a_subscription_made_again_are_stale(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path)
        world.add(2)
        pulled = await world.pull()
        again = dataclasses.replace(world.target, id=2)
        world.subscriptions.update(RoutingTable.of(2, 2, {}, (again,)))
        world.add(2, target=2)
        assert offsets(await world.pull()) == [2, 3]
        assert await world.ack(pulled) == 0

    run(work())


def test_who_says_that_it_is_there_keeps_its_turn(tmp_path: Path) -> None:
    async def work() -> None:
        world = World(tmp_path, "exclusive")
        await world.pull("a")
        for _ in range(3):
            world.now_us += int((TIMEOUT_S - 1) * US)
            assert world.subscriptions.keep(NAME, "a") < TIMEOUT_S / 2
            world.subscriptions.keep(NAME, "b")
        with pytest.raises(ConsumerBusyError):
            await world.pull("b")

    run(work())
