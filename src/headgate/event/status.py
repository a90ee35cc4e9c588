"""HTTP status codes as text for people."""

from __future__ import annotations

from http import HTTPStatus


def status_text(status: int) -> str:
    """A status and its phrase: `404 Not Found`; 0 is no answer."""
    if not status:
        return "no answer"
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
