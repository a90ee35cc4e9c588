"""A directory of manifests, applied as create-or-update."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from headgate.control.admission import MANIFESTS, Admission
from headgate.control.bodies import is_namespace
from headgate.control.errors import InvalidObjectError, NamespaceError
from headgate.control.managers import managers_of, owned, updated
from headgate.control.manifests import Document, ManifestError, read_path
from headgate.control.namespaces import decode_namespace, namespace
from headgate.control.objects import Metadata, Namespace
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
    seen: dict[tuple[str, str], str] = {}
    for document in documents:
        try:
            kind, path = _checked(admission, document.value)
            if (kind, path) in seen:
                problems.append(f"{document.source}: {kind} {path} is in {seen[kind, path]} already")
            seen[kind, path] = document.source
            _applied(admission, document.value, dry_run=True)
        except (InvalidInputError, NamespaceError) as error:
            problems.extend(problems_of(document, error))
    if problems:
        raise ManifestError(tuple(problems))
    return Counter(_applied(admission, document.value) for document in documents)


def _checked(admission: Admission, document: object) -> tuple[str, str]:
    """Kind and path of a document, checked as far as that needs no store."""
    if is_namespace(document):
        return "Namespace", decode_namespace(document).metadata.name
    key = admission.check(document)
    return key.kind, key.path


def _applied(admission: Admission, document: object, *, dry_run: bool = False) -> str:
    """What became of a document."""
    if not is_namespace(document):
        return admission.apply(document, dry_run=dry_run).outcome
    given, store, outcome = decode_namespace(document).metadata, admission.store, "unchanged"

    def make(old: Namespace | None) -> Namespace:
        nonlocal outcome
        before = old.metadata if old is not None else Metadata()
        labels, annotations = before.labels | given.labels, before.annotations | given.annotations
        if old is not None and (labels, annotations) == (before.labels, before.annotations):
            return old
        outcome = "configured" if old is not None else "created"
        new = namespace(given.name, msgspec.structs.replace(before, labels=labels, annotations=annotations))
        managers = managers_of(old) if old is not None else {}
        return owned(new, updated(managers, old, new, MANIFESTS, store.now()))

    store.namespaces.change(given.name, make, dry_run=dry_run)
    return outcome


def problems_of(document: Document, error: HeadgateError) -> tuple[str, ...]:
    """An error as lines that say where: file, document, field."""
    hint = f"\n  hint: {error.hint}" if error.hint else ""
    if isinstance(error, InvalidObjectError):
        named = f" ({error.kind} {error.name})" if error.name else ""
        return tuple(f"{document.source}{named}: {cause}{hint}" for cause in error.causes)
    return (f"{document.source}: {error.message}{hint}",)
