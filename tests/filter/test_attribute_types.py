"""CEL that treats an attribute as what it never is: a wrong type is refused with its place, a wrong name is told."""

from __future__ import annotations

import pytest

from headgate.filter.cel.errors import FilterError
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.tools.advice import advice

REFUSED = [
    ("ce.type", ".", "ce.type is a string, and neither true nor false", 'compare it: ce.type == "..."'),
    ('has(ce.x) && !ce["type"]', "[", 'ce["type"] is a string, and neither true nor false', "compare it"),
    ("ce.x == 1 ? ce.type : false", ".type", "ce.type is a string, and neither", "compare it"),
    ("data.l.exists(x, ce.source)", ".source", "ce.source is a string, and neither", "compare it"),
    ("ce.time", ".", "ce.time is a timestamp, and neither true nor false", "has(ce.time)"),
    ("ce.type == 5", "==", "ce.type is a string, and 5 is an int", 'write "5"'),
    ("data.x == 1 || 5u != ce.type", "!=", "ce.type is a string, and 5u is a uint", 'write "5"'),
    ('ce.id > 5 && ce.source.match("/a*")', ">", "ce.id is a string, and 5 is an int", 'write "5"'),
    ("ce.type == true", "==", "ce.type is a string, and true is a bool", 'write "true"'),
    ("ce.subject == null", "==", "ce.subject is a string, and never null", "write !has(ce.subject)"),
    ("ce.subject != null", "!=", "ce.subject is a string, and never null", "write has(ce.subject)"),
    ("ce.type in [1, 2]", "in", "ce.type is a string, and 1 is an int", 'write "1"'),
    ('"a" in ce.subject', "in", "ce.subject is a string, and no list", "write ce.subject.contains(...)"),
    (
        'ce.time > "2026-01-01T00:00:00Z"',
        ">",
        'ce.time is a timestamp, and "2026-01-01T00:00:00Z" is a string',
        'write timestamp("2026-01-01T00:00:00Z")',
    ),
    ('ce.time.startsWith("2026")', '("', "ce.time is a timestamp, and startsWith() is of strings", "string(ce.time)"),
    ("ce.time == ce.type", "==", "ce.time is a timestamp, and ce.type is a string", "dyn(x)"),
]


@pytest.mark.parametrize(("text", "at", "reason", "hint"), REFUSED)
@pytest.mark.parametrize("dialect", ["cel", "expression"])
def test_a_wrong_type_is_refused(text: str, at: str, reason: str, hint: str, dialect: str) -> None:
    for filters in ({dialect: text}, []), (None, [{dialect: text}]):
        with pytest.raises(FilterError) as refused:
            compile_filter(*filters)
        error = refused.value
        assert error.reason.startswith(reason)
        assert hint in error.hint
        assert error.position == text.index(at)
        assert error.caret == f"{text}\n{' ' * text.index(at)}^"
        assert error.field == (f"filter.{dialect}" if filters[0] else f"filters[0].{dialect}")


@pytest.mark.parametrize(
    "text",
    [
        "dyn(ce.type) == 5",
        "ce.tenant == 5 || ce.tenant",
        "ce.tenant == null",
        "ce.type in [1, 'a']",
        "ce.type == data.x",
        "ce.time == null",
        "ce.time > timestamp('2026-01-01T00:00:00Z') && string(ce.time).startsWith('2026')",
        "data.l.exists(ce, ce.type == 5)",
        "!data.l.exists(ce, ce.type == 5)",
        "data.x ? data.l.all(ce, ce.type) : data.l == data.l.filter(ce, ce.type == 5)",
        "int(ce.id) > 5 && size(ce.type) == 5",
        "ce.type < 'b' && ce.type >= ce.source",
    ],
)
def test_what_may_hold_is_not(text: str) -> None:
    assert compile_filter({"cel": text}).rows


def test_other_dialects_may_say_what_is_never_true() -> None:
    assert compile_filter({"jms": "JMSType = 5"})
    assert compile_filter({"eventPattern": {"type": [5, None]}})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('ce.Type == "a"', "Type"),
        ('ce["my-ext"] == "a"', "my-ext"),
        ("has(ce.`my-ext`) && ce . Foo == 'a' && ce.Foo != 'b'", "my-ext, Foo"),
        ("r'Bar' in ce && 'x' in ce.Labels", "Bar, Labels"),
        ("ce['Github.repository'] == 'x'", "Github.repository"),
        ("ce.data.x == 1", "data"),
    ],
)
def test_a_name_that_no_attribute_has_is_told(text: str, names: str) -> None:
    assert compile_filter({"cel": text}).rows
    (said,) = advice({"cel": text})
    assert said.reason == "NameImpossible"
    assert said.message.startswith(f"spec.filter.cel reads {names}: no event has it")
    (said,) = advice(None, [{"not": {"expression": text}}])
    assert said.message.startswith(f"spec.filters[0].not.expression reads {names}: ")


@pytest.mark.parametrize(
    "text",
    [
        "ce.type == 'ce.Type' // ce.Foo\n && data.ce.Type == 1",
        "ce.github.Repository == 'x' && ce['github.Repository'] == 'x' && nice.Type",
        "'''ce.Foo''' == ce.x && ce.time.getHours() == 3 && \"\"\"ce['Foo']\"\"\" == 'Foo'",
        r'ce["\x74ype"] == "a"',
    ],
)
def test_a_name_that_one_may_have_is_not(text: str) -> None:
    assert advice({"cel": text}) == ()


def test_a_name_that_is_nearly_an_attribute_is_told() -> None:
    for filters in ({"cel": "ce.typ == 'a'"}, {"jms": "typ = 'a'"}):
        (said,) = advice(filters)
        assert said.reason == "NameUnlikely"
        assert said.message.endswith("did you mean type?")
    assert advice({"cel": "ce.tenant == 'a' && ce.partitionkey == 'b' && ce.type == 'c'"}) == ()
