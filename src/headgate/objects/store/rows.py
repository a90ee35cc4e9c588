"""Rows of control.db as typed values: brokers, triggers and subscriptions with the inputs of their status."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from headgate.objects.kinds.credentials import CredentialsError, credentials_of
from headgate.objects.kinds.routing import FINDINGS, NOTHING_FOUND, TargetFindings
from headgate.objects.kinds.status import BrokerState, StatusInputs, auths_of, broker_state, routed_status, sink_of
from headgate.objects.store.database import Table
from headgate.storage.keyring import Keyring, NoSecretsKeyError, SealedError
from headgate_api.limits import SECRETS_READ_MAX
from headgate_api.objects.kinds import (
    AuthSpec,
    Broker,
    Kind,
    Object,
    ObjectKey,
    Routed,
    Secret,
    decode_stored,
    encode,
    key_of,
)

# --- stored form ----------------------------------------------------------------------------------

SEALED_KINDS = frozenset({Kind.SECRET})
"""What is encrypted: values, annotations (which may repeat the values), and everything else but name and labels."""


class StoredForm:
    """Makes stored bytes of objects, and objects of stored bytes; without keys no Secret can be stored or read."""

    def __init__(self, keys: Keyring | None = None) -> None:
        self.keys = keys

    def of(self, obj: Object) -> bytes:
        """The bytes to be stored; NoSecretsKeyError for a Secret without a key."""
        key, body = key_of(obj), encode(obj)
        if key.kind not in SEALED_KINDS:
            return body
        if self.keys is None:
            raise NoSecretsKeyError
        return self.keys.seal(body, path=key.path, uid=obj.metadata.uid)

    def json(self, key: ObjectKey, stored: bytes) -> bytes:
        """The object's JSON; SealedError for a Secret that no key opens."""
        if key.kind not in SEALED_KINDS:
            return stored
        if self.keys is None:
            raise SealedError(
                f"the Secret {key.path} is encrypted, and this server has no key",
                hint="start it with the --secrets-key-file or --secrets-key-command that it had",
            )
        return self.keys.open(stored, path=key.path)

    def object(self, key: ObjectKey, stored: bytes) -> Object:
        return decode_stored(key.kind, self.json(key, stored))


# --- rows -----------------------------------------------------------------------------------------

NAMED: Final = "kind = ? AND namespace = ? AND name = ?"
"""The row of an object, in each table that has one: its parameters are an ObjectKey."""
PUBLIC_URL_DEFAULT: Final = "http://127.0.0.1:8080"

_COLUMNS = ", ".join(
    (
        *("o.kind", "o.body", "t.broker", "t.subscriber_broker", "t.subscriber", "t.needs", "t.plan_error", "t.never"),
        *("t.forbidden", "t.ceiling", "t.within"),
        "ifnull(r.stopped, '')",
        *(f"ifnull(r.{name}, {getattr(NOTHING_FOUND, name)!r})" for name in FINDINGS),
    )
)
_REPORTS = "LEFT JOIN reports r ON r.target = t.id"
# CROSS JOIN keeps SQLite from starting at the other table and reading all of it.
_BY_TARGET = f"""SELECT {_COLUMNS} FROM targets t CROSS JOIN objects o
                 ON o.kind = t.kind AND o.namespace = t.namespace AND o.name = t.name {_REPORTS}"""


class RowSelection(StrEnum):
    """Which of them are looked at; each reads through an index, so that few cost little among many."""

    ALL = _BY_TARGET
    TARGET = f"{_BY_TARGET} WHERE t.id = ?"
    REROUTED = f"{_BY_TARGET} WHERE t.routing > ?"
    NEEDING = f"{_BY_TARGET} WHERE t.needs > ? AND t.needs <= ?"
    OF_BROKER = f"{_BY_TARGET} WHERE t.broker = ?"
    SENDING_TO_BROKER = f"{_BY_TARGET} WHERE t.subscriber_broker = ? AND t.subscriber_broker != ''"
    AUTHENTICATING = f"{_BY_TARGET} WHERE t.authenticates = 1"
    DEAD_TO_BROKER = f"{_BY_TARGET} WHERE t.sink_broker = ? AND t.sink_broker != ''"


@dataclass(frozen=True, slots=True)
class RoutedRow:
    """A trigger or subscription with the inputs of its status at the same moment."""

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


def bump_all(connection: sqlite3.Connection, names: Sequence[str]) -> dict[str, int]:
    """The next values of several counters, taken at once."""
    marks = ", ".join("?" * len(names))
    question = f"UPDATE counters SET value = value + 1 WHERE name IN ({marks}) RETURNING name, value"
    return dict(connection.execute(question, names).fetchall())


class CounterTable(Table):
    """The counters of a store."""

    def all(self) -> dict[str, int]:
        """All at one moment: version, desired_generation, active_generation, routing, report, ..."""
        return dict(self._database.rows("SELECT name, value FROM counters"))

    def version(self) -> int:
        """The newest resourceVersion."""
        with self._database.read() as connection:
            return counter(connection, "version")

    def activate(self, generation: int) -> None:
        """A matcher of this generation has taken over; an older one than is in force already changes nothing."""
        with self._database.write() as connection:
            if generation > counter(connection, "desired_generation"):
                raise ValueError(f"generation {generation} is newer than the newest set of filters")
            connection.execute(
                "UPDATE counters SET value = max(value, ?) WHERE name = 'active_generation'", (generation,)
            )


def body_at(connection: sqlite3.Connection, key: ObjectKey) -> bytes | None:
    """An object's stored form; None when there is no such object."""
    row = connection.execute(f"SELECT body FROM objects WHERE {NAMED}", key).fetchone()
    return row[0] if row is not None else None


def broker_at(connection: sqlite3.Connection, path: str) -> Broker | None:
    """The broker `namespace/name`."""
    namespace, _, name = path.partition("/")
    body = body_at(connection, ObjectKey(Kind.BROKER, namespace, name))
    return cast(Broker, decode_stored(Kind.BROKER, body)) if body is not None else None


def routed_rows(
    connection: sqlite3.Connection,
    which: RowSelection = RowSelection.ALL,
    parameters: tuple[object, ...] = (),
    form: StoredForm | None = None,
) -> Iterator[RoutedRow]:
    """Triggers and subscriptions with their inputs, decoded one by one; `form` opens Secrets, see `Facts`."""
    facts = Facts(connection, form)
    for row in connection.execute(which, parameters):
        kind, body, broker, subscriber_broker, subscriber, needs, plan_error, never, forbidden, *row = row
        ceiling, within, stopped, *report = row
        obj = cast(Routed, decode_stored(Kind(kind), body))
        found = TargetFindings(*report)
        names, told = (broker, subscriber_broker, subscriber), (plan_error, found, stopped)
        inputs = facts.inputs(
            obj,
            *names,
            needs,
            *told,
            never=bool(never),
            forbidden=bool(forbidden),
            ceiling=ceiling,
            within=within,
        )
        yield RoutedRow(obj, inputs)


def stale_routed(
    connection: sqlite3.Connection, which: RowSelection, parameters: tuple[object, ...], form: StoredForm, now: str
) -> Iterator[Routed]:
    """Those whose stored status is not what the facts say, with the status that is; `now` is RFC 3339.

    Row by row: SQLite lets other threads run between rows, so an event loop beside this thread keeps its pace.
    """
    for row in routed_rows(connection, which, parameters, form):
        status = routed_status(row.obj, row.inputs, now=now)
        if status != row.obj.status:
            yield msgspec.structs.replace(row.obj, status=status)


class Facts:
    """What statuses of triggers and subscriptions depend on beside them, each looked up once.

    The connection's transaction changes none of it meanwhile. `form` opens Secrets, of which the last ones are kept;
    without it there is no condition about them.
    """

    def __init__(self, connection: sqlite3.Connection, form: StoredForm | None) -> None:
        self.url = public_url(connection)
        self._connection = connection
        self._form = form
        self._active = counter(connection, "active_generation")
        self._brokers: dict[str, tuple[BrokerState | None, str]] = {}
        self._secrets: dict[tuple[str, str], Secret | None] = {}

    def broker_uid(self, path: str) -> str:
        """The uid of the broker `namespace/name`; empty when there is none."""
        return self._found(path)[1]

    def _broker(self, path: str) -> BrokerState | None:
        return self._found(path)[0] if path else None

    def _found(self, path: str) -> tuple[BrokerState | None, str]:
        if path not in self._brokers:
            found = broker_at(self._connection, path)
            self._brokers[path] = (broker_state(found, self.url), found.metadata.uid) if found else (None, "")
        return self._brokers[path]

    def inputs(
        self,
        obj: Routed,
        broker: str,
        subscriber_broker: str,
        subscriber: str,
        needs: int,
        plan_error: str = "",
        found: TargetFindings = NOTHING_FOUND,
        stopped: str = "",
        *,
        never: bool = False,
        forbidden: bool = False,
        ceiling: str = "",
        within: str = "",
    ) -> StatusInputs:
        """The inputs of one object's status; but for the object they are as its row has them."""
        fact = self._broker(broker)
        inherits = obj.spec.delivery is None and fact is not None
        sink = fact.sink if inherits and fact else sink_of(obj.metadata, obj.spec.delivery, self.url)
        auths = fact.auths if inherits and fact else auths_of(obj.spec.delivery)
        return StatusInputs(
            broker=fact,
            subscriber_broker=self._broker(subscriber_broker),
            subscriber_uri=subscriber,
            needs=needs,
            active_generation=self._active,
            plan_error=plan_error,
            sink=sink,
            sink_broker=self._broker(sink.broker),
            credentials=self._problem(obj.metadata.namespace, auths) if auths else None,
            found=found,
            stopped=stopped,
            is_never_true=never,
            is_forbidden=forbidden,
            ceiling=ceiling,
            within=within,
        )

    def _problem(self, namespace: str, auths: Iterable[AuthSpec]) -> str:
        """What is wrong with the Secrets that these name, as "Reason: message"; empty for nothing."""
        form = self._form
        if form is None:
            return ""
        try:
            for auth in auths:
                credentials_of(auth, lambda name: self._secret(namespace, name, form))
        except CredentialsError as error:
            return str(error)
        except SealedError as error:
            return f"SecretSealed: {error.message}"
        return ""

    def _secret(self, namespace: str, name: str, form: StoredForm) -> Secret | None:
        key = (namespace, name)
        if key not in self._secrets:
            if len(self._secrets) >= SECRETS_READ_MAX:
                self._secrets.clear()
            self._secrets[key] = secret_at(self._connection, namespace, name, form)
        return self._secrets[key]


def public_url(connection: sqlite3.Connection) -> str:
    """The server's own address."""
    row = connection.execute("SELECT value FROM settings WHERE name = 'public_url'").fetchone()
    return str(row[0]) if row else PUBLIC_URL_DEFAULT


def secret_at(connection: sqlite3.Connection, namespace: str, name: str, form: StoredForm) -> Secret | None:
    """A Secret; None when there is none. SealedError when no key opens it."""
    key = ObjectKey(Kind.SECRET, namespace, name)
    body = body_at(connection, key)
    return cast(Secret, form.object(key, body)) if body is not None else None


# --- known objects --------------------------------------------------------------------------------

_T = TypeVar("_T")


def _all(obj: Any) -> Any:  # noqa: ANN401 - what is given is returned
    return obj


class KnownObjects(Generic[_T]):
    """The objects of a kind that is stored as JSON, or what is made of each.

    With thousands of brokers most writes concern none of them, and then a read costs a look at two indexes.
    """

    def __init__(self, kind: Kind, make: Callable[[Any], _T] = _all) -> None:
        self._kind = kind
        self._make = make
        self._version = 0
        self._objects: dict[str, _T] = {}

    @property
    def by_path(self) -> Mapping[str, _T]:
        """As of the last read, by `namespace/name`; replaced as a whole."""
        return self._objects

    def read(self, connection: sqlite3.Connection) -> set[str]:
        """Brings the objects up to date; the paths of those created, changed or deleted since the last read.

        A read that raises an error is made good by the next one, which returns its paths, too.
        """
        version = counter(connection, "version")
        known, since = self._objects, self._version
        if version == since:
            return set()
        if version < since:  # the numbers of another store, which counts on its own
            known, since = {}, 0
        # The unary plus keeps SQLite to the index of versions.
        rows = connection.execute("SELECT body FROM objects WHERE +kind = ? AND version > ?", (self._kind, since))
        decoded = (decode_stored(self._kind, body) for (body,) in rows)
        newer = {one.metadata.path: self._make(one) for one in decoded}
        found, changed = known | newer if newer else known, newer.keys() | (self._objects.keys() - known.keys())
        (count,) = connection.execute("SELECT count(*) FROM objects WHERE kind = ?", (self._kind,)).fetchone()
        if count != len(found):  # what is stored is among what was found, so as many are the same
            keys = connection.execute("SELECT namespace, name FROM objects WHERE kind = ?", (self._kind,))
            there = {f"{namespace}/{name}" for namespace, name in keys}
            changed |= found.keys() - there
            found = {path: one for path, one in found.items() if path in there}
        self._objects, self._version = found, version
        return changed
