"""Which URLs may events go to? The policy of the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headgate.control.egress import UrlPolicy, networks, ports
from headgate.errors import InvalidInputError
from headgate.settings import Settings

T = TypeVar("T")


def url_policy(settings: Settings) -> UrlPolicy:
    """The policy that the settings ask for.

    Raises:
        InvalidInputError: A setting cannot be read; the message names it.
    """
    return UrlPolicy(
        reach=settings.egress,
        allow=_read("EGRESS_ALLOW", settings.egress_allow, networks),
        deny=_read("EGRESS_DENY", settings.egress_deny, networks),
        ports=_read("EGRESS_PORTS", settings.egress_ports, ports),
        schemes=_read("EGRESS_SCHEMES", settings.egress_schemes, _schemes),
        own_url=settings.url,
    )


def _read(name: str, text: str, reader: Callable[[str], T]) -> T:
    try:
        return reader(text)
    except ValueError as error:
        raise InvalidInputError(f"HEADGATE_{name}: {error}", hint="docs/operating.md has examples") from error


def _schemes(text: str) -> frozenset[str]:
    schemes = frozenset(item.strip().lower() for item in text.split(",") if item.strip())
    if not schemes or not schemes <= {"http", "https"}:
        raise ValueError(f"{text!r} is not http, https or both")
    return schemes
