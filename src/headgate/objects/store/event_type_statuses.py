"""Where the stored status of an EventType is not true."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

import msgspec

from headgate.objects.kinds.event_types import event_type_status
from headgate.objects.store.database import Database
from headgate_api.objects.kinds import EventType, Kind, decode_stored


class EventTypeTable:
    """Looks at EventTypes. Its methods may block: call them in a thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def stale(
        self, since: int | None, namespaces: Collection[str], is_there: Callable[[str], bool], now: str
    ) -> list[EventType]:
        """Those whose status is not true, with the status that is.

        All, or those that were written after the resourceVersion `since`, and those of the namespaces where brokers
        have come or gone.
        """
        which: list[tuple[str, tuple[object, ...]]] = [("version > ?", (since or 0,))]
        if since is not None:
            which += [("namespace = ?", (namespace,)) for namespace in namespaces]
        found: dict[str, EventType] = {}
        with self._database.read() as connection:
            for where, parameters in which:
                # The unary plus keeps SQLite to the index of the other column.
                kind = "+kind = ?" if where.startswith("version") else "kind = ?"
                rows = connection.execute(
                    f"SELECT body FROM objects WHERE {kind} AND {where}", (Kind.EVENT_TYPE, *parameters)
                )
                for (body,) in rows:
                    one = cast(EventType, decode_stored(Kind.EVENT_TYPE, body))
                    status = event_type_status(one, is_there=is_there, now=now)
                    if status != one.status:
                        found[one.metadata.uid] = msgspec.structs.replace(one, status=status)
        return list(found.values())
