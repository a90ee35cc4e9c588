"""What people read: how long ago something was, as kubectl writes it, and what a status code of HTTP says."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from headgate_api.event import rfc3339

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3_600, 86_400, 31_536_000
_MICROS: Final = 1_000_000
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


def age(timestamp: str, now_s: float) -> str:
    """The distance of a time of RFC 3339 from `now_s` (seconds since 1970); `<unknown>` for another text."""
    then_us = rfc3339.micros(timestamp)
    return "<unknown>" if then_us is None else human_age(max(0, int(now_s - then_us / _MICROS)))


def human_age(seconds: int) -> str:
    """Whole seconds as kubectl writes an age: `45s`, `3m20s`, `47m`, `5h10m`, `3d4h`."""
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    for below, unit, name, rest, rest_name in (
        (10 * _MINUTE, _MINUTE, "m", 1, "s"),
        (3 * _HOUR, _MINUTE, "m", 0, ""),
        (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
        (2 * _DAY, _HOUR, "h", 0, ""),
        (8 * _DAY, _DAY, "d", _HOUR, "h"),
        (2 * _YEAR, _DAY, "d", 0, ""),
        (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    ):
        if seconds < below:
            small = seconds % unit // rest if rest else 0
            return f"{seconds // unit}{name}{small}{rest_name}" if small else f"{seconds // unit}{name}"
    return f"{seconds // _YEAR}y"


def status_text(status: int, reason: str = "", detail: str = "") -> str:
    """A status and its phrase: `404 Not Found`; for 0 that there is no answer, and why, where that is known."""
    if not status:
        why = [words for words in (_NO_ANSWER.get(reason, ""), detail) if words]
        return f"no answer ({': '.join(why)})" if why else "no answer"
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
