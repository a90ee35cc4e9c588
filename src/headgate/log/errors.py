"""Errors of the log."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from headgate_api.errors import (
    ConflictError,
    FatalError,
    HeadgateError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_LATER: Final = "try again later; the server's log names the file"


class LogUnavailableError(UnavailableError):
    """The log cannot take records now (disk full, I/O error, closing); nothing of the call was kept."""

    code = "log-unavailable"

    @classmethod
    def of(cls, error: OSError, path: Path) -> LogUnavailableError:
        """The system's error of a file: its kind for clients, the file for the operator."""
        full = error.errno in _FULL
        return cls(
            f"the log takes nothing now: {error.strerror or type(error).__name__}",
            hint="its operator must free space on the server; then the same request succeeds" if full else _LATER,
            detail=f"{path}: {error}",
        )


class LogLockedError(ConflictError):
    """Another writer holds the partition."""

    code = "log-locked"


class LogSchemaError(InvalidInputError):
    """The schema or the batch does not fit the log (dictionary columns, wrong columns, wrong row count)."""

    code = "log-schema"


class OffsetNotKeptError(NotFoundError):
    """No record with this offset: retention removed it, or it was never written."""

    code = "offset-not-kept"


class UnreadableEventsError(HeadgateError):
    """What stands in the store is not what was stored; nothing of it is handed out."""

    code = "unreadable"


class CorruptChunkError(UnreadableEventsError):
    """Bytes of the log are not what was written: those of the chunk (0: the segment header) that starts at `byte`.

    `first_offset` is that of the first record that cannot be read for it; None when that is not known.
    """

    code = "log-corrupt"

    def __init__(self, path: Path, byte: int, reason: str, first_offset: int | None = None) -> None:
        super().__init__(
            f"{path} is damaged at byte {byte}: {reason}",
            hint=f"headgate log verify {path.parent} lists every damaged place; restore the segment from a copy",
        )
        self.path = path
        self.byte = byte
        self.reason = reason
        self.first_offset = first_offset


class NewerLogError(FatalError):
    """A newer Headgate wrote the log."""

    code = "log-newer"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}", hint="start the version that wrote it, or a newer one")


class DamagedLogError(CorruptChunkError, FatalError):
    """The log is damaged where its writer looks when it opens: nothing can be added behind that."""

    def __init__(self, path: Path, byte: int, reason: str, first_offset: int | None = None) -> None:
        super().__init__(path, byte, reason, first_offset)
        self.hint += ", or accept the loss with --on-corrupt skip"
