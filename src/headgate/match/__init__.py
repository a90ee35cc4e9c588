"""Which targets does an event match? Spark: session, plan to DataFrame, query (only here is pyspark imported)."""
