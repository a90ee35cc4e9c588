"""The public CEL conformance cases, through wrapper and rewriter: what filters can write means what CEL says."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from headgate.filter.cel import Activation, OutcomeKind, compile_expression
from headgate.filter.decode import decode
from headgate.filter.errors import FilterError
from headgate.filter.rewrite import rewrite
from headgate.filter.unparse import string_literal, unparse
from tests.support import conformance

EXTENSIONS = {"bindings_ext", "encoders_ext", "macros2", "math_ext", "optionals", "string_ext"}
"""Files about functions and macros that filters do not have."""

_NUL = "an expression with a NUL character is refused: the engine cuts strings there"
KNOWN = {
    "comparisons/gt_literal/gt_bytes_one": _NUL,
    "comparisons/gt_literal/gt_bytes_one_to_empty": _NUL,
    "comparisons/gt_literal/not_gt_bytes_sorting": _NUL,
    "comparisons/gte_literal/gte_bytes_to_empty": _NUL,
    "comparisons/gte_literal/not_gte_bytes_empty_to_nonempty": _NUL,
    "comparisons/gte_literal/gte_bytes_samelength": _NUL,
    "fields/qualified_identifier_resolution/map_value_repeat_key_heterogeneous": "the engine accepts {0: 1, 0u: 2}",
}
"""Cases that are refused or that the engine itself fails, by name, with the reason."""

NOTHING = Activation({"ce": {}})


def as_cel(value: dict[str, Any]) -> str:
    """A typed value of the conformance file as CEL text."""
    ((kind, content),) = value.items()
    match kind:
        case "int" | "null" | "bool":
            return json.dumps(content) if kind != "int" else str(content)
        case "uint":
            return f"{content}u"
        case "double":
            return {"Infinity": "1e999", "-Infinity": "-1e999", "NaN": "(0.0/0.0)"}.get(
                str(content), repr(float(content))
            )
        case "string":
            return string_literal(content)
        case "bytes":
            return 'b"' + "".join(f"\\x{byte:02x}" for byte in base64.b64decode(content)) + '"'
        case "list":
            return "[" + ", ".join(f"dyn({as_cel(item)})" for item in content) + "]"
        case "map":
            return "{" + ", ".join(f"dyn({as_cel(key)}): dyn({as_cel(item)})" for key, item in content) + "}"
        case "timestamp":
            return f"(timestamp({content[0]}) + duration('{content[1]}ns'))"
        case "duration":
            return f"(duration('{content[0]}s') + duration('{content[1]}ns'))"
        case "type":
            return str(content)
        case _:
            raise AssertionError(kind)


def check(case: dict[str, Any], meaning: Callable[[str], str]) -> str:
    """What is wrong with a case; empty when nothing is."""
    expression, expected = f"dyn({case['expr']})", case["expect"]
    if "value" not in expected:
        try:
            outcome = compile_expression(meaning(f"{expression} == 0")).evaluate(NOTHING)
        except FilterError:
            return ""
        return "" if outcome.kind is OutcomeKind.ERROR else f"{outcome} instead of an error"
    ((kind, content),) = expected["value"].items()
    if kind == "double" and content == "NaN":
        text = f"{expression} != {expression}"
    else:
        text = f"{expression} == {as_cel(expected['value'])}"
    try:
        outcome = compile_expression(meaning(text)).evaluate(NOTHING)
    except FilterError as error:
        return f"refused: {error.reason}"
    return "" if outcome.kind is OutcomeKind.TRUE else f"{outcome.kind.name} {outcome.message}"


def faults(meaning: Callable[[str], str]) -> tuple[dict[str, str], int]:
    wrong: dict[str, str] = {}
    count = 0
    for case in map(json.loads, conformance("cel.jsonl").read_text().splitlines()):
        special = (
            case["bindings"] or case["type_env"] or case["container"] or case["disable_check"] or case["check_only"]
        )
        if case["file"] in EXTENSIONS or special or case["disable_macros"]:
            continue
        count += 1
        fault = check(case, meaning)
        if fault:
            wrong[case["id"]] = fault
    return wrong, count


def test_cases_as_written() -> None:
    wrong, count = faults(lambda text: text)
    assert count > 600
    assert wrong.keys() == KNOWN.keys(), wrong


def test_cases_after_rewriting() -> None:
    def rewritten(text: str) -> str:
        return unparse(rewrite(decode(compile_expression(text).checked().expr)))

    wrong, _ = faults(rewritten)
    assert wrong.keys() == KNOWN.keys(), wrong
