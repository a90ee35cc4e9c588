"""A record on its way to a topic of state, which is compacted. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateRecord:
    """One of them; `value` is None where what the key names is gone."""

    key: bytes
    value: bytes | None
