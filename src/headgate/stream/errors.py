"""What can go wrong while the log is read?"""

from __future__ import annotations

from headgate.errors import InvalidInputError


class QueryError(InvalidInputError):
    """A request to read that cannot be understood."""

    code = "query"
