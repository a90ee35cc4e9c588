"""Rows of control.db as typed values: brokers, and triggers and subscriptions with the inputs of their status."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast

from headgate.control.auth_spec import AuthSpec
from headgate.control.credentials import CredentialsError, credentials_of
from headgate.control.objects import Broker, Kind, ObjectKey, Routed, Secret, decode_stored
from headgate.control.status import BrokerState, StatusInputs, auths_of, broker_state, sink_of
from headgate.control.stored_form import StoredForm
from headgate.limits import SECRETS_READ_MAX
from headgate.storage.keyring import SealedError

PUBLIC_URL_DEFAULT: Final = "http://127.0.0.1:8080"

_REPORTED: Final = ("filter_errors", "last_error", "last_error_event", "trouble", "dropped", "last_dropped", "backlog")
"""Columns of reports, which are inputs of a status by the same names; 0 and empty without a report."""
_COLUMNS = "o.kind, o.body, t.broker, t.subscriber_broker, t.subscriber, t.needs, t.plan_error, " + ", ".join(
    f"ifnull(r.{name}, {0 if name in ('filter_errors', 'dropped') else repr('')})" for name in _REPORTED
)
_REPORTS = "LEFT JOIN reports r ON r.target = t.id"
# CROSS JOIN keeps SQLite from starting at the other table and reading all of it.
_BY_TARGET = f"""SELECT {_COLUMNS} FROM targets t CROSS JOIN objects o
                 ON o.kind = t.kind AND o.namespace = t.namespace AND o.name = t.name {_REPORTS}"""
_BY_OBJECT = f"""SELECT {_COLUMNS} FROM objects o CROSS JOIN targets t
                 ON t.kind = o.kind AND t.namespace = o.namespace AND t.name = o.name {_REPORTS}"""


class RowSelection(StrEnum):
    """Which of them are looked at; each reads through an index, so that few cost little among many."""

    ALL = _BY_TARGET
    TARGET = f"{_BY_TARGET} WHERE t.id = ?"
    CHANGED = f"{_BY_OBJECT} WHERE o.version > ?"
    REROUTED = f"{_BY_TARGET} WHERE t.routing > ?"
    NEEDING = f"{_BY_TARGET} WHERE t.needs > ? AND t.needs <= ?"
    OF_BROKER = f"{_BY_TARGET} WHERE t.broker = ?"
    SENDING_TO_BROKER = f"{_BY_TARGET} WHERE t.subscriber_broker = ? AND t.subscriber_broker != ''"
    AUTHENTICATING = f"{_BY_TARGET} WHERE t.authenticates = 1"
    DEAD_TO_BROKER = f"{_BY_TARGET} WHERE t.sink_broker = ? AND t.sink_broker != ''"


@dataclass(frozen=True, slots=True)
class RoutedRow:
    """A trigger or subscription with the inputs of its status.

    Attributes:
        obj: As stored.
        inputs: At the same moment.
    """

    obj: Routed
    inputs: StatusInputs


def counter(connection: sqlite3.Connection, name: str) -> int:
    """The value of a counter."""
    (value,) = connection.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()
    return int(value)


def bump(connection: sqlite3.Connection, name: str, by: int = 1) -> int:
    """The next value of a counter, taken."""
    row = connection.execute("UPDATE counters SET value = value + ? WHERE name = ? RETURNING value", (by, name))
    (value,) = row.fetchone()
    return int(value)


def brokers(connection: sqlite3.Connection, where: str = "", parameters: tuple[object, ...] = ()) -> Iterator[Broker]:
    """Stored brokers, decoded."""
    rows = connection.execute(f"SELECT body FROM objects WHERE kind = 'Broker' {where}", parameters)
    for (body,) in rows:
        yield cast(Broker, decode_stored(Kind.BROKER, body))


def broker_at(connection: sqlite3.Connection, path: str) -> Broker | None:
    """The broker `namespace/name`."""
    namespace, _, name = path.partition("/")
    return next(brokers(connection, "AND namespace = ? AND name = ?", (namespace, name)), None)


def routed_rows(
    connection: sqlite3.Connection,
    which: RowSelection = RowSelection.ALL,
    parameters: tuple[object, ...] = (),
    form: StoredForm | None = None,
) -> Iterator[RoutedRow]:
    """Triggers and subscriptions with their inputs, decoded one by one.

    Args:
        connection: In a transaction.
        which: Which of them.
        parameters: Of the question, in order.
        form: Opens Secrets; None where nobody asks for conditions about them.
    """
    url = public_url(connection)
    known, secrets = _Brokers(connection, url), _Secrets(connection, form)
    active = counter(connection, "active_generation")
    for row in connection.execute(which, parameters):
        kind, body, broker, subscriber_broker, subscriber, needs, plan_error, *report = row
        obj = cast(Routed, decode_stored(Kind(kind), body))
        fact = known.get(broker)
        inherits = obj.spec.delivery is None and fact is not None
        sink = fact.sink if inherits and fact else sink_of(obj.metadata, obj.spec.delivery, url)
        auths = fact.auths if inherits and fact else auths_of(obj.spec.delivery)
        inputs = StatusInputs(
            broker=fact,
            subscriber_broker=known.get(subscriber_broker) if subscriber_broker else None,
            subscriber_uri=subscriber,
            needs=needs,
            active_generation=active,
            plan_error=plan_error,
            sink=sink,
            sink_broker=known.get(sink.broker) if sink.broker else None,
            credentials=secrets.problem(obj.metadata.namespace, auths) if auths else None,
            **dict(zip(_REPORTED, report, strict=True)),
        )
        yield RoutedRow(obj, inputs)


def public_url(connection: sqlite3.Connection) -> str:
    """The server's own address."""
    row = connection.execute("SELECT value FROM settings WHERE name = 'public_url'").fetchone()
    return str(row[0]) if row else PUBLIC_URL_DEFAULT


class _Brokers:
    """Facts of brokers, each looked up once a transaction."""

    def __init__(self, connection: sqlite3.Connection, public_url: str) -> None:
        self._connection = connection
        self._public_url = public_url
        self._known: dict[str, BrokerState | None] = {}

    def get(self, path: str) -> BrokerState | None:
        if path not in self._known:
            found = broker_at(self._connection, path)
            self._known[path] = broker_state(found, self._public_url) if found else None
        return self._known[path]


class _Secrets:
    """Secrets that triggers refer to; the last ones that were looked up in the transaction are kept."""

    def __init__(self, connection: sqlite3.Connection, form: StoredForm | None) -> None:
        self._connection = connection
        self._form = form
        self._known: dict[tuple[str, str], Secret | None] = {}

    def problem(self, namespace: str, auths: Iterable[AuthSpec]) -> str:
        """What is wrong with those of a namespace, as "Reason: message"; empty for nothing."""
        if self._form is None:
            return ""
        try:
            for auth in auths:
                credentials_of(auth, lambda name: self._get(namespace, name))
        except CredentialsError as error:
            return str(error)
        except SealedError as error:
            return f"SecretSealed: {error.message}"
        return ""

    def _get(self, namespace: str, name: str) -> Secret | None:
        key = (namespace, name)
        if key not in self._known:
            assert self._form is not None
            if len(self._known) >= SECRETS_READ_MAX:
                self._known.clear()
            self._known[key] = secret_at(self._connection, namespace, name, self._form)
        return self._known[key]


def secret_at(connection: sqlite3.Connection, namespace: str, name: str, form: StoredForm) -> Secret | None:
    """A Secret; None when there is none.

    Raises:
        SealedError: No key opens it.
    """
    key = ObjectKey(Kind.SECRET, namespace, name)
    where = "kind = ? AND namespace = ? AND name = ?"
    row = connection.execute(f"SELECT body FROM objects WHERE {where}", (key.kind, namespace, name)).fetchone()
    return cast(Secret, form.object(key, row[0])) if row is not None else None
