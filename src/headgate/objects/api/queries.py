"""Kubernetes' query parameters, selectors and Accept headers, checked and typed."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final, TypedDict

import msgspec
from starlette.requests import Request

from headgate.auth.context import USER
from headgate.auth.user import ANONYMOUS, User
from headgate.objects.api.http import DOCUMENT_TYPES, decoded, read_body
from headgate.objects.api.watch import ListQuery, WatchQuery
from headgate.objects.kinds.decode import converted
from headgate.objects.kinds.managers import APPLY, Manager, WriteOptions
from headgate.objects.store.history import BodyTest, Selector
from headgate_api import limits
from headgate_api.objects.bodies import FieldValidation
from headgate_api.objects.errors import InvalidOptionsError, MalformedObjectError
from headgate_api.objects.kinds import Kind


class Representation(StrEnum):
    """How objects are to be written."""

    OBJECT = "object"
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"


class _Continue(msgspec.Struct, frozen=True, array_like=True):
    version: int
    namespace: str
    name: str
    exact: bool = False


def representation_of(accept: str) -> Representation:
    """The form that an Accept header prefers; anything unknown is the object itself."""
    for choice in accept.split(","):
        parameters = dict(part.strip().partition("=")[::2] for part in choice.split(";")[1:])
        wanted = parameters.get("as", "").removesuffix("List")
        if (
            parameters.get("g") == "meta.k8s.io"
            and parameters.get("v") == "v1"
            and wanted in (Representation.TABLE, Representation.METADATA)
        ):
            return Representation(wanted)
        if not wanted and choice.split(";")[0].strip() in ("application/json", "*/*"):
            return Representation.OBJECT
    return Representation.OBJECT


def is_set(query: Mapping[str, str], name: str) -> bool:
    """A boolean parameter."""
    return query.get(name, "").lower() in ("1", "true")


def is_dry_run(values: list[str]) -> bool:
    """The `dryRun` parameter, which is `All` or left out."""
    wanted = [value for value in values if value]
    if any(value != "All" for value in wanted):
        raise MalformedObjectError(f"invalid dryRun {wanted!r}", hint="use dryRun=All")
    return bool(wanted)


def _field_validation(query: Mapping[str, str]) -> FieldValidation:
    """The `fieldValidation` parameter; Strict when it is left out, for a misspelt filter must not become none."""
    text = query.get("fieldValidation", "") or FieldValidation.STRICT
    try:
        return FieldValidation(text)
    except ValueError:
        raise MalformedObjectError(f"invalid fieldValidation {text!r}", hint="use Strict, Warn or Ignore") from None


def _manager_of(request: Request, *, is_apply: bool) -> Manager:
    """Who writes: the `fieldManager` parameter, which an apply needs, else the program that the User-Agent names."""
    name = request.query_params.get("fieldManager", "")
    force = is_set(request.query_params, "force")
    if is_apply and not name:
        raise InvalidOptionsError("fieldManager: Required value: is required for apply patch")
    if force and not is_apply:
        raise InvalidOptionsError("force: Forbidden: may not be specified for non-apply patch")
    if len(name) > limits.FIELD_MANAGER_CHARS_MAX or not name.isprintable():
        rule = f"must have at most {limits.FIELD_MANAGER_CHARS_MAX} printable characters"
        raise InvalidOptionsError(f"fieldManager: Invalid value: {rule}")
    if is_apply:
        return Manager(name, APPLY, force, user_of(request))
    agent = request.headers.get("user-agent", "").partition("/")[0].strip()
    program = agent[: limits.FIELD_MANAGER_CHARS_MAX] if agent.isprintable() else ""
    return Manager(name or program or "unknown", user=user_of(request))


def user_of(request: Request) -> User:
    """Who makes a request; without authentication nobody is known."""
    found = request.scope.get(USER)
    return found if isinstance(found, User) else ANONYMOUS


def path_named(request: Request) -> str:
    """The object `namespace/name` that the path names."""
    return f"{request.path_params['namespace']}/{request.path_params['name']}"


def write_options(request: Request, *, is_apply: bool = False) -> WriteOptions:
    """The parameters of a write."""
    validation, dry_run = _field_validation(request.query_params), is_dry_run(request.query_params.getlist("dryRun"))
    return WriteOptions(_manager_of(request, is_apply=is_apply), validation, dry_run)


async def read_write(
    request: Request, types: frozenset[str], bytes_max: int = limits.OBJECT_BYTES_MAX, *, is_apply: bool = False
) -> tuple[object, tuple[str, ...], WriteOptions]:
    """What a request writes: the document, warnings about its text, and how it is to be written."""
    body = await read_body(request, types, bytes_max)
    how = write_options(request, is_apply=is_apply)
    return *await decoded(request, body, how.validation), how


class _Options(msgspec.Struct, frozen=True, rename="camel"):
    """`DeleteOptions`, as far as it has effect; no object depends on another, so the policy has none."""

    class Preconditions(msgspec.Struct, frozen=True, rename="camel"):
        """What must hold of the object."""

        uid: str | None = None
        resource_version: str | None = None

    dry_run: list[str] | None = None
    preconditions: Preconditions | None = None


class DeleteOptions(TypedDict):
    """How an object is deleted, as `Store.delete` takes it."""

    uid: str
    resource_version: str
    dry_run: bool


async def delete_options(request: Request) -> DeleteOptions:
    """The parameters of a delete and the options in its body."""
    body = await read_body(request, DOCUMENT_TYPES)
    document = (await decoded(request, body)).document if body else {}
    found = converted(document, _Options, "the body is no DeleteOptions")
    wanted = found.preconditions or _Options.Preconditions()
    return {
        "uid": wanted.uid or "",
        "resource_version": wanted.resource_version or "",
        "dry_run": is_dry_run(request.query_params.getlist("dryRun") + (found.dry_run or [])),
    }


def list_query(kind: Kind, namespace: str | None, query: Mapping[str, str]) -> ListQuery:
    """The parameters of a list."""
    name, wanted = field_selector(query.get("fieldSelector", ""))
    if wanted is not None:
        # Nothing lies in two namespaces; no object has the empty name.
        namespace = wanted if namespace in (None, wanted) else ""
    limit = _integer(query, "limit")
    version, match = _version_match(query)
    token = _continue(query.get("continue", ""))
    exact = match == "Exact"
    if token is not None:
        version, exact = token.version, token.exact
    return ListQuery(
        kind=kind,
        namespace=namespace,
        name=name,
        selector=label_selector(query.get("labelSelector", "")),
        test=text_search(query.get("search", "")),
        limit=min(limit, limits.LIST_PAGE_MAX) if limit > 0 else None,
        after=(token.namespace, token.name) if token is not None else None,
        version=version if exact or token is not None else None,
        exact=exact,
        at_least=version if match == "NotOlderThan" else 0,
    )


def _version_match(query: Mapping[str, str]) -> tuple[int, str]:
    """The `resourceVersion` of a list, and how it counts."""
    version, match = _integer(query, "resourceVersion"), query.get("resourceVersionMatch", "")
    if not match or is_set(query, "watch"):
        return version, ""
    problem = ""
    if match not in ("Exact", "NotOlderThan"):
        problem = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan"'
    elif query.get("continue"):
        problem = "Forbidden: resourceVersionMatch is forbidden when continue is provided"
    elif not query.get("resourceVersion"):
        problem = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif match == "Exact" and not version:
        problem = 'Forbidden: resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'
    if problem:
        raise InvalidOptionsError(f"resourceVersionMatch: {problem}")
    return version, match


def watch_query(kind: Kind, namespace: str | None, query: Mapping[str, str], form: Representation) -> WatchQuery:
    """The parameters of a watch."""
    if query.get("search"):
        raise InvalidOptionsError("search: Forbidden: a watch takes labelSelector and fieldSelector")
    objects = list_query(kind, namespace, query)
    since = _integer(query, "resourceVersion")
    initial = is_set(query, "sendInitialEvents")
    timeout_s = _integer(query, "timeoutSeconds")
    return WatchQuery(
        objects=replace(objects, limit=None, after=None, exact=False),
        since=None if since == 0 or initial else since,
        is_table=form is Representation.TABLE,
        include_object=include_object(query),
        bookmarks=is_set(query, "allowWatchBookmarks"),
        initial_bookmark=initial,
        timeout_s=min(timeout_s, limits.WATCH_SECONDS_MAX) if timeout_s > 0 else limits.WATCH_SECONDS_MAX,
    )


def include_object(query: Mapping[str, str]) -> str:
    """The `includeObject` parameter of tables."""
    text = query.get("includeObject", "") or "Metadata"
    if text not in ("None", "Metadata", "Object"):
        raise MalformedObjectError(f"invalid includeObject {text!r}", hint="use None, Metadata or Object")
    return text


def continue_token(version: int, namespace: str, name: str, *, exact: bool = False) -> str:
    """Where the next page starts, and which resourceVersion the list began with."""
    return base64.urlsafe_b64encode(msgspec.json.encode(_Continue(version, namespace, name, exact))).decode()


def _continue(token: str) -> _Continue | None:
    if not token:
        return None
    try:
        if len(token) > limits.CONTINUE_CHARS_MAX:
            raise ValueError("too long")
        return msgspec.json.decode(base64.b64decode(token, altchars=b"-_", validate=True), type=_Continue)
    except (ValueError, msgspec.DecodeError) as error:
        raise MalformedObjectError(f"continue key is not valid: {error}") from error


def _integer(query: Mapping[str, str], name: str) -> int:
    """A number; 0 when it is left out."""
    text = query.get(name, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise MalformedObjectError(f"{name} must be a number that is not negative, not {text!r}")
    return int(text)


# --- selectors ------------------------------------------------------------------------------------


_NAME: Final = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
_VALUE: Final = r"[-A-Za-z0-9_.]*"
_SET: Final = re.compile(rf"\s*({_NAME})\s+(in|notin)\s*\(([^()]*)\)\s*", re.ASCII)
_EQUAL: Final = re.compile(rf"\s*({_NAME})\s*(==|=|!=)\s*({_VALUE})\s*", re.ASCII)
_EXISTS: Final = re.compile(rf"\s*(!?)\s*({_NAME})\s*", re.ASCII)


def label_selector(text: str) -> Selector | None:
    """A predicate on labels, such as `app=x,tier!=gold,zone in (a,b),!old`; None when it wants everything."""
    if len(text) > limits.SELECTOR_CHARS_MAX:
        raise MalformedObjectError(f"a selector has at most {limits.SELECTOR_CHARS_MAX} characters")
    if not text.strip():
        return None
    tests: list[Selector] = []
    at = 0
    while at < len(text):
        at, test = _requirement(text, at)
        tests.append(test)
        if at < len(text):
            if text[at] != "," or at + 1 == len(text):
                raise _unreadable(text, at)
            at += 1
    return lambda labels: all(test(labels) for test in tests)


def _requirement(text: str, at: int) -> tuple[int, Selector]:
    for pattern, make in ((_SET, _set_test), (_EQUAL, _equal_test), (_EXISTS, _exists_test)):
        found = pattern.match(text, at)
        if found is not None and (found.end() == len(text) or text[found.end()] == ","):
            return found.end(), make(found)
    raise _unreadable(text, at)


def _set_test(found: re.Match[str]) -> Selector:
    key, wanted = found[1], found[2] == "in"
    values = frozenset(value.strip() for value in found[3].split(","))
    # As in Kubernetes, `notin` holds for an object without the label.
    return lambda labels: (labels[key] in values) is wanted if key in labels else not wanted


def _equal_test(found: re.Match[str]) -> Selector:
    key, wanted, value = found[1], found[2] != "!=", found[3]
    return lambda labels: (labels.get(key) == value) is wanted


def _exists_test(found: re.Match[str]) -> Selector:
    wanted, key = not found[1], found[2]
    return lambda labels: (key in labels) is wanted


def _unreadable(text: str, at: int) -> MalformedObjectError:
    return MalformedObjectError(f"unable to parse label selector {text!r} at character {at + 1}")


def text_search(text: str) -> BodyTest | None:
    """A predicate: an object's name and spec hold every word of a text, whatever the case; None for no words."""
    if len(text) > limits.SEARCH_CHARS_MAX:
        raise MalformedObjectError(f"a search has at most {limits.SEARCH_CHARS_MAX} characters")
    words = [word.encode("utf-8", "surrogatepass") for word in text.lower().split()]
    if not words:
        return None

    def found(name: str, body: bytes) -> bool:
        # In JSON text the quotes within strings are escaped: no value of a field can pass for the begin of a spec.
        start = body.find(b'"spec":{')
        end = body.rfind(b'"status":{') if start >= 0 else 0
        written = name.encode() + b"\n" + (body[start : end if end > start else None].lower() if start >= 0 else b"")
        return all(word in written for word in words)

    return found


def field_selector(text: str) -> tuple[str | None, str | None]:
    """The exact name and namespace that a field selector asks for, None where it asks for nothing."""
    if len(text) > limits.SELECTOR_CHARS_MAX:
        raise MalformedObjectError(f"a selector has at most {limits.SELECTOR_CHARS_MAX} characters")
    name = namespace = None
    for part in filter(None, text.split(",")):
        split = next((part.partition(one) for one in ("!=", "==", "=") if one in part), (part, "", ""))
        field, operator, value = map(str.strip, split)
        if field not in ("metadata.name", "metadata.namespace") or operator == "!=" or not operator:
            raise MalformedObjectError(f"field label not supported: {part!r}", hint="use metadata.name=NAME")
        # Nothing has two names or lies in two namespaces; no object has the empty name.
        if field == "metadata.name":
            name = value if name in (None, value) else ""
        else:
            namespace = value if namespace in (None, value) else ""
    return name, namespace
