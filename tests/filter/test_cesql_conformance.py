"""The public cases of CESQL 1.0: value and error, both computed by cel-cpp from the translation."""

from __future__ import annotations

from conformance import cesql
from headgate_conformance.broker import CaseStatus
from tests.support import conformance


def test_public_cases() -> None:
    with conformance("cesql.jsonl").open("rb") as file:
        results = list(cesql.run(file))
    assert len(results) >= 188
    assert [result for result in results if result.verdict is not CaseStatus.PASSED] == []
