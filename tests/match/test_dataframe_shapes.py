"""Does every row find a shape, however many shapes there are, and only one that asks for less?"""

from __future__ import annotations

import random

import pytest

from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import SCAN_CANDIDATE, KeyKind, KeyPart, Operand, Root, Signature
from headgate.match.shapes import SCAN, Shape, choose, fit, readable_part
from tests.filter.strategies import random_hard_filter


def part(name: str, kind: KeyKind = KeyKind.STRING, length: int = 0, root: Root = Root.DATA) -> KeyPart:
    return KeyPart(Operand(root, (name,)), kind, length)


def shape(*parts: KeyPart) -> Shape:
    return Shape(tuple(sorted(parts)))


def test_shapes_that_fit_stay_themselves() -> None:
    shapes = {shape(part(f"p{number}")): 1 for number in range(10)}
    assert choose(shapes, shapes_max=10) == {one: one for one in shapes}
    assert choose({}, shapes_max=10) == {}


def test_the_shapes_with_the_most_rows_stay_themselves() -> None:
    shapes = {shape(part(f"p{number:02}")): 100 - number for number in range(20)}
    chosen = choose(shapes, shapes_max=8)
    assert [one for one, compiled in chosen.items() if one == compiled and shapes[one] > 94] == list(shapes)[:6]
    assert len(set(chosen.values())) <= 8


def test_what_does_not_fit_shares_its_most_useful_part() -> None:
    kind = part("type", root=Root.CE)
    rare = {shape(kind, part(f"p{number:02}")): 1 for number in range(40)}
    chosen = choose({shape(part("often")): 100, **rare}, shapes_max=8)
    assert chosen[shape(part("often"))] == shape(part("often"))
    assert {chosen[one] for one in rare if chosen[one] != one} == {shape(kind)}


def test_what_has_no_part_at_all_is_a_scan() -> None:
    shapes = {readable_part(row.signature).shape: 1 for row in compile_cel("data.a != 1 || data.b != 'x'").rows}
    assert set(choose(shapes, shapes_max=1).values()) == {SCAN}


@pytest.mark.parametrize("shapes_max", [1, 2, 8, 64])
def test_a_coarser_shape_asks_for_less_and_never_decides(shapes_max: int) -> None:
    rng = random.Random(shapes_max)
    signatures = {row.signature for _ in range(500) for row in compile_cel(random_hard_filter(rng)).rows}
    parts = {signature: readable_part(signature) for signature in signatures}
    chosen = choose({one.shape: 1 for one in parts.values()}, shapes_max=shapes_max)
    assert shapes_max - 1 <= len(set(chosen.values())) <= shapes_max  # one less where the scan is among the many
    for signature, one in parts.items():
        fitted = fit(one, chosen[one.shape])
        assert [signature.key[index] for index in fitted.key] == list(fitted.shape.key)
        assert [signature.residual[index] for index in fitted.residual] == list(fitted.shape.residual)
        whole = len(fitted.key) == len(signature.key) and len(fitted.residual) == len(signature.residual)
        assert fitted.exact == (signature.exact and whole)


def test_a_condition_that_spark_cannot_read_is_dropped() -> None:
    time = part("time", root=Root.CE)
    nested = KeyPart(Operand(Root.CE, ("a", "b")), KeyKind.STRING)
    one = readable_part(Signature((time, nested, part("x")), ()))
    assert (one.shape, one.key, one.exact) == (Shape((part("x"),)), (2,), False)
    assert readable_part(SCAN_CANDIDATE).shape == SCAN
