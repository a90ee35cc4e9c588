"""The topic `events` as columns that the match reads, by Spark's source for Kafka."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from headgate.errors import InvalidInputError
from headgate.match.kafka_columns import log_columns
from headgate.store.config import KafkaConfig
from headgate.store.kafka.java_options import java_options

RECORD: Final = ("key", "value", "headers")
"""The columns that hold a record as it is."""


def read_topic(spark: SparkSession, config: KafkaConfig, start: Mapping[int, int]) -> DataFrame:
    """A stream of the records of `events`, committed ones only.

    Args:
        spark: A session with the jars of `spark_jars`.
        config: Of the deployment.
        start: The first offset of every partition that is read.

    Returns:
        The columns of `match.kafka_columns.log_columns`, and the record's own: `key` BINARY, `value` BINARY, `headers`
        ARRAY of (`key` STRING, `value` BINARY). A record that is no event of ours has no `broker`, so that no filter
        takes it.

    Raises:
        InvalidInputError: No partition is named, or an option of the configuration has no counterpart in Java.
    """
    return log_columns(spark.readStream.format("kafka").options(**_options(config, start)).load(), RECORD)


def _options(config: KafkaConfig, start: Mapping[int, int]) -> dict[str, str]:
    if not start:
        raise InvalidInputError("a run needs at least one partition of the topic events")
    topic = config.topic("events")
    return {
        **{f"kafka.{name}": value for name, value in java_options(config).items()},
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({topic: sorted(start)}),
        "startingOffsets": _offsets(topic, start),
        "includeHeaders": "true",
    }


def _offsets(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})
