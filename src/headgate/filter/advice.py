"""What should the author of a valid filter hear? Looks at what was written only; cel-cpp is not needed for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_DEPRECATED: Final = "sourceAndType"
_NESTING: Final = ("all", "any", "not")


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that works and should be written otherwise.

    Attributes:
        reason: One word, for a condition.
        message: A sentence that names the field.
    """

    reason: str
    message: str


def advice(filter_object: Mapping[str, object] | None, filters: Sequence[object] = ()) -> tuple[Advice, ...]:
    """What is said of an admitted `spec.filter` and `spec.filters`."""
    return tuple(_said(filter_object, filters))


def _said(filter_object: Mapping[str, object] | None, filters: Sequence[object]) -> Iterator[Advice]:
    if filters and filter_object:
        message = "spec.filter has no effect beside spec.filters: remove it, or move it there as an element"
        yield Advice("FilterOverridden", message)
    deprecated = [f"spec.filter.{_DEPRECATED}"] if filter_object and _DEPRECATED in filter_object else []
    for at, one in enumerate(filters):
        deprecated.extend(_deprecated(one, f"spec.filters[{at}]"))
    if deprecated:
        message = f"{', '.join(deprecated)}: {_DEPRECATED} is deprecated, write attributes instead"
        yield Advice("DialectDeprecated", message)


def _deprecated(value: object, field: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    if _DEPRECATED in value:
        yield f"{field}.{_DEPRECATED}"
    for name in _NESTING:
        inner = value.get(name)
        if isinstance(inner, list | tuple):
            for at, one in enumerate(inner):
                yield from _deprecated(one, f"{field}.{name}[{at}]")
        else:
            yield from _deprecated(inner, f"{field}.{name}")
