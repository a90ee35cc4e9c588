"""Skipping: what readers pass over without decoding it."""
