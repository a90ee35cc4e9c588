"""The audit log: who did what, from where, and by which decision, in the shape of Kubernetes' audit `Event`.

A line for every write and every refusal; never data, never a token. Source:
https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from headgate.auth.errors import AuthFileError
from headgate.auth.rules import Attributes
from headgate.auth.user import ANONYMOUS, User
from headgate.observe.logs import Recurring
from headgate.observe.metrics import AUDIT_LINES
from headgate_api.limits import AUDIT_CLOSE_S_MAX, AUDIT_PAUSE_S, AUDIT_QUEUE_MAX, AUDIT_TEXT_CHARS_MAX

DECISION: Final = "authorization.k8s.io/decision"
REASON: Final = "authorization.k8s.io/reason"
_VERBS: Final = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
    "OPTIONS": "options",
}
_READS: Final = frozenset({"get", "list", "watch", "options"})
_REFUSALS: Final = frozenset({401, 403, 429})


@dataclass(slots=True)
class AuditEntry:
    """A request as the audit log will have it, filled in on the request's way.

    `impersonated` is as whom; None: as himself. `about` (`objectRef`), `decision` and `reason` are empty where nobody
    decided; until then the verb is that of HTTP's method.
    """

    path: str
    address: str
    agent: str
    verb: str
    received_s: float = field(default_factory=time.time)
    user: User = ANONYMOUS
    impersonated: User | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    decision: str = ""
    reason: str = ""

    def decided(self, asked: Attributes, *, is_allowed: bool, reason: str) -> None:
        self.verb, self.reason = asked.verb, reason
        self.decision = "allow" if is_allowed else "forbid"
        found = {
            "resource": asked.resource,
            "namespace": asked.namespace,
            "name": asked.name,
            "apiGroup": asked.group,
            "subresource": asked.subresource,
        }
        self.about = {key: value[:AUDIT_TEXT_CHARS_MAX] for key, value in found.items() if value}

    def refused(self, reason: str) -> None:
        """Says that what was allowed by then is refused all the same."""
        self.decision, self.reason = "forbid", reason[:AUDIT_TEXT_CHARS_MAX]


def verb_of(method: str) -> str:
    """Kubernetes' verb for a method of HTTP."""
    return _VERBS.get(method, "unknown")


def is_recorded(entry: AuditEntry, status: int) -> bool:
    """Whether a request with this answer belongs into the log: a write, or a refusal."""
    return status in _REFUSALS or entry.decision == "forbid" or entry.verb not in _READS


def line_of(entry: AuditEntry, status: int, message: str = "", *, clock_s: Callable[[], float] = time.time) -> bytes:
    """A line of the log, with its end; `status` is HTTP's answer, `message` why it was refused."""
    response: dict[str, Any] = {"metadata": {}, "code": status}
    if message:
        response["message"] = message[:AUDIT_TEXT_CHARS_MAX]
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": str(uuid.uuid4()),
        "stage": "ResponseComplete",
        "requestURI": entry.path[:AUDIT_TEXT_CHARS_MAX],
        "verb": entry.verb,
        "user": entry.user.info,
        "sourceIPs": [entry.address] if entry.address else [],
        "userAgent": entry.agent[:AUDIT_TEXT_CHARS_MAX],
    }
    if entry.impersonated is not None:
        event["impersonatedUser"] = entry.impersonated.info
    if entry.about:
        event["objectRef"] = dict(entry.about)
    event |= {
        "responseStatus": response,
        "requestReceivedTimestamp": _time(entry.received_s),
        "stageTimestamp": _time(clock_s()),
        "annotations": {DECISION: entry.decision, REASON: entry.reason} if entry.decision else {},
    }
    return msgspec.json.encode(event) + b"\n"


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# --- file -----------------------------------------------------------------------------------------
# Lines are queued, a thread writes them and begins a new file when one is large. Several processes write one file: each
# appends whole lines, and a lock lets one of them rotate at a time. What fails here is counted, and touches no request.


_log = structlog.get_logger(__name__)
_WRITTEN: Final = AUDIT_LINES.labels("written")
_DROPPED: Final = AUDIT_LINES.labels("dropped")
_FAILED: Final = AUDIT_LINES.labels("failed")


class AuditLog:
    """Writes the audit log; a context manager that writes what is queued at its end.

    Older files are FILE.1 (the newest) to FILE.N. Only a line that is longer alone makes a file larger than
    `bytes_max`. Raises AuthFileError when the file cannot be written.
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
        """Queues a line, see `line_of`, if the request belongs into the log; never raises and never waits."""
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
