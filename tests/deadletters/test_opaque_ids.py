"""Opaque ids: each stands for one id, and says nothing of how many there are."""

from __future__ import annotations

import itertools
import random
from contextlib import closing
from pathlib import Path

import pytest

from headgate.deadletters.own import NOBODYS, OpaqueIds, opaque_ids
from headgate.objects.store.store import Store
from headgate_api.errors import UnavailableError

IDS = OpaqueIds(bytes(range(32)))
TOP = (1 << 52) - 1
"""The last id."""


def test_each_stands_for_one_id_and_back() -> None:
    numbers = [*range(1, 2_000), TOP, *random.Random(7).sample(range(1, TOP), 2_000)]
    shown = [IDS.shown(number) for number in numbers]
    assert [IDS.meant(one) for one in shown] == numbers
    assert [IDS.shown(IDS.meant(number)) for number in numbers] == numbers
    assert len(set(shown)) == len(set(numbers))
    assert min(shown) > 0
    assert max(shown) <= TOP


def test_0_is_nobodys_and_what_would_be_shown_as_0_is_not() -> None:
    lost = IDS._permuted(0, range(9, -1, -1))
    assert IDS._permuted(lost, range(10)) == 0
    assert IDS.meant(IDS.shown(lost)) == lost
    assert IDS.shown(lost) != 0
    for number in (0, -1, TOP + 1, (1 << 63) - 1):
        assert IDS.meant(number) == NOBODYS


def test_they_tell_neither_order_nor_distance() -> None:
    """Of neighbours about half rise, and what they differ by is spread over all numbers."""
    shown = [IDS.shown(number) for number in range(1, 4_002)]
    steps = [after - before for before, after in itertools.pairwise(shown)]
    assert 1_800 < sum(step > 0 for step in steps) < 2_200
    assert sum(abs(step) < TOP // 100 for step in steps) < 120
    for bit in range(52):
        assert 1_800 < sum(one >> bit & 1 for one in shown) < 2_200


def test_without_a_secret_none_are_made(tmp_path: Path) -> None:
    """A key that is empty would be everybody's."""
    with closing(Store.open(tmp_path / "control.db")) as store:
        with pytest.raises(UnavailableError):
            opaque_ids(store.server_secret)
        store.server_secret.prepare()
        assert opaque_ids(store.server_secret).shown(1) == opaque_ids(store.server_secret).shown(1) != 1


def test_another_key_has_others(tmp_path: Path) -> None:
    assert OpaqueIds(bytes(32)).shown(1) != IDS.shown(1)
    keys = []
    for name in ("a", "b"):
        with closing(Store.open(tmp_path / name)) as store:
            assert store.server_secret.key("x") == b""
            store.server_secret.prepare()
            keys.append(store.server_secret.key("x"))
            store.server_secret.prepare()
            assert store.server_secret.key("x") == keys[-1] != store.server_secret.key("y")
    assert keys[0] != keys[1]
