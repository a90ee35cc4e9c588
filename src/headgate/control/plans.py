"""Compiled filters as they are stored beside their triggers, with the number of the compiler that wrote them.

They are msgpack, so that a restart compiles nothing.
"""

from __future__ import annotations

import functools
import importlib.metadata
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.filter.compile.plan import PLAN_VERSION, SCAN_CANDIDATE, CompiledFilter, Constant, PlanRow, Signature


class _Row(msgspec.Struct, array_like=True, frozen=True):
    signature: msgspec.Raw
    key: tuple[Constant, ...]
    constants: tuple[Constant | tuple[Constant, ...], ...]


class _Plan(msgspec.Struct, array_like=True, frozen=True):
    cel: str
    rows: tuple[_Row, ...]
    notes: tuple[str, ...]
    sure_bytes: int


class _CelAlone(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of a plan; msgspec passes over what follows."""

    cel: str


DUE: Final = "(compiler != ? OR cost IS NULL)"
"""Of targets whose filters are to be compiled anew; its parameter is the version of the compiler."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_SIGNATURE: Final = msgspec.msgpack.Decoder(Signature)
_CEL: Final = msgspec.msgpack.Decoder(_CelAlone)
_PLAN: Final = msgspec.msgpack.Decoder(_Plan)


def encode_plan(plan: CompiledFilter) -> bytes:
    """A plan as msgpack."""
    rows = tuple(
        _Row(msgspec.Raw(_ENCODER.encode(row.signature)), tuple(row.key), tuple(row.constants)) for row in plan.rows
    )
    return _ENCODER.encode(_Plan(plan.cel, rows, tuple(plan.notes), plan.sure_bytes))


def outdated_plan(body: bytes) -> CompiledFilter:
    """A plan that another version of the compiler wrote: its CEL text, and rows that leave every event to cel-cpp.

    The text is the first element in every version. Rows of another version may mean something else.
    """
    return CompiledFilter(_CEL.decode(body).cel, (PlanRow(SCAN_CANDIDATE, (), ()),), sure_bytes=0)


class PlanDecoder:
    """Decodes plans; equal signatures become one object, for thousands of filters have tens of shapes."""

    def __init__(self) -> None:
        self._signatures: dict[bytes, Signature] = {}

    def decode(self, body: bytes) -> CompiledFilter:
        plan = _PLAN.decode(body)
        return CompiledFilter(
            cel=plan.cel,
            rows=tuple(PlanRow(self._signature(row.signature), row.key, row.constants) for row in plan.rows),
            notes=plan.notes,
            sure_bytes=plan.sure_bytes,
        )

    def _signature(self, raw: msgspec.Raw) -> Signature:
        body = bytes(raw)
        signature = self._signatures.get(body)
        if signature is None:
            signature = self._signatures[body] = _SIGNATURE.decode(body)
        return signature


# --- compiling ------------------------------------------------------------------------------------
# The filter compiler as the store knows it: with a number that says which compiler wrote a plan.

Compile = Callable[[Mapping[str, object] | None, Sequence[object]], CompiledFilter]
"""`filter.compile.compiler.compile_filter`."""


@dataclass(frozen=True, slots=True)
class FilterCompiler:
    """A compiler, which raises InvalidInputError; its version, an int32 from 0, changes whenever its output may."""

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
