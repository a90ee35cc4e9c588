"""cel-cpp's checked expression as our tree. Macros arrive expanded and are recognised by their shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import Message as AnyMessage

from headgate.filter.cel import checked_pb2 as pb
from headgate.filter.cel.ast import (
    And,
    Call,
    Compare,
    Comparison,
    Conditional,
    Has,
    In,
    Index,
    ListOf,
    Literal,
    LiteralKind,
    Macro,
    MacroKind,
    MapOf,
    Message,
    Name,
    Node,
    Not,
    Or,
    Select,
)
from headgate.filter.cel.errors import FilterError

_COMPARISONS: Final = {f"_{comparison}_": comparison for comparison in Comparison}
_LITERALS: Final = {
    "null_value": LiteralKind.NULL,
    "bool_value": LiteralKind.BOOL,
    "int64_value": LiteralKind.INT,
    "uint64_value": LiteralKind.UINT,
    "double_value": LiteralKind.DOUBLE,
    "string_value": LiteralKind.STRING,
    "bytes_value": LiteralKind.BYTES,
}
"""By the field of the constant that holds it."""


def decode(expression: pb.Expr) -> Node:
    """Our tree of an `Expr` message; FilterError when it holds a form that no known macro expands to."""
    match expression.WhichOneof("expr_kind"):
        case "const_expr":
            return _literal(expression.const_expr)
        case "ident_expr":
            return Name(expression.ident_expr.name)
        case "select_expr":
            select = expression.select_expr
            return (Has if select.test_only else Select)(decode(select.operand), select.field)
        case "call_expr":
            return _call(expression.call_expr)
        case "list_expr":
            return ListOf(tuple(map(decode, expression.list_expr.elements)))
        case "struct_expr":
            return _struct(expression.struct_expr)
        case "comprehension_expr":
            return _macro(expression.comprehension_expr)
        case other:
            raise FilterError(f"an expression of kind {other} is not supported", field="filter.expression")


def _literal(constant: pb.Constant) -> Node:
    field = constant.WhichOneof("constant_kind")
    kind = _LITERALS[field]
    return Literal(kind, None if kind is LiteralKind.NULL else getattr(constant, field))


def _struct(struct: pb.Expr.CreateStruct) -> Node:
    if struct.message_name:
        return Message(struct.message_name, tuple((entry.field_key, decode(entry.value)) for entry in struct.entries))
    return MapOf(tuple((decode(entry.map_key), decode(entry.value)) for entry in struct.entries))


def _call(call: pb.Expr.Call) -> Node:
    function, arguments = call.function, tuple(map(decode, call.args))
    if call.HasField("target"):
        return Call(function, decode(call.target), arguments)
    if function in _COMPARISONS:
        return Compare(_COMPARISONS[function], *arguments)
    match function, arguments:
        case "_&&_", (left, right):
            return And((left, right))
        case "_||_", (left, right):
            return Or((left, right))
        case "!_", (operand,):
            return Not(operand)
        case "@in", (element, container):
            return In(element, container)
        case "_[_]", (operand, key):
            return Index(operand, key)
        case "_?_:_", (condition, then, otherwise):
            return Conditional(condition, then, otherwise)
        case _:
            return Call(function, None, arguments)


def _macro(comprehension: pb.Expr.Comprehension) -> Node:
    """Reads `range.all(x, p)` and its kin back from the loop that cel-cpp's parser made of them."""
    source, variable = decode(comprehension.iter_range), comprehension.iter_var
    step = comprehension.loop_step.call_expr
    start = comprehension.accu_init
    if start.WhichOneof("expr_kind") == "const_expr":
        kind = start.const_expr.WhichOneof("constant_kind")
        if kind == "bool_value" and step.function in {"_&&_", "_||_"}:
            macro = MacroKind.ALL if step.function == "_&&_" else MacroKind.EXISTS
            return Macro(macro, source, variable, decode(step.args[1]), None)
        if kind == "int64_value" and step.function == "_?_:_":
            return Macro(MacroKind.EXISTS_ONE, source, variable, decode(step.args[0]), None)
    elif start.WhichOneof("expr_kind") == "list_expr":
        if step.function == "_+_":
            return Macro(MacroKind.MAP, source, variable, None, decode(step.args[1].list_expr.elements[0]))
        if step.function == "_?_:_":
            predicate = decode(step.args[0])
            element = decode(step.args[1].call_expr.args[1].list_expr.elements[0])
            # map(x, p, x) and filter(x, p) are the same loop.
            if element == Name(variable):
                return Macro(MacroKind.FILTER, source, variable, predicate, None)
            return Macro(MacroKind.MAP, source, variable, predicate, element)
    raise FilterError("a macro of this form is not supported", field="filter.expression")


def offset_of(checked: pb.CheckedExpr, node: Node) -> int | None:
    """Where a call or field stands first in its text, in code points; a comparison at its sign. Slow: for refusals."""
    for part in _parts_of(checked.expr):
        if decode(part) == node:
            return int(checked.source_info.positions[part.id]) if part.id in checked.source_info.positions else None
    return None


def _parts_of(message: AnyMessage) -> Iterator[pb.Expr]:
    if isinstance(message, pb.Expr) and message.WhichOneof("expr_kind") in {"call_expr", "select_expr"}:
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from _parts_of(inner)
