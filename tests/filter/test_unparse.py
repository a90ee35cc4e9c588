"""Canonical text: parsing it gives the tree again, so that text can stand for meaning."""

from __future__ import annotations

import json
import random

import pytest

from headgate.filter.cel.engine import compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.unparse import unparse
from tests.filter.strategies import random_hard_filter
from tests.support import conformance, times


def tree(text: str):
    return compile_expression(text).tree()


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("ce . type=='a'", 'ce.type == "a"'),
        ("ce.`in`", 'ce["in"]'),
        ("has(ce.`in`)", "has(ce.`in`)"),
        ("data['a b'].c", 'data["a b"].c'),
        ("(data.a) && ((data.b || data.c))", "data.a && (data.b || data.c)"),
        ("!(data.a && data.b)", "!(data.a && data.b)"),
        ("!(!data.a)", "!(!data.a)"),
        ("-(data.a)", "-(data.a)"),
        ("-data.a.b", "-(data.a.b)"),
        ("data.a - (data.b - data.c)", "data.a - (data.b - data.c)"),
        ("data.a - data.b - data.c", "data.a - data.b - data.c"),
        ("(data.a + data.b) * data.c % 2", "(data.a + data.b) * data.c % 2"),
        ("(data.a == data.b) == data.c", "data.a == data.b == data.c"),
        ("data.a == (data.b == data.c)", "data.a == (data.b == data.c)"),
        ("(data.a ? data.b : data.c) ? data.d : data.e", "(data.a ? data.b : data.c) ? data.d : data.e"),
        ("data.a ? data.b : data.c ? data.d : data.e", "data.a ? data.b : data.c ? data.d : data.e"),
        ("data.a ? (data.b ? true : false) : data.c", "data.a ? (data.b ? true : false) : data.c"),
        ("data.x == -1", "data.x == -1"),
        ("data.x - -1", "data.x - -1"),
        ("data.x == 5u", "data.x == 5u"),
        ("data.x == 1e3", "data.x == 1000.0"),
        ("data.x < 1e999", "data.x < 1e999"),
        ("data.x > -1e999", "data.x > -1e999"),
        ("data.x == -9223372036854775808", "data.x == -9223372036854775808"),
        ("data.x == 'a\\n\"\\\\\\u0001é\\x7f'", 'data.x == "a\\n\\"\\\\\\u0001é\\u007f"'),
        ("data.x == b'\\xff\\x00a'", 'data.x == b"\\xff\\x00\\x61"'),
        ("data.x == r'\\d'", 'data.x == "\\\\d"'),
        ("data.x == null", "data.x == null"),
        ("data.x in [1, 'a', {'k': [true]}]", 'data.x in [1, "a", {"k": [true]}]'),
        ("data.l.exists(x, x.y == 1)", "data.l.exists(x, x.y == 1)"),
        ("data.l.all(x, x.exists(y, y == x))", "data.l.all(x, x.exists(y, y == x))"),
        ("data.l.exists_one(x, x > 1)", "data.l.exists_one(x, x > 1)"),
        ("data.l.map(x, x + 1) == [2]", "data.l.map(x, x + 1) == [2]"),
        ("data.l.map(x, x > 1, x + 1) == [2]", "data.l.map(x, x > 1, x + 1) == [2]"),
        ("data.l.filter(x, x > 1) == [2]", "data.l.filter(x, x > 1) == [2]"),
        ("data.l[0] == 1", "data.l[0] == 1"),
        ("size(data.l) == 1 && data.l.size() == 1", "size(data.l) == 1 && data.l.size() == 1"),
        ("timestamp('2020-01-01T00:00:00Z') < ce.time", 'timestamp("2020-01-01T00:00:00Z") < ce.time'),
        ("google.protobuf.Timestamp{seconds: 1} == ce.time", "google.protobuf.Timestamp{seconds: 1} == ce.time"),
        ("type(data.x) == int", "type(data.x) == int"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert unparse(tree(text)) == canonical
    assert unparse(tree(canonical)) == canonical


def test_generated_filters_keep_their_tree() -> None:
    rng = random.Random(11)
    for _ in range(times(200, 2_000)):
        text = unparse(tree(random_hard_filter(rng, 3)))
        assert unparse(tree(text)) == text


def test_every_conformance_expression_keeps_its_tree() -> None:
    count = 0
    for line in conformance("cel.jsonl").read_text().splitlines():
        try:
            expression = compile_expression(json.loads(line)["expr"])
        except FilterError:
            continue  # variables and functions that filters do not have
        text = unparse(expression.tree())
        assert unparse(tree(text)) == text
        count += 1
    assert count > 700
