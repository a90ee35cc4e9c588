"""What can go wrong while the log is read?"""

from __future__ import annotations

from headgate.errors import InvalidInputError


class PositionError(InvalidInputError):
    """A position that this log cannot have given."""

    code = "position"


class QueryError(InvalidInputError):
    """A request to read that cannot be understood."""

    code = "query"
