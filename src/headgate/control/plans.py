"""Compiled filters as msgpack beside their triggers, so that a restart compiles nothing."""

from __future__ import annotations

from typing import Final

import msgspec

from headgate.filter.compile.plan import CompiledFilter, Constant, PlanRow, Signature


class _Row(msgspec.Struct, array_like=True, frozen=True):
    signature: msgspec.Raw
    key: tuple[Constant, ...]
    constants: tuple[Constant | tuple[Constant, ...], ...]


class _Plan(msgspec.Struct, array_like=True, frozen=True):
    cel: str
    rows: tuple[_Row, ...]
    notes: tuple[str, ...]
    sure_bytes: int


_ENCODER: Final = msgspec.msgpack.Encoder()
_SIGNATURE: Final = msgspec.msgpack.Decoder(Signature)
_PLAN: Final = msgspec.msgpack.Decoder(_Plan)


def encode_plan(plan: CompiledFilter) -> bytes:
    """A plan as msgpack."""
    rows = tuple(
        _Row(msgspec.Raw(_ENCODER.encode(row.signature)), tuple(row.key), tuple(row.constants)) for row in plan.rows
    )
    return _ENCODER.encode(_Plan(plan.cel, rows, tuple(plan.notes), plan.sure_bytes))


class PlanDecoder:
    """Decodes plans; equal signatures become one object, for thousands of filters have tens of shapes."""

    def __init__(self) -> None:
        self._signatures: dict[bytes, Signature] = {}

    def decode(self, body: bytes) -> CompiledFilter:
        """The plan that `encode_plan` wrote."""
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
