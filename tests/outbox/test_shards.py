"""Shards: every target has one owner, and work is spread evenly whatever numbers targets have."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.outbox.shards import WHOLE, Shard, dispatcher_of, dispatchers_of
from headgate_api.limits import DISPATCHERS_MAX

TARGETS = st.integers(0, (1 << 31) - 1)


@given(TARGETS, st.integers(1, DISPATCHERS_MAX))
def test_a_target_has_exactly_one_owner(target: int, count: int):
    owners = [index for index in range(count) if Shard(index, count).owns(target)]
    assert owners == [dispatcher_of(target, count)]


@given(st.lists(TARGETS), st.integers(1, DISPATCHERS_MAX))
def test_many_have_the_owners_of_each(targets: list[int], count: int):
    found = dispatchers_of(pa.array(targets, pa.int32()), count)
    assert found.to_pylist() == [dispatcher_of(target, count) for target in targets]


@given(TARGETS)
def test_the_only_dispatcher_owns_everything(target: int):
    assert WHOLE.owns(target)


def test_the_hash_never_changes():
    """It is in files and in Java: another hash would need a re-partitioning."""
    assert [dispatcher_of(target, 2) for target in range(12)] == [0, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 1]
    assert [dispatcher_of((1 << 31) - 1 - back, 16) for back in range(4)] == [14, 4, 10, 0]


@pytest.mark.parametrize("step", [1, 2, 3, 16, 1_000, 1_024])
@pytest.mark.parametrize("count", [2, 3, 4, 16])
def test_targets_are_spread_evenly(step: int, count: int):
    owned = [0] * count
    for number in range(10_000):
        owned[dispatcher_of(number * step, count)] += 1
    assert max(owned) < 1.1 * 10_000 / count
