"""A namespace has as many consumers connected as its quota allows, by streams and by pulls."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.objects.kinds.quotas import CONSUMERS
from headgate.objects.store.store import Store
from headgate.objects.views.shared_quotas import SharedQuotas
from headgate.shares import PlacesTakenError
from headgate.subscriptions.messages import ConsumersQuotaError, PullResult, SubscriptionNotFoundError
from headgate.subscriptions.service import Subscriptions
from headgate_api import limits
from tests.objects.quotas import limit
from tests.subscriptions.world import NAME, World, run


class EverySubscription:
    """Knows every name."""

    def get(self, _: str) -> None:
        return None


def test_who_has_all_places_that_he_may_leaves_some_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PULLS_MAX", 64)
    world = World(tmp_path)
    own = Subscriptions(world.store, world.state.resources)
    own._registry = EverySubscription()  # type: ignore[assignment]

    refusals: list[PlacesTakenError] = []

    def taken(stack: ExitStack, user: str, name: str) -> int:
        """How many consumers a user gets."""
        for count in range(65):
            try:
                stack.enter_context(own.consuming(name, f"{user}{count}", user))
            except PlacesTakenError as error:
                refusals.append(error)
                return count
        raise AssertionError("there are more places than there are")

    with ExitStack() as first:
        loud = taken(first, "eve", "loud/s")
        assert 32 < loud < 64
        assert taken(first, "ann", "loud/s") > 1, "another user of the same namespace"
        assert taken(first, "bob", "quiet/s") > 5, "another namespace"
        assert taken(first, "eve", "loud/s") == 0
    with ExitStack() as again:
        assert taken(again, "eve", "loud/s") == loud, "places are given back"
    assert {(one.code, one.http_status) for one in refusals} == {("pulls", 429)}
    assert all("PULLS_MAX" in one.message for one in refusals)


def test_consumers_over_the_quota_are_refused_until_another_one_leaves(tmp_path: Path) -> None:
    async def work() -> None:
        world, store = World(tmp_path), Store.open(tmp_path / "control.db")
        quotas = SharedQuotas(store)
        own = Subscriptions(world.store, world.state.resources, quotas)
        own._registry = world.subscriptions._registry

        async def pulled(name: str, consumer: str, wait_s: float = 0.0) -> PullResult:
            with own.consuming(name, consumer):
                return await own.pull(name, consumer, wait_s=wait_s)

        limit(store, quotas, {CONSUMERS: 1}, "default")
        with ExitStack() as first:
            first.enter_context(own.consuming(NAME, "a"))
            world.add(1)
            assert len((await pulled(NAME, "a")).events) == 1, "the same consumer is one"
            with pytest.raises(ConsumersQuotaError, match=r"headgate\.dev/consumers is limited to 1") as caught:
                await pulled(NAME, "b")
            assert (caught.value.code, caught.value.http_status) == ("consumers-quota", 429)
            assert caught.value.retriable
            with pytest.raises(SubscriptionNotFoundError):
                await pulled("default/none", "b")
            assert quotas.show() == {CONSUMERS: {"default": 1}}
            limit(store, quotas, {CONSUMERS: 2}, "default")
            waiting = asyncio.create_task(pulled(NAME, "b", wait_s=30))
            while quotas.show() != {CONSUMERS: {"default": 2}}:
                await asyncio.sleep(0.001)
            with pytest.raises(ConsumersQuotaError):
                await pulled(NAME, "c")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await pulled(NAME, "c")
            limit(store, quotas, {CONSUMERS: 0}, "default")
            with pytest.raises(ConsumersQuotaError):
                await pulled(NAME, "c")
            assert (await pulled(NAME, "a")).active, "who is connected stays"
        assert quotas.show() == {CONSUMERS: {"default": 0}}
        assert not own._connected._ways
        store.close()

    run(work())
