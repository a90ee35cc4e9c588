"""Replays: stored events sent to one target again."""
