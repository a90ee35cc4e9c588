"""Where the jars are found that Spark needs for Kafka."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headgate.backend.kafka.spark_jars import FOLDER_VARIABLE, POM, spark_jars
from headgate_api.errors import InvalidInputError

NAMES = ("commons-pool2-2.jar", "kafka-clients-3.jar", "spark-sql-kafka-0-10_2.13-4.jar")


def test_a_folder_that_is_named_must_have_them_all(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).touch()
    with pytest.raises(InvalidInputError, match=r"has no jar spark-token-provider-kafka-0-10_2\.13-\*\.jar"):
        spark_jars({FOLDER_VARIABLE: str(tmp_path)})
    (tmp_path / "spark-token-provider-kafka-0-10_2.13-4.jar").touch()
    assert [jar.name for jar in spark_jars({FOLDER_VARIABLE: str(tmp_path)})][:3] == sorted(NAMES)


OF_SPARK = {"4.2.0": {"kafka-clients": "3.9.2", "commons-pool2": "2.13.1"}}
"""What the pom of spark-sql-kafka-0-10_2.13 names, by Spark's version: look it up anew for another Spark."""


def test_spark_gets_its_own_source_and_the_libraries_that_it_was_built_with() -> None:
    spaces = {"": "http://maven.apache.org/POM/4.0.0"}
    named = {
        one.findtext("artifactId", "", spaces): one.findtext("version", "", spaces)
        for one in ElementTree.parse(POM).iterfind("dependencies/dependency", spaces)
    }
    own = dict.fromkeys(("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"), version("pyspark"))
    assert named == own | OF_SPARK[version("pyspark")]
