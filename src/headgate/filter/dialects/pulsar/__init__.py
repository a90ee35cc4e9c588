"""Filter expressions as drafted for Pulsar."""
