"""Forms of an event that only the server knows: rows of Arrow, records of Kafka, hops, traces."""
