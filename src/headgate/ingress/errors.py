"""Errors of requests to publish, beside those of invalid events."""

from __future__ import annotations

from headgate.errors import (
    FatalError,
    HeadgateError,
    InvalidInputError,
    TooLargeError,
    UnavailableError,
)


class BrokerReplacedError(UnavailableError):
    """The broker of a stream has been deleted, and another one has its name: the next stream is of that one."""

    code = "broker-replaced"


class StoredEventFormatError(FatalError):
    """The log's events are in another version's format."""

    code = "event-format"


class MethodNotAllowedError(HeadgateError):
    """The publish URI takes POST and OPTIONS only."""

    code = "method-not-allowed"
    http_status = 405


class TooManyHopsError(InvalidInputError):
    """The event has been through HOPS_MAX brokers: it runs in a circle."""

    code = "too-many-hops"


class TooManyDescendantsError(InvalidInputError):
    """DESCENDANTS_MAX events have come of one: its tree grows without end."""

    code = "too-many-descendants"
    http_status = 422


class HeadersTooLargeError(TooLargeError):
    """All headers of the request together are over REQUEST_HEAD_BYTES_MAX."""

    code = "headers-too-large"
    http_status = 431


class PartlyStoredError(UnavailableError):
    """Of a batch that was split by partition key one part is stored and another is not: send the whole again."""

    code = "partly-stored"
