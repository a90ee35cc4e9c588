"""Backups of a data directory: taken while its server runs, verified, and restored. docs/howto/backup.md tells more."""
