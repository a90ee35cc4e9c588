"""`headgate apply` and `headgate get`: objects of a running server, without kubectl."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from headgate.cli.client import (
    SERVER_DEFAULT,
    Namespace,
    NoServerError,
    Server,
    complain,
    fail,
    print_table,
    request,
)
from headgate.control.bodies import kind_of
from headgate.control.defaults import NAMESPACE_DEFAULT
from headgate.control.manifests import Document, ManifestError, read_path, read_text
from headgate.control.objects import FILTER_ANNOTATION, FILTERS_ANNOTATION, Kind
from headgate.errors import HeadgateError
from headgate.limits import MANIFEST_BYTES_MAX

_COPIES: Final = frozenset({FILTER_ANNOTATION, FILTERS_ANNOTATION})
"""Annotations that the server writes: sent back, they would say that a filter that is left out is to stay."""
_MANAGER: Final = "fieldManager=headgate"
_TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"

app = typer.Typer(no_args_is_help=True)


@app.command()
def apply(
    file: Annotated[str, typer.Option("--filename", "-f", help="File, directory, or - for standard input.")],
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Create or update brokers and triggers from YAML or JSON."""
    try:
        documents = list(_read(file))
    except ManifestError as error:
        fail(error.message)
    if not documents:
        fail(f"{file}: no objects", hint="files end in .yaml, .yml or .json")
    failed = False
    for document in documents:
        try:
            typer.echo(_apply(server, document, namespace))
        except NoServerError as error:
            fail(error.message, hint=error.hint)
        except HeadgateError as error:
            failed = True
            complain(f"{document.source}: {error.message}", hint=error.hint)
    if failed:
        raise typer.Exit(1)


@app.command()
def get(
    kind: Annotated[str, typer.Argument(help="brokers, triggers or subscriptions")],
    name: Annotated[str, typer.Argument(help="One object; all of them when it is left out.")] = "",
    namespace: Namespace = NAMESPACE_DEFAULT,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Those of every namespace.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the objects as JSON.")] = False,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Show brokers, triggers or subscriptions."""
    found = next((known for known in Kind if kind.lower() in (known.plural, known.value.lower())), None)
    if found is None:
        fail(f"unknown kind {kind!r}", hint="brokers, triggers or subscriptions")
    if name and all_namespaces:
        fail("a name lies in one namespace", hint="leave out -A or the name")
    path = _collection(found, None if all_namespaces else namespace)
    if name:
        path += f"/{quote(name, safe='')}"
    try:
        answer = request(server, "GET", path, accept="application/json" if as_json else _TABLE)
    except HeadgateError as error:
        fail(error.message, hint=error.hint)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    rows = [row["cells"] for row in answer["rows"]]
    if all_namespaces:
        rows = [[row["object"]["metadata"]["namespace"], *row["cells"]] for row in answer["rows"]]
    heads = (["NAMESPACE"] if all_namespaces else []) + [head["name"].upper() for head in answer["columnDefinitions"]]
    if not rows:
        typer.echo(f"no {found.plural} found", err=True)
        return
    print_table([heads, *rows])


def _read(file: str) -> Iterator[Document]:
    if file != "-":
        return read_path(Path(file))
    body = sys.stdin.buffer.read(MANIFEST_BYTES_MAX + 1)
    if len(body) > MANIFEST_BYTES_MAX:
        raise ManifestError((f"standard input: over {MANIFEST_BYTES_MAX} bytes",))
    return read_text(body, "standard input")


def _apply(server: str, document: Document, namespace: str) -> str:
    """Create the object or put it in the place of the one that is there; labels and annotations are added to."""
    kind = kind_of(document.value)
    # `kind_of` has seen that it is an object; everything else in it is for the server to judge.
    body: dict[str, Any] = dict(document.value) if isinstance(document.value, dict) else {}
    written = body.get("metadata")
    metadata: dict[str, Any] = dict(written) if isinstance(written, dict) else {}
    place, name = str(metadata.get("namespace") or namespace), str(metadata.get("name") or "")
    collection = _collection(kind, place)
    label = f"{kind.value.lower()}.{kind.group}/{name}"
    path = f"{collection}/{quote(name, safe='')}"
    old = request(server, "GET", path, missing_ok=True) if name else None
    if old is None:
        made = request(server, "POST", f"{collection}?{_MANAGER}", body=body)
        return f"{kind.value.lower()}.{kind.group}/{made['metadata']['name']} created"
    for field in ("labels", "annotations"):
        kept = {key: value for key, value in old["metadata"].get(field, {}).items() if key not in _COPIES}
        given = metadata.get(field)
        metadata[field] = kept | given if isinstance(given, dict) else kept
    metadata.setdefault("finalizers", old["metadata"].get("finalizers", []))  # other programs' business
    body["metadata"] = metadata
    new = request(server, "PUT", f"{path}?{_MANAGER}", body=body)
    # Not the resourceVersion: the server may have written a status in between.
    fields = ("uid", "generation", "labels", "annotations")
    same = all(new["metadata"].get(field) == old["metadata"].get(field) for field in fields)
    return f"{label} {'unchanged' if same else 'configured'}"


def _collection(kind: Kind, namespace: str | None) -> str:
    where = f"/namespaces/{quote(namespace, safe='')}" if namespace is not None else ""
    return f"/apis/{kind.api_version}{where}/{kind.plural}"
