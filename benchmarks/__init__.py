"""Programs that measure; each prints a table beside a peer or a limit of the same run."""
