"""Real clusters on loopback for tests, benchmarks and examples: Kafka and Spark."""
