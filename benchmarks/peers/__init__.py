"""Headgate beside the best of its peers: the program is `__main__.py`, its page docs/reference/published.md."""
