"""`headgate get` and `describe`: shows objects of a running server, without kubectl."""

from __future__ import annotations

import base64
import json
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.event.names import NAMESPACE_DEFAULT
from headgate_api.objects.kinds import FILTER_ANNOTATION, FILTERS_ANNOTATION, Kind
from headgate_api.plain_words import age
from headgate_cli.client import SERVER_DEFAULT, fail, lines, print_error, print_line, print_table, request
from headgate_cli.completion import kinds, objects_of_kind
from headgate_cli.options import Namespace, Server
from headgate_cli.resources import ALL, KINDS_HELP, Resource, chosen_objects, resource_named

_JSON: Final = "application/json"
_TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""Repeats a Secret's values."""
COPIES: Final = frozenset({FILTER_ANNOTATION, FILTERS_ANNOTATION})
"""Annotations that repeat the spec: sent back, they would say that a filter that is left out is to stay."""
_COMMON: Final = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
_INDENT: Final = "  "
_AGAIN_S: Final = 1.0
"""Between the end of a watch and the next one."""

KindName = Annotated[str, typer.Argument(metavar="KIND", help=KINDS_HELP, autocompletion=kinds)]


class Form(StrEnum):
    """How `headgate get` shows objects."""

    WIDE = "wide"
    YAML = "yaml"
    JSON = "json"
    NAME = "name"


def get(
    kind: KindName,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="NAME or NAMESPACE/NAME of each object; all objects without it.", autocompletion=objects_of_kind
        ),
    ] = None,
    namespace: Namespace = NAMESPACE_DEFAULT,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Objects of every namespace.")] = False,
    output: Annotated[
        Form | None,
        typer.Option("--output", "-o", help="Instead of a table: yaml, json or name. wide is a table of every column."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Then show each object when it changes. Ctrl-C ends it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As -o json.")] = False,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Show objects: brokers, triggers, subscriptions, event policies, secrets and others.

    \b
    Examples:
      headgate get triggers -n shop
      headgate get brokers,triggers
      headgate get triggers --all-namespaces -o wide
      headgate get trigger gold -o yaml > gold.yaml
      headgate get triggers --watch
    """  # noqa: D301 - click reads \b as "keep these lines"
    form = Form.JSON if as_json else output
    named = "/" in kind or bool(names)
    if named and all_namespaces:
        fail("a name lies in one namespace", hint="leave out -A or the name")
    if named:
        chosen = list(chosen_objects(kind, names or ()))
    else:
        chosen = [(resource_named(one), "") for one in (ALL if kind == "all" else kind).split(",")]
    if watch and len(chosen) > 1:
        fail("--watch shows one object, or all of a kind", hint="name one kind, and at most one object")
    show = _Table(all_namespaces, form, grows=watch) if form in (None, Form.WIDE) else _Objects(form, one_by_one=watch)
    failed = False
    for resource, name in chosen:
        everywhere = all_namespaces or not resource.is_namespaced
        path = resource.named_path(name, namespace) if name else resource.path(None if everywhere else namespace)
        try:
            answer = request(server, "GET", path, accept=show.accept)
        except InvalidInputError as error:  # not that there is no server
            if len(chosen) == 1:
                raise
            failed = True
            print_error(error.message, hint=error.hint)
            continue
        show.add(resource, answer)
        if not name and not watch and show.is_empty:
            typer.echo(f"no {resource.plural} found{'' if everywhere else f' in namespace {namespace}'}", err=True)
    show.end()
    if watch:
        resource, name = chosen[0]
        within = resource.named_path(name, namespace).rpartition("/")[0] if name else path
        query = {"watch": "true"} | ({"fieldSelector": f"metadata.name={name.rpartition('/')[2]}"} if name else {})
        _follow(server, within, query, answer["metadata"].get("resourceVersion", ""), show)
    if failed:
        raise typer.Exit(1)


class _Table:
    """Objects as rows of a table whose columns the server chooses; kept until the end, since all set the widths."""

    accept = _TABLE

    def __init__(self, everywhere: bool, form: Form | None, *, grows: bool) -> None:
        self._everywhere = everywhere
        self._is_prefixed = False
        self._grows = grows
        self._is_wide = form is Form.WIDE
        self._columns: list[int] = []
        self._rows: list[list[str]] = []
        self._widths: list[int] = []
        self._heads: list[str] = []

    @property
    def is_empty(self) -> bool:
        return not self._rows

    def add(self, resource: Resource, answer: dict[str, Any]) -> None:
        heads = answer["columnDefinitions"]
        self._columns = [number for number, one in enumerate(heads) if self._is_wide or not one["priority"]]
        names = [heads[number]["name"].upper() for number in self._columns]
        is_prefixed = self._everywhere and resource.is_namespaced
        names = ["NAMESPACE", *names] if is_prefixed else names
        if self._heads and names != self._heads:
            self.end()
        self._heads, self._is_prefixed = names, is_prefixed
        self._rows += map(self._cells, answer["rows"])

    def end(self) -> None:
        rows = [self._heads, *self._rows]
        if self._grows:  # no column is left out or cut to what is there now
            self._widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows:
                print_line(row, self._widths)
        elif self._rows:
            print_table(rows)
        self._rows.clear()

    def change(self, type_: str, answer: dict[str, Any]) -> str:
        """Prints what a watch tells; the resourceVersion."""
        (row,) = answer["rows"]
        cells = self._cells(row)
        print_line([*cells, "(deleted)"] if type_ == "DELETED" else cells, self._widths)
        return str(row["object"]["metadata"]["resourceVersion"])

    def _cells(self, row: dict[str, Any]) -> list[str]:
        cells = [row["cells"][number] for number in self._columns]
        return [row["object"]["metadata"]["namespace"], *cells] if self._is_prefixed else cells


class _Objects:
    """Objects as text for programs; several are one list, and what is watched comes one by one."""

    accept = _JSON

    def __init__(self, form: Form | None, *, one_by_one: bool) -> None:
        self._form = form
        self._one_by_one = one_by_one
        self._found: list[dict[str, Any]] = []
        self._label: Callable[[str], str] = str
        self.is_empty = False

    def add(self, resource: Resource, answer: dict[str, Any]) -> None:
        self._label = resource.label
        self.is_empty = self._form is Form.NAME and not answer.get("items", True)
        if self._form is Form.NAME or self._one_by_one:
            for one in answer.get("items", [answer]):
                self._print(one)
        else:
            self._found.append(answer)

    def end(self) -> None:
        if len(self._found) > 1:
            items = [each for one in self._found for each in one.get("items", [one])]
            self._found = [{"apiVersion": "v1", "kind": "List", "items": items}]
        for one in self._found:
            self._print(one)

    def change(self, type_: str, answer: dict[str, Any]) -> str:
        if type_ != "DELETED" or self._form is not Form.NAME:
            self._print(answer)
        return str(answer["metadata"]["resourceVersion"])

    def _print(self, one: dict[str, Any]) -> None:
        for each in one.get("items", [one]):
            each["metadata"].pop("managedFields", None)  # as kubectl does: it is longer than the object
        if self._form is Form.NAME:
            typer.echo(self._label(one["metadata"]["name"]))
        elif self._form is Form.YAML:
            from headgate_api.yaml_text import written  # here: most commands need no YAML

            typer.echo(f"{'---' + chr(10) if self._one_by_one else ''}{written(one)}", nl=False)
        else:
            typer.echo(json.dumps(one, ensure_ascii=False, indent=None if self._one_by_one else 2))


def _follow(server: str, path: str, query: dict[str, str], version: str, show: _Table | _Objects) -> None:
    """Shows what changes behind a resourceVersion, until Ctrl-C. A watch that expired begins with what is there."""
    try:
        while True:
            since = {"resourceVersion": version} if version else {}
            for line in lines(server, f"{path}?{urlencode(query | since)}", accept=show.accept):
                said = json.loads(line)
                if said["type"] == "ERROR":
                    if said["object"].get("code") != HTTPStatus.GONE:
                        raise UnavailableError(said["object"].get("message", "the watch has ended"), hint="try again")
                    version = ""
                    break
                version = show.change(said["type"], said["object"])
            time.sleep(_AGAIN_S)
    except KeyboardInterrupt:
        pass


def describe(
    kind: KindName,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="NAME or NAMESPACE/NAME of each object.", autocompletion=objects_of_kind),
    ] = None,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Show objects with their status and conditions, in a readable form.

    \b
    Examples:
      headgate describe trigger gold
      headgate describe trigger/gold broker/orders -n shop
    """  # noqa: D301 - click reads \b as "keep these lines"
    if "/" not in kind and not names:
        fail("say what to describe", hint="headgate describe trigger NAME; headgate get triggers lists them")
    for number, (resource, name) in enumerate(chosen_objects(kind, names or ())):
        found = request(server, "GET", resource.named_path(name, namespace))
        typer.echo(f"\n{description(found)}" if number else description(found))


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
    hidden = COPIES | {_LAST_APPLIED} if obj["kind"] == Kind.SECRET else COPIES
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key not in hidden}
    yield from _fields({"Labels": metadata.get("labels") or "<none>", "Annotations": annotations or "<none>"})
    yield from _fields(
        {"Kind": f"{obj['kind']} ({obj['apiVersion']})", "Created": _when(metadata.get("creationTimestamp") or "")}
    )
    going = {"Deleted": metadata.get("deletionTimestamp"), "Finalizers": metadata.get("finalizers")}
    yield from _fields({name: value for name, value in going.items() if value})
    if obj["kind"] == Kind.SECRET:  # the values are for `get -o json` alone
        yield from _fields({"Type": obj["type"], "Data": _sizes(obj) or "<none>"})
        return
    if "generation" in metadata:
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
        ("TYPE", "STATUS", "REASON", "AGE"),
        *(
            (
                *(one.get(key, "") for key in ("type", "status", "reason")),
                age(one.get("lastTransitionTime", ""), time.time()),
            )
            for one in conditions
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    messages = ["", *(one.get("message", "") for one in conditions)]
    for row, message in zip(rows, messages, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"{_INDENT}{'   '.join(cells)}".rstrip()
        yield from textwrap.indent(message, _INDENT * 3).splitlines()


def _when(timestamp: str) -> str:
    return f"{timestamp} ({age(timestamp, time.time())} ago)" if timestamp else "<unknown>"
