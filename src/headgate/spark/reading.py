"""A broker's events as a DataFrame: of a data directory, read by the connector, or of a deployment on Kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.request import filter_of
from headgate.filter.skipping.prune import Pruning, pruning
from headgate.log.directory import LogDirectory, OnCorrupt
from headgate.match.query import SOURCE
from headgate.objects.views.object_reader import NoDataDirectoryError, ObjectReader
from headgate.scan.chunks import ChunkLog
from headgate.scan.source import EARLIEST, ReadableLog, start_offsets
from headgate.spark.connector import use_connector
from headgate.spark.matching import ADDED, MATCH, match
from headgate.spark.topic_events import EventsAddressError, Wanted, kafka_address, topic_events
from headgate_api.event.names import full_name

_ONE: Final = "filter"


def read_events(
    spark: SparkSession,
    address: str,
    *,
    broker: str = "default",
    filter: str | Mapping[str, object] | None = None,
    from_: str = EARLIEST,
    to: str | None = None,
    streaming: bool = False,
    on_corrupt: OnCorrupt = "stop",
    kafka_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The events of a broker that a filter is true of.

    Args:
        spark: A session that was started with the jar of `connector_jar`, for Kafka also with Spark's Kafka source.
        address: A data directory, as a path or as `file:/...`; every executor must see it under this name. A server may
            be running on it, and nothing in it is changed. Or `kafka://HOST:PORT,HOST:PORT/?prefix=headgate.`: the
            `kafka.bootstrap` and `kafka.topic_prefix` of a deployment.
        broker: `name` or `namespace/name`. On Kafka these are the events of every broker that has or had the name; an
            identity, `namespace/name/uid`, is one of them.
        filter: CEL text, or an object as a trigger's `spec.filter`, or its JSON text. None takes every event.
        from_: Where to begin: `earliest`, `next` (what is stored from now on), a time (RFC 3339) or a position
            (`0:123,1:456`).
        to: Where to end, exclusive: `next` (now), a time or a position. None: a batch reads what is durable when it
            runs, a stream follows the log.
        streaming: A stream of micro-batches instead of a batch; its checkpoint knows where it goes on.
        on_corrupt: At a damaged chunk, or a record that Headgate has not stored, stop with an error, or skip it.
        kafka_options: Of Kafka's Java clients, without Spark's prefix `kafka.`: `security.protocol`, `sasl.mechanism`,
            `sasl.jaas.config`. They may hold secrets.

    Returns:
        The columns of the log (docs/spec/log-format.md): `broker` (its identity), the context attributes, `time_us`,
        `extensions`, `data_kind`, `data`; and `partition` INT, `offset` BIGINT, `append_time_us` BIGINT. Rows are those
        of which cel-cpp says true.

    Raises EventsAddressError, EventsUnreachableError, ConnectorMissingError, FilterError, PositionError, and
    DatabaseOlderError or DatabaseNewerError where another Headgate wrote the data directory.
    """
    use_connector(spark)
    compiled = None if filter is None else compile_filter(filter_of(filter))
    wanted = Wanted(full_name(broker), from_, to, streaming, on_corrupt)
    if address.lower().startswith("kafka:"):
        events = topic_events(spark, kafka_address(address), wanted, kafka_options or {})
    else:
        if kafka_options:
            raise EventsAddressError(
                "kafka_options are given, but the address is none of Kafka",
                hint="name a deployment as kafka://HOST:PORT",
            )
        events = _log_events(spark, address, wanted, None if compiled is None else compiled.cel)
    if filter is None:
        return events
    found = match(events, {_ONE: filter})
    return found.where(F.col("verdict") == MATCH).drop(*ADDED)


# --- a data directory -----------------------------------------------------------------------------

_LOG: Final = "log"
_MILLISECOND_US: Final = 1_000
_CLOCKS_APART_US: Final = 60_000_000
"""A later end may not have come yet for a server on another machine; it is left to the filter."""


def _log_events(spark: SparkSession, address: str, wanted: Wanted, cel: str | None) -> DataFrame:
    """The events of a broker in chunks that `cel` may be true of; others are skipped by value and by time."""
    data = _directory(address)
    try:
        served = ObjectReader(data).served(wanted.broker)
    except NoDataDirectoryError as error:
        raise EventsAddressError(error.message, hint=error.hint) from error
    if served is None:
        raise EventsAddressError(
            f"there is no broker {wanted.broker!r} in {data}", hint="headgate get brokers -A lists them"
        )
    directory = LogDirectory(data / _LOG, wanted.on_corrupt)
    log = ChunkLog(directory)
    start = start_offsets(log, wanted.from_)
    if not start:
        raise EventsAddressError(f"there is no log in {data}", hint="a server makes it when it starts")
    end = None if wanted.to is None else start_offsets(log, wanted.to)
    pruned = Pruning() if cel is None else pruning(cel, served.rule.value.cel)
    start, end = _without_other_times(log, pruned, start, end)
    options = {
        "path": str(directory.directory.absolute()),
        "partitions": ",".join(map(str, start)),
        "startOffsets": json.dumps(start),
        "onCorrupt": wanted.on_corrupt,
    }
    if end is not None:
        options["endOffsets"] = json.dumps({partition: max(at, start[partition]) for partition, at in end.items()})
    if pruned.values is not None:
        options["filterValues"] = json.dumps(sorted(pruned.values))
    reader = spark.readStream if wanted.streaming else spark.read
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
    parts = urlsplit(address)
    if parts.scheme not in ("", "file") or (parts.scheme == "file" and parts.netloc not in ("", "localhost")):
        raise EventsAddressError(
            f"{address[:100]!r} is no address of events",
            hint="a data directory: a path, or file:/path/to/data; or kafka://HOST:PORT/?prefix=headgate.",
        )
    return Path(unquote(parts.path)) if parts.scheme else Path(address)
