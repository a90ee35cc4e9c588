"""cel-cpp, through cel-expr-python: the only module of a server that knows the package.

What is worked around here (version 0.1.3 on Python 3.11):

* A null that it hands over takes a reference to None away, and without any left the process dies: None has so many
  that they do not end, as it has by itself from Python 3.12 on.
* What a function in Python is given, and what it returns, is never freed: see `callbacks.py`.
* Strings are cut at NUL, and lone surrogates raise: refused in expressions here, and by `evaluate.py` in events.
* `eval` may raise where CEL has an error (an exhausted iteration budget, for one): that is an ERROR outcome.
* A datetime inside a map is refused: timestamps go in as `google.protobuf.Timestamp`.
* An integer outside int64 and uint64 makes the whole variable unreadable: `evaluate.py` turns it into a double.
* Variables cannot be named `type` or `string`: attributes live under `ce`.
* `serialize()` is an `Any` around a `cel.expr.CheckedExpr`: its bytes are read as `checked.proto`, which has the same
  fields. The package that has the original also installs files of googleapis-common-protos and opentelemetry-proto.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel as _cel
from cel_expr_python.ext import ext_math, ext_optional, ext_strings
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.timestamp_pb2 import Timestamp

from headgate.filter.cel import ast
from headgate.filter.cel import checked_pb2 as pb
from headgate.filter.cel.ast import PUBLISH_TIME, MacroKind, Node
from headgate.filter.cel.callbacks import callback
from headgate.filter.cel.errors import EvaluationError, FilterError, over_limit, unusable_character
from headgate.filter.cel.functions import ABSENT, EVALUATED, FUNCTIONS, CelType, Function
from headgate.filter.cel.like import WILDCARDS, WildcardError, without_wildcards
from headgate.filter.cel.tokens import nodes_min, without_nested_parentheses
from headgate.filter.cel.unparse import string_literal, unparse
from headgate.filter.cel.wording import plain, refusal
from headgate_api.limits import FILTER_CHARACTERS_MAX, FILTER_NODES_MAX, FILTERS_CACHED_MAX

if sys.version_info < (3, 12):  # a null that is handed over, see above
    ctypes.c_ssize_t.from_address(id(None)).value += 1 << 60

# --- checked expressions --------------------------------------------------------------------------
# cel-cpp's checked expression as our tree. Macros arrive expanded and are recognised by their shape.

_COMPARISONS: Final = {f"_{comparison}_": comparison for comparison in ast.Comparison}
_JOINS: Final[Mapping[str, type[ast.And | ast.Or]]] = {"_&&_": ast.And, "_||_": ast.Or}
_FORMS: Final[Mapping[str, Callable[..., Node]]] = {
    "!_": ast.Not,
    "@in": ast.In,
    "_[_]": ast.Index,
    "_?_:_": ast.Conditional,
}
_LITERALS: Final = {
    "null_value": ast.LiteralKind.NULL,
    "bool_value": ast.LiteralKind.BOOL,
    "int64_value": ast.LiteralKind.INT,
    "uint64_value": ast.LiteralKind.UINT,
    "double_value": ast.LiteralKind.DOUBLE,
    "string_value": ast.LiteralKind.STRING,
    "bytes_value": ast.LiteralKind.BYTES,
}
"""By the field of the constant that holds it."""


def decode(expression: pb.Expr) -> Node:
    """Our tree of an `Expr` message; FilterError when it holds a form that no known macro expands to."""
    match expression.WhichOneof("expr_kind"):
        case "const_expr":
            return _literal(expression.const_expr)
        case "ident_expr":
            return ast.Name(expression.ident_expr.name)
        case "select_expr":
            select = expression.select_expr
            return (ast.Has if select.test_only else ast.Select)(decode(select.operand), select.field)
        case "call_expr":
            return _call(expression.call_expr)
        case "list_expr":
            return ast.ListOf(tuple(map(decode, expression.list_expr.elements)))
        case "struct_expr":
            struct = expression.struct_expr
            if struct.message_name:
                fields = tuple((entry.field_key, decode(entry.value)) for entry in struct.entries)
                return ast.Message(struct.message_name, fields)
            return ast.MapOf(tuple((decode(entry.map_key), decode(entry.value)) for entry in struct.entries))
        case "comprehension_expr":
            return _macro(expression.comprehension_expr)
        case other:
            raise FilterError(f"an expression of kind {other} is not supported", field="filter.expression")


def _literal(constant: pb.Constant) -> Node:
    field = constant.WhichOneof("constant_kind")
    kind = _LITERALS[field]
    return ast.Literal(kind, None if kind is ast.LiteralKind.NULL else getattr(constant, field))


def _call(call: pb.Expr.Call) -> Node:
    function, arguments = call.function, tuple(map(decode, call.args))
    if call.HasField("target"):
        return ast.Call(function, decode(call.target), arguments)
    if function in _COMPARISONS:
        return ast.Compare(_COMPARISONS[function], *arguments)
    if function in _JOINS:
        return _JOINS[function](arguments)
    return _FORMS[function](*arguments) if function in _FORMS else ast.Call(function, None, arguments)


def _macro(comprehension: pb.Expr.Comprehension) -> Node:
    """Reads `range.all(x, p)` and its kin back from the loop that cel-cpp's parser made of them."""
    source, variable = decode(comprehension.iter_range), comprehension.iter_var
    step = comprehension.loop_step.call_expr
    start = comprehension.accu_init
    if start.WhichOneof("expr_kind") == "const_expr":
        kind = start.const_expr.WhichOneof("constant_kind")
        if kind == "bool_value" and step.function in {"_&&_", "_||_"}:
            macro = MacroKind.ALL if step.function == "_&&_" else MacroKind.EXISTS
            return ast.Macro(macro, source, variable, decode(step.args[1]), None)
        if kind == "int64_value" and step.function == "_?_:_":
            return ast.Macro(MacroKind.EXISTS_ONE, source, variable, decode(step.args[0]), None)
    elif start.WhichOneof("expr_kind") == "list_expr":
        if step.function == "_+_":
            return ast.Macro(MacroKind.MAP, source, variable, None, decode(step.args[1].list_expr.elements[0]))
        if step.function == "_?_:_":
            predicate = decode(step.args[0])
            element = decode(step.args[1].call_expr.args[1].list_expr.elements[0])
            # map(x, p, x) and filter(x, p) are the same loop.
            if element == ast.Name(variable):
                return ast.Macro(MacroKind.FILTER, source, variable, predicate, None)
            return ast.Macro(MacroKind.MAP, source, variable, predicate, element)
    raise FilterError("a macro of this form is not supported", field="filter.expression")


def offset_of(checked: pb.CheckedExpr, node: Node) -> int | None:
    """Where a call or field stands first in its text, in code points; a comparison at its sign. Slow: for refusals."""
    for part in _parts_of(checked.expr):
        if decode(part) == node:
            return int(checked.source_info.positions[part.id]) if part.id in checked.source_info.positions else None
    return None


def _parts_of(message: ProtobufMessage) -> Iterator[pb.Expr]:
    if isinstance(message, pb.Expr) and message.WhichOneof("expr_kind") in {"call_expr", "select_expr"}:
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from _parts_of(inner)


# --- evaluation -----------------------------------------------------------------------------------

_TYPES: Final = {
    CelType.BOOL: _cel.Type.BOOL,
    CelType.INT: _cel.Type.INT,
    CelType.DOUBLE: _cel.Type.DOUBLE,
    CelType.STRING: _cel.Type.STRING,
    CelType.LIST: _cel.Type.List(_cel.Type.DYN),
    CelType.DYN: _cel.Type.DYN,
}


def _declared(name: str, ways: Iterable[Function]) -> _cel.FunctionDecl:
    overloads = []
    for number, way in enumerate(ways):
        parameters = [_TYPES[parameter] for parameter in way.parameters]
        compute = callback(way.compute)
        overloads.append(_cel.Overload(f"{name}#{number}", _TYPES[way.result], parameters, False, compute))
    return _cel.FunctionDecl(name, overloads)


_ENVIRONMENT: Final = _cel.NewEnv(
    variables={
        "ce": _cel.Type.Map(_cel.Type.STRING, _cel.Type.DYN),
        "data": _cel.Type.DYN,
        PUBLISH_TIME: _cel.Type.TIMESTAMP,
    },
    extensions=[
        ext_strings.ExtStrings(),
        ext_math.ExtMath(),
        _cel.CelExtension(
            "headgate", [_declared(*named) for named in itertools.groupby(FUNCTIONS, lambda function: function.name)]
        ),
    ],
    functions=[  # for the checker only: no expression has it when it is evaluated
        _cel.FunctionDecl(
            WILDCARDS,
            [_cel.Overload("match_string", _cel.Type.BOOL, [_cel.Type.STRING, _cel.Type.STRING], True, None)],
        )
    ],
)
_MATCHES: Final = _ENVIRONMENT.compile('"".matches(data)')
_TIMESTAMP: Final = _ENVIRONMENT.compile("timestamp(data)")
_BOOL: Final = _cel.Type.BOOL
_ERROR: Final = _cel.Type.ERROR
_STRING: Final = _cel.Type.STRING

CelInput = Mapping[str, Any]
"""Variables of one evaluation: Python's JSON values, and `Timestamp` messages."""

_WILDCARDS: Final = re.compile(rf"\b{WILDCARDS}\b")


class OutcomeKind(IntEnum):
    """The value of a filter on an event."""

    FALSE = 0
    TRUE = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class FilterOutcome:
    """The result of one evaluation; `message` tells the error, and is empty without one."""

    kind: OutcomeKind
    message: str = ""


_TRUE: Final = FilterOutcome(OutcomeKind.TRUE)
_FALSE: Final = FilterOutcome(OutcomeKind.FALSE)
_EVALUATION_ERRORS: Final = (RuntimeError, TypeError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class Shown:
    """A value of any type, for people."""

    kind: str  # "bool", "int", "string", "list", "map", "null", ..., or "error"
    text: str  # the value as CEL writes it, shortened; the message of an error
    size: int = 0  # items of a list or map, else 0


class Environment:
    """What expressions may name: variables with their types, libraries, a container for short names."""

    __slots__ = ("_handle",)

    def __init__(self, handle: _cel.Env) -> None:
        self._handle = handle

    @staticmethod
    def of_maps(*names: str) -> Environment:
        """The environment of rules about tokens: variables that are maps, and libraries that Kubernetes has, too."""
        return Environment(
            _cel.NewEnv(
                config=_cel.NewEnvConfigFromYaml("extensions: [{name: two-var-comprehensions}]"),
                variables={name: _cel.Type.Map(_cel.Type.STRING, _cel.Type.DYN) for name in names},
                extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional()],
            )
        )

    def compile(self, text: str, *, check: bool = True) -> Expression:
        """Parses CEL text, and checks its types unless it is told not to; raises FilterError."""
        found = unusable_character(text)
        if found is not None:
            what, position = found
            raise FilterError(f"{what} at offset {position}", field="filter.expression").at(text, position)
        try:
            return Expression(self._handle.compile(without_nested_parentheses(text), not check))
        except RuntimeError as error:
            raise refusal(text, str(error)) from None


_FILTERS: Final = Environment(_ENVIRONMENT)


class Activation:
    """The variables of one event, converted once and shared by every program that looks at it."""

    __slots__ = ("_data", "_handle")

    def __init__(self, variables: CelInput, environment: Environment = _FILTERS) -> None:
        self._handle = environment._handle.Activation(variables)
        self._data = variables.get("data", ABSENT)


class Expression:
    """A checked expression, ready to be evaluated."""

    __slots__ = ("_handle",)

    def __init__(self, handle: _cel.Expression) -> None:
        self._handle = handle

    def checked(self) -> pb.CheckedExpr:
        """The message of `checked.proto`; FilterError when it nests deeper than protobuf reads, as macros do."""
        wrapper = AnyMessage.FromString(self._handle.serialize())
        try:
            message: pb.CheckedExpr = pb.CheckedExpr.FromString(wrapper.value)
        except DecodeError:
            what = "the expression nests too deep, a macro counts as several levels"
            raise over_limit("FILTER_DEPTH_MAX", what) from None
        return message

    def tree(self) -> Node:
        """The syntax tree, with macros as they were written; FilterError when it is too deep or a macro unknown."""
        return decode(self.checked().expr)

    def result_type(self) -> str:
        """Name of the static result type: "BOOL", "DYN", "STRING", ..."""
        return str(self._handle.return_type().name())

    def _evaluated(self, on: Activation | CelInput) -> _cel.Value:
        if isinstance(on, Activation):
            EVALUATED.data = on._data
            return self._handle.eval(on._handle)
        EVALUATED.data = on.get("data", ABSENT)
        return self._handle.eval(data=on)

    def text(self, activation: Activation) -> str | None:
        """The value on one event when it is a string. Never raises: everything else, errors too, is None."""
        try:
            result = self._evaluated(activation)
            return str(result.value()) if result.type() == _STRING else None
        except _EVALUATION_ERRORS:
            return None

    def evaluate(self, activation: Activation) -> FilterOutcome:
        """Evaluates on one event. Never raises: whatever is no boolean is an ERROR."""
        try:
            result = self._evaluated(activation)
            kind = result.type()
            if kind == _BOOL:
                return _TRUE if result.value() else _FALSE
            if kind == _ERROR:
                return FilterOutcome(OutcomeKind.ERROR, plain(str(result.value())))
            return FilterOutcome(OutcomeKind.ERROR, f"the filter's value is no boolean but {kind.name().lower()}")
        except _EVALUATION_ERRORS as error:
            return FilterOutcome(OutcomeKind.ERROR, plain(str(error)))

    def plain_value(self, activation: Activation) -> bool | str | list[str | None] | None:
        """A boolean, a text, null, or a list (None for what is no text); raises EvaluationError for all else."""
        try:
            result = self._evaluated(activation)
            kind = _kind(result)
            match kind:
                case "null":
                    return None
                case "bool" | "string":
                    return result.value()  # type: ignore[no-any-return]
                case "list":
                    return [item.value() if item.type() == _STRING else None for item in result.value()]
                case "error":
                    raise EvaluationError(plain(str(result.value())))
                case _:
                    raise EvaluationError(f"the value is of type {kind}")
        except _EVALUATION_ERRORS as error:
            raise EvaluationError(plain(str(error))) from None

    def value(self, on: Activation | CelInput) -> Any:  # noqa: ANN401 - whatever the expression makes
        """The value in Python, with `datetime`, `timedelta` and `bytearray` in it; EvaluationError for an error.

        Variables that no other expression needs cost less without an `Activation`.
        """
        try:
            result = self._evaluated(on)
            value = result.plain_value()
            if type(value) is str and result.type() == _ERROR:
                raise EvaluationError(plain(value))
        except _EVALUATION_ERRORS as error:
            raise EvaluationError(plain(str(error))) from None
        return value

    def show(self, activation: Activation) -> Shown:
        """Evaluates on one event, for people. Never raises."""
        try:
            result = self._evaluated(activation)
            kind = _kind(result)
            if kind == "error":
                return Shown(kind, plain(str(result.value())))
            return Shown(kind, _shown(result, 0), len(result.value()) if kind in {"list", "map"} else 0)
        except _EVALUATION_ERRORS as error:
            return Shown("error", plain(str(error)))


def compile_expression(text: str, *, characters_max: int = FILTER_CHARACTERS_MAX) -> Expression:
    """Parses and type checks CEL text; raises FilterError. Canonical text may be longer than what was admitted."""
    if len(text) > characters_max:
        raise over_limit("FILTER_CHARACTERS_MAX", f"the expression has {len(text)} characters", maximum=characters_max)
    if not text.strip():
        raise FilterError("the expression is empty", field="filter.expression", hint='write "true" to take every event')
    if len(text) > FILTER_NODES_MAX and characters_max == FILTER_CHARACTERS_MAX:
        nodes = nodes_min(text)  # the tree is known only when the parser has paid for it
        if nodes > FILTER_NODES_MAX:
            raise over_limit("FILTER_NODES_MAX", f"the expression has more than {nodes} nodes")
    expression = _FILTERS.compile(text)
    return _without_wildcards(text, expression) if _WILDCARDS.search(text) else expression


def _without_wildcards(text: str, expression: Expression) -> Expression:
    checked = expression.checked()
    tree = decode(checked.expr)
    try:
        plain_tree = without_wildcards(tree)
    except WildcardError as error:
        raise error.at(text, offset_of(checked, error.call)) from None
    return expression if plain_tree == tree else _FILTERS.compile(unparse(plain_tree))


def offset_in(text: str, node: Node) -> int | None:
    """Where a part of what an expression says stands in its text, see `offset_of`."""
    return offset_of(_FILTERS.compile(text).checked(), node)


def is_regular_expression(pattern: str) -> bool:
    """Whether RE2, inside cel-cpp, takes `pattern`."""
    return _takes(_MATCHES, pattern, _BOOL)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def has_value(text: str) -> bool:
    """Whether an expression that reads no event has a value, and is no error."""
    return _FILTERS.compile(text).show(Activation({})).kind != "error"


def is_timestamp(text: str) -> bool:
    """Whether CEL's `timestamp()` takes `text`."""
    return _takes(_TIMESTAMP, text, _cel.Type.TIMESTAMP)


def _takes(expression: _cel.Expression, text: str, result: _cel.Type) -> bool:
    try:
        return bool(expression.eval(data={"data": text}).type() == result)
    except (RuntimeError, TypeError, UnicodeError):
        return False


def timestamp(seconds: int, nanoseconds: int) -> Timestamp:
    """A CEL timestamp for an activation: seconds since 1970 UTC, in the years 1 to 9999, and 0 to 999,999,999 ns."""
    return Timestamp(seconds=seconds, nanos=nanoseconds)


_SHOWN_CHARACTERS: Final = 100
_SHOWN_ITEMS: Final = 10
_SHOWN_DEPTH: Final = 3


def _kind(result: _cel.Value) -> str:
    """Its type in lower case, a list's without that of its items."""
    return str(result.type().name()).partition("<")[0].lower()


def _shown(result: _cel.Value, depth: int) -> str:
    """CEL text of a result, or of an item of one; the type of each is looked at first: a null has no value."""
    kind = _kind(result)
    if kind == "null":
        return "null"
    value = result.value()
    if kind in {"list", "map"} and depth == _SHOWN_DEPTH:
        return "[...]" if kind == "list" else "{...}"
    more = ["..."] if kind in {"list", "map"} and len(value) > _SHOWN_ITEMS else []
    match kind:
        case "list":
            return f"[{', '.join([*(_shown(item, depth + 1) for item in value[:_SHOWN_ITEMS]), *more])}]"
        case "map":
            members = itertools.islice(value.items(), _SHOWN_ITEMS)
            return "{" + ", ".join([*(f"{_key(key)}: {_shown(item, depth + 1)}" for key, item in members), *more]) + "}"
        case "string":
            return string_literal(value[:_SHOWN_CHARACTERS]) + ("..." if len(value) > _SHOWN_CHARACTERS else "")
        case "bool":
            return "true" if value else "false"
        case "bytes":
            return f"{len(value)} bytes"
        case "timestamp":
            return f'timestamp("{value.isoformat()}")'
        case "duration":
            return f'duration("{value.total_seconds():g}s")'
        case _:
            return f"{value}u" if kind == "uint" else str(value)


def _key(key: object) -> str:
    return string_literal(key[:_SHOWN_CHARACTERS]) if isinstance(key, str) else str(key)
