"""HTTP status codes as text for people."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

_NO_ANSWER: Final = {
    "dns": "the name of the host was not resolved",
    "refused": "the host refused the connection",
    "certificate": "the certificate is not trusted",
    "tls": "TLS found no agreement",
    "connection": "there was no connection, or it broke off",
    "timeout": "it did not come in time",
    "protocol": "what came was not HTTP",
    "url": "the request cannot be sent",
    "policy": "the egress policy forbids the address",
    "credentials": "what the request authenticates by is missing",
    "handshake": "the receiver has not agreed to deliveries",
}


def status_text(status: int, reason: str = "", detail: str = "") -> str:
    """A status and its phrase: `404 Not Found`; for 0 that there is no answer, and why, where that is known."""
    if not status:
        why = [words for words in (_NO_ANSWER.get(reason, ""), detail) if words]
        return f"no answer ({': '.join(why)})" if why else "no answer"
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
