"""Scans of the log: which stored events a filter takes. The one way in which the log is read by expression."""
