"""CEL's conformance cases, run through the wrapper that filters use.

A case declares its own variables and may use libraries that filters do not have, so it gets an environment of its own;
compiling, evaluating and every workaround are those of filters. A value is compared by CEL itself and by its type.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_encoders, ext_math, ext_optional, ext_strings

from conformance.cases import Result, judged, read
from headgate.filter.cel.engine import Activation, Environment, Expression, OutcomeKind, timestamp
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.unparse import string_literal

_UNCHECKED: Final = "the engine does not look a dotted name up in an expression whose types were not checked"
_NO_INSERT: Final = "the engine has the macro but not the function cel.@mapInsert that it expands to"
KNOWN: Final = {
    "fields/qualified_identifier_resolution/qualified_identifier_resolution_unchecked": _UNCHECKED,
    "namespace/namespace/self_eval_container_lookup_unchecked": _UNCHECKED,
    "fields/qualified_identifier_resolution/map_value_repeat_key_heterogeneous": "the engine accepts {0: 1, 0u: 2}",
    "macros2/transformMap/empty": _NO_INSERT,
    "macros2/transformMap/empty_filter": _NO_INSERT,
    "macros2/transformMap/one_filter": _NO_INSERT,
    "macros2/transformMap/many": _NO_INSERT,
}
"""Cases that the engine itself fails, by name, with the reason."""

_Typed = dict[str, Any]
"""One member: the kind of a value, and the value."""
_TypeJson = str | dict[str, Any]


class Declared(msgspec.Struct):
    """A variable or a function of a case."""

    ident: str = ""
    type: _TypeJson = "dyn"
    function: str = ""
    overloads: list[dict[str, Any]] = []


class ExpectedValue(msgspec.Struct):
    """What a case must give: a value, a type or an error."""

    value: _Typed | None = None
    deduced_type: _TypeJson | None = None
    error: list[str] | None = None


class CelCase(msgspec.Struct):
    """A line of the file."""

    id: str
    expr: str
    container: str
    type_env: list[Declared]
    bindings: dict[str, _Typed]
    expect: ExpectedValue
    disable_check: bool = False
    check_only: bool = False


Meaning = Callable[[str], str]
"""Another text with the same meaning."""


def run(lines: Iterable[bytes]) -> Iterator[Result]:
    """Results of the cases, as they are written."""
    for case in read(lines, CelCase):
        yield judged(case.id, fault(case), KNOWN)


def fault(case: CelCase, meaning: Meaning = str) -> str:
    """What is wrong with a case when `meaning` of its expressions is evaluated; empty when nothing is."""
    environment = _environment(case)
    # The wrapper refuses a NUL as a character; the cases have it in literals, where an escape says the same.
    written = case.expr.replace("\0", "\\x00")

    def compiled(text: str) -> Expression:
        return environment.compile(meaning(text), check=not case.disable_check)

    try:
        expression = compiled(written)
        if case.expect.deduced_type is not None:
            wanted, found = _type_name(case.expect.deduced_type), expression.result_type()
            if found != wanted:
                return f"type {found} instead of {wanted}"
        if case.check_only:
            return ""
        activation = Activation({name: _plain(value) for name, value in case.bindings.items()}, environment)
        shown = expression.show(activation)
        if case.expect.value is None:
            return "" if shown.kind == "error" else f"{shown.text} instead of an error"
        if shown.kind == "error":
            return f"error: {shown.text}"
        ((kind, content),) = case.expect.value.items()
        if shown.kind != kind:
            return f"{shown.kind} {shown.text} instead of {kind}"
        equal = (
            f"{written}\n != {written}"
            if (kind, content) == ("double", "NaN")
            else f"dyn({written}\n) == {_literal(case.expect.value)}"
        )
        outcome = compiled(equal).evaluate(activation)
    except FilterError as error:
        return "" if case.expect.error is not None else f"refused: {error.reason}"
    return "" if outcome.kind is OutcomeKind.TRUE else f"{shown.text} {outcome.message}".strip()


def _environment(case: CelCase) -> Environment:
    """What the case declares, and every library, of which filters have few."""
    functions = []
    for item in case.type_env:
        if item.function:
            shape = item.overloads[0]
            parameters = [*map(_type, shape["params"])]
            overload = cel.Overload(item.function, _type(shape["result"]), parameters, False, None)
            functions.append(cel.FunctionDecl(item.function, [overload]))
    libraries = (ext_bindings.ExtBindings(), ext_encoders.ExtEncoders(), ext_optional.ExtOptional())
    return Environment(
        cel.NewEnv(
            config=cel.NewEnvConfigFromYaml("extensions: [{name: two-var-comprehensions}]"),
            variables={item.ident: _type(item.type) for item in case.type_env if item.ident},
            extensions=[ext_strings.ExtStrings(), ext_math.ExtMath(), *libraries],
            functions=functions,
            container=cel.ExpressionContainer(case.container) if case.container else None,
        )
    )


def _type(kind: _TypeJson) -> cel.Type:
    match kind:
        case "null_type":
            return cel.Type.NULL
        case str():
            return getattr(cel.Type, kind.upper())
        case {"list": item}:
            return cel.Type.List(_type(item))
        case {"map": [key, item]}:
            return cel.Type.Map(_type(key), _type(item))
        case {"abstract": [name, *parameters]}:
            return cel.Type.AbstractType(name, [*map(_type, parameters)])
        case _:
            return cel.Type.DYN  # type parameters: what the engine's Python interface has for them


def _type_name(kind: _TypeJson) -> str:
    """A type as the engine writes it."""
    match kind:
        case str():
            return {"null_type": "NULL"}.get(kind, kind.upper())
        case {"list": item}:
            return f"LIST<{_type_name(item)}>"
        case {"map": [key, item]}:
            return f"MAP<{_type_name(key)}, {_type_name(item)}>"
        case {"abstract": [name, *parameters]}:
            return f"{name}<{', '.join(map(_type_name, parameters))}>"
        case _:
            return "DYN"


def _plain(typed: _Typed) -> object:
    """A typed value for an activation."""
    ((kind, content),) = typed.items()
    match kind:
        case "int" | "uint":
            return int(content)
        case "double":
            return float(content)
        case "bytes":
            return base64.b64decode(content)
        case "list":
            return [_plain(item) for item in content]
        case "map":
            return {_plain(key): _plain(item) for key, item in content}
        case "timestamp":
            return timestamp(int(content[0]), int(content[1]))
        case _:
            return content


def _literal(typed: _Typed) -> str:
    """A typed value as CEL text."""
    ((kind, content),) = typed.items()
    match kind:
        case "int":
            return str(content)
        case "uint":
            return f"{content}u"
        case "double":
            return {"Infinity": "1e999", "-Infinity": "-1e999"}.get(str(content), repr(float(content)))
        case "string":
            return string_literal(content)
        case "bytes":
            return 'b"' + "".join(f"\\x{byte:02x}" for byte in base64.b64decode(content)) + '"'
        case "list":
            return "[" + ", ".join(f"dyn({_literal(item)})" for item in content) + "]"
        case "map":
            return "{" + ", ".join(f"dyn({_literal(key)}): dyn({_literal(item)})" for key, item in content) + "}"
        case "timestamp":
            return f"(timestamp({content[0]}) + duration('{content[1]}ns'))"
        case "duration":
            return f"(duration('{content[0]}s') + duration('{content[1]}ns'))"
        case "type":
            return str(content)
        case _:
            return json.dumps(content)
