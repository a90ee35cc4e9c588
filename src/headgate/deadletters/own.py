"""What a user below a ceiling has of the store: what came of his events, and nothing that counts the others.

Each is judged by its event as the log had it, and by the right of now. A transform may have made it look like one of
his, and his ceiling may be another one than when it died.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Final

from headgate.auth.authorizer import NOTHING
from headgate.auth.user import User
from headgate.deadletters.store import DeadLetterReader, DeadLetterSummary
from headgate.delivery.verdicts import gives
from headgate.objects.api.grants import Grants
from headgate.objects.api.http import in_thread
from headgate.objects.store.server_secret import ServerSecret
from headgate_api.errors import UnavailableError

_PURPOSE: Final = "ids of dead letters"
_HALF_BITS: Final = 26
_HALF: Final = (1 << _HALF_BITS) - 1
_ROUNDS: Final = range(10)
NOBODYS: Final = 0
"""No dead letter has this id, and none is shown by it."""


class OpaqueIds:
    """Other numbers for ids that are given in order, from 1 on: who sees some must not count the others; any thread.

    A Feistel network over 52 bits, which JSON and every client hold exactly: each id has one such number, each number
    is that of one id, and without the key nobody tells which. Source: https://doi.org/10.6028/NIST.SP.800-38G (ten
    rounds).
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def shown(self, id_: int) -> int:
        return self._other(id_, _ROUNDS)

    def meant(self, shown: int) -> int:
        """The id that is shown so; NOBODYS for a number that none is shown by."""
        return self._other(shown, _ROUNDS[::-1]) if 0 < shown < 1 << 2 * _HALF_BITS else NOBODYS

    def _other(self, number: int, rounds: range) -> int:
        # What 0 stands for takes the place of what would stand for 0.
        return self._permuted(number, rounds) or self._permuted(NOBODYS, rounds)

    def _permuted(self, number: int, rounds: range) -> int:
        left, right = number >> _HALF_BITS, number & _HALF
        for one in rounds:
            left, right = right, left ^ self._mixed(one, right)
        return right << _HALF_BITS | left  # so that the rounds in the other order lead back

    def _mixed(self, number: int, half: int) -> int:
        mixed = blake2b(half.to_bytes(4) + bytes([number]), digest_size=4, key=self._key)
        return int.from_bytes(mixed.digest()) & _HALF


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
