"""Names in filters that no event has had: which are told, what was probably meant, and which are left alone."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.filter.cel.errors import FilterError
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.tools.advice import SeenNames, UnseenName, UnseenNames, _edits, nearest, unknown_name
from headgate_api import limits

SEEN = SeenNames(
    types=frozenset({"com.shop.order", "com.shop.order.paid", "com.shop.v1"}),
    sources=frozenset({"/shop/berlin"}),
    attributes=frozenset({"tenant", "region"}),
)


def unseen(plan: CompiledFilter, seen: SeenNames) -> tuple[UnseenName, ...]:
    return UnseenNames(seen).of(plan)


def told(cel: str, seen: SeenNames = SEEN) -> list[tuple[str, str, str]]:
    """Reason, name and what was meant."""
    return [(one.reason, one.written, one.meant) for one in unseen(compile_filter({"cel": cel}), seen)]


@pytest.mark.parametrize(
    ("cel", "reason", "written", "meant"),
    [
        ('ce.type == "com.shop.ordr"', "TypeUnseen", "com.shop.ordr", "com.shop.order"),
        ('ce.type != "com.shop.ordr"', "TypeUnseen", "com.shop.ordr", "com.shop.order"),
        ('"com.shop.odrer" == ce.type', "TypeUnseen", "com.shop.odrer", "com.shop.order"),
        (
            'ce.type in ["com.shop.order", "com.shop.order.pad"]',
            "TypeUnseen",
            "com.shop.order.pad",
            "com.shop.order.paid",
        ),
        ('data.x > 1 && ce.type == "com.shop.ordr"', "TypeUnseen", "com.shop.ordr", "com.shop.order"),
        ('ce.type == "COM.SHOP.ORDER"', "TypeUnseen", "COM.SHOP.ORDER", "com.shop.order"),
        ('ce.source == "/shop/berln"', "SourceUnseen", "/shop/berln", "/shop/berlin"),
        ('ce.tennant == "a"', "AttributeUnseen", "tennant", "tenant"),
        ("has(ce.tennant)", "AttributeUnseen", "tennant", "tenant"),
        ('ce["regoin"].startsWith("eu")', "AttributeUnseen", "regoin", "region"),
    ],
)
def test_what_was_probably_meant(cel: str, reason: str, written: str, meant: str) -> None:
    assert told(cel) == [(reason, written, meant)]


@pytest.mark.parametrize(
    "cel",
    [
        'ce.type == "com.shop.order"',
        'ce.type == "com.shop.refund"',  # it may come yet
        'ce.type == "com.shop.v2"',  # after v1
        'ce.type == ""',
        'ce.source == "/warehouse"',
        'ce.tenant == "a" && ce.region == "b"',
        'ce.subject == "com.shop.ordr"',
        'data.type == "com.shop.ordr"',
        'ce.type.startsWith("com.shop.ordr")',
        'ce.traceparent == "x"',
        'ce.sourc == "/shop/berlin"',  # of an attribute of CloudEvents it is told anyway
        "true",
    ],
)
def test_what_is_right_or_may_come_is_left_alone(cel: str) -> None:
    assert told(cel) == []


def test_every_dialect_is_looked_at() -> None:
    for spec in (
        ({"attributes": {"type": "com.shop.ordr", "tennant": "a"}}, []),
        ({"cesql": "type = 'com.shop.ordr' AND tennant = 'a'"}, []),
        ({"jms": "type = 'com.shop.ordr' AND tennant = 'a'"}, []),
        (None, [{"exact": {"type": "com.shop.ordr"}}, {"not": {"prefix": {"tennant": "a"}}}]),
    ):
        found = {(one.written, one.meant) for one in unseen(compile_filter(*spec), SEEN)}
        assert found == {("com.shop.ordr", "com.shop.order"), ("tennant", "tenant")}, spec


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert told('ce.type == "com.shop.ordr" && ce.tennant == "a"', SeenNames()) == []
    assert told('ce.type == "com.shop.ordr"', SeenNames(attributes=SEEN.attributes)) == []


def test_sentences_quote_what_somebody_else_wrote() -> None:
    seen = SeenNames(types=frozenset({'a\x1b[2J"order'}))
    (one,) = unseen(compile_filter({"cel": 'ce.type == "a\\u001b[2J\\"ordr"'}), seen)
    assert "\x1b" not in one.message
    assert one.message.startswith("no event of type ")
    assert "did you mean" in one.message


def test_a_name_that_there_is_not_may_be_an_attribute() -> None:
    for cel, meant in (('tennant == "a"', "ce.tenant"), ('tenant == "a"', "ce.tenant")):
        with pytest.raises(FilterError) as caught:
            compile_filter({"cel": cel})
        found = unknown_name(caught.value, SEEN)
        assert found is not None
        assert (found.reason, found.meant) == ("NameUnknown", meant)
        assert found.message == f"there is no name {found.written}; did you mean {meant}?"
    for cel in ('nothing == "a"', 'ce.type = "a"', "lower(ce.type) == 'a'", "data.x > 1 &&"):
        with pytest.raises(FilterError) as caught:
            compile_filter({"cel": cel})
        assert unknown_name(caught.value, SEEN) is None


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("ordr", "order", "order"),
        ("oder", "order", "order"),
        ("odrr", "order", ""),  # two letters of four
        ("order", "oredr", "oredr"),
        ("orders", "order", "order"),
        ("order.created", "order.deleted", ""),
        ("v10", "v9", ""),
        ("a1b", "a2c", ""),
        ("", "a", ""),
        ("x" * 300, "x" * 299, ""),
    ],
)
def test_what_is_nearly_the_same(name: str, known: str, meant: str) -> None:
    assert nearest(name, [known]) == meant


def levenshtein(a: str, b: str) -> int:
    """By the book, in all of the table."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        new = [i]
        for j, other in enumerate(b, 1):
            new.append(min(row[j] + 1, new[-1] + 1, row[j - 1] + (one != other)))
        row = new
    return row[-1]


NAMES = st.text("abc", max_size=8)


@given(NAMES, NAMES)
@example("ab", "ba")
@example("abcabc", "bcabca")
def test_differing_letters_are_counted_as_levenshtein_does(a: str, b: str) -> None:
    assert _edits(a, b) == min(levenshtein(a, b), 3)


def test_the_nearest_of_several_and_of_equal_ones_always_the_same() -> None:
    assert nearest("tenannt", ["tenants", "tenant", "tenan"]) == "tenant"
    assert nearest("abcdef", ["abcdex", "abcdez", "abcdey"]) == "abcdex"


def test_of_more_names_than_a_limit_nothing_is_said() -> None:
    found = UnseenNames(SEEN, names_max=2)
    first = compile_filter({"cel": 'ce.type == "com.shop.ordr" && ce.tennant == "a"'})
    assert len(found.of(first)) == 2
    assert found.of(compile_filter({"cel": 'ce.source == "/shop/berln"'})) == ()
    assert len(found.of(first)) == 2, "what is known is told again"


def test_hostile_names_cost_little() -> None:
    """As many types as a catalogue has, all alike and long, and a filter with more of them than are looked at."""
    alike = ["a" * 80 + chr(98 + number % 20) * (number % 10) + "c" * 9 for number in range(limits.CATALOGUE_ITEMS_MAX)]
    seen = SeenNames(types=frozenset(alike), sources=frozenset(alike))
    constants = ", ".join(f'"{"a" * 80}{"z" * (number % 10)}{number}"' for number in range(60))
    plan = compile_filter({"cel": f"ce.type in [{constants}]"})
    begun = time.process_time()
    unseen(plan, seen)
    assert time.process_time() - begun < 2.0
