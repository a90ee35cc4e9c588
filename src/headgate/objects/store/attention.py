"""What of the objects needs a person's attention: every condition that is False, with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from headgate.objects.store.database import Table
from headgate_api.objects.kinds import KINDS_WITH_STATUS, Kind, Object, decode_stored, encode
from headgate_api.objects.metadata import FALSE, ApiStruct, Condition

_READY: Final = "Ready"
_MARK: Final = b'"status":"False"'
_PLACES: Final = ", ".join("?" * len(KINDS_WITH_STATUS))


class Trouble(ApiStruct, frozen=True, omit_defaults=True):
    """A condition that is False; of a Ready object the severity is `Warning`, or `Info` if it is wanted, else empty."""

    type: str
    reason: str = ""
    message: str = ""
    severity: str = ""
    since: str = ""


class ObjectTrouble(Trouble, frozen=True, kw_only=True):
    """The same with the object."""

    kind: str
    namespace: str
    name: str


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class _Body(msgspec.Struct, frozen=True):
    status: _Status = _Status()


_decode = msgspec.json.Decoder(_Body).decode


def _conditions(body: bytes) -> tuple[Condition, ...]:
    return _decode(body).status.conditions


def _shown(obj: Object | None) -> tuple[Condition, ...]:
    return _conditions(encode(obj)) if obj is not None else ()


def troubles(conditions: tuple[Condition, ...]) -> list[Trouble]:
    """The conditions that are False; Ready alone only where no other one says why."""
    found = [one for one in conditions if one.status == FALSE]
    others = [one for one in found if one.type != _READY]
    if any(not one.severity for one in others):
        found = others
    return [
        Trouble(
            type=one.type, reason=one.reason, message=one.message, severity=one.severity, since=one.last_transition_time
        )
        for one in found
    ]


def is_troubled(body: bytes) -> bool:
    """Whether an object's JSON may hold a condition that is False; quick."""
    return _MARK in body


class AttentionReader(Table):
    """Looks through the objects."""

    def read(
        self, namespace: str | None, limit: int, shown: Callable[[Object], Object | None] | None = None
    ) -> tuple[list[ObjectTrouble], int]:
        """The first conditions that are False, by kind, namespace (None: of all) and name, and how many there are.

        `shown` makes of an object what may be seen of it, None for nothing; without it that is all.
        """
        where = f"kind IN ({_PLACES}) AND instr(body, CAST(? AS BLOB)) > 0"
        parameters: list[object] = [*map(str, KINDS_WITH_STATUS), _MARK]
        if namespace is not None:
            where += " AND namespace = ?"
            parameters.append(namespace)
        listed: list[ObjectTrouble] = []
        count = 0
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT kind, namespace, name, body FROM objects WHERE {where} ORDER BY kind, namespace, name",
                parameters,
            )
            for kind, at, name, body in rows:
                found = troubles(_conditions(body) if shown is None else _shown(shown(decode_stored(kind, body))))
                count += len(found)
                listed += [
                    ObjectTrouble(kind=kind, namespace=at, name=name, **msgspec.structs.asdict(one))
                    for one in found[: limit - len(listed)]
                ]
        return listed, count

    def counts(self, namespace: str | None) -> dict[Kind, int]:
        where, parameters = ("", ()) if namespace is None else (" WHERE namespace = ?", (namespace,))
        rows = self._database.rows(f"SELECT kind, count(*) FROM objects{where} GROUP BY kind", parameters)
        return {Kind(kind): count for kind, count in rows if Kind(kind) in KINDS_WITH_STATUS}

    def paused(self) -> int:
        ((count,),) = self._database.rows("SELECT count(*) FROM targets WHERE paused = 1")
        return int(count)

    def routed_by_broker(self, brokers: list[str]) -> dict[tuple[str, str], int]:
        """How many triggers and subscriptions brokers `namespace/name` have, by broker and kind."""
        places = ", ".join("?" * len(brokers))
        rows = self._database.rows(
            f"SELECT broker, kind, count(*) FROM targets WHERE broker IN ({places}) GROUP BY broker, kind", brokers
        )
        return {(broker, kind): count for broker, kind, count in rows}
