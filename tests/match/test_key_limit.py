"""However many kinds of keys there are, every row is looked up by one, and only by one that asks for less."""

from __future__ import annotations

import json
import random

import pytest

from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import KeyKind, KeyPart, Operand, Root
from headgate.match import key_specs
from headgate.match.key_specs import SCAN, BrokerTable, Key, choose
from headgate.match.keys import Secrets
from tests.filter.strategies import random_hard_filter
from tests.support import times


def part(name: str, root: Root = Root.DATA) -> KeyPart:
    return KeyPart(Operand(root, (name,)), KeyKind.STRING)


def key(*parts: KeyPart) -> Key:
    return tuple(sorted(parts))


def test_keys_that_fit_stay_themselves() -> None:
    keys = {key(part(f"p{number}")): 1 for number in range(10)}
    assert choose(keys, keys_max=10) == {one: one for one in keys}
    assert choose({}, keys_max=10) == {}


def test_the_keys_with_the_most_rows_stay_themselves() -> None:
    keys = {key(part(f"p{number:02}")): 100 - number for number in range(20)}
    chosen = choose(keys, keys_max=8)
    assert [one for one, kept in chosen.items() if one == kept and keys[one] > 94] == list(keys)[:6]
    assert len(set(chosen.values())) <= 8


def test_what_does_not_fit_shares_its_most_useful_part() -> None:
    kind = part("type", root=Root.CE)
    rare = {key(kind, part(f"p{number:02}")): 1 for number in range(40)}
    chosen = choose({key(part("often")): 100, **rare}, keys_max=8)
    assert chosen[key(part("often"))] == key(part("often"))
    assert {chosen[one] for one in rare if chosen[one] != one} == {key(kind)}


def test_what_has_no_part_at_all_is_a_scan() -> None:
    keys = {row.signature.key: 1 for row in compile_cel("data.a != 1 || data.b != 'x'").rows}
    assert set(choose(keys, keys_max=1).values()) == {SCAN}


@pytest.mark.parametrize("keys_max", [1, 2, 8, 64])
def test_a_coarser_key_has_only_parts_of_the_row_s_own(keys_max: int) -> None:
    rng = random.Random(keys_max)
    keys = {row.signature.key for _ in range(times(250, 500)) for row in compile_cel(random_hard_filter(rng)).rows}
    chosen = choose(dict.fromkeys(keys, 1), keys_max=keys_max)
    assert chosen.keys() == keys
    assert keys_max - 1 <= len(set(chosen.values())) <= keys_max  # one less where the scan is among the many
    assert all(set(kept) <= set(one) for one, kept in chosen.items())


def test_rows_that_are_looked_up_by_less_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_specs, "BROKER_KEYS_MAX", 8)
    filters = [compile_cel(f'ce.a{number} == "x" && ce.b{number} == "y"') for number in range(12)]
    made = BrokerTable("default/main", Secrets(1, 1))
    for first, count, exact_max in ((0, 8, 8), (8, 12, 7)):
        made.change(dict(enumerate(filters[first:count], first)))
        whole = [len(parts) for _, parts in json.loads(made.key_spec)["keys"]].count(2)
        exact = [bool(row[2]) for some in made.rows.values() for row, targets in some.items() for _ in targets]
        assert len(exact) == count
        assert exact.count(True) == whole <= exact_max, "a key of both parts is of one filter"
