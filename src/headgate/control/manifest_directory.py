"""A directory of manifests, applied as create-or-update."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from headgate.control.admission import Admission
from headgate.control.errors import InvalidObjectError
from headgate.control.manifests import Document, ManifestError, read_path
from headgate.control.objects import ObjectKey
from headgate.errors import HeadgateError, InvalidInputError


def load(admission: Admission, directory: Path) -> Counter[str]:
    """Apply every manifest of a directory; nothing is written when any of them is wrong.

    Args:
        admission: Where the objects go.
        directory: Searched with what is below it, for files that end in .yaml, .yml or .json.

    Returns:
        How many objects were `created`, `configured`, `unchanged`.

    Raises:
        ManifestError: What is wrong, of all files at once.
    """
    documents = list(read_path(directory))
    problems: list[str] = []
    seen: dict[ObjectKey, str] = {}
    for document in documents:
        try:
            key = admission.check(document.value)
            if key in seen:
                problems.append(f"{document.source}: {key.kind} {key.path} is in {seen[key]} already")
            seen[key] = document.source
            admission.apply(document.value, dry_run=True)
        except InvalidInputError as error:
            problems.extend(problems_of(document, error))
    if problems:
        raise ManifestError(tuple(problems))
    return Counter(admission.apply(document.value).outcome for document in documents)


def problems_of(document: Document, error: HeadgateError) -> tuple[str, ...]:
    """An error as lines that say where: file, document, field."""
    hint = f"\n  hint: {error.hint}" if error.hint else ""
    if isinstance(error, InvalidObjectError):
        named = f" ({error.kind} {error.name})" if error.name else ""
        return tuple(f"{document.source}{named}: {cause}{hint}" for cause in error.causes)
    return (f"{document.source}: {error.message}{hint}",)
