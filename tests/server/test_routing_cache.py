"""Does a dispatcher follow the routing table, whatever it misses of it, and have its own targets alone?"""

from __future__ import annotations

import random

import pytest

from headgate.objects.kinds.routing import RoutingStep, RoutingTable, Target
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.outbox.shards import Shard
from headgate.server.processes.shard_deliveries import RoutingCache
from tests.delivery.harness import target

ID_MAX = 40


class Tables:
    """A store whose tables know some of their last steps."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.table = RoutingTable.of(0, 0, {}, ())

    def change(self) -> None:
        rng, before = self._rng, self.table
        targets = dict(before.targets)
        changed = frozenset(rng.sample(range(1, ID_MAX), rng.randint(1, 5)))
        for id_ in changed:
            targets.pop(id_, None)
            if rng.random() < 0.7:
                targets[id_] = target(id_, f"http://{rng.random()}/")
        known = rng.randint(0, 4)
        steps = (*before.steps, RoutingStep(before.version, changed))[-known:] if known else ()
        self.table = RoutingTable(0, before.version + 1, {}, targets, steps=steps)

    def data_version(self) -> int:
        return self.table.version

    def snapshot(self) -> RoutingTable:
        return self.table

    def served(self, path: str) -> ServedBroker | None:
        return ServedBroker(path, DEFAULT_RULE)


@pytest.mark.parametrize("count", [1, 3])
def test_each_dispatcher_has_its_own_targets_of_the_newest_table(count: int) -> None:
    rng = random.Random(count)
    tables = Tables(rng)
    followed: list[dict[int, Target]] = [{} for _ in range(count)]
    last: list[RoutingTable | None] = [None] * count

    def follower(number: int) -> RoutingCache:
        def on_table(table: RoutingTable) -> None:
            """As whoever follows takes it up: what may have changed, and nothing else."""
            for id_ in table.changed_since(last[number]):
                followed[number].pop(id_, None)
                if id_ in table.targets:
                    followed[number][id_] = table.targets[id_]
            last[number] = table

        return RoutingCache(tables, on_table, Shard(number, count))

    caches = [follower(number) for number in range(count)]
    for _ in range(300):
        tables.change()
        for number, cache in enumerate(caches):
            if rng.random() < 0.6:
                cache.refresh_now()
                owned = {id_: one for id_, one in tables.table.targets.items() if Shard(number, count).owns(id_)}
                assert followed[number] == owned
                some = rng.randrange(1, ID_MAX)
                assert cache.find(some) == tables.table.targets.get(some), "whichever dispatcher's it is"
