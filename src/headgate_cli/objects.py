"""`headgate apply`, `delete` and `trigger`: changes objects of a running server, without kubectl."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import typer

from headgate_api.errors import InvalidInputError
from headgate_api.event.names import NAMESPACE_DEFAULT, full_name
from headgate_api.limits import APPLIES_AT_ONCE_MAX, APPLY_BYTES_MAX, APPLY_OBJECTS_MAX, MANIFEST_BYTES_MAX
from headgate_api.objects.bodies import MERGE_PATCH, is_namespace, kind_of
from headgate_api.objects.kinds import (
    APPLIED_TOGETHER,
    OWN_API_VERSION,
    PAUSED_ANNOTATION,
    Kind,
)
from headgate_api.objects.manifests import Document, ManifestError, read_path, read_text
from headgate_cli.client import (
    SERVER_DEFAULT,
    TIMES_HELP,
    ApiRefusedError,
    api_path,
    fail,
    named_path,
    object_path,
    print_error,
    request,
)
from headgate_cli.completion import kinds, objects_of_kind
from headgate_cli.options import Namespace, Server, offers
from headgate_cli.resources import KINDS_HELP, chosen_objects
from headgate_cli.showing import COPIES

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...", help="Names of triggers: NAME or NAMESPACE/NAME.", autocompletion=offers("triggers")
    ),
]
_SERVERS: Final = frozenset({"resourceVersion", "uid", "generation", "creationTimestamp"})
"""Metadata that the server writes: in a file that `get --json` has printed it says nothing of what is wanted."""
_MANAGER: Final = "fieldManager=headgate"
_ENVELOPE_BYTES: Final = 64
"""What a request has around its objects."""

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
    from_: Annotated[str, typer.Option("--from", help=f"From when on both count: {TIMES_HELP}.")] = "1h",
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Create or update brokers, triggers, subscriptions, event policies, secrets from YAML or JSON.

    With --preview or --max-change, each changed filter is first counted on the stored events of the last hour, beside
    the filter that the server has.

    \b
    Examples:
      headgate apply -f triggers/
      headgate apply -f triggers/ --preview --from 1d
      headgate apply -f triggers/ --max-change 5%
    """  # noqa: D301 - click reads \b as "keep these lines"
    documents = list(documents_of(file))
    if not documents:
        fail(f"{file}: no objects", hint="files end in .yaml, .yml or .json")
    if preview or max_change:
        from headgate_cli.preview import changes, percent_of, tell  # here: it brings what draws bars

        wanted = (_wanted(one, namespace) for one in documents if not is_namespace(one.value))
        objects = ((_label(one.kind, _name_of(one.document)), one.kind, one.namespace, one.body) for one in wanted)
        tell(changes(server, objects, from_), percent_of(max_change) if max_change else None)
    if preview:
        return
    _tell((f"{document.source}: ", done) for document, done in _applied(server, documents, namespace))


def delete(
    kind: Annotated[str, typer.Argument(help=f"{KINDS_HELP}; not with --filename", autocompletion=kinds)] = "",
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of the objects: NAME or NAMESPACE/NAME.", autocompletion=objects_of_kind),
    ] = None,
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
    """Delete objects by kind and name, or from a file. Objects with finalizers wait for them.

    \b
    Examples:
      headgate delete trigger gold silver
      headgate delete trigger/gold broker/orders -n shop
      headgate delete -f triggers/
    """  # noqa: D301 - click reads \b as "keep these lines"
    if bool(file) == bool(kind and (names or "/" in kind)):
        fail("say what to delete", hint="headgate delete trigger NAME, or headgate delete -f FILE")
    if file:
        # Namespaces last: each takes everything in it with it, and what is deleted before is named.
        documents = sorted(documents_of(file), key=lambda document: is_namespace(document.value))
        wanted = [_labelled_path(document, namespace) for document in documents]
    else:
        chosen = chosen_objects(kind, names or ())
        wanted = [(resource.label(name), resource.named_path(name, namespace)) for resource, name in chosen]
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

    @property
    def name(self) -> tuple[Kind, str, str]:
        """What no other object has."""
        metadata = self.body.get("metadata")
        return self.kind, self.namespace, str(metadata.get("name")) if isinstance(metadata, dict) else ""


_Answer: TypeAlias = "tuple[Document, str | InvalidInputError]"
"""A document, and what is to be said of it, or why it was refused."""


def _applied(server: str, documents: Iterable[Document], namespace: str) -> Iterator[_Answer]:
    """Creates or updates objects in their order; labels and annotations are added to.

    `namespace` is for those that name none. Of objects that go together several requests are under way at once: the
    server checks those of one while it stores those of another.
    """
    under_way: deque[Future[list[_Answer]]] = deque()
    names: set[tuple[Kind, str, str]] = set()
    with ThreadPoolExecutor(APPLIES_AT_ONCE_MAX) as threads:
        for turn in _turns(documents, namespace):
            theirs = set() if isinstance(turn, Document) else {one.name for one in turn}
            if isinstance(turn, Document) or not names.isdisjoint(theirs):
                while under_way:
                    yield from under_way.popleft().result()
                names.clear()
            if isinstance(turn, Document):
                yield _sent_alone(server, turn, namespace)
                continue
            if len(under_way) == APPLIES_AT_ONCE_MAX:
                yield from under_way.popleft().result()
            under_way.append(threads.submit(copy_context().run, _sent, server, turn, namespace))
            names |= theirs
        while under_way:
            yield from under_way.popleft().result()


def _turns(documents: Iterable[Document], namespace: str) -> Iterator[list[_Wanted] | Document]:
    """What one request holds of objects that go together, and each document that goes alone."""
    waiting: list[_Wanted] = []
    size = 0
    for document in documents:
        one: _Wanted | None = None
        with suppress(InvalidInputError):  # it is raised again, and said, when the document is sent
            one = None if is_namespace(document.value) else _wanted(document, namespace)
        more = len(bytes(one.encoded)) + 1 if one is not None and one.encoded is not None else 0
        fits = size + more + _ENVELOPE_BYTES <= APPLY_BYTES_MAX and len(waiting) < APPLY_OBJECTS_MAX
        if waiting and not (more and fits and one is not None and _go_together(waiting[0], one)):
            yield waiting
            waiting, size = [], 0
        if one is None or one.encoded is None:
            yield document
        else:
            waiting.append(one)
            size += more
    if waiting:
        yield waiting


def _label(kind: Kind, name: str) -> str:
    return f"{kind.full_name.lower()}/{name}"


def _go_together(first: _Wanted, other: _Wanted) -> bool:
    return (first.kind, first.namespace) == (other.kind, other.namespace)


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


def _sent(server: str, wanted: Sequence[_Wanted], namespace: str) -> list[_Answer]:
    """Sends what goes in one request; one by one what was refused as a whole: each has its own answer then.

    It is for who may change these objects, but not all of the namespace.
    """
    with suppress(ApiRefusedError):
        answers = _sent_together(server, wanted)
        return list(zip((one.document for one in wanted), answers, strict=True))
    return [_sent_alone(server, one.document, namespace) for one in wanted]


def _sent_alone(server: str, document: Document, namespace: str) -> _Answer:
    try:
        if is_namespace(document.value):
            return document, _sent_namespace(server, document)
        return document, _sent_object(server, _wanted(document, namespace))
    except InvalidInputError as error:  # not that there is no server
        return document, error


def _sent_together(server: str, wanted: Sequence[_Wanted]) -> list[str | InvalidInputError]:
    kind = wanted[0].kind
    path = api_path(OWN_API_VERSION, wanted[0].namespace, APPLIED_TOGETHER[kind])
    items = b",".join(bytes(one.encoded) for one in wanted if one.encoded is not None)
    answer = request(server, "POST", f"{path}?{_MANAGER}", body=msgspec.Raw(b'{"items":[' + items + b"]}"))
    return [_said(kind, item) for item in answer["items"]]


def _sent_namespace(server: str, document: Document) -> str:
    """Create a namespace, or add its labels and annotations to those of the one that is there."""
    body: dict[str, Any] = dict(document.value) if isinstance(document.value, dict) else {}
    metadata = body.get("metadata")
    given = metadata if isinstance(metadata, dict) else {}
    path = _namespace_path(document)
    old = request(server, "GET", path, missing_ok=True)
    if old is None:
        request(server, "POST", f"{path.rpartition('/')[0]}?{_MANAGER}", body=body)
        return f"namespace/{given['name']} created"
    change = {"metadata": {field: given[field] for field in ("labels", "annotations") if given.get(field)}}
    new = request(server, "PATCH", f"{path}?{_MANAGER}", body=change, content_type=MERGE_PATCH)
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


def _sent_object(server: str, one: _Wanted) -> str:
    kind, body = one.kind, one.body
    metadata: dict[str, Any] = body["metadata"] if isinstance(body.get("metadata"), dict) else {}
    name = str(metadata.get("name") or "")
    path = object_path(kind, one.namespace, name)
    old = request(server, "GET", path, missing_ok=True) if name else None
    if old is None:
        made = request(server, "POST", f"{object_path(kind, one.namespace)}?{_MANAGER}", body=body)
        return f"{_label(kind, made['metadata']['name'])} created"
    for field in ("labels", "annotations"):
        kept = {key: value for key, value in old["metadata"].get(field, {}).items() if key not in COPIES}
        given = metadata.get(field)
        metadata[field] = kept | given if isinstance(given, dict) else kept
    metadata.setdefault("finalizers", old["metadata"].get("finalizers", []))  # other programs' business
    new = request(server, "PUT", f"{path}?{_MANAGER}", body=body)
    # Not the resourceVersion: the server may have written a status in between.
    fields = ("uid", "generation", "labels", "annotations")
    same = all(new["metadata"].get(field) == old["metadata"].get(field) for field in fields)
    return f"{_label(kind, name)} {'unchanged' if same else 'configured'}"
