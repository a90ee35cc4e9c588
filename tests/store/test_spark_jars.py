"""Where the jars are found that Spark needs for Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import InvalidInputError
from headgate.store.kafka.spark_jars import FOLDER_VARIABLE, spark_jars

NAMES = ("commons-pool2-2.jar", "kafka-clients-3.jar", "spark-sql-kafka-0-10_2.13-4.jar")


def test_a_folder_that_is_named_must_have_them_all(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).touch()
    with pytest.raises(InvalidInputError, match=r"has no jar spark-token-provider-kafka-0-10_2\.13-\*\.jar"):
        spark_jars({FOLDER_VARIABLE: str(tmp_path)})
    (tmp_path / "spark-token-provider-kafka-0-10_2.13-4.jar").touch()
    assert [jar.name for jar in spark_jars({FOLDER_VARIABLE: str(tmp_path)})][:3] == sorted(NAMES)
