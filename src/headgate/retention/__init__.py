"""Retention of undelivered events: what may be given up, and what must be kept."""
