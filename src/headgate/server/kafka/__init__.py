"""The processes of a server in a deployment on Kafka: a module by role, as `server/` has for a server of its own."""
