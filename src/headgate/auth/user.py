"""The user of a request: a name and groups, as Kubernetes has them; and as whom else he may act. Pure.

Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote

from headgate.auth.rules import Attributes
from headgate_api.errors import InvalidInputError
from headgate_api.limits import SENDERS_KEPT_MAX, USER_BYTES_MAX

ANONYMOUS_NAME: Final = "system:anonymous"
"""The name of who did not say who he is."""
UNAUTHENTICATED: Final = "system:unauthenticated"
"""The group of who did not say who he is."""
AUTHENTICATED: Final = "system:authenticated"
"""A group of everybody else."""
SUPERUSERS: Final = "system:masters"
"""The group whose members may do everything, whatever the objects say."""
NO_EXTRA: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
_UNUSABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Would be cut by one reader of the name and kept by another, or begin another line of a file or header."""


@dataclass(frozen=True, slots=True)
class User:
    """Who makes a request. Among the groups is `system:authenticated` or `system:unauthenticated`.

    The name is never empty. The uid, which may be empty, tells apart whose name is given again. `extra` is what else
    the authenticator knows, by a name in lower case. `ceiling` is CEL: of the broker that this request of his reads he
    gets only events of which it is true; empty: all. The gate of rights writes it.
    """

    name: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NO_EXTRA, hash=False)
    ceiling: str = field(default="", compare=False)

    @property
    def is_anonymous(self) -> bool:
        return UNAUTHENTICATED in self.groups

    @property
    def info(self) -> dict[str, Any]:
        """As Kubernetes' `UserInfo`: what is empty is left out."""
        found: dict[str, Any] = {"username": self.name, "groups": self.groups}
        if self.uid:
            found["uid"] = self.uid
        if self.extra:
            found["extra"] = dict(self.extra)
        return found


ANONYMOUS: Final = User(ANONYMOUS_NAME, (UNAUTHENTICATED,))


def authenticated(
    name: str, groups: tuple[str, ...] = (), uid: str = "", extra: Mapping[str, tuple[str, ...]] = NO_EXTRA
) -> User:
    """A user who has shown who he is; the group `system:authenticated` is added."""
    joined = groups if AUTHENTICATED in groups else (*groups, AUTHENTICATED)
    return User(name, joined, uid, extra)


def checked(user: User) -> str:
    """What is wrong with a user, as a sentence about who names him goes on; empty when nothing is."""
    texts = [user.name, user.uid, *user.groups, *user.extra, *(one for values in user.extra.values() for one in values)]
    if not user.name:
        return "names no user"
    if any(_UNUSABLE.search(text) for text in texts):
        return "names a user or group with a control character"
    if sum(len(text.encode()) + 4 for text in texts) > USER_BYTES_MAX:
        return f"says more than {USER_BYTES_MAX} bytes about its user"
    return ""


# --- service accounts -----------------------------------------------------------------------------
# Users that are programs, by the names that Kubernetes gives them. Triggers send as service accounts, too: as those
# that Knative would make for them. So do sources on Kafka.


SERVICE_ACCOUNT: Final = "system:serviceaccount"
"""Begins the names of service accounts."""
SERVICE_ACCOUNTS: Final = "system:serviceaccounts"
"""The group of all of them, and what the group of those of a namespace begins with."""


def service_account(namespace: str, name: str) -> str:
    """The user name of a service account."""
    return f"{SERVICE_ACCOUNT}:{namespace}:{name}"


def namespace_of_account(name: str) -> str:
    """The namespace of a service account by its user name; empty for whoever is none."""
    begin, _, rest = name.partition(f"{SERVICE_ACCOUNT}:")
    return rest.partition(":")[0] if not begin else ""


def is_account_of(name: str, namespace: str) -> bool:
    """Whether a user name is that of a service account of a namespace."""
    return name.startswith(f"{SERVICE_ACCOUNT}:{namespace}:")


def subject_of(trigger: str) -> str:
    """The user name by which a trigger `namespace/name` sends, as Knative names its service account."""
    namespace, _, name = trigger.partition("/")
    return service_account(namespace, f"oidc-eventing.knative.dev-trigger-{name}")


@lru_cache(SENDERS_KEPT_MAX)
def sender_of(trigger: str) -> User:
    """A trigger `namespace/name` as a user; anonymous where the name is empty."""
    if not trigger:
        return ANONYMOUS
    return _account(trigger.partition("/")[0], subject_of(trigger))


def source_sender(namespace: str, source: str) -> User:
    """A source as a user: the service account `source-NAME` of the namespace whose broker gets its events."""
    return _account(namespace, service_account(namespace, f"source-{source}"))


def _account(namespace: str, name: str) -> User:
    return authenticated(name, (SERVICE_ACCOUNTS, f"{SERVICE_ACCOUNTS}:{namespace}"))


# --- impersonation --------------------------------------------------------------------------------
# Who may acts as another user, by headers, as `kubectl --as` and `--as-group` send them. Each user, group, uid and
# extra value that the headers name needs a right of its own: the verb `impersonate`.
# Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation

IMPERSONATE: Final = b"impersonate-"
"""Begins the names of the headers, and of gRPC's metadata."""
_AS_EXTRA: Final = "extra-"
_IMPERSONATES: Final = "impersonate"
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
        if name[: len(IMPERSONATE)] == IMPERSONATE:
            named.setdefault(name[len(IMPERSONATE) :].decode("latin-1"), []).append(_text(name, value))
    if not named:
        return None
    names, uids = named.pop("user", []), named.pop("uid", [""])
    groups = tuple(named.pop("group", ()))
    unknown = next((one for one in named if not one.startswith(_AS_EXTRA)), None)
    if unknown is not None:
        problem = f"there is no header Impersonate-{unknown[:100]}"
        raise ImpersonationError(problem, hint="use Impersonate-User, -Group, -Uid or -Extra-KEY")
    if len(names) != 1 or not names[0] or len(uids) != 1:
        raise ImpersonationError("a request is made as exactly one user", hint="send one header Impersonate-User")
    extra = {unquote(key.removeprefix(_AS_EXTRA)): tuple(values) for key, values in named.items()}
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
        yield Attributes(_IMPERSONATES, "", "serviceaccounts", namespace=namespace, name=account)
    else:
        yield Attributes(_IMPERSONATES, "", "users", name=user.name)
    for group in groups:
        yield Attributes(_IMPERSONATES, "", "groups", name=group)
    if user.uid:
        yield Attributes(_IMPERSONATES, _IDENTITY, "uids", name=user.uid)
    for key, values in user.extra.items():
        for value in values:
            yield Attributes(_IMPERSONATES, _IDENTITY, "userextras", key, name=value)


def _text(name: bytes, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ImpersonationError(f"the header {name.decode('latin-1')[:100]} is not in UTF-8") from error
