"""The benchmark that nobody published: its program is `__main__.py`, its page docs/reference/published.md."""
