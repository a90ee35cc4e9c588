"""Remarks on valid filters, from what was written alone; cel-cpp is not needed for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from headgate.filter.cel.attribute_names import may_exist
from headgate.filter.cel.tokens import names_in as names_in_cel
from headgate.filter.dialects.jms.dialect import names_in as names_in_selector
from headgate.filter.tools.engines import differences
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES

_DEPRECATED: Final = "sourceAndType"
_NAMES_IN: Final[Mapping[str, Callable[[str], Sequence[str]]]] = {
    "jms": names_in_selector,
    "cel": names_in_cel,
    "expression": names_in_cel,
}
"""What names attributes as it likes; other dialects refuse a name that no attribute has."""
_NAMES_SHOWN: Final = 5
_ALIKE: Final = 0.8
"""How alike a name and an attribute's are where one is meant for the other, of 1: `typ`, `sources`."""
_NESTING: Final = ("all", "any", "not")


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that works and should be written otherwise; `reason` is one word, for a condition."""

    reason: str
    message: str


def advice(filter_object: Mapping[str, object] | None, filters: Sequence[object] = ()) -> tuple[Advice, ...]:
    """Remarks on an admitted `spec.filter` and `spec.filters`."""
    return tuple(_remarks(filter_object, filters))


def _remarks(filter_object: Mapping[str, object] | None, filters: Sequence[object]) -> Iterator[Advice]:
    if filters and filter_object:
        message = "spec.filter has no effect beside spec.filters: remove it, or move it there as an element"
        yield Advice("FilterOverridden", message)
    written = list(_fields(filter_object, "spec.filter"))
    for at, one in enumerate(filters):
        written.extend(_fields(one, f"spec.filters[{at}]"))
    deprecated = [f"{field}.{name}" for field, name, _ in written if name == _DEPRECATED]
    if deprecated:
        message = f"{', '.join(deprecated)}: {_DEPRECATED} is deprecated, write attributes instead"
        yield Advice("DialectDeprecated", message)

    for field, name, value in written:
        if name in _NAMES_IN and isinstance(value, str):
            for read in _NAMES_IN[name](value):
                near = [] if read in CONTEXT_ATTRIBUTES else get_close_matches(read, CONTEXT_ATTRIBUTES, 1, _ALIKE)
                if near and may_exist(read):
                    message = f"{field}.{name} reads {read}, which would be an extension: did you mean {near[0]}?"
                    yield Advice("NameUnlikely", message)
            impossible = [read for read in _NAMES_IN[name](value) if not may_exist(read)]
            if impossible:
                listed = ", ".join(impossible[:_NAMES_SHOWN])
                rule = (
                    "the data is no attribute" if impossible == ["data"] else "names are lower-case letters and digits"
                )
                message = f"{field}.{name} reads {listed}: no event has it, {rule}"
                yield Advice("NameImpossible", message)
        for sentence in differences(name, value):
            yield Advice("EnginesDiffer", f"{field}.{name}: {sentence}")


def _fields(value: object, field: str) -> Iterator[tuple[str, str, object]]:
    """Fields of filters, nested ones too: path of the filter, the field's name, its value."""
    if not isinstance(value, Mapping):
        return
    for name, inner in value.items():
        yield field, str(name), inner
    for name in _NESTING:
        inner = value.get(name)
        if isinstance(inner, list | tuple):
            for at, one in enumerate(inner):
                yield from _fields(one, f"{field}.{name}[{at}]")
        else:
            yield from _fields(inner, f"{field}.{name}")
