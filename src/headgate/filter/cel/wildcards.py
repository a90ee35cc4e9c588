r"""`match`, the wildcards of a shell in CEL: `ce.source.match("https://github.com*")`.

`*` stands for any text, `/` and line feeds among it, `?` for one code point; `\` takes the meaning of the character
after it away. The whole text must be as the pattern says, and upper and lower case differ. cel-cpp never sees the
function: each call becomes `startsWith`, `endsWith`, `contains` or `matches` before it is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from headgate.filter.cel.ast import Call, Literal, LiteralKind, Name, Node, map_children
from headgate.filter.cel.build import method
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.like import Pattern, Wildcard, like, pattern_of, plain_text, regular_expression
from headgate.filter.cel.rewrite import is_path

FUNCTION: Final = "match"
_PIECE: Final = re.compile(r"\\(.)|\\\Z|\*+|\?|[^\\*?]+", re.DOTALL)


class WildcardError(FilterError):
    """A call of `match` without a usable pattern.

    Attributes:
        call: The call, as it was written.
    """

    def __init__(self, call: Call, reason: str, hint: str) -> None:
        super().__init__(reason, field="filter.expression", hint=hint)
        self.call = call


def without_wildcards(node: Node) -> Node:
    """The same expression in functions that cel-cpp has.

    Raises:
        WildcardError: A pattern is no constant, or ends within an escape.
    """
    match node:
        case Call(function, target, (pattern,)) if function == FUNCTION and target is not None:
            return _in_cel(without_wildcards(target), _parsed(node, pattern))
        case _:
            return map_children(node, without_wildcards)


def _parsed(call: Call, pattern: Node) -> Pattern:
    match pattern:
        case Literal(LiteralKind.STRING, str(text)):
            return pattern_of(_pieces(call, text))
        case _:
            hint = 'write it in quotes: ce.source.match("/shop/*")'
            raise WildcardError(call, "match() needs a constant pattern", hint)


def _pieces(call: Call, text: str) -> Iterator[str | Wildcard]:
    for piece in _PIECE.finditer(text):
        match piece[0]:
            case "\\":
                hint = r"a backslash of the text is written \\, which in quotes is \\\\"
                raise WildcardError(call, "the pattern of match() ends with a lone backslash", hint)
            case "?":
                yield Wildcard.ONE
            case stars if stars.startswith("*"):
                yield Wildcard.ANY
            case plain:
                yield piece[1] or plain


def _in_cel(target: Node, pattern: Pattern) -> Node:
    # `like` may read its operand twice, which in a nest of conditionals would be 2^depth times; and it compares a text
    # without wildcards by `==`, which is no error where the operand is no string.
    once = not is_path(target) and not isinstance(target, Name)
    if once or plain_text(pattern) is not None:
        return method(target, "matches", regular_expression(pattern.parts))
    return like(target, pattern)
