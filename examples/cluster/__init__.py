"""A whole deployment on Kafka and Spark, on loopback: `make demo-cluster`."""
