"""The secret that all servers of a deployment share, and keys that are made of it, each for one purpose."""

from __future__ import annotations

import hmac
import secrets
from typing import Final

from headgate.objects.store.database import Table

_NAME: Final = "server_secret"
_BYTES: Final = 32


class ServerSecret(Table):
    """The secret of a store. Nobody is told it, and a key tells nothing of it."""

    def prepare(self) -> None:
        """Make it where there is none. The owner of the file alone calls this."""
        if not self._hex():
            with self._database.write() as connection:
                connection.execute("INSERT INTO settings VALUES (?, ?)", (_NAME, secrets.token_hex(_BYTES)))

    def key(self, purpose: str) -> bytes:
        """The 32 bytes for a purpose, the same at each server and after each start; empty while there is no secret."""
        found = self._hex()
        return hmac.digest(bytes.fromhex(found), purpose.encode(), "sha256") if found else b""

    def _hex(self) -> str:
        found = self._database.rows("SELECT value FROM settings WHERE name = ?", (_NAME,))
        return str(found[0][0]) if found else ""
