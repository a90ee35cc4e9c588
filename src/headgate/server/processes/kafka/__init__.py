"""The forms of the processes in a deployment on Kafka, and what only these have."""
