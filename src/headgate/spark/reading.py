"""A broker's events as a DataFrame: of a data directory, read by the connector, or of a deployment on Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.event.names import full_name
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.request import filter_of
from headgate.log.directory import OnCorrupt
from headgate.scan.starts import EARLIEST
from headgate.spark.connector import use_connector
from headgate.spark.errors import EventsAddressError
from headgate.spark.kafka_address import kafka_address
from headgate.spark.log_events import log_events
from headgate.spark.matching import ADDED, MATCH, match
from headgate.spark.topic_events import topic_events

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

    Raises:
        EventsAddressError: There is no data directory of Headgate, no log in it, no topic, or no such broker.
        EventsUnreachableError: Kafka does not answer.
        ConnectorMissingError: The session was started without a jar that is needed.
        DatabaseOlderError: An older Headgate wrote the data directory.
        DatabaseNewerError: A newer one did.
        FilterError: The filter does not compile.
        PositionError: `from_` or `to` names no place of this log.
    """
    use_connector(spark)
    compiled = None if filter is None else compile_filter(filter_of(filter))
    path = full_name(broker)
    if urlsplit(address).scheme == "kafka":
        events = topic_events(
            spark,
            kafka_address(address),
            broker=path,
            from_=from_,
            to=to,
            streaming=streaming,
            on_corrupt=on_corrupt,
            options=kafka_options or {},
        )
    else:
        if kafka_options:
            raise EventsAddressError(
                "kafka_options are given, but the address is none of Kafka",
                hint="name a deployment as kafka://HOST:PORT",
            )
        cel = None if compiled is None else compiled.cel
        events = log_events(
            spark, address, broker=path, cel=cel, from_=from_, to=to, streaming=streaming, on_corrupt=on_corrupt
        )
    if filter is None:
        return events
    found = match(events, {_ONE: filter})
    return found.where(F.col("verdict") == MATCH).drop(*ADDED)
