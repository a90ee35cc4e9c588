"""Events of a data directory as a DataFrame; the connector skips chunks that a filter or a time rules out."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.control.object_reader import NoDataDirectoryError, ObjectReader
from headgate.filter.skipping.prune import Pruning, pruning
from headgate.log.directory import LogDirectory, OnCorrupt
from headgate.match.query import SOURCE
from headgate.scan.chunks import ChunkLog
from headgate.scan.source import ReadableLog
from headgate.scan.starts import start_offsets
from headgate.spark.errors import EventsAddressError

_LOG: Final = "log"
_MILLISECOND_US: Final = 1_000
_CLOCKS_APART_US: Final = 60_000_000
"""A later end may not have come yet for a server on another machine; it is left to the filter."""


def log_events(
    spark: SparkSession,
    address: str,
    *,
    broker: str,
    cel: str | None,
    from_: str,
    to: str | None,
    streaming: bool,
    on_corrupt: OnCorrupt,
) -> DataFrame:
    """The events of a broker in chunks that a filter may be true of.

    Args:
        spark: The session.
        address: The data directory.
        broker: `namespace/name`.
        cel: Canonical CEL of the filter; None for none.
        from_: See `reading.read_events`.
        to: Likewise.
        streaming: Likewise.
        on_corrupt: Likewise.

    Raises:
        EventsAddressError: There is no data directory of Headgate, no log in it, or no such broker.
        DatabaseOlderError: An older Headgate wrote it.
        DatabaseNewerError: A newer one did.
        PositionError: `from_` or `to` names no place of this log.
    """
    data = _directory(address)
    try:
        served = ObjectReader(data).served(broker)
    except NoDataDirectoryError as error:
        raise EventsAddressError(error.message, hint=error.hint) from error
    if served is None:
        raise EventsAddressError(f"there is no broker {broker!r} in {data}", hint="headgate get brokers -A lists them")
    directory = LogDirectory(data / _LOG, on_corrupt)
    log = ChunkLog(directory)
    start = start_offsets(log, from_)
    if not start:
        raise EventsAddressError(f"there is no log in {data}", hint="a server makes it when it starts")
    end = None if to is None else start_offsets(log, to)
    pruned = Pruning() if cel is None else pruning(cel, served.rule.value.cel)
    start, end = _without_other_times(log, pruned, start, end)
    options = {
        "path": str(directory.directory.absolute()),
        "partitions": ",".join(map(str, start)),
        "startOffsets": json.dumps(start),
        "onCorrupt": on_corrupt,
    }
    if end is not None:
        options["endOffsets"] = json.dumps({partition: max(at, start[partition]) for partition, at in end.items()})
    if pruned.values is not None:
        options["filterValues"] = json.dumps(sorted(pruned.values))
    reader = spark.readStream if streaming else spark.read
    return reader.format(SOURCE).options(**options).load().where(F.col("broker") == served.identity)


def _without_other_times(
    log: ReadableLog, pruned: Pruning, start: dict[int, int], end: dict[int, int] | None
) -> tuple[dict[int, int], dict[int, int] | None]:
    """The same start and end without the chunks of publish times that the filter rules out."""
    low_us, high_us = pruned.published_us or (None, None)
    if low_us is not None:
        later = log.offsets_at_time(list(start), low_us)
        start = {partition: max(at, later[partition]) for partition, at in start.items()}
    if high_us is not None and high_us < time.time_ns() // 1_000 - _CLOCKS_APART_US:
        # A filter sees the millisecond in which an event was stored.
        behind = log.offsets_at_time(list(start), high_us // _MILLISECOND_US * _MILLISECOND_US + _MILLISECOND_US)
        end = behind if end is None else {partition: min(at, behind[partition]) for partition, at in end.items()}
    return start, end


def _directory(address: str) -> Path:
    """The data directory of an address."""
    parts = urlsplit(address)
    if parts.scheme not in ("", "file") or (parts.scheme == "file" and parts.netloc not in ("", "localhost")):
        raise EventsAddressError(
            f"{address[:100]!r} is no address of events",
            hint="a data directory: a path, or file:/path/to/data; or kafka://HOST:PORT/?prefix=headgate.",
        )
    return Path(unquote(parts.path)) if parts.scheme else Path(address)
