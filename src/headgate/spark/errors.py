"""Errors of the library; each names what was given and what is expected."""

from __future__ import annotations

from headgate_api.errors import HeadgateError, InvalidInputError, UnavailableError


class ConnectorMissingError(HeadgateError):
    """The Spark session was started without a jar that is needed."""

    code = "spark-connector-missing"


class EventsAddressError(InvalidInputError):
    """The address is none from which events can be read."""

    code = "spark-address"


class EventColumnsError(InvalidInputError):
    """A DataFrame lacks a column that events or filters need, or has it in another type."""

    code = "spark-columns"


class FiltersRefusedError(InvalidInputError):
    """Filters do not compile, or cannot be told apart."""

    code = "spark-filters"


class EventsUnreachableError(UnavailableError):
    """Kafka, which holds the events, does not answer or does not let us in."""

    code = "spark-kafka-unreachable"
