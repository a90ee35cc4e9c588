"""The store of Secrets beside their writes: one by its name, where they changed, and the keys that encrypt them.

When the first key is a new one, a start encrypts all of them by it, slice by slice. They stay readable meanwhile, for
the older keys decrypt. When all is done the older keys may go.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Final

import structlog

from headgate.objects.store.database import Database, Table
from headgate.objects.store.history import written_since
from headgate.objects.store.rows import StoredForm, bump, counter, secret_at
from headgate.storage.keyring import Keyring, SealedError, SecretsKeyError, head_of
from headgate_api.limits import SECRETS_RESEALED_MAX
from headgate_api.objects.kinds import Kind, Secret

_HEAD_BYTES: Final = 400
"""More than the first line of a sealed text has."""
_log = structlog.get_logger("headgate.objects")


class SecretTable(Table):
    """Secrets."""

    def __init__(self, database: Database, form: StoredForm) -> None:
        super().__init__(database)
        self._form = form

    def get(self, namespace: str, name: str) -> Secret | None:
        """A Secret; None when there is none. SealedError when no key opens it."""
        with self._database.read() as connection:
            return secret_at(connection, namespace, name, self._form)

    def changed(self, since: int) -> tuple[int, frozenset[str] | None]:
        """The newest resourceVersion, and namespaces where Secrets were written after `since`; None: it may be any."""
        with self._database.read() as connection:
            return counter(connection, "version"), written_since(connection, since, Kind.SECRET)

    def check_keys(self) -> None:
        """Refuse keys by which stored Secrets cannot be read."""
        keys = self._form.keys
        heads = self._database.rows(f"SELECT substr(body, 1, {_HEAD_BYTES}) FROM objects WHERE kind = ?", [Kind.SECRET])
        used = Counter(head_of(head).key for (head,) in heads)
        missing = {name: count for name, count in used.items() if keys is None or name not in keys}
        if missing:
            named = ", ".join(f"{count} by {name!r}" for name, count in sorted(missing.items()))
            raise SecretsKeyError(
                f"control.db holds Secrets that are encrypted by keys which this server does not have: {named}",
                hint="--secrets-key-file or --secrets-key-command must name all keys that are in use, "
                "the new one first",
            )

    def reseal(self, after: int = 0) -> tuple[int | None, int]:
        """Encrypt the next Secrets by the first key, those of the history too. The owner of the file alone calls this.

        Goes on behind the resourceVersion `after`. Returns where to go on, None when there was nothing left, and how
        many were encrypted anew.
        """
        keys = self._form.keys
        if keys is None:
            return None, 0
        rows: list[tuple[int, str, str]] = []
        with self._database.write() as connection:
            heads = connection.execute(
                f"SELECT version, namespace, name, substr(body, 1, {_HEAD_BYTES}) FROM objects"
                " WHERE kind = ?1 AND version > ?2"
                f" UNION SELECT version, namespace, name, substr(body, 1, {_HEAD_BYTES}) FROM history"
                " WHERE kind = ?1 AND version > ?2 ORDER BY version",
                (Kind.SECRET, after),
            )
            for version, namespace, name, head in heads:
                if head_of(head).key != keys.first and (version, namespace, name) not in rows:
                    rows.append((version, namespace, name))
                    if len(rows) == SECRETS_RESEALED_MAX:
                        break
            for version, namespace, name in rows:
                _reseal(connection, keys, version, f"{namespace}/{name}")
        return (rows[-1][0] if rows else None), len(rows)


def _reseal(connection: sqlite3.Connection, keys: Keyring, version: int, path: str) -> None:
    for table in ("objects", "history"):
        where = "kind = ? AND namespace || '/' || name = ? AND version = ?"
        found = connection.execute(f"SELECT body FROM {table} WHERE {where}", (Kind.SECRET, path, version)).fetchone()
        if found is None:
            continue
        try:
            text = keys.open(found[0], path=path)
        except SealedError as error:
            _log.warning("a stored Secret stays as it is", error=error.message)
            continue
        sealed = keys.seal(text, path=path, uid=head_of(found[0]).uid)
        connection.execute(f"UPDATE {table} SET body = ? WHERE {where}", (sealed, Kind.SECRET, path, version))
        if table == "history":
            bump(connection, "history_bytes", len(sealed) - len(found[0]))
