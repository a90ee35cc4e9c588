"""Impersonation: who may acts as another user, by headers, as `kubectl --as` and `--as-group` send them. Pure.

Each user, group, uid and extra value that the headers name needs a right of its own: the verb `impersonate`.
Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from headgate.auth.rules import Attributes
from headgate.auth.user import (
    ANONYMOUS_NAME,
    AUTHENTICATED,
    SERVICE_ACCOUNT,
    SERVICE_ACCOUNTS,
    UNAUTHENTICATED,
    User,
    checked,
)
from headgate_api.errors import InvalidInputError

PREFIX: Final = b"impersonate-"
"""Begins the names of the headers, and of gRPC's metadata."""
_EXTRA: Final = "extra-"
_VERB: Final = "impersonate"
_IDENTITY: Final = "authentication.k8s.io"


class ImpersonationError(InvalidInputError):
    """Headers ask for a user as whom no request can be made."""

    code = "impersonation"


@dataclass(frozen=True, slots=True)
class Impersonation:
    """As whom a request is to be made, with the groups that Kubernetes adds, and every right that this needs."""

    user: User
    needed: tuple[Attributes, ...]


def impersonation_of(headers: Iterable[tuple[bytes, bytes]]) -> Impersonation | None:
    """As whom a request is to be made; None where its headers, with names in lower case, do not ask for it."""
    named: dict[str, list[str]] = {}
    for name, value in headers:
        if name[: len(PREFIX)] == PREFIX:
            named.setdefault(name[len(PREFIX) :].decode("latin-1"), []).append(_text(name, value))
    return _impersonation(named) if named else None


def _impersonation(named: dict[str, list[str]]) -> Impersonation:
    names, uids = named.pop("user", []), named.pop("uid", [""])
    groups = tuple(named.pop("group", ()))
    unknown = next((one for one in named if not one.startswith(_EXTRA)), None)
    if unknown is not None:
        problem = f"there is no header Impersonate-{unknown[:100]}"
        raise ImpersonationError(problem, hint="use Impersonate-User, -Group, -Uid or -Extra-KEY")
    if len(names) != 1 or not names[0] or len(uids) != 1:
        raise ImpersonationError("a request is made as exactly one user", hint="send one header Impersonate-User")
    extra = {unquote(key.removeprefix(_EXTRA)): tuple(values) for key, values in named.items()}
    user = User(names[0], (*groups, *_more_groups(names[0], groups)), uids[0], extra)
    if problem := checked(user):
        raise ImpersonationError(f"Impersonate-User {problem}")
    return Impersonation(user, tuple(_needed(user, groups)))


def _more_groups(name: str, groups: tuple[str, ...]) -> Iterator[str]:
    """Those that Kubernetes adds."""
    prefix, _, account = name.rpartition(":")
    if not groups and prefix.startswith(f"{SERVICE_ACCOUNT}:") and account:
        yield SERVICE_ACCOUNTS
        yield f"{SERVICE_ACCOUNTS}:{prefix.removeprefix(f'{SERVICE_ACCOUNT}:')}"
    added = UNAUTHENTICATED if name == ANONYMOUS_NAME else AUTHENTICATED
    if added not in groups:
        yield added


def _needed(user: User, groups: tuple[str, ...]) -> Iterator[Attributes]:
    prefix, namespace, account = (*user.name.rsplit(":", 2), "", "")[:3]
    if prefix == SERVICE_ACCOUNT and namespace and account:
        yield Attributes(_VERB, "", "serviceaccounts", namespace=namespace, name=account)
    else:
        yield Attributes(_VERB, "", "users", name=user.name)
    for group in groups:
        yield Attributes(_VERB, "", "groups", name=group)
    if user.uid:
        yield Attributes(_VERB, _IDENTITY, "uids", name=user.uid)
    for key, values in user.extra.items():
        for value in values:
            yield Attributes(_VERB, _IDENTITY, "userextras", key, name=value)


def _text(name: bytes, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ImpersonationError(f"the header {name.decode('latin-1')[:100]} is not in UTF-8") from error
