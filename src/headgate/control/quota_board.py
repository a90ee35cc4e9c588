"""The usage of quotas that several processes count: each writes what it has to `run/usage/`, and reads the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from headgate.storage.files import replace_whole

Usage = Mapping[str, Mapping[str, int]]
"""By resource and namespace how much is used."""
_decode: Final = msgspec.json.Decoder(dict[str, dict[str, int]]).decode


class QuotaBoard:
    """What one process of a server says of usage, and hears of the others. Its methods may block, but for `others`.

    A file that cannot be read or written leaves what was known: usage is then as old as the last that could.

    Args:
        directory: Of the files.
        part: Name of the process.
    """

    def __init__(self, directory: Path, part: str) -> None:
        self._directory = directory
        self._path = directory / f"{part}.json"
        self._written: Usage | None = None
        self._others: dict[str, Counter[str]] = {}

    def exchange(self, own: Usage) -> None:
        """Says what this process has, and reads what the others have.

        Raises:
            OSError: The disk does not take it; it is tried again with the next call.
        """
        self._others = usage_in(self._directory, but=self._path)
        if own != self._written:
            self._directory.mkdir(parents=True, exist_ok=True)
            replace_whole(self._path, msgspec.json.encode(own))
            self._written = own

    def others(self, resource: str, namespace: str) -> int:
        """How much the other processes have."""
        found = self._others.get(resource)
        return found[namespace] if found is not None else 0


def usage_in(directory: Path, but: Path | None = None) -> dict[str, Counter[str]]:
    """What all processes have together; what cannot be read is left out.

    Args:
        directory: Of the files.
        but: One of them that is left out.
    """
    found: dict[str, Counter[str]] = {}
    for path in directory.glob("*.json"):
        if path != but:
            try:
                said = _decode(path.read_bytes())
            except (OSError, msgspec.DecodeError):
                continue
            for resource, counts in said.items():
                found.setdefault(resource, Counter()).update(counts)
    return found


def forget_usage(directory: Path) -> None:
    """Removes what processes have said that are gone; before any begins."""
    for path in directory.glob("*.json"):
        path.unlink(missing_ok=True)
