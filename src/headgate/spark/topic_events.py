"""Events of a deployment on Kafka as a DataFrame, read by Spark's own source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Final

import pyspark
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.log.directory import OnCorrupt
from headgate.match.kafka_columns import log_columns
from headgate.spark.errors import ConnectorMissingError, EventsAddressError
from headgate.spark.kafka_address import KafkaAddress
from headgate.spark.kafka_offsets import topic_client

_SOURCE: Final = "kafka"
_SOURCE_CLASS: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_OURS: Final = frozenset({"bootstrap.servers", "isolation.level", "group.id", "auto.offset.reset"})
"""Options that the address gives, or on which it rests that nothing is missing or taken back."""


def topic_events(
    spark: SparkSession,
    address: KafkaAddress,
    *,
    broker: str,
    from_: str,
    to: str | None,
    streaming: bool,
    on_corrupt: OnCorrupt,
    options: Mapping[str, str],
) -> DataFrame:
    """The events of a broker in a topic, in the columns of the log.

    Args:
        spark: The session.
        address: The topic.
        broker: `namespace/name`: every broker that has or had the name; or an identity, `namespace/name/uid`.
        from_: See `reading.read_events`.
        to: Likewise.
        streaming: Likewise.
        on_corrupt: At a record that Headgate has not stored, and at records that a stream has not read before they
            went, stop or pass over.
        options: Of Kafka's Java clients: `security.protocol`, `sasl.mechanism`, `sasl.jaas.config`.

    Raises:
        ConnectorMissingError: The session was started without Spark's Kafka source.
        EventsAddressError: There is no such topic, or an option is refused.
        EventsUnreachableError: Kafka does not answer.
        PositionError: `from_` or `to` names no place of the topic.
    """
    _check_source(spark)
    refused = sorted(_OURS & options.keys())
    if refused:
        raise EventsAddressError(f"kafka_options must not have {refused[0]}", hint="Headgate sets it itself")
    with topic_client(spark, address, options) as client:
        kept = client.kept()
        start = client.at(from_, kept)
        end = None if to is None else client.at(to, kept)
    settings = {f"kafka.{name}": value for name, value in options.items()} | {
        "kafka.bootstrap.servers": address.bootstrap,
        "kafka.isolation.level": "read_committed",  # else batches that were given up appear
        "subscribe": address.topic,
        "includeHeaders": "true",
        "startingOffsets": json.dumps({address.topic: start}),
        "failOnDataLoss": str(on_corrupt == "stop").lower(),
    }
    if end is not None and not streaming:
        settings["endingOffsets"] = json.dumps({address.topic: {one: max(at, start[one]) for one, at in end.items()}})
    reader = spark.readStream if streaming else spark.read
    events = log_columns(reader.format(_SOURCE).options(**settings).load())
    if end is not None and streaming:  # the source has no end for a stream
        events = events.where(_before(end))
    if on_corrupt == "stop":
        events = events.withColumn("broker", F.coalesce(F.col("broker"), F.raise_error(_foreign(address.topic))))
    is_identity = broker.count("/") > 1
    return events.where(F.col("broker") == broker if is_identity else F.col("broker").startswith(f"{broker}/"))


def _check_source(spark: SparkSession) -> None:
    try:
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        jvm.org.apache.spark.util.Utils.classForName(_SOURCE_CLASS, True, False)
    except Py4JError as error:
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
        raise ConnectorMissingError(
            "this Spark session does not have Spark's Kafka source",
            hint=f"start Spark with it: SparkSession.builder.config('spark.jars.packages', '{package}')",
        ) from error


def _before(end: Mapping[int, int]) -> Column:
    parts = ((F.col("partition") == one) & (F.col("offset") < at) for one, at in end.items())
    return reduce(or_, parts)


def _foreign(topic: str) -> Column:
    where = (F.lit(f"{topic}/"), F.col("partition"), F.lit(" at offset "), F.col("offset"))
    return F.concat(*where, F.lit(": no event that Headgate stored; on_corrupt='skip' passes over it"))
