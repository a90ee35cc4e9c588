"""Events and state in Kafka topics."""
