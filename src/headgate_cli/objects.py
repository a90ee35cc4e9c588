"""`headgate apply`, `get`, `describe`, `delete` and `trigger`: objects of a running server, without kubectl."""

from __future__ import annotations

import base64
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from headgate_api.errors import InvalidInputError
from headgate_api.event.names import NAMESPACE_DEFAULT, full_name
from headgate_api.limits import APPLY_BYTES_MAX, APPLY_OBJECTS_MAX, MANIFEST_BYTES_MAX
from headgate_api.objects.bodies import MERGE_PATCH, is_namespace, kind_of
from headgate_api.objects.kinds import (
    APPLIED_TOGETHER,
    FILTER_ANNOTATION,
    FILTERS_ANNOTATION,
    OWN_API_VERSION,
    PAUSED_ANNOTATION,
    Kind,
)
from headgate_api.objects.manifests import Document, ManifestError, read_path, read_text
from headgate_cli.client import (
    SERVER_DEFAULT,
    ApiRefusedError,
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

_TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"

_KINDS: Final = "brokers, triggers, subscriptions, eventpolicies or secrets"

KindName = Annotated[str, typer.Argument(metavar="KIND", help=_KINDS)]
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of triggers: NAME or NAMESPACE/NAME.")]
_SERVERS: Final = frozenset({"resourceVersion", "uid", "generation", "creationTimestamp"})
"""Metadata that the server writes: in a file that `get --json` has printed it says nothing of what is wanted."""
_MANAGER: Final = "fieldManager=headgate"
_ENVELOPE_BYTES: Final = 64
"""What a request has around its objects."""
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""Repeats a Secret's values."""
_COPIES: Final = frozenset({FILTER_ANNOTATION, FILTERS_ANNOTATION})
"""Annotations that repeat the spec: sent back, they would say that a filter that is left out is to stay."""
_COMMON: Final = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
_INDENT: Final = "  "
_CONDITION: Final = ("type", "status", "reason", "lastTransitionTime")

triggers = typer.Typer(no_args_is_help=True, help="Pause and resume the deliveries of triggers.")


def apply(
    file: Annotated[str, typer.Option("--filename", "-f", help="A file, a directory, or - for standard input.")],
    preview: Annotated[
        bool, typer.Option("--preview", help="Apply nothing: show what changed filters do to stored events.")
    ] = False,
    max_change: Annotated[
        str,
        typer.Option(
            "--max-change", metavar="PERCENT", help="Apply nothing if a filter gains or loses more events, as in 5%."
        ),
    ] = "",
    since: Annotated[
        str, typer.Option("--since", help="How far back both look: an age (15m, 1h, 7d) or a time.")
    ] = "1h",
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Create or update brokers, triggers, subscriptions, event policies, secrets from YAML or JSON.

    With --preview or --max-change, each changed filter is first counted on the stored events of the last hour, beside
    the filter that the server has.

    \b
    Examples:
      headgate apply -f triggers/
      headgate apply -f triggers/ --preview --since 1d
      headgate apply -f triggers/ --max-change 5%
    """  # noqa: D301 - click reads \b as "keep these lines"
    documents = list(documents_of(file))
    if not documents:
        fail(f"{file}: no objects", hint="files end in .yaml, .yml or .json")
    if preview or max_change:
        from headgate_cli.preview import changes, percent_of, tell  # here: it brings what draws bars

        wanted = (_wanted(one, namespace) for one in documents if not is_namespace(one.value))
        objects = ((_label(one.kind, _name_of(one.document)), one.kind, one.namespace, one.body) for one in wanted)
        tell(changes(server, objects, since), percent_of(max_change) if max_change else None)
    if preview:
        return
    _tell((f"{document.source}: ", done) for document, done in _applied(server, documents, namespace))


def get(
    kind: KindName,
    name: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of one object; all objects without it.")] = "",
    namespace: Namespace = NAMESPACE_DEFAULT,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Objects of every namespace.")] = False,
    as_json: JsonOption = False,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Show brokers, triggers, subscriptions, event policies or secrets."""
    found = kind_named(kind)
    if name and all_namespaces:
        fail("a name lies in one namespace", hint="leave out -A or the name")
    everywhere = all_namespaces or not found.is_namespaced
    path = list_path(found, None if everywhere else namespace)
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


def list_path(kind: Kind, namespace: str | None) -> str:
    """The API's path of all objects of a kind: in a namespace, or everywhere with None."""
    return api_path(kind.api_version, namespace if kind.is_namespaced else None, kind.plural)


def describe(
    kind: KindName,
    name: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of the object.")],
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Show one object with its status and conditions, in a readable form."""
    found = request(server, "GET", named_path(kind_named(kind), name, namespace))
    typer.echo(description(found))


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
        documents = sorted(documents_of(file), key=lambda document: is_namespace(document.value))
        wanted = [_labelled_path(document, namespace) for document in documents]
    else:
        found = kind_named(kind)
        wanted = [(_label(found, name), named_path(found, name, namespace)) for name in names or ()]
    _tell(("", _deleted(server, shown, path, missing_ok=ignore_not_found)) for shown, path in wanted)


def _deleted(server: str, shown: str, path: str, *, missing_ok: bool) -> str | InvalidInputError:
    try:
        answer = request(server, "DELETE", path, missing_ok=missing_ok)
    except InvalidInputError as error:  # not that there is no server
        return error
    finalizers = answer["metadata"].get("finalizers") if answer is not None else None
    left = f" once its finalizers are gone: {', '.join(finalizers)}" if finalizers else ""
    return f"{shown} deleted{left}" if answer is not None else ""


def _tell(done: Iterable[tuple[str, str | InvalidInputError]]) -> None:
    """Prints what became of each object, or why it was refused, with the place before it; then the exit status is 1."""
    failed = False
    for place, said in done:
        if isinstance(said, InvalidInputError):
            failed = True
            print_error(f"{place}{said.message}", hint=said.hint)
        elif said:
            typer.echo(said)
    if failed:
        raise typer.Exit(1)


def kind_named(text: str) -> Kind:
    """The kind that a person means: in the plural or not; InvalidInputError for none."""
    found = next((known for known in Kind if text.lower() in (known.plural, known.value.lower())), None)
    if found is None:
        plurals = ", ".join(kind.plural for kind in Kind)
        raise InvalidInputError(f"unknown kind {text!r}", hint=f"one of {plurals}")
    return found


def _labelled_path(document: Document, namespace: str) -> tuple[str, str]:
    name = _name_of(document)
    if is_namespace(document.value):
        return f"namespace/{name}", _namespace_path(document)
    kind = kind_of(document.value)
    metadata = document.value["metadata"] if isinstance(document.value, dict) else {}
    return _label(kind, name), object_path(kind, str(metadata.get("namespace") or namespace), name)


def documents_of(file: str) -> Iterator[Document]:
    """The objects of a file, a directory, or standard input (`-`), unchecked; ManifestError."""
    if file != "-":
        return read_path(Path(file))
    body = sys.stdin.buffer.read(MANIFEST_BYTES_MAX + 1)
    if len(body) > MANIFEST_BYTES_MAX:
        raise ManifestError((f"standard input: over {MANIFEST_BYTES_MAX} bytes",))
    return read_text(body, "standard input")


@triggers.command()
def pause(names: Names, namespace: Namespace = NAMESPACE_DEFAULT, server: Server = SERVER_DEFAULT) -> None:
    """Stop sending events to the subscribers of triggers. The events wait, within the limits of a backlog.

    Attempts in flight end. Replays to the triggers and redriven dead letters wait, too.

    Example: headgate trigger pause billing
    """
    _tell(("", _annotated(server, namespace, name, "true", "paused")) for name in names)


@triggers.command()
def resume(names: Names, namespace: Namespace = NAMESPACE_DEFAULT, server: Server = SERVER_DEFAULT) -> None:
    """Resume deliveries: send the events that waited, the oldest first, and then new ones.

    Example: headgate trigger resume billing
    """
    _tell(("", _annotated(server, namespace, name, None, "resumed")) for name in names)


def _annotated(server: str, namespace: str, name: str, value: str | None, done: str) -> str | InvalidInputError:
    change = {"metadata": {"annotations": {PAUSED_ANNOTATION: value}}}
    path = named_path(Kind.TRIGGER, name, namespace)
    try:
        request(server, "PATCH", path, body=change, content_type=MERGE_PATCH)
    except InvalidInputError as error:  # not that there is no server
        return error
    return f"trigger {full_name(name, namespace)} {done}"


# --- apply: in the order of the file, those of which there may be many in few requests -----------


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is sent of an object of a file; `encoded` is `body` in JSON where it goes with others, None if alone."""

    document: Document
    kind: Kind
    namespace: str
    body: dict[str, Any]
    encoded: msgspec.Raw | None


def _applied(
    server: str, documents: Iterable[Document], namespace: str
) -> Iterator[tuple[Document, str | InvalidInputError]]:
    """Creates or updates objects in their order; labels and annotations are added to.

    Yields each document with what is to be said of it, or why it was refused. `namespace` is for those that name none.
    """
    waiting: list[_Wanted] = []
    size = 0
    for document in documents:
        one: _Wanted | None = None
        wrong: InvalidInputError | None = None
        try:
            one = None if is_namespace(document.value) else _wanted(document, namespace)
        except InvalidInputError as error:
            wrong = error
        if one is None:
            yield from _sent(server, waiting)
            waiting, size = [], 0
            yield document, wrong or _sent_namespace(server, document)
            continue
        more = len(bytes(one.encoded)) + 1 if one.encoded is not None else 0
        fits = size + more + _ENVELOPE_BYTES <= APPLY_BYTES_MAX and len(waiting) < APPLY_OBJECTS_MAX
        if waiting and not (fits and _go_together(waiting[0], one)):
            yield from _sent(server, waiting)
            waiting, size = [], 0
        waiting.append(one)
        size += more
    yield from _sent(server, waiting)


def _label(kind: Kind, name: str) -> str:
    return f"{kind.full_name.lower()}/{name}"


def _go_together(first: _Wanted, other: _Wanted) -> bool:
    together = first.encoded is not None and other.encoded is not None
    return together and (first.kind, first.namespace) == (other.kind, other.namespace)


def _wanted(document: Document, namespace: str) -> _Wanted:
    kind = kind_of(document.value)
    # `kind_of` has seen that it is an object; everything else in it is for the server to judge.
    body: dict[str, Any] = dict(document.value) if isinstance(document.value, dict) else {}
    written = body.get("metadata")
    metadata: dict[str, Any] = {}
    if isinstance(written, dict):
        metadata = body["metadata"] = {key: value for key, value in written.items() if key not in _SERVERS}
    place = str(metadata.get("namespace") or namespace)
    # Finalizers that a file names take the place of those that are there, which only a write of one object does.
    if kind not in APPLIED_TOGETHER or "finalizers" in metadata:
        return _Wanted(document, kind, place, body, None)
    try:
        return _Wanted(document, kind, place, body, msgspec.Raw(msgspec.json.encode(body)))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"the object holds a value that JSON cannot hold: {error}") from error


def _sent(server: str, wanted: Sequence[_Wanted]) -> Iterator[tuple[Document, str | InvalidInputError]]:
    """Sends what goes in one request; one by one what was refused as a whole: each has its own answer then.

    It is for who may change these objects, but not all of the namespace.
    """
    if wanted and wanted[0].encoded is not None:
        with suppress(ApiRefusedError):
            answers = _sent_together(server, wanted)
            yield from zip((one.document for one in wanted), answers, strict=True)
            return
    for one in wanted:
        try:
            yield one.document, _sent_alone(server, one)
        except InvalidInputError as error:  # not that there is no server
            yield one.document, error


def _sent_together(server: str, wanted: Sequence[_Wanted]) -> list[str | InvalidInputError]:
    kind = wanted[0].kind
    path = api_path(OWN_API_VERSION, wanted[0].namespace, APPLIED_TOGETHER[kind])
    items = b",".join(bytes(one.encoded) for one in wanted if one.encoded is not None)
    answer = request(server, "POST", f"{path}?{_MANAGER}", body=msgspec.Raw(b'{"items":[' + items + b"]}"))
    return [_said(kind, item) for item in answer["items"]]


def _sent_namespace(server: str, document: Document) -> str | InvalidInputError:
    """Create a namespace, or add its labels and annotations to those of the one that is there."""
    body: dict[str, Any] = dict(document.value) if isinstance(document.value, dict) else {}
    metadata = body.get("metadata")
    given = metadata if isinstance(metadata, dict) else {}
    try:
        path = _namespace_path(document)
        old = request(server, "GET", path, missing_ok=True)
        if old is None:
            request(server, "POST", f"{path.rpartition('/')[0]}?{_MANAGER}", body=body)
            return f"namespace/{given['name']} created"
        change = {"metadata": {field: given[field] for field in ("labels", "annotations") if given.get(field)}}
        new = request(server, "PATCH", f"{path}?{_MANAGER}", body=change, content_type=MERGE_PATCH)
    except InvalidInputError as error:  # not that there is no server
        return error
    same = new["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]
    return f"namespace/{given['name']} {'unchanged' if same else 'configured'}"


def _namespace_path(document: Document) -> str:
    return api_path("v1", None, "namespaces", _name_of(document))


def _name_of(document: Document) -> str:
    """The name of the object of a manifest; ManifestError when it has none."""
    metadata = document.value.get("metadata") if isinstance(document.value, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not name:
        raise ManifestError((f"{document.source}: metadata.name is missing",))
    return str(name)


def _said(kind: Kind, item: dict[str, Any]) -> str | InvalidInputError:
    error = item.get("error")
    if error is not None:
        return ApiRefusedError(error["code"], error["message"])
    return f"{_label(kind, item['name'])} {item['outcome']}"


def _sent_alone(server: str, one: _Wanted) -> str:
    kind, body = one.kind, one.body
    metadata: dict[str, Any] = body["metadata"] if isinstance(body.get("metadata"), dict) else {}
    name = str(metadata.get("name") or "")
    path = object_path(kind, one.namespace, name)
    old = request(server, "GET", path, missing_ok=True) if name else None
    if old is None:
        made = request(server, "POST", f"{object_path(kind, one.namespace)}?{_MANAGER}", body=body)
        return f"{_label(kind, made['metadata']['name'])} created"
    for field in ("labels", "annotations"):
        kept = {key: value for key, value in old["metadata"].get(field, {}).items() if key not in _COPIES}
        given = metadata.get(field)
        metadata[field] = kept | given if isinstance(given, dict) else kept
    metadata.setdefault("finalizers", old["metadata"].get("finalizers", []))  # other programs' business
    new = request(server, "PUT", f"{path}?{_MANAGER}", body=body)
    # Not the resourceVersion: the server may have written a status in between.
    fields = ("uid", "generation", "labels", "annotations")
    same = all(new["metadata"].get(field) == old["metadata"].get(field) for field in fields)
    return f"{_label(kind, name)} {'unchanged' if same else 'configured'}"


# --- describe ------------------------------------------------------------------------------------


def without_values(secret: Mapping[str, Any]) -> dict[str, Any]:
    """A Secret of the API with the sizes of its values in their place."""
    annotations = secret["metadata"].get("annotations", {})
    kept = {key: value for key, value in annotations.items() if key != _LAST_APPLIED}
    return {**secret, "metadata": {**secret["metadata"], "annotations": kept}, "data": _sizes(secret)}


def _sizes(secret: Mapping[str, Any]) -> dict[str, str]:
    return {key: f"{len(base64.b64decode(value))} bytes" for key, value in (secret.get("data") or {}).items()}


def description(obj: Mapping[str, Any]) -> str:
    """An object with its status and conditions, in a readable form, without the values of a Secret."""
    return "\n".join(_description(obj))


def _description(obj: Mapping[str, Any]) -> Iterator[str]:
    metadata, status = obj["metadata"], dict(obj.get("status") or {})
    conditions = status.pop("conditions", [])
    yield from _fields({"Name": metadata["name"], "Namespace": metadata.get("namespace") or "<none>"})
    hidden = _COPIES | {_LAST_APPLIED} if obj["kind"] == Kind.SECRET else _COPIES
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key not in hidden}
    yield from _fields({"Labels": metadata.get("labels") or "<none>", "Annotations": annotations or "<none>"})
    yield from _fields({"Kind": f"{obj['kind']} ({obj['apiVersion']})", "Created": metadata.get("creationTimestamp")})
    going = {"Deleted": metadata.get("deletionTimestamp"), "Finalizers": metadata.get("finalizers")}
    yield from _fields({name: value for name, value in going.items() if value})
    if obj["kind"] == Kind.SECRET:  # the values are for `get -o json` alone
        yield from _fields({"Type": obj["type"], "Data": _sizes(obj) or "<none>"})
        return
    yield from _fields({"Generation": metadata["generation"]})
    own = {key: value for key, value in obj.items() if key not in _COMMON}
    yield from _fields({f"{key[0].upper()}{key[1:]}": value for key, value in own.items()})
    if not own:
        yield from _fields({"Spec": obj.get("spec") or "<none>", "Status": status or "<none>"})
        yield from _conditions(conditions)


def _fields(values: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """Names and values, what has fields of its own below its name."""
    for name, value in values.items():
        before = f"{_INDENT * depth}{name}:"
        if isinstance(value, Mapping) and value:
            yield before
            yield from _fields(value, depth + 1)
        elif isinstance(value, list) and value:
            yield before
            yield from _items(value, depth + 1)
        elif isinstance(value, str) and "\n" in value:
            yield before
            yield from textwrap.indent(value.rstrip("\n"), _INDENT * (depth + 1)).split("\n")
        else:
            yield f"{before} {value}"


def _items(values: list[Any], depth: int) -> Iterator[str]:
    for value in values:
        if isinstance(value, Mapping) and value:
            first, *others = _fields(value, depth + 1)
            yield f"{_INDENT * depth}- {first.lstrip()}"
            yield from others
        else:
            yield f"{_INDENT * depth}- {value}"


def _conditions(conditions: list[Mapping[str, str]]) -> Iterator[str]:
    """A table, with the message below each row that has one."""
    yield "Conditions:" if conditions else "Conditions: <none>"
    if not conditions:
        return
    rows = [
        ("TYPE", "STATUS", "REASON", "SINCE"),
        *(tuple(one.get(key, "") for key in _CONDITION) for one in conditions),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    messages = ["", *(one.get("message", "") for one in conditions)]
    for row, message in zip(rows, messages, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"{_INDENT}{'   '.join(cells)}".rstrip()
        yield from textwrap.indent(message, _INDENT * 3).splitlines()
