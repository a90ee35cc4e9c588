"""Addresses of events in Kafka: servers to ask first, and the prefix of the deployment's topics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

from headgate.spark.errors import EventsAddressError

PREFIX_DEFAULT: Final = "headgate."
"""As `kafka.topic_prefix` of a deployment's configuration file."""
_HINT: Final = "kafka://HOST:PORT,HOST:PORT/?prefix=headgate. with the deployment's kafka.bootstrap and topic_prefix"
_HOST_AND_PORT: Final = re.compile(r"(?:[^\s,:\[\]@]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}")
_PREFIX: Final = re.compile(r"[a-zA-Z0-9._-]{0,100}")


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where a deployment's events are.

    Attributes:
        bootstrap: HOST:PORT of some of Kafka's brokers, with commas between.
        topic: The topic of events.
    """

    bootstrap: str
    topic: str


def kafka_address(text: str) -> KafkaAddress:
    """Reads an address.

    Raises:
        EventsAddressError: It has another form.
    """
    try:
        parts = urlsplit(text)
        query = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), max_num_fields=1)
    except ValueError as error:
        raise EventsAddressError(f"{text[:100]!r} is no address of events: {error}", hint=_HINT) from error
    # A name and a password would be in logs and in the history of a shell.
    if "@" in parts.netloc:
        raise EventsAddressError("the address holds a name or a password", hint="give them in kafka_options")
    for one in parts.netloc.split(","):
        if not _HOST_AND_PORT.fullmatch(one):
            raise EventsAddressError(f"{one[:100]!r} is not HOST:PORT of a broker of Kafka", hint=_HINT)
    prefix = query.pop("prefix", [PREFIX_DEFAULT])[0]
    if query or parts.fragment or parts.path not in ("", "/") or not _PREFIX.fullmatch(prefix):
        raise EventsAddressError(f"{text[:100]!r} is no address of events", hint=_HINT)
    return KafkaAddress(parts.netloc, f"{prefix}events")
