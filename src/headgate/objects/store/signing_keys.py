"""Keys by which Headgate signs tokens for subscribers: made, rotated, kept encrypted; their public half is published.

    published -> signs -> published still -> gone

A new key is published for SIGNING_KEY_EARLY_S before it signs, so that receivers who keep the key set know it by then;
an old one for as long after its last token, so that this is accepted until it expires.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from headgate.objects.store.database import Database, Table
from headgate.storage.keyring import Keyring, NoSecretsKeyError
from headgate_api.errors import UnavailableError
from headgate_api.limits import SIGNING_KEY_EARLY_S, SIGNING_KEY_LIFE_S

if TYPE_CHECKING:
    from headgate.objects.store.rows import StoredForm

ALGORITHM: Final = "ES256"
TEND_S: Final = 60.0
"""Between two looks whether a key is due."""
_ID_BYTES: Final = 12
_log = structlog.get_logger("headgate.objects")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The key that signs now; tokens call it by its id."""

    id: str
    pem: bytes = field(repr=False)


class SigningKeys(Table):
    """The keys of a store."""

    def __init__(self, database: Database, form: StoredForm, clock_s: Callable[[], float]) -> None:
        super().__init__(database)
        self._form = form
        self._clock_s = clock_s

    def tend(self) -> None:
        """Make a key when one is due, and drop those that nobody needs. The owner of the file alone calls this."""
        if self._form.keys is None:
            return
        now = int(self._clock_s())
        created = [at for (at,) in self._database.rows("SELECT created FROM signing_keys ORDER BY created")]
        is_due = not created or now - created[-1] >= SIGNING_KEY_LIFE_S
        gone = now - SIGNING_KEY_LIFE_S - 2 * SIGNING_KEY_EARLY_S
        if is_due or created[0] < gone:
            with self._database.write() as connection:
                if is_due:
                    _make(connection, self._form.keys, now)
                connection.execute(
                    "DELETE FROM signing_keys WHERE created < ? AND created < (SELECT max(created) FROM signing_keys)",
                    (gone,),
                )

    def public(self) -> list[dict[str, Any]]:
        """The public keys as a JSON Web Key Set has them."""
        rows = self._database.rows("SELECT public FROM signing_keys ORDER BY created")
        return [msgspec.json.decode(text) for (text,) in rows]

    def current(self) -> SigningKey | None:
        """The newest key that has been published for long enough, else the only one; None when there is none yet."""
        if self._form.keys is None:
            raise NoSecretsKeyError
        known_since = int(self._clock_s()) - SIGNING_KEY_EARLY_S
        found = self._database.rows(
            "SELECT id, body FROM signing_keys"
            " ORDER BY created <= ? DESC, iif(created <= ?1, -created, created) LIMIT 1",
            (known_since,),
        )
        keys = [SigningKey(id_, self._form.keys.open(body, path=_path(id_))) for id_, body in found]
        return keys[0] if keys else None


def _make(connection: sqlite3.Connection, keys: Keyring, now: int) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    id_ = secrets.token_urlsafe(_ID_BYTES)
    public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    public |= {"kid": id_, "use": "sig", "alg": ALGORITHM}
    connection.execute(
        "INSERT INTO signing_keys (id, created, public, body) VALUES (?, ?, ?, ?)",
        (id_, now, msgspec.json.encode(public).decode(), keys.seal(pem, path=_path(id_), uid=id_)),
    )


def _path(id_: str) -> str:
    """What a stored key is bound to; no Secret has such a path."""
    return f"signing-keys//{id_}"


async def tend_signing_keys(keys: SigningKeys) -> None:
    """Look after the keys until cancelled."""
    while True:
        try:
            await asyncio.to_thread(keys.tend)
        except UnavailableError as error:
            _log.warning("signing keys cannot be looked after", reason=error.message)
        await asyncio.sleep(TEND_S)
