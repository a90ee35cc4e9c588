"""`celVersion` says which version of the language a CEL filter is written in; it is no filter itself."""

from __future__ import annotations

import pytest

from headgate.filter.cel.errors import FilterError
from headgate.filter.compile.compiler import compile_filter

TEXT = 'ce.type == "a"'


@pytest.mark.parametrize("dialect", ["cel", "expression"])
def test_the_only_version_changes_nothing(dialect: str) -> None:
    plain = compile_filter({dialect: TEXT})
    assert compile_filter({"celVersion": "1", dialect: TEXT}) == plain
    assert compile_filter(None, [{dialect: TEXT, "celVersion": "1"}]) == plain


@pytest.mark.parametrize(
    ("written", "field", "reason"),
    [
        ({"cel": TEXT, "celVersion": "2"}, ".celVersion", "is no version of the language"),
        ({"cel": TEXT, "celVersion": 1}, ".celVersion", "is no version of the language"),
        ({"cel": TEXT, "celVersion": ["1"]}, ".celVersion", "is no version of the language"),
        ({"cel": TEXT, "celVersion": None}, ".celVersion", "is no version of the language"),
        ({"celVersion": "1"}, ".celVersion", "is the version of a CEL filter, and there is none"),
        ({"jms": "a = 1", "celVersion": "1"}, ".celVersion", "is the version of a CEL filter, and there is none"),
        ({"cel": TEXT, "celVersion": "1", "attributes": {}}, "", "give one field, not several (attributes, cel)"),
    ],
)
def test_what_is_unknown_or_stands_alone_is_refused(written: dict[str, object], field: str, reason: str) -> None:
    for filters, path in (((written, []), "filter"), ((None, [written]), "filters[0]")):
        with pytest.raises(FilterError) as refused:
            compile_filter(*filters)
        assert refused.value.field == f"{path}{field}"
        assert refused.value.reason == reason
        assert refused.value.hint
