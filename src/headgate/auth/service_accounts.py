"""Service accounts: users that are programs, by the names that Kubernetes gives them.

Triggers send as service accounts, too: as those that Knative would make for them. So do sources on Kafka.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from headgate.auth.user import ANONYMOUS, User, authenticated
from headgate.limits import SENDERS_KEPT_MAX

_PREFIX: Final = "system:serviceaccount"
_GROUP: Final = "system:serviceaccounts"


def service_account(namespace: str, name: str) -> str:
    """The user name of a service account."""
    return f"{_PREFIX}:{namespace}:{name}"


def is_account_of(name: str, namespace: str) -> bool:
    """Whether a user name is that of a service account of a namespace."""
    return name.startswith(f"{_PREFIX}:{namespace}:")


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
    return authenticated(name, (_GROUP, f"{_GROUP}:{namespace}"))
