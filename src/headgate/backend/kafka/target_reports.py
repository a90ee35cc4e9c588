"""Reports on targets, from the dispatchers to the objects: findings in the changelog, and their copy for the leader.

The owner of an outbox partition adds up what it sees of its targets in a table of its state. A transaction that changes
a row of it writes the row into the topic `reports` as well (docs/spec/reports-topic.md). So who has lost the partition
writes nothing there: the newest owner's producer fences it. The control process that leads reads that topic alone, and
puts the findings in the place of those that it has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.state_topic import follow_state
from headgate.objects.kinds.routing import FINDINGS, Target, TargetFindings, TargetReport, ToldFindings
from headgate.storage.commit import Committer
from headgate.storage.sqlite import StoreFile

if TYPE_CHECKING:
    from confluent_kafka import Message

TABLE: Final = "reports"
"""Of the findings; the topic has the same name."""
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS {TABLE} (
  target INTEGER PRIMARY KEY, needs INTEGER NOT NULL, filter_errors INTEGER NOT NULL, last_error TEXT NOT NULL,
  last_error_event TEXT NOT NULL, trouble TEXT NOT NULL, dropped INTEGER NOT NULL, last_dropped TEXT NOT NULL,
  backlog TEXT NOT NULL) STRICT;
"""
_COLUMNS: Final = ", ".join(("needs", *FINDINGS))
_PUT: Final = f"INSERT OR REPLACE INTO {TABLE} (target, {_COLUMNS}) VALUES ({', '.join('?' * (len(FINDINGS) + 2))})"
_decode_key: Final = msgspec.json.Decoder(tuple[str, int]).decode
_decode_row: Final = msgspec.msgpack.Decoder(ToldFindings).decode
_log = structlog.get_logger(__name__)


class PartitionReports(StoreFile):
    """The findings on one outbox partition's targets, which `find` knows by id. Blocking; one thread at a time."""

    def __init__(
        self, path: Path, find: Callable[[int], Target | None] = lambda _: None, committer: Committer | None = None
    ) -> None:
        super().__init__(path, _SCHEMA, committer=committer)
        self._find = find

    def report(self, reports: Iterable[TargetReport]) -> None:
        """Adds what was seen since the last report. Another filter begins anew, and targets that are gone go."""
        with self._transaction() as connection:
            known = self.findings()
            for report in reports:
                target = self._find(report.target)
                if target is None:
                    continue
                before = known.get(target.id)
                # A cache of the objects may be older than the one of the partition's former owner.
                same = before if before is not None and before.needs >= target.needs else None
                needs, found = (target.needs, TargetFindings()) if same is None else (same.needs, same)
                found = found.plus(report)
                connection.execute(_PUT, (target.id, needs, *(getattr(found, name) for name in FINDINGS)))
            gone = [(target,) for target in known if self._find(target) is None]
            connection.executemany(f"DELETE FROM {TABLE} WHERE target = ?", gone)

    def forget_trouble(self, owns: Callable[[int], bool]) -> None:
        """A new owner knows of no trouble with any subscriber or backlog."""
        with self._transaction() as connection:
            found = connection.execute(f"SELECT target FROM {TABLE} WHERE trouble != '' OR backlog != ''").fetchall()
            connection.executemany(
                f"UPDATE {TABLE} SET trouble = '', backlog = '' WHERE target = ?",
                [(target,) for (target,) in found if owns(target)],
            )

    def findings(self) -> dict[int, ToldFindings]:
        rows = self._connection.execute(f"SELECT target, {_COLUMNS} FROM {TABLE}").fetchall()
        names = ("needs", *FINDINGS)
        return {target: ToldFindings(**dict(zip(names, row, strict=True))) for target, *row in rows}


def follow_reports(
    config: KafkaConfig, put: Callable[[Mapping[int, ToldFindings]], object], stop: threading.Event
) -> None:
    """Puts the newest findings on targets into a `ReportTable`, until told to stop; see `follow_state`."""
    waiting: dict[int, ToldFindings] = {}

    def take(record: Message) -> None:
        value = record.value()
        try:
            _, target = _decode_key(record.key() or b"")
            if value is None:
                waiting.pop(target, None)
            else:
                waiting[target] = _decode_row(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.error("a record of the topic reports is passed over", offset=record.offset(), why=str(error))

    def write() -> bool:
        if waiting:
            put(waiting)
            waiting.clear()
        return True

    follow_state(config, "reports", take, write, stop)
