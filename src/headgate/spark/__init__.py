"""The match as a library of Spark: a broker's events as a DataFrame, and thousands of filters over any DataFrame.

    spark = SparkSession.builder.config("spark.jars", connector_jar()).getOrCreate()
    orders = read_events(spark, "headgate-data", broker="shop/orders", filter='ce.type == "order.created"')
    found = match(orders, {"large": "data.amount > 1000", "gold": {"exact": {"tier": "gold"}}})

Python of the driver and of the executors needs this package; the JVM needs the jar of `connector_jar`.
"""

from headgate_api import DISTRIBUTION

try:
    import pyarrow  # noqa: F401
    import pyspark  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"headgate.spark needs the package {error.name}: pip install {DISTRIBUTION}", name=error.name
    ) from error

from headgate.match.requirements import connector_jar
from headgate.spark.columns import EventColumnsError
from headgate.spark.connector import ConnectorMissingError
from headgate.spark.matching import FiltersRefusedError, match
from headgate.spark.reading import read_events
from headgate.spark.topic_events import EventsAddressError, EventsUnreachableError

__all__ = [
    "ConnectorMissingError",
    "EventColumnsError",
    "EventsAddressError",
    "EventsUnreachableError",
    "FiltersRefusedError",
    "connector_jar",
    "match",
    "read_events",
]
