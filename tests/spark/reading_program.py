"""A program in a Spark of its own, with Spark's Kafka source: reads events and writes what it got, or which error.

python -m tests.spark.reading_program CASES ANSWERS JARS

CASES is a JSON object of names and arguments of `read_events`; a stream is read to its end. Each answer has the columns
with their types, and the rows, ordered by id.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headgate.errors import HeadgateError
from headgate.spark import connector_jar, read_events

OF_STORE = {"partition", "offset", "append_time_us"}
"""Kafka numbers otherwise, and stores at another time."""


def answer(frame: DataFrame) -> dict[str, Any]:
    columns = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    table = frame.select(*(name for name in columns if name not in OF_STORE)).toArrow()
    rows = [{name: found.hex() if isinstance(found, bytes) else found for name, found in row.items()}
            for row in table.to_pylist()]  # fmt: skip
    return {"columns": columns, "rows": sorted(rows, key=lambda row: row["id"])}


def streamed(spark: SparkSession, frame: DataFrame, name: str) -> DataFrame:
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True)
        writer.option("checkpointLocation", checkpoint).start().awaitTermination()
    return spark.table(name)


def read(spark: SparkSession, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        frame = read_events(spark, **arguments)
        return answer(streamed(spark, frame, name) if arguments.get("streaming") else frame)
    except (HeadgateError, PySparkException) as error:
        return {"error": type(error).__name__, "message": str(error)}


def main(cases: Path, answers: Path, jars: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", f"{connector_jar()},{jars}")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    asked = json.loads(cases.read_text())
    answers.write_text(json.dumps({name: read(spark, name, arguments) for name, arguments in asked.items()}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
