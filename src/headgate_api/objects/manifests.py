"""Manifests: the objects of YAML and JSON files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate_api.errors import FatalError, InvalidInputError
from headgate_api.limits import MANIFEST_BYTES_MAX, MANIFEST_FILES_MAX
from headgate_api.objects.bodies import yaml_documents
from headgate_api.objects.errors import MalformedObjectError

SUFFIXES: Final = (".yaml", ".yml", ".json")
PROBLEMS_SHOWN_MAX: Final = 20
"""Problems in one message; the rest is counted."""


class ManifestError(InvalidInputError, FatalError):
    """Manifests cannot be read or applied; every problem names file, document and field."""

    code = "invalid-manifest"

    def __init__(self, problems: tuple[str, ...]) -> None:
        shown = "\n".join(problems[:PROBLEMS_SHOWN_MAX])
        more = len(problems) - PROBLEMS_SHOWN_MAX
        super().__init__(shown if more <= 0 else f"{shown}\n... and {more} more")
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a manifest, as decoded, unchecked."""

    source: str  # file, and the document's number in it (from 1)
    value: object


def read_path(path: Path) -> Iterator[Document]:
    """The documents of a file, or of all manifests below a directory, ordered by path; raises ManifestError."""
    if not path.exists():
        raise ManifestError((f"{path}: no such file or directory",))
    files = sorted(_files(path)) if path.is_dir() else [path]
    if len(files) > MANIFEST_FILES_MAX:
        raise ManifestError((f"{path}: more than {MANIFEST_FILES_MAX} files",))
    for file in files:
        try:
            if file.stat().st_size > MANIFEST_BYTES_MAX:
                raise ManifestError((f"{file}: over {MANIFEST_BYTES_MAX} bytes",))
            body = file.read_bytes()
        except OSError as error:
            raise ManifestError((f"{file}: {error.strerror}",)) from error
        yield from read_text(body, str(file))


def read_text(body: bytes, source: str) -> Iterator[Document]:
    """The documents of a YAML or JSON text in UTF-8; a `List`, or `TriggerList`, stands for its items."""
    try:
        for number, value in enumerate(yaml_documents(body), start=1):
            place = f"{source}, document {number}"
            is_list = isinstance(value, Mapping) and str(value.get("kind")).endswith("List")
            if isinstance(value, Mapping) and is_list and isinstance(value.get("items"), list):
                for at, item in enumerate(value["items"]):
                    yield Document(f"{place}, items[{at}]", item)
            else:
                yield Document(place, value)
    except MalformedObjectError as error:
        raise ManifestError((f"{source}: {error.message}",)) from error


def _files(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*"):
        # Kubernetes mounts a ConfigMap as links beside a hidden folder that holds the same files.
        hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
        if path.suffix in SUFFIXES and not hidden and path.is_file():
            yield path
