"""The errors of reading the log."""

from __future__ import annotations

from headgate.errors import InvalidInputError


class QueryError(InvalidInputError):
    """A request to read that cannot be understood."""

    code = "query"
