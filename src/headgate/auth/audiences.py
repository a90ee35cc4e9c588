"""Audiences of brokers: a token that is meant for brokers alone is good for publishing to them, and for nothing else.

Source: Knative's `status.address.audience`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from headgate.auth.routes import PUBLISH
from headgate.auth.rules import Attributes
from headgate.auth.user import User

_PREFIX: Final = "eventing.knative.dev/broker/"
BOUND: Final = "headgate.dev/audience"
"""Key of a user's `extra`: the audiences that the token is bound to."""


def broker_audience(path: str) -> str:
    """The audience of tokens for the broker `namespace/name`, as Knative has it."""
    return f"{_PREFIX}{path}"


def bound(user: User, audiences: Collection[str]) -> User:
    """A user who has shown a token.

    Args:
        user: Whom it stands for.
        audiences: Those of the token that the server takes.
    """
    if not audiences or not all(one.startswith(_PREFIX) for one in audiences):
        return user
    extra = {**user.extra, BOUND: tuple(sorted(audiences))}
    return User(user.name, user.groups, user.uid, extra)


def is_beyond(user: User, wanted: Attributes) -> bool:
    """Whether a request is not what the user's token is for."""
    audiences = user.extra.get(BOUND) if user.extra else None
    if audiences is None:
        return False
    return wanted[:4] != PUBLISH[:4] or broker_audience(f"{wanted.namespace}/{wanted.name}") not in audiences
