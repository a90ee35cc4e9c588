"""The tables of control.db and their migrations, by SQLite's user_version."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from headgate.storage.sqlite import version_of

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        # One row a counter; every change of an object takes the next `version` (Kubernetes' resourceVersion).
        """CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID""",
        """INSERT INTO counters VALUES ('version', 0), ('target', 0), ('desired_generation', 0),
           ('active_generation', 0), ('routing', 0), ('report', 0), ('history_floor', 0), ('history_bytes', 0)""",
        """CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID""",
        """CREATE TABLE objects (
             kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
             version INTEGER NOT NULL, labels TEXT NOT NULL, body BLOB NOT NULL,
             PRIMARY KEY (kind, namespace, name))""",
        """CREATE INDEX objects_version ON objects (version)""",
        # One row a trigger or subscription: what routing needs, without Kubernetes' shapes. `subscriber` is empty while
        # it has no address. `needs` is the generation that holds its filter. `plan` is NULL when the filter no longer
        # compiles, `pull` unless consumers come for the events.
        """CREATE TABLE targets (
             id INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
             broker TEXT NOT NULL, subscriber_broker TEXT NOT NULL, subscriber TEXT NOT NULL,
             delivery BLOB, ordered INTEGER NOT NULL, sink_broker TEXT NOT NULL, filter BLOB NOT NULL,
             compiler INTEGER NOT NULL, plan BLOB, plan_error TEXT NOT NULL DEFAULT '',
             needs INTEGER NOT NULL, routing INTEGER NOT NULL, pull BLOB,
             routed INTEGER NOT NULL GENERATED ALWAYS AS (subscriber != '' OR pull NOTNULL) VIRTUAL,
             UNIQUE (kind, namespace, name))""",
        """CREATE INDEX targets_broker ON targets (broker)""",
        """CREATE INDEX targets_subscriber_broker ON targets (subscriber_broker) WHERE subscriber_broker != ''""",
        """CREATE INDEX targets_sink_broker ON targets (sink_broker) WHERE sink_broker != ''""",
        """CREATE INDEX targets_needs ON targets (needs)""",
        """CREATE INDEX targets_routing ON targets (routing)""",
        """CREATE TABLE reports (
             target INTEGER PRIMARY KEY, filter_errors INTEGER NOT NULL, last_error TEXT NOT NULL,
             last_error_event TEXT NOT NULL, report INTEGER NOT NULL, trouble TEXT NOT NULL DEFAULT '',
             backlog TEXT NOT NULL DEFAULT '',
             dropped INTEGER NOT NULL DEFAULT 0, last_dropped TEXT NOT NULL DEFAULT '')""",
        """CREATE INDEX reports_report ON reports (report)""",
        # Changes kept for watchers; `labels_before` is NULL for the first version of an object.
        """CREATE TABLE history (
             version INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
             type TEXT NOT NULL, labels TEXT NOT NULL, labels_before TEXT, body BLOB NOT NULL)""",
    ),
    (
        # Of the broker whose events the target gets: the newest one with the name in `broker`, also once that is
        # deleted; empty when there never was one.
        """ALTER TABLE targets ADD COLUMN broker_uid TEXT NOT NULL DEFAULT ''""",
        """UPDATE targets SET broker_uid = ifnull((
             SELECT json_extract(CAST(o.body AS TEXT), '$.metadata.uid') FROM objects o
             WHERE o.kind = 'Broker' AND o.namespace || '/' || o.name = targets.broker), '')""",
    ),
    (
        # Namespaces that somebody created; every one in use exists, too.
        """CREATE TABLE namespaces (name TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID""",
    ),
    (
        # `filter.compile.plan.PLAN_VERSION` of the plan; `compiler` covers the packages that bring dialects as well.
        """ALTER TABLE targets ADD COLUMN plan_version INTEGER NOT NULL DEFAULT 0""",
    ),
    (
        # CA of the subscriber's host, as PEM; the audience of tokens for it; whether its own rules refer to Secrets.
        """ALTER TABLE targets ADD COLUMN subscriber_ca TEXT NOT NULL DEFAULT ''""",
        """ALTER TABLE targets ADD COLUMN subscriber_audience TEXT NOT NULL DEFAULT ''""",
        # Keys that sign tokens for subscribers: `public` is a JSON Web Key, `body` the private key, encrypted.
        # Subscribers that allowed deliveries by the callback of the webhook handshake.
        """CREATE TABLE webhook_grants (url TEXT PRIMARY KEY, rate TEXT NOT NULL, granted INTEGER NOT NULL)
             WITHOUT ROWID""",
        """CREATE TABLE signing_keys (id TEXT PRIMARY KEY, created INTEGER NOT NULL, public TEXT NOT NULL,
             body BLOB NOT NULL) WITHOUT ROWID""",
        """ALTER TABLE targets ADD COLUMN authenticates INTEGER NOT NULL DEFAULT 0""",
        """CREATE INDEX targets_authenticates ON targets (authenticates) WHERE authenticates = 1""",
    ),
    (
        # `filter.compile.cost.filter_cost` of the plan; NULL until the filter is compiled anew.
        """ALTER TABLE targets ADD COLUMN cost INTEGER""",
    ),
    (
        # Whether its events wait.
        """ALTER TABLE targets ADD COLUMN paused INTEGER NOT NULL DEFAULT 0""",
        """CREATE INDEX targets_paused ON targets (paused) WHERE paused = 1""",
    ),
    (
        # Why a filter that matched regularly is said to have stopped; empty for most.
        """ALTER TABLE reports ADD COLUMN stopped TEXT NOT NULL DEFAULT ''""",
    ),
    (
        # Targets that are gone, by the value of the counter `routing` then; the last DROPPED_ROUTINGS_KEPT of it.
        """CREATE TABLE dropped (routing INTEGER PRIMARY KEY, target INTEGER NOT NULL)""",
    ),
    (
        # `spec.transform`; empty for most.
        """ALTER TABLE targets ADD COLUMN transform TEXT NOT NULL DEFAULT ''""",
        # Whether it is sure that no event makes its filter true.
        """ALTER TABLE targets ADD COLUMN never INTEGER NOT NULL DEFAULT 0""",
    ),
    (
        # By whose right a broker of another namespace sends its events there, as JSON, and whether that right is gone;
        # empty where no right is needed.
        """ALTER TABLE targets ADD COLUMN taken_by TEXT NOT NULL DEFAULT ''""",
        """ALTER TABLE targets ADD COLUMN forbidden INTEGER NOT NULL DEFAULT 0""",
        """CREATE INDEX targets_taken_by ON targets (taken_by, broker, forbidden) WHERE taken_by != ''""",
        """ALTER TABLE targets DROP COLUMN routed""",
        """ALTER TABLE targets ADD COLUMN routed INTEGER NOT NULL
             GENERATED ALWAYS AS ((subscriber != '' OR pull NOTNULL) AND NOT forbidden) VIRTUAL""",
    ),
    (
        # What the right of who wrote it lets through (`CompiledFilter.ceiling`, `within`); `taken_by` is there for
        # every target of an author whom the server knows.
        """ALTER TABLE targets ADD COLUMN ceiling TEXT NOT NULL DEFAULT ''""",
        """ALTER TABLE targets ADD COLUMN within TEXT NOT NULL DEFAULT ''""",
        """DROP INDEX targets_taken_by""",
        """CREATE INDEX targets_taken_by ON targets (taken_by, broker, namespace, forbidden, ceiling)
             WHERE taken_by != ''""",
    ),
)


def is_current(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether there is nothing to migrate; DatabaseNewerError for a file of a newer Headgate."""
    return version_of(connection, path, len(MIGRATIONS)) == len(MIGRATIONS)


def migrate(connection: sqlite3.Connection, path: Path) -> int:
    """Bring the tables up to date, inside the caller's transaction; the version that was found, 0 for a new file."""
    found = version_of(connection, path, len(MIGRATIONS))
    for statements in MIGRATIONS[found:]:
        for statement in statements:
            connection.execute(statement)
    if found < len(MIGRATIONS):
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    return found
