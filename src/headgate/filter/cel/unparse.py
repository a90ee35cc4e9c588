"""The canonical CEL text of a tree."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, assert_never

from headgate.filter.cel import ast
from headgate.filter.cel.ast import LiteralKind, Node

_CONDITIONAL, _OR, _AND, _RELATION, _SUM, _PRODUCT, _UNARY, _MEMBER = range(8)
"""Binding strength, weakest first: the levels of CEL's grammar."""

_MACRO_NAMES: Final = {"math.@max": "math.greatest", "math.@min": "math.least"}
"""Functions whose name in the checked tree cannot be written."""
_BINARY: Final = {
    "_+_": ("+", _SUM),
    "_-_": ("-", _SUM),
    "_*_": ("*", _PRODUCT),
    "_/_": ("/", _PRODUCT),
    "_%_": ("%", _PRODUCT),
}
_IDENTIFIER: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_RESERVED: Final = frozenset(
    {"false", "in", "null", "true", "as", "break", "const", "continue", "else", "for", "function", "if", "import"}
    | {"let", "loop", "package", "namespace", "return", "var", "void", "while"}
)
_NAMED_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SPECIAL: Final = re.compile(r'["\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]')


def unparse(node: Node) -> str:
    """Canonical CEL text of `node`; parsing it gives `node` again."""
    return _text(node, _CONDITIONAL)


def string_literal(text: str) -> str:
    """`text` as a CEL string literal in double quotes; control characters are escaped."""
    return '"' + _SPECIAL.sub(lambda found: _NAMED_ESCAPES.get(found[0], f"\\u{ord(found[0]):04x}"), text) + '"'


def is_plain_field(name: str) -> bool:
    """Whether `.name` can be written without backticks."""
    return _IDENTIFIER.fullmatch(name) is not None and name not in _RESERVED


def _text(node: Node, least: int) -> str:
    text, level = _render(node)
    return text if level >= least else f"({text})"


def _list(nodes: Iterable[Node]) -> str:
    return ", ".join(_text(node, _CONDITIONAL) for node in nodes)


def _render(node: Node) -> tuple[str, int]:
    match node:
        case ast.Literal():
            return _literal(node)
        case ast.Name(name):
            return name, _MEMBER
        case ast.Select(operand, field):
            if is_plain_field(field):
                return f"{_text(operand, _MEMBER)}.{field}", _MEMBER
            return f"{_text(operand, _MEMBER)}[{string_literal(field)}]", _MEMBER
        case ast.Has(operand, field):
            written = field if is_plain_field(field) else f"`{field}`"
            return f"has({_text(operand, _MEMBER)}.{written})", _MEMBER
        case ast.Index(operand, key):
            return f"{_text(operand, _MEMBER)}[{_text(key, _CONDITIONAL)}]", _MEMBER
        case ast.Call():
            return _call(node)
        case ast.Compare(operator, left, right):
            return f"{_text(left, _RELATION)} {operator} {_text(right, _SUM)}", _RELATION
        case ast.In(element, container):
            return f"{_text(element, _RELATION)} in {_text(container, _SUM)}", _RELATION
        case ast.Not(operand):
            return f"!{_text(operand, _MEMBER)}", _UNARY
        case ast.And(operands):
            return " && ".join(_text(operand, _RELATION) for operand in operands), _AND
        case ast.Or(operands):
            return " || ".join(_text(operand, _AND) for operand in operands), _OR
        case ast.Conditional(condition, then, otherwise):
            return f"{_text(condition, _OR)} ? {_text(then, _OR)} : {_text(otherwise, _CONDITIONAL)}", _CONDITIONAL
        case ast.ListOf(items):
            return f"[{_list(items)}]", _MEMBER
        case ast.MapOf(entries):
            pairs = (f"{_text(key, _CONDITIONAL)}: {_text(value, _CONDITIONAL)}" for key, value in entries)
            return "{" + ", ".join(pairs) + "}", _MEMBER
        case ast.Message(type_name, fields):
            pairs = (f"{name}: {_text(value, _CONDITIONAL)}" for name, value in fields)
            return type_name + "{" + ", ".join(pairs) + "}", _MEMBER
        case ast.Macro(kind, source, variable, predicate, transform):
            bodies = _list(body for body in (predicate, transform) if body is not None)
            return f"{_text(source, _MEMBER)}.{kind}({variable}, {bodies})", _MEMBER
        case _:
            assert_never(node)


def _call(node: ast.Call) -> tuple[str, int]:
    if node.target is not None:
        return f"{_text(node.target, _MEMBER)}.{node.function}({_list(node.arguments)})", _MEMBER
    if node.function in _BINARY:
        sign, level = _BINARY[node.function]
        left, right = node.arguments
        return f"{_text(left, level)} {sign} {_text(right, level + 1)}", level
    if node.function == "-_":
        return f"-({_text(node.arguments[0], _CONDITIONAL)})", _UNARY
    return f"{_MACRO_NAMES.get(node.function, node.function)}({_list(node.arguments)})", _MEMBER


def _literal(node: ast.Literal) -> tuple[str, int]:
    value = node.value
    match node.kind:
        case LiteralKind.NULL:
            return "null", _MEMBER
        case LiteralKind.BOOL:
            return ("true" if value else "false"), _MEMBER
        case LiteralKind.STRING:
            assert isinstance(value, str)
            return string_literal(value), _MEMBER
        case LiteralKind.BYTES:
            assert isinstance(value, bytes)
            return 'b"' + "".join(f"\\x{byte:02x}" for byte in value) + '"', _MEMBER
        case LiteralKind.UINT:
            return f"{value!r}u", _MEMBER
        case LiteralKind.INT | LiteralKind.DOUBLE:
            text = {"inf": "1e999", "-inf": "-1e999"}.get(repr(value), repr(value))
            return text, (_UNARY if text.startswith("-") else _MEMBER)
        case _:
            assert_never(node.kind)
