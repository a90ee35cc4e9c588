"""Which stored events does a filter take? The one way in which the log is read by expression."""
