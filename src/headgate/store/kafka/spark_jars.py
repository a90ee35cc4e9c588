"""The jars that Spark needs beside its own to read and write Kafka; they are in no wheel.

They come from one place: the folder that HEADGATE_SPARK_KAFKA_JARS names, or else what Maven fetches once into the
user's cache. `python -m headgate.store.kafka.spark_jars` prints the folder, and fetches it where it is missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headgate.errors import HeadgateError, InvalidInputError
from headgate.store.kafka.maven import jars

FOLDER_VARIABLE: Final = "HEADGATE_SPARK_KAFKA_JARS"
POM: Final = Path(__file__).with_name("spark-jars.xml")
_NEEDED: Final = (
    "spark-sql-kafka-0-10_2.13-",
    "spark-token-provider-kafka-0-10_2.13-",
    "kafka-clients-",
    "commons-pool2-",
)


def spark_jars(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The jars, for `spark.jars`; every executor must be able to read them or be sent them.

    Args:
        environment: Of the process.

    Raises:
        InvalidInputError: The folder that the environment names lacks one of them.
        UnavailableError: They have to be fetched, and there is no Maven, or it cannot fetch them.
    """
    given = environment.get(FOLDER_VARIABLE)
    folder = Path(given) if given else jars(POM)
    found = sorted(folder.glob("*.jar"))
    for name in _NEEDED:
        if not any(jar.name.startswith(name) for jar in found):
            raise InvalidInputError(
                f"{folder} has no jar {name}*.jar",
                hint=f"copy into it what {POM.name} names, or unset {FOLDER_VARIABLE}",
            )
    return [jar.absolute() for jar in found]


if __name__ == "__main__":
    try:
        print(spark_jars()[0].parent)  # what the build reads
    except HeadgateError as error:
        sys.exit(f"error: {error.message}\nhint: {error.hint}")
