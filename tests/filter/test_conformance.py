"""The public CEL conformance cases, through wrapper and rewriter: what filters can write means what CEL says."""

from __future__ import annotations

import pytest
from conformance.cases import judged, read

from conformance import cel
from headgate.filter.cel.engine import compile_expression
from headgate.filter.cel.rewrite import rewrite
from headgate.filter.cel.unparse import unparse
from headgate_conformance.broker import CaseStatus
from tests.support import conformance, times

NOT_OF_FILTERS = {"bindings_ext", "encoders_ext", "macros2", "optionals"}
"""Files about functions and macros that filters do not have."""
ENGINE_FAILS_MAX = 7
"""Cases of the file that cel-expr-python 0.1.3 fails by itself."""


@pytest.mark.slow  # the next one evaluates nine cases in ten of these
def test_cases_as_written() -> None:
    with conformance("cel.jsonl").open("rb") as file:
        results = list(cel.run(file))
    assert len(results) >= 1151
    assert [result for result in results if result.verdict is CaseStatus.FAILED] == []
    assert sum(result.verdict is CaseStatus.KNOWN for result in results) == len(cel.KNOWN) <= ENGINE_FAILS_MAX


def test_cases_after_rewriting() -> None:
    def rewritten(text: str) -> str:
        return unparse(rewrite(compile_expression(text).tree()))

    with conformance("cel.jsonl").open("rb") as file:
        cases = [
            case
            for case in read(file, cel.CelCase)
            if case.id.partition("/")[0] not in NOT_OF_FILTERS
            and not (case.bindings or case.type_env or case.container or case.disable_check or case.check_only)
        ]
    assert len(cases) > 900
    results = [judged(case.id, cel.fault(case, rewritten), cel.KNOWN) for case in cases[:: times(3, 1)]]
    assert [result for result in results if result.verdict is CaseStatus.FAILED] == []
