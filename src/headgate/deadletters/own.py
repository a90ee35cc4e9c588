"""What a user below a ceiling has of the store: what came of his events, and nothing that counts the others.

Each is judged by its event as the log had it, and by the right of now. A transform may have made it look like one of
his, and his ceiling may be another one than when it died.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from headgate.auth.authorizer import NOTHING
from headgate.auth.user import User
from headgate.deadletters.opaque_ids import OpaqueIds
from headgate.deadletters.store import DeadLetterReader, DeadLetterSummary
from headgate.delivery.verdicts import gives
from headgate.objects.api.grants import Grants
from headgate.objects.api.http import in_thread
from headgate.objects.store.server_secret import ServerSecret
from headgate_api.errors import UnavailableError

_PURPOSE: Final = "ids of dead letters"


class OwnLetters:
    """The part of one user, of one request that begins at `now_us`. May block; any thread."""

    def __init__(self, ceiling_on: Callable[[str], str], ids: OpaqueIds, now_us: int) -> None:
        self._ceiling_on = ceiling_on
        self.ids = ids
        self.now_us = now_us

    def has(self, stored: DeadLetterReader, one: DeadLetterSummary) -> bool:
        ceiling = self._ceiling_on(one.broker_path)
        if ceiling in ("", NOTHING):
            return not ceiling
        found = stored.get(one.id)
        event = found.as_stored if found is not None else None
        return event is not None and gives(ceiling, event)


class LetterRights:
    """Says which part of the store is whose."""

    def __init__(self, rights: Grants, secret: ServerSecret, clock_us: Callable[[], int]) -> None:
        self._rights = rights
        self._secret = secret
        self._clock_us = clock_us

    async def of(self, user: User) -> OwnLetters:
        """The part of a user who has a ceiling."""
        return await in_thread(self._of, user)

    def _of(self, user: User) -> OwnLetters:
        self._rights.refresh()
        return OwnLetters(partial(self._rights.ceiling_on, user), opaque_ids(self._secret), self._clock_us())


def opaque_ids(secret: ServerSecret) -> OpaqueIds:
    """The same in every process of a deployment; UnavailableError before its first start has ended. May block."""
    if not (key := secret.key(_PURPOSE)):
        raise UnavailableError("the ids of dead letters cannot be shown yet", hint="try again in a few seconds")
    return OpaqueIds(key)
