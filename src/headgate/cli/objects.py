"""`headgate apply`, `get`, `describe` and `delete`: objects of a running server, without kubectl."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from headgate.cli.applying import applied, label, name_of, namespace_path
from headgate.cli.client import (
    SERVER_DEFAULT,
    JsonOption,
    Namespace,
    Server,
    api_path,
    fail,
    named_path,
    object_path,
    print_error,
    print_table,
    request,
)
from headgate.cli.description import description
from headgate.control.bodies import is_namespace, kind_of
from headgate.control.manifests import Document, ManifestError, read_path, read_text
from headgate.control.objects import Kind
from headgate.errors import InvalidInputError
from headgate.event.names import NAMESPACE_DEFAULT
from headgate.limits import MANIFEST_BYTES_MAX

_TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"

_KINDS: Final = "brokers, triggers, subscriptions, eventpolicies or secrets"

KindName = Annotated[str, typer.Argument(metavar="KIND", help=_KINDS)]

app = typer.Typer(no_args_is_help=True)


@app.command()
def apply(
    file: Annotated[str, typer.Option("--filename", "-f", help="A file, a directory, or - for standard input.")],
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Create or update brokers, triggers, subscriptions, event policies, secrets from YAML or JSON."""
    documents = list(_read(file))
    if not documents:
        fail(f"{file}: no objects", hint="files end in .yaml, .yml or .json")
    failed = False
    for document, done in applied(server, documents, namespace):
        if isinstance(done, InvalidInputError):
            failed = True
            print_error(f"{document.source}: {done.message}", hint=done.hint)
        else:
            typer.echo(done)
    if failed:
        raise typer.Exit(1)


@app.command()
def get(
    kind: KindName,
    name: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of one object; all objects without it.")] = "",
    namespace: Namespace = NAMESPACE_DEFAULT,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Objects of every namespace.")] = False,
    as_json: JsonOption = False,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Show brokers, triggers, subscriptions, event policies or secrets."""
    found = _kind(kind)
    if name and all_namespaces:
        fail("a name lies in one namespace", hint="leave out -A or the name")
    everywhere = all_namespaces or not found.is_namespaced
    path = api_path(found.api_version, None if everywhere else namespace, found.plural)
    if name:
        path = named_path(found, name, namespace)
    answer = request(server, "GET", path, accept="application/json" if as_json else _TABLE)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    rows = [row["cells"] for row in answer["rows"]]
    all_namespaces = all_namespaces and found.is_namespaced
    if all_namespaces:
        rows = [[row["object"]["metadata"]["namespace"], *row["cells"]] for row in answer["rows"]]
    heads = (["NAMESPACE"] if all_namespaces else []) + [head["name"].upper() for head in answer["columnDefinitions"]]
    if not rows:
        typer.echo(f"no {found.plural} found{'' if everywhere else f' in namespace {namespace}'}", err=True)
        return
    print_table([heads, *rows])


@app.command()
def describe(
    kind: KindName,
    name: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of the object.")],
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Show one object with its status and conditions, in a readable form."""
    found = request(server, "GET", named_path(_kind(kind), name, namespace))
    for line in description(found):
        typer.echo(line)


@app.command()
def delete(
    kind: Annotated[str, typer.Argument(help=f"{_KINDS}; not with --filename")] = "",
    names: Annotated[list[str] | None, typer.Argument(help="Names of the objects: NAME or NAMESPACE/NAME.")] = None,
    file: Annotated[
        str,
        typer.Option("--filename", "-f", help="Delete the objects of a file, a directory, or - for standard input."),
    ] = "",
    ignore_not_found: Annotated[
        bool, typer.Option("--ignore-not-found", help="Treat a missing object as deleted.")
    ] = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Delete objects by kind and name, or from a file. Objects with finalizers wait for them."""
    if bool(file) == bool(kind and names):
        fail("say what to delete", hint="headgate delete trigger NAME, or headgate delete -f FILE")
    if file:
        # Namespaces last: each takes everything in it with it, and what is deleted before is named.
        documents = sorted(_read(file), key=lambda document: is_namespace(document.value))
        wanted = [_labelled_path(document, namespace) for document in documents]
    else:
        found = _kind(kind)
        wanted = [(label(found, name), named_path(found, name, namespace)) for name in names or ()]
    failed = False
    for shown, path in wanted:
        try:
            answer = request(server, "DELETE", path, missing_ok=ignore_not_found)
        except InvalidInputError as error:  # not that there is no server
            failed = True
            print_error(error.message, hint=error.hint)
            continue
        if answer is not None:
            finalizers = answer["metadata"].get("finalizers")
            left = f" once its finalizers are gone: {', '.join(finalizers)}" if finalizers else ""
            typer.echo(f"{shown} deleted{left}")
    if failed:
        raise typer.Exit(1)


def _kind(text: str) -> Kind:
    found = next((known for known in Kind if text.lower() in (known.plural, known.value.lower())), None)
    if found is None:
        fail(f"unknown kind {text!r}", hint=f"one of {', '.join(kind.plural for kind in Kind)}")
    return found


def _labelled_path(document: Document, namespace: str) -> tuple[str, str]:
    """What an object of a manifest is called, and its path."""
    name = name_of(document)
    if is_namespace(document.value):
        return f"namespace/{name}", namespace_path(document)
    kind = kind_of(document.value)
    metadata = document.value["metadata"] if isinstance(document.value, dict) else {}
    return label(kind, name), object_path(kind, str(metadata.get("namespace") or namespace), name)


def _read(file: str) -> Iterator[Document]:
    if file != "-":
        return read_path(Path(file))
    body = sys.stdin.buffer.read(MANIFEST_BYTES_MAX + 1)
    if len(body) > MANIFEST_BYTES_MAX:
        raise ManifestError((f"standard input: over {MANIFEST_BYTES_MAX} bytes",))
    return read_text(body, "standard input")
