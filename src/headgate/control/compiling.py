"""The filter compiler as the store knows it: with a number that says which compiler wrote a plan."""

from __future__ import annotations

import functools
import importlib.metadata
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headgate.filter.compile.plan import PLAN_VERSION, CompiledFilter

Compile = Callable[[Mapping[str, object] | None, Sequence[object]], CompiledFilter]
"""`filter.compile.compiler.compile_filter`."""


@dataclass(frozen=True, slots=True)
class FilterCompiler:
    """A compiler and the number that changes whenever its output may.

    Attributes:
        version: int32, not negative.
        compile: Compiles a trigger's `spec.filter` and `spec.filters`; raises InvalidInputError.
    """

    version: int
    compile: Compile


@functools.cache
def filter_compiler() -> FilterCompiler:
    """The real one: its version is a checksum of `PLAN_VERSION` and the packages that bring dialects."""
    checksum = zlib.crc32(str(PLAN_VERSION).encode())
    for point in sorted(importlib.metadata.entry_points(group="headgate.dialects"), key=repr):
        version = point.dist.version if point.dist is not None else ""
        checksum = zlib.crc32(f"{point.name} {point.value} {version}".encode(), checksum)
    return FilterCompiler(checksum & 0x7FFF_FFFF, _compile)


def _compile(filter_object: Mapping[str, object] | None, filters: Sequence[object]) -> CompiledFilter:
    # Imported late: cel-cpp is heavy, and processes that only read the store never compile.
    from headgate.filter.compile.compiler import compile_filter

    return compile_filter(filter_object, filters)
