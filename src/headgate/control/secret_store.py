"""The store of Secrets beside their writes: one by its name, where they changed, and the keys that encrypt them."""

from __future__ import annotations

from headgate.control import reseal
from headgate.control.database import Database
from headgate.control.objects import Kind, Secret
from headgate.control.rows import StoredForm, counter, secret_at


class SecretTable:
    """Secrets. Every method may block: call it in a thread.

    Args:
        database: Of the objects.
        form: Opens them.
    """

    def __init__(self, database: Database, form: StoredForm) -> None:
        self._database = database
        self._form = form

    def get(self, namespace: str, name: str) -> Secret | None:
        """A Secret; None when there is none.

        Raises:
            SealedError: No key opens it.
        """
        with self._database.read() as connection:
            return secret_at(connection, namespace, name, self._form)

    def changed(self, since: int) -> tuple[int, frozenset[str] | None]:
        """The newest resourceVersion, and the namespaces in which Secrets were written after an earlier one.

        Args:
            since: The earlier one.

        Returns:
            None in the place of the namespaces when it is not known any more: it may be any.
        """
        with self._database.read() as connection:
            newest = counter(connection, "version")
            if since < counter(connection, "history_floor"):
                return newest, None
            rows = connection.execute(
                "SELECT DISTINCT namespace FROM history WHERE version > ? AND kind = ?", (since, Kind.SECRET)
            )
            return newest, frozenset(namespace for (namespace,) in rows)

    def check_keys(self) -> None:
        """Refuse keys by which stored Secrets cannot be read.

        Raises:
            SecretsKeyError: A key is missing.
        """
        with self._database.read() as connection:
            used = reseal.keys_used(connection)
        reseal.check_keys(used, self._form.keys)

    def reseal(self, after: int = 0) -> tuple[int | None, int]:
        """Encrypt the next Secrets by the first key. The owner of the file alone calls this; see `reseal.next_slice`.

        Raises:
            StoreUnavailableError: The slice could not be written.
        """
        if self._form.keys is None:
            return None, 0
        with self._database.write() as connection:
            return reseal.next_slice(connection, self._form.keys, after)
