"""The value of each part of a filter on one event, and the part that decided.

Every part is compiled as a text of its own and evaluated by cel-cpp: there is no second evaluator that could be of
another opinion. The body of a macro is evaluated for one element by giving it to a macro over that element alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from headgate.filter.cel.ast import And, Conditional, Literal, Macro, Name, Node, Not, Or, children, map_children
from headgate.filter.cel.engine import Activation, Expression, FilterOutcome, Shown, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, program
from headgate.filter.cel.parsing import tree_of
from headgate.filter.cel.rewrite import flatten_all, resolve
from headgate.filter.cel.unparse import unparse
from headgate_api.limits import FILTER_CANONICAL_CHARACTERS_MAX, TRACE_COMPILED_MAX, TRACE_ELEMENTS_MAX, TRACE_PARTS_MAX

_ELEMENTS_SHOWN: Final = 3
_TEXT_CHARACTERS_MAX: Final = 4 * FILTER_CANONICAL_CHARACTERS_MAX
"""A part inside macros carries their ranges with it."""
_LINE_CHARACTERS: Final = 100
_MARGIN_CHARACTERS: Final = 20
_UNSHOWN: Final = Shown("error", "not shown: nested too deeply to be evaluated alone")


@dataclass(frozen=True, slots=True)
class Part:
    """A subexpression and its value."""

    start: int  # offset of its text in the trace's text, code points
    end: int  # offset behind it
    depth: int  # how deep it stands; the whole filter is 0
    kind: str  # CEL type of the value, or "error"
    value: str  # as CEL writes it, shortened; an error's message
    element: str = ""  # inside macros: of which elements, `item = {"sku": "A-1"}`; else empty
    decided: bool = False  # whether it is the part that made the filter what it is


@dataclass(frozen=True, slots=True)
class Trace:
    """A filter on one event, part by part."""

    text: str
    outcome: FilterOutcome  # what it says of the event: cel-cpp's value of the whole
    parts: tuple[Part, ...]  # in the order of the text; constants are left out
    left_out: bool  # whether there were more than TRACE_PARTS_MAX

    @property
    def decided(self) -> Part:
        return next(part for part in self.parts if part.decided)

    @property
    def decided_text(self) -> str:
        return self.text[self.decided.start : self.decided.end]

    @property
    def caret(self) -> str:
        """The text, cut when it is long, and below it a line under the part that decided."""
        part = self.decided
        shown_from = max(0, part.start - _MARGIN_CHARACTERS) if len(self.text) > _LINE_CHARACTERS else 0
        shown = self.text[shown_from : shown_from + _LINE_CHARACTERS]
        width = max(1, min(part.end - shown_from, len(shown)) - (part.start - shown_from))
        return f"{shown}\n{' ' * (part.start - shown_from)}{'^' * width}"


@dataclass(frozen=True, slots=True)
class _Bound:
    """A macro's variable and the CEL text of the element that it stands for."""

    variable: str
    element: str


_Scope = tuple[_Bound, ...]


@dataclass(frozen=True, slots=True)
class _At:
    """A node where it stands: its place in the text, and what the macros around it have bound."""

    node: Node
    start: int
    end: int
    depth: int
    scope: _Scope


def trace(cel: str, view: EventView) -> Trace:
    """The value of every part of the filter `cel` on an event."""
    tree = flatten_all(resolve(tree_of(cel)))
    text = unparse(tree)
    tracer = _Tracer(view.activation)
    root = _At(tree, 0, len(text), 0, ())
    tracer.visit(root, text)
    tracer.mark(tracer.decider(root, text))
    return Trace(text, program(cel).evaluate_view(view), tuple(tracer.parts), tracer.left_out)


@lru_cache(maxsize=TRACE_COMPILED_MAX)
def _compiled(text: str) -> Expression | None:
    """A part by itself; None where cel-cpp does not take it. Several events meet the same parts."""
    try:
        return compile_expression(text, characters_max=_TEXT_CHARACTERS_MAX)
    except FilterError:
        return None


class _Tracer:
    def __init__(self, activation: Activation) -> None:
        self._activation = activation
        self._known: dict[str, Shown] = {}
        self.parts: list[Part] = []
        self.left_out = False

    def value(self, node: Node, scope: _Scope) -> Shown:
        """cel-cpp's value of a node whose outer macros stand at the elements of `scope`."""
        text = _closed(unparse(node), scope)
        if text not in self._known:
            expression = _compiled(text)
            self._known[text] = _UNSHOWN if expression is None else expression.show(self._activation)
        return self._known[text]

    def visit(self, at: _At, text: str) -> None:
        if isinstance(at.node, Literal | Name) and at.depth:
            return
        if len(self.parts) >= TRACE_PARTS_MAX:
            self.left_out = True
            return
        self.parts.append(self._part(at))
        for below in _below(at, text):
            if isinstance(at.node, Macro) and below.node is not at.node.range:
                for bound in self.elements(at)[:_ELEMENTS_SHOWN]:
                    self.visit(replace(below, scope=(*at.scope, bound)), text)
            else:
                self.visit(below, text)

    def _part(self, at: _At) -> Part:
        shown = self.value(at.node, at.scope)
        bound = {one.variable: self.value(Name(one.variable), at.scope).text for one in at.scope}
        element = ", ".join(f"{variable} = {value}" for variable, value in bound.items())
        return Part(at.start, at.end, at.depth, shown.kind, shown.text, element)

    def mark(self, at: _At) -> None:
        """Says of which part it is that it decided; adds it when it is not among them."""
        part = replace(self._part(at), decided=True)
        for number, known in enumerate(self.parts):
            if (known.start, known.end, known.element) == (part.start, part.end, part.element):
                self.parts[number] = replace(known, decided=True)
                return
        self.parts.append(part)

    def elements(self, at: _At) -> list[_Bound]:
        macro = at.node
        assert isinstance(macro, Macro)
        source = unparse(macro.range)
        shown = self.value(macro.range, at.scope)
        if shown.kind == "map":
            source = f"({source}).map({macro.variable}, {macro.variable})"
        return [_Bound(macro.variable, f"({source})[{n}]") for n in range(min(shown.size, TRACE_ELEMENTS_MAX))]

    def decider(self, at: _At, text: str) -> _At:
        """The smallest part that made the value what it is; the part itself when all of it counts."""
        value = self.value(at.node, at.scope)
        below = _below(at, text)
        found: _At | None = None
        match at.node:
            case Conditional():
                condition = self.value(below[0].node, at.scope)
                found = below[0 if condition.kind != "bool" else 1 if condition.text == "true" else 2]
            case Not():
                found = below[0]
            case Macro(kind) if value.kind == "bool" and _STOPPED_BY.get(kind) == value.text:
                found = self._element(at, below, value)
            case Macro() if value.kind == "error" and self.value(below[0].node, at.scope).kind != "error":
                found = self._element(at, below, value)
            case And() | Or() if value.kind == "bool":
                stops = value.text == ("true" if isinstance(at.node, Or) else "false")
                found = self._first(below, value) if stops else None
            case _ if value.kind == "error":
                found = self._faulty(at, below, value)
            case _:
                pass
        if found is None or isinstance(found.node, Literal):
            return at
        return self.decider(found, text)

    def _first(self, below: list[_At], value: Shown) -> _At | None:
        for one in below:
            shown = self.value(one.node, one.scope)
            if shown.kind == value.kind and (value.kind == "error" or shown.text == value.text):
                return one
        return None

    def _faulty(self, at: _At, below: list[_At], value: Shown) -> _At | None:
        """The operand whose error it is, or that is no boolean where one is needed."""
        found = self._first(below, value)
        if found is None and isinstance(at.node, And | Or):
            return next((one for one in below if self.value(one.node, one.scope).kind != "bool"), None)
        return found

    def _element(self, at: _At, below: list[_At], value: Shown) -> _At | None:
        """The body at the first element that made the macro what it is."""
        for bound in self.elements(at):
            bodies = [replace(one, scope=(*at.scope, bound)) for one in below[1:]]
            if (found := self._first(bodies, value)) is not None:
                return found
        return None


_STOPPED_BY: Final[Mapping[str, str]] = {"exists": "true", "all": "false"}


def _closed(text: str, scope: _Scope) -> str:
    """A text in which every variable of `scope` has its element: `[element].map(variable, text)[0]`."""
    for bound in reversed(scope):
        text = f"[{bound.element}].map({bound.variable}, {text})[0]"
    return text


def _below(at: _At, text: str) -> list[_At]:
    parts = children(at.node)
    # With a child that cannot occur in a text in the place of each one, what is left is what stands between them.
    between = unparse(map_children(at.node, lambda _: Name("\0"))).split("\0")
    found, position = [], at.start
    for before, child in zip(between, parts, strict=False):
        position += len(before)
        written = unparse(child)
        parenthesis = text.startswith(f"({written})", position)
        start = position + parenthesis
        found.append(_At(child, start, start + len(written), at.depth + 1, at.scope))
        position = start + len(written) + parenthesis
    return found
