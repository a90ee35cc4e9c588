"""The union of filters: one CEL text that is true wherever one of them is, for a source to apply before it sends.

On other events it may be true, false or an error (CEL's `||`: true wins over an error). What depends on `publish_time`
counts as true: when an event will be stored is not known where it comes from.

Joined alternatives lose those that others imply, and equalities of one place become one list. What is too long then is
widened in steps: conditions beside keys are dropped, then keys beside `ce.type`, then values become prefixes, ever
shorter; last comes `true`.

cel-cpp gives up on all of an evaluation after so many rounds of its macros, so filters could be true one by one and an
error together. Alternatives without a macro are looked at first. Of two or more macros each has its share of the
rounds: the union is true, and no longer exact, of events on which one of them might take more. A filter whose macros
nest beside others, or that takes too long on some large event for other reasons, takes part by its keys alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.filter.cel.ast import (
    FALSE,
    PUBLISH_TIME,
    TRUE,
    And,
    Call,
    Compare,
    Comparison,
    In,
    ListOf,
    Literal,
    LiteralKind,
    Macro,
    Node,
    Or,
    children,
    reads_publish_time,
)
from headgate.filter.cel.budget import ROUNDS_MAX
from headgate.filter.cel.build import attribute, call, literal, one_of, operands_of
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import program
from headgate.filter.cel.parsing import simplified_tree
from headgate.filter.cel.rewrite import has_macro, literal_order
from headgate.filter.cel.unparse import unparse
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import CompiledFilter, Form, KeyKind, PlanRow, Root
from headgate_api.limits import (
    FILTER_LIST_ITEMS_MAX,
    UNION_CHARACTERS_MAX,
    UNION_FILTERS_MAX,
    UNION_KEYS_MAX,
    UNION_WRITTEN_CHARACTERS_MAX,
)

_PREFIXES: Final = (32, 16, 12, 8, 6, 4, 3, 2, 1)
_PATHS_MERGED_MAX: Final = 16
_EVERYTHING: Final = frozenset[Node]()


@dataclass(frozen=True, slots=True)
class Union:
    """What any of some filters wants, "false" without any; where not `exact`, it was widened to more events."""

    cel: str
    exact: bool


def union(filters: Iterable[CompiledFilter], *, characters_max: int = UNION_CHARACTERS_MAX) -> Union:
    """One filter that is true wherever one of `filters` is."""
    given = {one.cel: one for one in filters}
    different = {one.cel: one for one in map(_before_storing, given.values())}
    found = _union(different, characters_max)
    return Union(found.cel, exact=found.exact and different.keys() == given.keys())


def _union(different: Mapping[str, CompiledFilter], characters_max: int) -> Union:
    if "true" in different:
        return Union("true", exact=True)
    if len(different) == 1:
        (cel,) = different
        if len(cel) <= characters_max:
            return Union(cel, exact=True)
    if len(different) <= UNION_FILTERS_MAX and sum(map(len, different)) <= UNION_WRITTEN_CHARACTERS_MAX:
        found = _as_written(different.values(), characters_max)
        if found is not None:
            return found
    for keys in _widenings(different.values()):
        if len(keys) <= UNION_KEYS_MAX:
            text = _fitting(_joined(map(_nodes, keys)), characters_max)
            if text is not None:
                return Union(text, exact=False)
    return Union("true", exact=False)


def _before_storing(one: CompiledFilter) -> CompiledFilter:
    """A filter that is true wherever `one` may become true once the event is stored: no source knows `publish_time`."""
    if PUBLISH_TIME not in one.cel:
        return one
    return compile_cel(unparse(_relaxed(simplified_tree(one.cel))))


def _relaxed(node: Node) -> Node:
    """A condition with `true` for every part that reads `publish_time`."""
    match node:
        case And(operands) | Or(operands):
            return type(node)(tuple(map(_relaxed, operands)))
        case _:
            return TRUE if reads_publish_time(node) else node


def _as_written(filters: Collection[CompiledFilter], characters_max: int) -> Union | None:
    """The filters as they are written, as far as they can stand together; None when that is too long."""
    exact = True
    alternatives: list[frozenset[Node]] = []
    trees = [simplified_tree(one.cel) for one in filters]
    macros = [_macros(tree) for tree in trees]
    alone = sum(map(len, macros)) == 1  # last, it has all rounds, as in its filter
    for one, tree, its in zip(filters, trees, macros, strict=True):
        # A macro takes more rounds than its range has items where the range is a macro's, or the body has one.
        nests = any(has_macro(part) for macro in its for part in children(macro))
        if program(one.cel).is_unlimited and (alone or not nests):
            alternatives += [frozenset(operands_of(And, one)) - {TRUE} for one in operands_of(Or, tree) if one != FALSE]
        else:
            exact = False
            alternatives += dict.fromkeys(_nodes(_keys(row)) for row in one.rows)
    joined = _joined(alternatives)
    guards = _guards(joined)
    text = _fitting([*joined, *guards], characters_max)
    return None if text is None else Union(text, exact=exact and not guards)


def _macros(node: Node) -> list[Macro]:
    """The macros of an expression, but for those that stand in others."""
    return [node] if isinstance(node, Macro) else [macro for child in children(node) for macro in _macros(child)]


def _guards(alternatives: Iterable[frozenset[Node]]) -> list[frozenset[Node]]:
    """Alternatives that are true where macros together may take more rounds than one evaluation has."""
    macros = [macro for alternative in alternatives for node in alternative for macro in _macros(node)]
    if len(macros) < 2:
        return []
    share = literal((ROUNDS_MAX - 1) // len(macros))
    ranges = dict.fromkeys(macro.range for macro in macros)
    return [frozenset({Compare(Comparison.GT, call("size", one), share)}) for one in ranges]


class _Key(NamedTuple):
    """A condition of a row's key on an attribute: plain, because there may be a million of them."""

    name: str
    kind: KeyKind
    text: str

    def node(self) -> Node:
        path, text = attribute(self.name), literal(self.text)
        if self.kind is KeyKind.STRING:
            return Compare(Comparison.EQ, path, text)
        return Call("startsWith" if self.kind is KeyKind.PREFIX else "endsWith", path, (text,))

    def shortened(self, length: int) -> _Key | None:
        """A prefix that says no more; None for what has none."""
        if self.kind is KeyKind.SUFFIX:
            return None
        return self if len(self.text) <= length else _Key(self.name, KeyKind.PREFIX, self.text[:length])


_Keys = frozenset[_Key]
_KINDS: Final = frozenset({KeyKind.STRING, KeyKind.PREFIX, KeyKind.SUFFIX})


def _keys(row: PlanRow) -> _Keys:
    """The conditions of a row's keys on attributes, as far as they are certain."""
    return frozenset(
        _Key(part.operand.path[0], part.kind, constant)
        for part, constant in zip(row.signature.key, row.key, strict=True)
        if part.operand.root is Root.CE and part.operand.form is Form.VALUE
        if part.kind in _KINDS and isinstance(constant, str)
    )


def _nodes(keys: _Keys) -> frozenset[Node]:
    return frozenset(key.node() for key in keys)


def _widenings(filters: Iterable[CompiledFilter]) -> Iterator[dict[_Keys, None]]:
    """Ever less of the rows, each once: an event on which a filter is true meets the keys of one of its rows."""
    keys = dict.fromkeys(_keys(row) for one in filters for row in one.rows)
    yield keys
    keys = dict.fromkeys(frozenset(key for key in one if key.name == "type") for one in keys)
    yield keys
    for length in _PREFIXES:
        keys = dict.fromkeys(
            frozenset(shorter for key in one if (shorter := key.shortened(length)) is not None) for one in keys
        )
        yield keys


# --- joining --------------------------------------------------------------------------------------------------------


def _joined(alternatives: Iterable[frozenset[Node]]) -> list[frozenset[Node]]:
    """The same alternatives, fewer: equalities of one place merged, those that others imply left out."""
    merged = _merged(dict.fromkeys(alternatives))
    if _EVERYTHING in merged:
        return [_EVERYTHING]
    implied = _Implied(merged)
    return [alternative for alternative in merged if not implied(alternative)]


def _merged(alternatives: Iterable[frozenset[Node]]) -> list[frozenset[Node]]:
    """`p == 1 && x || p == 2 && x` is `p in [1, 2] && x`, for each of the places that are compared most often."""
    merged = list(alternatives)
    paths = Counter(found.path for alternative in merged for node in alternative if (found := _equality(node)))
    for path, count in paths.most_common(_PATHS_MERGED_MAX):
        if count > 1:
            merged = _merged_at(path, merged)
    return merged


def _merged_at(path: Node, alternatives: list[frozenset[Node]]) -> list[frozenset[Node]]:
    groups: dict[frozenset[Node], dict[Literal, None]] = {}
    kept: dict[frozenset[Node], None] = {}
    for alternative in alternatives:
        found = [one for node in alternative if (one := _equality(node)) and one.path == path]
        if len(found) == 1:
            groups.setdefault(alternative - {found[0].node}, {}).update(dict.fromkeys(found[0].constants))
        else:
            kept[alternative] = None
    for rest, constants in groups.items():
        listed = list(constants)
        for start in range(0, len(listed), FILTER_LIST_ITEMS_MAX):
            ordered = sorted(listed[start : start + FILTER_LIST_ITEMS_MAX], key=literal_order)
            kept[rest | {one_of(path, ordered)}] = None
    return list(kept)


class _Equality(NamedTuple):
    """A condition that a value is one of some constants."""

    path: Node
    constants: tuple[Literal, ...]
    node: Node


def _equality(node: Node) -> _Equality | None:
    match node:
        case Compare(Comparison.EQ, path, Literal() as constant) if not isinstance(path, Literal):
            return _Equality(path, (constant,), node)
        case In(path, ListOf(items)):
            constants = tuple(item for item in items if isinstance(item, Literal))
            return _Equality(path, constants, node) if len(constants) == len(items) > 0 else None
        case _:
            return None


class _Implied:
    """Says which alternatives are implied by others: by fewer of the same conditions, or by a wider single one."""

    def __init__(self, alternatives: Collection[frozenset[Node]]) -> None:
        self._all = set(alternatives)
        self._constants: dict[Node, set[Literal]] = {}
        self._prefixes: dict[Node, dict[int, set[str]]] = {}
        for alternative in alternatives:
            if len(alternative) == 1:
                self._add(next(iter(alternative)))

    def _add(self, node: Node) -> None:
        match node:
            case Call("startsWith", path, (Literal(LiteralKind.STRING, str(prefix)),)) if path is not None:
                self._prefixes.setdefault(path, {}).setdefault(len(prefix), set()).add(prefix)
            case _:
                if (found := _equality(node)) is not None:
                    self._constants.setdefault(found.path, set()).update(found.constants)

    def __call__(self, alternative: frozenset[Node]) -> bool:
        if any(self._all_others_hold(alternative, node) for node in alternative):
            return True
        return len(alternative) > 1 and any(frozenset({node}) in self._all for node in alternative)

    def _all_others_hold(self, alternative: frozenset[Node], node: Node) -> bool:
        """Whether another alternative of one condition is true wherever `node` is."""
        match node:
            case Call("startsWith", path, (Literal(LiteralKind.STRING, str(text)),)) if path is not None:
                return self._has_prefix(path, text, shorter=len(alternative) == 1)
            case _ if (found := _equality(node)) is not None:
                path, constants = found.path, found.constants
                texts = [constant.value for constant in constants if isinstance(constant.value, str)]
                if len(texts) == len(constants) and all(self._has_prefix(path, text, shorter=False) for text in texts):
                    return True
                return len(alternative) > 1 and self._constants.get(path, set()).issuperset(constants)
            case _:
                return False

    def _has_prefix(self, path: Node, text: str, *, shorter: bool) -> bool:
        longest = len(text) - shorter
        return any(length <= longest and text[:length] in of for length, of in self._prefixes.get(path, {}).items())


def _fitting(alternatives: list[frozenset[Node]], characters_max: int) -> str | None:
    """The alternatives as one text; None when it is too long, no broker would admit it, or it may take too long."""
    if not alternatives:
        return "false"
    if _EVERYTHING in alternatives:
        return "true"
    ordered = (sorted((has_macro(node), _operand(node)) for node in alternative) for alternative in alternatives)
    written = sorted((operands[-1][0], " && ".join(text for _, text in operands)) for operands in ordered)
    text = " || ".join(text for _, text in written)
    if len(text) > characters_max:
        return None
    try:
        compile_cel(text)
    except FilterError:
        return None
    return text if program(text).is_unlimited else None


def _operand(node: Node) -> str:
    """Text that stands as an operand of `&&`."""
    text = unparse(And((node, TRUE)))
    return text.removesuffix(" && true")
