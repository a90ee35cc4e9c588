"""A tree that is filled is the one that cel-cpp would have given, and cel-cpp is not asked for it."""

from __future__ import annotations

import random
import re

import pytest

from headgate.filter.cel import parsing
from headgate.filter.cel.engine import compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.parsing import Checked, checked
from tests.filter.strategies import random_filter, random_hard_filter
from tests.support import times

TEXTS = ("", "a", "$0$", "$1$", "it's", "//", "data", "b // c", "{}[]()", "x" * 60)


def asked(text: str) -> Checked | str:
    """What cel-cpp says of the text itself."""
    try:
        expression = compile_expression(text)
        return Checked(expression.result_type(), expression.tree())
    except FilterError as error:
        return str(error)


def found(text: str) -> Checked | str:
    try:
        return checked(text)
    except FilterError as error:
        return str(error)


def with_other_texts(rng: random.Random, text: str) -> str:
    return re.sub(r'"[a-z.0-9]*"', lambda _: f'"{rng.choice(TEXTS)}"', text)


@pytest.mark.parametrize("make", [random_filter, random_hard_filter])
def test_random_filters_have_their_own_tree(make) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(7)
    for _ in range(times(150, 400)):
        text = make(rng)
        for one in (text, with_other_texts(rng, text), with_other_texts(rng, text)):
            assert found(one) == asked(one), one


@pytest.mark.parametrize(
    "text",
    [
        'ce.type == "{}"',
        '"{}" != ce.type && data.a == "{}"',
        'data.region in ["{}", "us", \'de\', r"{}"]',
        'data.l.exists(x, x == "{}") || data.l.all(x, x.a in ["{}"])',
        'data["{}"] == "a"',
        '"{}" in ce',
        'ce.type.startsWith("{}") && data.a == "{}"',
        'data.a.matches("{}") || data.a == "b"',
        'data.a == "b" + "{}"',
        'data.a == "{}" // "c"',
        'data.a == """{}""" && data.b == "c"',
        'data.a == "\\x41{}" && data.b == "c"',
        'data.a == b"{}" && data.b == "c"',
        'data == {{"{}": "a"}}',
        'has(data.`a-b`) && data.`a-b` == "{}"',
        'ce.type == "{}" && ',
        'size("{}") == "a"',
        'match("{}", "a*") && data.a == "c"',
        'data.a == "$0$" || data.b == \'$0$\' || data.c == "{}"',
    ],
)
def test_texts_wherever_they_stand(text: str) -> None:
    for one in TEXTS:
        whole = text.replace("{}", one).replace("{{", "{").replace("}}", "}")
        assert found(whole) == asked(whole), whole


def test_texts_that_are_compared_cost_no_second_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(text: str, **options: int):  # type: ignore[no-untyped-def]
        made.append(text)
        return compile_expression(text, **options)

    parsing._template.cache_clear()
    monkeypatch.setattr(parsing, "compile_expression", counted)
    for number in range(5):
        found = checked(f'ce.type == "t{number}" && data.region in ["eu-{number}", "us"]')
        assert f"t{number}" in str(found.tree)
    assert len(made) == 1
    parsing._template.cache_clear()
