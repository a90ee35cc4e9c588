"""Tags against the cases of Pulsar's pull request 8544."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from headgate.conformance.cases import Result, compared, read
from headgate.conformance.outcomes import outcome_text
from headgate.filter.cel.engine import Activation, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.compile.compiler import compile_filter


class PulsarCase(msgspec.Struct):
    """A line of the file: tags that a consumer asks for, and a message's properties."""

    name: str
    predicate: dict[str, str]
    properties: dict[str, str]
    expect: Literal["match", "no_match"]


def run(lines: Iterable[bytes]) -> Iterator[Result]:
    """Results of the cases."""
    for case in read(lines, PulsarCase):
        yield compared(case.name, _outcome(case), case.expect)


def _outcome(case: PulsarCase) -> str:
    try:
        expression = compile_expression(compile_filter({"tags": case.predicate}).cel)
    except FilterError as error:
        return f"refused: {error.message}"
    return outcome_text(expression.evaluate(Activation({"ce": case.properties})))
