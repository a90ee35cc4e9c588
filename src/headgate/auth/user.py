"""The user of a request: a name and groups, as Kubernetes has them.

Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

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
    """Who makes a request.

    The name is never empty. `system:authenticated` or `system:unauthenticated` is among the groups. The uid, which may
    be empty, tells users apart whose name is given again. `extra` is what else the authenticator knows, by a name in
    lower case.
    """

    name: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NO_EXTRA, hash=False)

    @property
    def is_anonymous(self) -> bool:
        """Whether nothing is known of the user."""
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
