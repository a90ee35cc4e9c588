"""The console's files, read once: what a browser gets at each path, with its type and its tag."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent; its tag has the quotes."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, body: bytes, suffix: str) -> StaticFile:
        """A file of these bytes; `suffix` is that of its name, with the dot."""
        return cls(body, _TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def read_files(folder: Path = FOLDER) -> Mapping[str, StaticFile]:
    """Every file below a folder by its path there, with slashes. A file of an unknown type is a KeyError."""
    return {
        path.relative_to(folder).as_posix(): StaticFile.of(path.read_bytes(), path.suffix)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
