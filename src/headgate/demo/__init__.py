"""The demo: what Headgate does, with a check of every count."""
