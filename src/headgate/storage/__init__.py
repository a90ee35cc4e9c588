"""Files of state: SQLite databases, and small files that are replaced as a whole."""
