"""No event for which a filter is true or an error escapes its error-preserving plan."""

from __future__ import annotations

import pytest

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.conjunctions import preserve_errors
from headgate.filter.compile.plan import KeyKind, PlanRow
from headgate_api.event.model import DataKind, Event

EVENTS = [
    Event("1.0", "1", "/s", type_, data_kind=DataKind.JSON, data=data, extensions=extensions)
    for type_ in ("a", "b", "ab")
    for data in (b"{}", b'{"n":1}', b'{"n":"x"}', b'{"n":20,"m":{"k":true}}', b"[]", b"7")
    for extensions in ({}, {"tenant": "t"})
]
FILTERS = [
    "true",
    "false",
    'ce.type == "a" && data.n > 17',
    'data.n > 17 && ce.type == "a"',
    'ce.type == "a" || data.n == 20',
    'ce.tenant == "t"',
    'ce.tenant == "t" && ce.type.startsWith("a")',
    '!(ce.type == "a") && data.m.k',
    'ce.type in ["a", "b"] && (data.n == 1 || data.m.k)',
    'ce.type == "a" ? data.n > 1 : ce.tenant == "t"',
    "has(data.m.k) && data.m.k",
]


def names(row: PlanRow, event: Event) -> bool:
    """Whether the row's key meets the event; residuals may only be more careful, they are left out."""
    attributes = {"type": event.type, "source": event.source, "id": event.id, "specversion": event.specversion}
    for part, wanted in zip(row.signature.key, row.key, strict=True):
        (name,) = part.operand.path
        value = attributes[name]
        if part.kind is KeyKind.PREFIX:
            value = value[: part.length]
        elif part.kind is KeyKind.SUFFIX:
            value = value[-part.length :]
        if value != wanted:
            return False
    return True


@pytest.mark.parametrize("text", FILTERS)
def test_every_error_is_named(text: str) -> None:
    compiled = preserve_errors(compile_cel(text))
    assert not any(row.signature.exact for row in compiled.rows)
    for event in EVENTS:
        if program(compiled.cel).evaluate(event).kind is not OutcomeKind.FALSE:
            assert any(names(row, event) for row in compiled.rows), event


def test_the_type_still_selects() -> None:
    (row,) = preserve_errors(compile_cel('ce.type == "a" && data.n > 17 && ce.tenant == "t"')).rows
    assert [part.operand.path for part in row.signature.key] == [("type",)]
    assert row.signature.residual == ()
