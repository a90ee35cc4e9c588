"""The file of the audit log: lines are queued, a thread writes them and begins a new file when one is large.

Several processes write one file: each appends whole lines, and a lock lets one of them rotate at a time. Whatever fails
here is counted, and touches no request.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from headgate.auth.audit import AuditEntry, is_recorded, line_of
from headgate.auth.errors import AuthFileError
from headgate.limits import AUDIT_CLOSE_S_MAX, AUDIT_PAUSE_S, AUDIT_QUEUE_MAX
from headgate.observe.logs import Recurring
from headgate.observe.metrics import AUDIT_LINES

_log = structlog.get_logger(__name__)
_WRITTEN: Final = AUDIT_LINES.labels("written")
_DROPPED: Final = AUDIT_LINES.labels("dropped")
_FAILED: Final = AUDIT_LINES.labels("failed")


class AuditLog:
    """Writes the audit log; a context manager that writes what is queued at its end.

    Args:
        path: Of the file; older ones are beside it, as FILE.1 (the newest) to FILE.N.
        bytes_max: Size at which a new file is begun; only a line that is longer alone makes a larger one.
        backups: Older files that are kept.

    Raises:
        AuthFileError: The file cannot be written.
    """

    def __init__(self, path: Path, bytes_max: int, backups: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._backups = backups
        self._queue: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closed = False
        try:
            self._file = _opened(path)
            self._lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise AuthFileError(
                f"--audit-log-path {path} cannot be written: {error.strerror}",
                hint="give a file in a folder that the server's user may write",
            ) from error
        self._writer = threading.Thread(target=self._run, name="audit", daemon=True)
        self._writer.start()

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, entry: AuditEntry, status: int, message: str = "") -> None:
        """Queues a line if the request belongs into the log; never raises and never waits.

        Args:
            entry: The request.
            status: Of HTTP, with which it was answered.
            message: Why it was refused.
        """
        try:
            if not is_recorded(entry, status):
                return
            if len(self._queue) >= AUDIT_QUEUE_MAX:
                _DROPPED.inc()
                return
            self._queue.append(line_of(entry, status, message))
            self._wake.set()
        except Exception:  # noqa: BLE001 - nothing that a line holds may fail a request
            _FAILED.inc()

    def close(self) -> None:
        """Writes what is queued, within AUDIT_CLOSE_S_MAX; idempotent."""
        if not self._closed:
            self._closed = True
            self._wake.set()
            self._writer.join(AUDIT_CLOSE_S_MAX)

    def _run(self) -> None:
        failing = Recurring(_log, "audit log cannot be written", OSError)
        while True:
            self._wake.wait()
            self._wake.clear()
            lines = []
            while self._queue:
                lines.append(self._queue.popleft())
            if lines:
                is_written = False
                with failing.attempt():
                    self._write(lines)
                    is_written = True
                (_WRITTEN if is_written else _FAILED).inc(len(lines))
            if self._closed and not self._queue:
                os.close(self._file)
                os.close(self._lock)
                return
            if not self._closed:
                time.sleep(AUDIT_PAUSE_S)

    def _write(self, lines: Sequence[bytes]) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            self._take_up_rotated()
            size = os.fstat(self._file).st_size
            data = bytearray()
            for line in lines:
                if size and size + len(line) > self._bytes_max:
                    self._append(data)
                    self._rotate()
                    size, data = 0, bytearray()
                size += len(line)
                data += line
            self._append(data)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _append(self, data: bytearray) -> None:
        while data:
            data = data[os.write(self._file, data) :]

    def _take_up_rotated(self) -> None:
        """Opens the file anew when another process, or logrotate, has moved it away."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == os.fstat(self._file).st_ino:
                return
        self._reopen()

    def _rotate(self) -> None:
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n + 1}") for n in range(self._backups))]
        if len(names) == 1:
            os.ftruncate(self._file, 0)
            return
        for newer, older in reversed(list(itertools.pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        self._reopen()

    def _reopen(self) -> None:
        fresh = _opened(self._path)
        os.close(self._file)
        self._file = fresh


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
