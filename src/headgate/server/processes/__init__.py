"""The processes of a server, a module for each; `kafka/` has their forms in a deployment on Kafka."""
