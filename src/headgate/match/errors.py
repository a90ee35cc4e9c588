"""Errors of matching; each says what an operator can do."""

from __future__ import annotations

from headgate_api.errors import FatalError, HeadgateError, UnavailableError


class SparkMissingError(FatalError):
    """Spark cannot start: no suitable Java, or no connector jar."""

    code = "spark-missing"


class SparkSlotsError(FatalError):
    """Spark has too few task slots for two runs beside each other."""

    code = "spark-slots"


class RunFailedError(UnavailableError):
    """A Spark query did not start, or died; the next run may do better."""

    code = "run-failed"


class SparkGoneError(HeadgateError):
    """The JVM has ended; a process that wants another one has to start anew."""

    code = "spark-gone"


class DriverLinkError(UnavailableError):
    """The dispatcher's match link cannot be reached, refuses us, or breaks the protocol."""

    code = "match-link"
