"""The connector in a Spark session that somebody else has started."""

from __future__ import annotations

import sys
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from headgate.match.requirements import connector_jar
from headgate.match.session import FUNCTIONS_SETTING, FUNCTIONS_VALUE
from headgate_api.errors import HeadgateError
from headgate_api.limits import SPARK_ARROW_BATCH_BYTES_MAX

_PYTHON_DEFAULT: Final = "python3"
"""What PySpark takes where PYSPARK_PYTHON is not set."""
BATCH_BYTES_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_HINT: Final = (
    "start Spark with the jar: SparkSession.builder.config('spark.jars', headgate.spark.connector_jar()), "
    "or spark-submit --jars"
)


class ConnectorMissingError(HeadgateError):
    """The Spark session was started without a jar that is needed."""

    code = "spark-connector-missing"


def use_connector(spark: SparkSession) -> None:
    """Names the connector's functions in the session; raises ConnectorMissingError without its jar or its own JVM."""
    try:
        load_class(spark, FUNCTIONS_VALUE)
    except Py4JError as error:
        raise ConnectorMissingError(
            f"this Spark session does not have the connector, {connector_jar().name}", hint=_HINT
        ) from error
    except NotImplementedError as error:  # Spark Connect: another process has the JVM
        raise ConnectorMissingError("the match needs the driver's own JVM, not Spark Connect", hint=_HINT) from error
    spark.conf.set(FUNCTIONS_SETTING, FUNCTIONS_VALUE)


def load_class(spark: SparkSession, name: str) -> None:
    """Loads a class of Java as Spark finds it; raises Py4JError where there is none."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.org.apache.spark.util.Utils.classForName(name, True, False)


def use_own_python(spark: SparkSession) -> None:
    """Lets workers on this machine run the driver's Python, which has this package: a notebook's, or a venv's.

    Spark would take `python3` of the PATH, which is theirs only where the venv is activated. What somebody has set
    stays; on a cluster it is for PYSPARK_PYTHON to say where Python is.
    """
    context = spark.sparkContext
    if (context.master or "").startswith("local") and context.pythonExec == _PYTHON_DEFAULT:
        context.pythonExec = sys.executable


def bound_batches(spark: SparkSession) -> None:
    """Lets no batch of rows that goes to Python be larger than SPARK_ARROW_BATCH_BYTES_MAX and its last row.

    Spark takes the bound from the session when a query runs, so the session has it from now on. A smaller one stays.
    """
    found: int = spark._jsparkSession.sessionState().conf().arrowMaxBytesPerBatch()
    if found > SPARK_ARROW_BATCH_BYTES_MAX:
        spark.conf.set(BATCH_BYTES_SETTING, str(SPARK_ARROW_BATCH_BYTES_MAX))
