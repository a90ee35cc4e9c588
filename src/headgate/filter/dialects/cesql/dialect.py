"""`cesql`: a CloudEvents SQL expression (CESQL 1.0), which sees context attributes and extensions.

    type = 'order.paid' AND subject LIKE 'shop/%' AND INT(prio) > 5

In CESQL every expression has a value even after an error; a filter is only wanted when its value is true and there was
no error (section 1.2). In CEL an error is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from headgate.filter.cel.ast import FALSE, TRUE, Compare, Comparison, Name, Node
from headgate.filter.cel.build import call, literal
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.cesql import tree
from headgate.filter.dialects.cesql.functions import arguments_of
from headgate.filter.dialects.cesql.parser import parse
from headgate.filter.dialects.cesql.to_cel import Translator
from headgate.filter.dialects.cesql.values import Aim, Type
from headgate.filter.dialects.sql_tokens import fault


@dataclass(frozen=True, slots=True)
class Translation:
    """An expression in CEL.

    `cel` is the filter: true exactly when CESQL's value is true and there is no error. Else it is false or an error,
    not always the same as `exact`.
    """

    cel: str
    exact: str  # CESQL's value, of any type, and a CEL error exactly when there is an error
    otherwise: tuple[str, ...]  # CESQL's value beside an error: that of the first of these that is no CEL error
    type: Type  # of the value, as far as it is known without an event


def cesql(value: object, field: str) -> str:
    """CEL text of a CESQL expression; FilterError, with the place, also for one that is never true or false."""
    if not isinstance(value, str):
        raise FilterError("must be a string", field=field)
    try:
        parsed = parse(value)
        _refuse_misread_not(value, parsed)
        found = Translator(value).part(parsed, Aim.TRUE)
    except FilterError as error:
        raise error.at_field(field) from None
    if found.type in {Type.STRING, Type.INTEGER}:
        reason = f"a filter is true or false, this expression is of type {found.type}"
        raise FilterError(reason, field=field, hint="compare the value with something")
    return unparse(found.node)


def _refuse_misread_not(text: str, parsed: tree.Tree) -> None:
    """`NOT type = 'x'` is `(NOT type) = 'x'`, which no event fulfils and nobody means."""
    for part in tree.walk(parsed):
        match part:
            case (
                tree.Comparison(_, tree.Not(tree.Attribute(name), position), tree.Constant(str(right)))
                | tree.Like(tree.Not(tree.Attribute(name), position), right)
                | tree.OneOf(tree.Not(tree.Attribute(name), position), (tree.Constant(str(right)), *_))
            ) if right.lower() not in {"true", "false"}:
                reason = f"NOT binds tighter than what follows: this negates {name} alone"
                raise fault(text, position, reason, f"write NOT ({name} ...) around the whole condition")
            case _:
                pass


def translate(text: str) -> Translation:
    """An expression in CEL, its value of any type; a FilterError has no field."""
    parsed = parse(text)
    translator = Translator(text)
    exact = translator.part(parsed)
    wanted = translator.part(parsed, Aim.TRUE)
    otherwise = tuple(map(unparse, _otherwise(parsed, translator)))
    return Translation(unparse(wanted.node), unparse(exact.node), otherwise, exact.type)


def _otherwise(parsed: tree.Tree, translator: Translator) -> Iterator[Node]:
    """The zero of the type that is known of the expression, but for a few operations (sections 3.2, 3.3, 3.5)."""
    match parsed:
        case tree.Constant():
            return
        case tree.Arithmetic() | tree.Minus():
            yield literal(0)
        case tree.Not(operand):
            # The cast of an Integer fails to false, which is then negated: so says the specification's test suite.
            part = translator.part(operand)
            if part.type is Type.INTEGER:
                yield TRUE
            elif part.type is Type.ANY:
                yield Compare(Comparison.EQ, call("type", part.node), Name("int"))
            yield FALSE
        case tree.Invocation(name, arguments, position):
            found = translator.signature(name, len(arguments), position)
            if found.otherwise is not None:
                cast = arguments_of(found, tuple(map(translator.part, arguments)))
                yield found.otherwise(tuple(argument.node for argument in cast))
            yield {Type.STRING: literal(""), Type.INTEGER: literal(0)}.get(found.result, FALSE)
        case tree.Attribute() | tree.Exists() | tree.Comparison() | tree.Logic() | tree.Like() | tree.OneOf():
            yield FALSE
        case _:
            assert_never(parsed)
