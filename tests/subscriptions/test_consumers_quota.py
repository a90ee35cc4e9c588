"""A namespace has as many consumers connected as its quota allows, by streams and by pulls."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.control.admission import Admission
from headgate.control.quota_rules import CONSUMERS
from headgate.control.shared_quotas import SharedQuotas
from headgate.control.store import Store
from headgate.subscriptions.errors import ConsumersQuotaError, SubscriptionNotFoundError
from headgate.subscriptions.messages import PullResult
from headgate.subscriptions.service import Subscriptions
from tests.subscriptions.world import NAME, World, run


def test_consumers_over_the_quota_are_refused_until_another_one_leaves(tmp_path: Path) -> None:
    async def work() -> None:
        world, store = World(tmp_path), Store.open(tmp_path / "control.db")
        quotas = SharedQuotas(store)
        own = Subscriptions(world.store, world.subscriptions._resources, quotas)
        own._registry = world.subscriptions._registry

        def limit(most: int) -> None:
            metadata = {"name": "q", "namespace": NAME.partition("/")[0]}
            spec = {"hard": {CONSUMERS: most}}
            made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}
            Admission(store).apply(made)
            quotas.refresh()

        async def pulled(name: str, consumer: str, wait_s: float = 0.0) -> PullResult:
            with own.consuming(name, consumer):
                return await own.pull(name, consumer, wait_s=wait_s)

        limit(1)
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
            limit(2)
            waiting = asyncio.create_task(pulled(NAME, "b", wait_s=30))
            while quotas.show() != {CONSUMERS: {"default": 2}}:
                await asyncio.sleep(0.001)
            with pytest.raises(ConsumersQuotaError):
                await pulled(NAME, "c")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await pulled(NAME, "c")
            limit(0)
            with pytest.raises(ConsumersQuotaError):
                await pulled(NAME, "c")
            assert (await pulled(NAME, "a")).active, "who is connected stays"
        assert quotas.show() == {CONSUMERS: {"default": 0}}
        assert not own._connected._ways
        store.close()

    run(work())
