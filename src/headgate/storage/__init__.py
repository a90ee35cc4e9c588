"""SQLite files: opening, versions, damage."""
