"""The error of a write to control.db where another process is its writer."""

from __future__ import annotations

from headgate.errors import UnavailableError


class NotLeaderError(UnavailableError):
    """This process may not write objects: another control process leads, or none does."""

    code = "not-leader"
