"""What dispatchers have reported on targets, as rows of control.db: inputs of a status."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headgate.control.database import Database
from headgate.control.routing import FINDINGS, TargetFindings, TargetReport, ToldFindings
from headgate.control.rows import bump

_COLUMNS: Final = ", ".join(FINDINGS)


class ReportTable:
    """The table. Every method may block."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, reports: Iterable[TargetReport]) -> None:
        """Adds what a dispatcher saw since its last report; targets that are gone are left out."""
        with self._database.write() as connection:
            mark = bump(connection, "report")
            for report in reports:
                if connection.execute("SELECT 1 FROM targets WHERE id = ?", (report.target,)).fetchone():
                    _put(connection, report.target, _found(connection, report.target).plus(report), mark)

    def put(self, told: Mapping[int, ToldFindings]) -> int:
        """Puts findings in the place of what is known; those of a filter that a target has no more are left out.

        Args:
            told: By target.

        Returns:
            For how many targets they were other ones.
        """
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

    def since(self, report: int) -> tuple[int, ...]:
        """Targets with reports after a value of the `report` counter."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT target FROM reports WHERE report > ?", (report,)).fetchall()
        return tuple(target for (target,) in rows)


def _found(connection: sqlite3.Connection, target: int) -> TargetFindings:
    row = connection.execute(f"SELECT {_COLUMNS} FROM reports WHERE target = ?", (target,)).fetchone()
    return TargetFindings(*row) if row else TargetFindings()


def _differs(connection: sqlite3.Connection, target: int, told: ToldFindings) -> bool:
    """Whether findings are of the filter that a target has, and other ones than are known."""
    needed = connection.execute("SELECT needs FROM targets WHERE id = ?", (target,)).fetchone()
    if needed != (told.needs,):
        return False
    known = _found(connection, target)
    return any(getattr(known, name) != getattr(told, name) for name in FINDINGS)


def _put(connection: sqlite3.Connection, target: int, found: TargetFindings, mark: int) -> None:
    values = [getattr(found, name) for name in FINDINGS]
    marks = ", ".join("?" * (len(values) + 2))
    connection.execute(
        f"INSERT OR REPLACE INTO reports (target, report, {_COLUMNS}) VALUES ({marks})", (target, mark, *values)
    )
