"""Each rule by examples, and all of them by what cel-cpp says before and after."""

from __future__ import annotations

import random

import pytest

from headgate.filter.cel import rewrite as rules
from headgate.filter.cel.engine import compile_expression
from headgate.filter.cel.unparse import unparse
from headgate.filter.compile.compiler import compile_cel
from tests.filter.hostile_events import random_view
from tests.filter.strategies import random_filter, random_hard_filter
from tests.support import times


def tree(text: str):
    return compile_expression(text).tree()


PAIRS = {
    rules.index_to_field: [
        ('data["a"]["b"] == 1', "data.a.b == 1"),
        ('ce["in"] == "a"', 'ce["in"] == "a"'),
        ("data[0] == 1", "data[0] == 1"),
        ("dyn(data.a) == 1", "data.a == 1"),
        ("dyn(ce) == 1", "dyn(ce) == 1"),
        ('data.l.exists(data, data["a"] == 1)', 'data.l.exists(data, data["a"] == 1)'),
        ('data.l.exists(x, data["a"] == x["b"])', 'data.l.exists(x, data.a == x["b"])'),
    ],
    rules.member_of_attribute: [
        ("ce.a.b.c == 1", 'ce["a.b.c"] == 1'),
        ("has(ce.a.b)", "has(ce.`a.b`)"),
        ("has(ce.a.b.`c/d`)", "has(ce.`a.b.c/d`)"),
        ("has(ce.a.`b.c`)", '"a.b\\\\.c" in ce'),
        ("ce.time.a == 1", "ce.time.a == 1"),
        ("data.a.b == 1", "data.a.b == 1"),
    ],
    rules.attribute_presence: [
        ('"x" in ce', "has(ce.x)"),
        ('"type" in ce', "true"),
        ('"a.b" in ce', "has(ce.`a.b`)"),
        ('"a:b" in ce', '"a:b" in ce'),
        ("has(ce.id)", "true"),
        ("has(ce.subject)", "has(ce.subject)"),
        ('"x" in data', '"x" in data'),
    ],
    rules.fold_constants: [
        ("data.x > 60 * 60", "data.x > 3600"),
        ("data.x > 2 - 3", "data.x > -1"),
        ("data.x > 1u - 2u", "data.x > 1u - 2u"),
        ("data.x > 9223372036854775807 + 1", "data.x > 9223372036854775807 + 1"),
        ("data.x > -(5)", "data.x > -5"),
        ("data.x > 0.5 + 0.25", "data.x > 0.75"),
        ('data.x == "a" + "b"', 'data.x == "ab"'),
        ('"a" < "b"', "true"),
        ("1 == 2", "false"),
        ("true > false", "true"),
        ("5 / 2 == data.x", "5 / 2 == data.x"),
    ],
    rules.constant_right: [
        ("1 < data.x", "data.x > 1"),
        ("1 <= data.x", "data.x >= 1"),
        ("1 > data.x", "data.x < 1"),
        ("1 >= data.x", "data.x <= 1"),
        ('"a" == ce.type', 'ce.type == "a"'),
        ('"a" != ce.type', 'ce.type != "a"'),
        ("data.x < data.y", "data.x < data.y"),
    ],
    rules.attribute_size: [
        ("size(ce.subject) > 0", 'ce.subject > ""'),
        ("ce.subject.size() != 0", 'ce.subject > ""'),
        ("size(ce.subject) >= 1", 'ce.subject > ""'),
        ("size(ce.subject) == 0", 'ce.subject <= ""'),
        ("size(ce.subject) < 1", 'ce.subject <= ""'),
        ("size(ce.subject) > 1", "size(ce.subject) > 1"),
        ("size(data.s) > 0", "size(data.s) > 0"),
        ("size(ce) > 0", "size(ce) > 0"),
    ],
    rules.plain_pattern: [
        ('ce.type.matches("^order\\\\.")', 'ce.type.startsWith("order.")'),
        ('ce.type.matches("created$")', 'ce.type.endsWith("created")'),
        ('matches(ce.type, "a-b/c")', 'ce.type.contains("a-b/c")'),
        ('ce.type.matches("^a$")', 'ce.type.matches("^a$")'),
        ('ce.type.matches("a.b")', 'ce.type.matches("a.b")'),
        ('ce.type.matches("\\\\d")', 'ce.type.matches("\\\\d")'),
        ('ce.type.matches("a|b")', 'ce.type.matches("a|b")'),
        ('ce.type.matches("")', 'ce.type.contains("")'),
    ],
    rules.sorted_list: [
        ('data.x in ["b", "a", "b"]', 'data.x in ["a", "b"]'),
        ("data.x in [2, 1.0, 1]", "data.x in [1.0, 1, 2]"),
        ("data.x in [2, data.y]", "data.x in [2, data.y]"),
        ("data.x in []", "data.x in []"),
    ],
}
CONDITION_PAIRS = {
    rules.fold_condition: [
        ("data.x && true", "data.x"),
        ("data.x && false", "false"),
        ("data.x || true", "true"),
        ("data.x || false", "data.x"),
        ("!true || data.x", "data.x"),
        ("true ? data.x : data.y", "data.x"),
        ("true && true", "true"),
        ("data.x == (true && data.y)", "data.x == (true && data.y)"),
    ],
    rules.flatten: [
        ("data.a && (data.b && (data.c && data.a))", "data.a && data.b && data.c"),
        ("data.a || (data.b || data.a)", "data.a || data.b"),
        ("data.a && data.a", "data.a"),
        ("(data.a && data.b) || data.c", "data.a && data.b || data.c"),
    ],
    rules.macros_last: [
        ("data.l.exists(x, x == 1) || data.c", "data.c || data.l.exists(x, x == 1)"),
        ("data.l.all(x, x > 1) && data.a || data.b", "data.b || data.a && data.l.all(x, x > 1)"),
        ("size(data.l.map(x, x)) > 1 && data.l.all(x, x)", "size(data.l.map(x, x)) > 1 && data.l.all(x, x)"),
        ("data.b || data.a", "data.b || data.a"),
    ],
}
NOT_PAIRS = [
    ("!(data.a && data.b)", "!data.a || !data.b"),
    ("!(data.a || !data.b)", "!data.a && data.b"),
    ("!(data.a == 1)", "data.a != 1"),
    ("!(data.a != data.b)", "data.a == data.b"),
    ("!(data.a < 1)", "data.a >= 1"),
    ("!(data.a < data.b)", "!(data.a < data.b)"),
    ("!(1.0 / data.a < 1.0)", "!(1.0 / data.a < 1.0)"),
    ("!has(data.a)", "!has(data.a)"),
    ("!(data.a in [1, 2])", "!(data.a in [1, 2])"),
    ("!(data.c ? data.a : data.b == 1)", "data.c ? !data.a : data.b != 1"),
    ("(!(!data.a)) == true", "!(!data.a) == true"),
]


@pytest.mark.parametrize(
    ("rule", "text", "expected"), [(rule, *pair) for rule, pairs in PAIRS.items() for pair in pairs]
)
def test_node_rule(rule, text: str, expected: str) -> None:
    assert unparse(rules.everywhere(rule)(tree(text))) == expected


@pytest.mark.parametrize(
    ("rule", "text", "expected"), [(rule, *pair) for rule, pairs in CONDITION_PAIRS.items() for pair in pairs]
)
def test_condition_rule(rule, text: str, expected: str) -> None:
    assert unparse(rules.conditions(rule)(tree(text))) == expected


@pytest.mark.parametrize(("text", "expected"), NOT_PAIRS)
def test_push_not(text: str, expected: str) -> None:
    assert unparse(rules.push_not(tree(text))) == expected


def test_every_rule_has_examples() -> None:
    assert set(PAIRS) == set(rules.NODE_RULES)
    assert set(CONDITION_PAIRS) == set(rules.CONDITION_RULES)
    assert rules.push_not in rules.RULES


def all_examples() -> list[str]:
    tables = [*PAIRS.values(), *CONDITION_PAIRS.values(), NOT_PAIRS]
    return [text for table in tables for pair in table for text in pair]


def test_examples_mean_the_same_before_and_after() -> None:
    rng = random.Random(21)
    views = [random_view(rng) for _ in range(200)]
    tables = [*PAIRS.values(), *CONDITION_PAIRS.values(), NOT_PAIRS]
    for text, expected in (pair for table in tables for pair in table):
        # Paths of the universe that the generated events are made of, so that the values are there.
        for old, new in (("data.a", "data.s"), ("data.x", "data.n"), ("data.c", "data.b"), ("data.y", "data.v")):
            text, expected = text.replace(old, new), expected.replace(old, new)
        # What a path means is said by `resolve`, which every evaluated filter has been through.
        before, after = unparse(rules.resolve(tree(text))), unparse(rules.resolve(tree(expected)))
        first, second = compile_expression(before), compile_expression(after)
        for view in views:
            assert first.evaluate(view.activation).kind == second.evaluate(view.activation).kind, text


def test_the_rewritten_filter_evaluates_as_the_original() -> None:
    rng = random.Random(22)
    views = [random_view(rng) for _ in range(300)]
    for number in range(times(150, 1_500)):
        text = (random_hard_filter if number % 2 else random_filter)(rng, 3)
        meaning = compile_cel(text).cel
        before, after = compile_expression(text), compile_expression(meaning)
        for view in rng.sample(views, 10):
            assert before.evaluate(view.activation).kind == after.evaluate(view.activation).kind, (text, view.event)


def test_rewriting_twice_changes_nothing() -> None:
    rng = random.Random(23)
    for text in [*all_examples(), *(random_hard_filter(rng, 3) for _ in range(times(150, 1_500)))]:
        once = rules.rewrite(tree(text))
        assert rules.rewrite(once) == once, text
