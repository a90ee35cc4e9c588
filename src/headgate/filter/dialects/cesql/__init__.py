"""CloudEvents SQL 1.0."""
