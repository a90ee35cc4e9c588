"""What dispatchers have reported on targets, as rows of control.db: inputs of a status."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from headgate.objects.kinds.routing import FINDINGS, TargetFindings, TargetReport, ToldFindings
from headgate.objects.store.database import Database
from headgate.objects.store.rows import bump
from headgate_api.limits import REPORT_TEXT_CHARACTERS_MAX

_COLUMNS: Final = ", ".join(FINDINGS)


class StoppedFilter(NamedTuple):
    """A filter that matched regularly, and does no more; `needs` is the generation that first held it."""

    needs: int
    message: str


class ReportTable:
    """The table. Every method may block."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def report(self, reports: Iterable[TargetReport]) -> None:
        """Adds what a dispatcher saw since its last report; targets that are gone are left out."""
        with self._database.write() as connection:
            mark = bump(connection, "report")
            for report in reports:
                if connection.execute("SELECT 1 FROM targets WHERE id = ?", (report.target,)).fetchone():
                    _put(connection, report.target, _found(connection, report.target).plus(report), mark)

    def put(self, told: Mapping[int, ToldFindings]) -> int:
        """Puts findings, by target, in the place of other ones, but not those of an earlier filter; how many it put."""
        with self._database.read() as connection:
            changed = {target: one for target, one in told.items() if _differs(connection, target, one)}
        if changed:
            with self._database.write() as connection:
                mark = bump(connection, "report")
                for target, one in changed.items():
                    if _differs(connection, target, one):
                        _put(connection, target, one, mark)
        return len(changed)

    def forget_trouble(self, owns: Callable[[int], bool]) -> None:
        """A new dispatcher knows of no trouble with any subscriber or backlog of the targets that it owns."""
        with self._database.write() as connection:
            mark = bump(connection, "report")
            found = connection.execute("SELECT target FROM reports WHERE trouble != '' OR backlog != ''").fetchall()
            connection.executemany(
                "UPDATE reports SET trouble = '', backlog = '', report = ? WHERE target = ?",
                [(mark, target) for (target,) in found if owns(target)],
            )

    def stopped(self) -> dict[int, StoppedFilter]:
        """The filters that are said to have stopped matching, by target."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT target, needs, stopped FROM reports JOIN targets ON id = target WHERE stopped != ''"
            ).fetchall()
        return {target: StoppedFilter(needs, message) for target, needs, message in rows}

    def tell_stopped(self, told: Mapping[int, StoppedFilter]) -> None:
        """Says which filters have stopped matching, by target, and no others; one that has changed since is not."""
        known = self.stopped()
        changed = {target for target in known.keys() | told.keys() if known.get(target) != told.get(target)}
        if not changed:
            return
        with self._database.write() as connection:
            mark = bump(connection, "report")
            for target in changed:
                one = told.get(target)
                if one is None:
                    connection.execute("UPDATE reports SET stopped = '', report = ? WHERE target = ?", (mark, target))
                elif _needs(connection, target) == one.needs:
                    if not connection.execute("SELECT 1 FROM reports WHERE target = ?", (target,)).fetchone():
                        _put(connection, target, TargetFindings(), mark)
                    connection.execute(
                        "UPDATE reports SET stopped = ?, report = ? WHERE target = ?",
                        (one.message[:REPORT_TEXT_CHARACTERS_MAX], mark, target),
                    )

    def since(self, report: int) -> tuple[int, ...]:
        """Targets with reports after a value of the `report` counter."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT target FROM reports WHERE report > ?", (report,)).fetchall()
        return tuple(target for (target,) in rows)


def _found(connection: sqlite3.Connection, target: int) -> TargetFindings:
    row = connection.execute(f"SELECT {_COLUMNS} FROM reports WHERE target = ?", (target,)).fetchone()
    return TargetFindings(*row) if row else TargetFindings()


def _needs(connection: sqlite3.Connection, target: int) -> int | None:
    """The generation that first held the filter that a target has; None for a target that is gone."""
    found = connection.execute("SELECT needs FROM targets WHERE id = ?", (target,)).fetchone()
    return found[0] if found else None


def _differs(connection: sqlite3.Connection, target: int, told: ToldFindings) -> bool:
    """Whether findings are of the filter that a target has, and other ones than are known."""
    if _needs(connection, target) != told.needs:
        return False
    known = _found(connection, target)
    return any(getattr(known, name) != getattr(told, name) for name in FINDINGS)


def _put(connection: sqlite3.Connection, target: int, found: TargetFindings, mark: int) -> None:
    values = [getattr(found, name) for name in FINDINGS]
    marks = ", ".join("?" * (len(values) + 2))
    columns = ("report", *FINDINGS)
    news = ", ".join(f"{name} = excluded.{name}" for name in columns)
    connection.execute(
        f"INSERT INTO reports (target, {', '.join(columns)}) VALUES ({marks})"
        f" ON CONFLICT (target) DO UPDATE SET {news}",
        (target, mark, *values),
    )
