"""The journal of recent attempts: two files of fixed size that take turns, for `headgate trace` and `headgate why`.

Every attempt, and every end without one, is 32 bytes, appended a few times a second without a sync: it is for people,
nothing is decided by it, and a crash may cost its last moment. A file that is full takes the place of the older one.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from heapq import merge
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from headgate.observe.metrics import ATTEMPTS_FAILED, DELIVERIES
from headgate_api import limits

# time_us, offset, partition, target, attempt, status, reason, result, origin, detail
_FORM: Final = struct.Struct("<qqiiHHBBBB")
_TIMED: Final = struct.Struct("<q12xi")
"""An entry's time and target."""
_EVENT: Final = struct.Struct("<qi")
_EVENT_AT: Final = 8
"""Where in an entry offset and partition stand."""
_PIECE_BYTES: Final = _FORM.size << 15
_REASONS: Final = ("", *ATTEMPTS_FAILED.values, "other")
_RESULTS: Final = ("", *DELIVERIES.values, "other")
_REASON_CODE: Final = {name: code for code, name in enumerate(_REASONS)}
_RESULT_CODE: Final = {name: code for code, name in enumerate(_RESULTS)}
_FILES: Final = ("older.bin", "newer.bin")
_DETAILS: Final = (
    "",
    # the name
    "Name or service not known",
    "No address associated with hostname",
    "Temporary failure in name resolution",
    "Non-recoverable failure in name resolution",
    "Name does not resolve",
    "Try again",
    "nodename nor servname provided, or not known",
    "label empty or too long",
    "label too long",
    "the name was not resolved within",
    # the connection
    "Connection refused",
    "Network is unreachable",
    "No route to host",
    "Host is down",
    "Connection reset by peer",
    "Connection timed out",
    "Broken pipe",
    "Operation not permitted",
    "Permission denied",
    "Cannot assign requested address",
    "Address family not supported by protocol",
    "Too many open files",
    "the connection was closed before the answer was whole",
    # time
    "no connection within",
    "no whole answer within",
    "no time was left after the name was resolved",
    # the certificate, in OpenSSL's words
    "certificate has expired",
    "certificate is not yet valid",
    "self-signed certificate in certificate chain",
    "self-signed certificate",
    "unable to get local issuer certificate",
    "unable to get issuer certificate",
    "unable to verify the first certificate",
    "certificate signature failure",
    "certificate revoked",
    "certificate chain too long",
    "certificate not trusted",
    "certificate rejected",
    "unsuitable certificate purpose",
    "Hostname mismatch",
    "IP address mismatch",
    "EE certificate key too weak",
    "CA certificate key too weak",
    "CA signature digest algorithm too weak",
    "invalid CA certificate",
    # TLS
    "the host does not answer in TLS",
    "alert handshake failure",
    "alert protocol version",
    "alert certificate required",
    "alert certificate expired",
    "alert bad certificate",
    "alert unknown ca",
    "alert access denied",
    "alert internal error",
    "unrecognized name",
    "unsupported protocol",
    "EOF occurred in violation of protocol",
    # what came
    "the answer is not HTTP",
    "the answer changes to another protocol",
    "the answer's headers are over",
    "the answer has more than",
)
"""What an entry may say, by one byte, of an attempt without an answer: words that its detail contains.

Entries are kept: new words come at the end, and the longer ones first where one contains another. 0 is nothing.
"""

_log = structlog.get_logger(__name__)


class Origin(StrEnum):
    """Why an attempt is made."""

    DELIVERY = "delivery"
    REPLAY = "replay"
    DEAD_LETTER = "dead-letter"  # to the dead-letter sink
    REDRIVE = "redrive"


_ORIGINS: Final = tuple(Origin)
_ORIGIN_CODE: Final = {origin: code for code, origin in enumerate(_ORIGINS)}


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An attempt, or the end of a delivery."""

    time_us: int  # microseconds since 1970 UTC
    partition: int
    offset: int
    target: int  # the trigger's id; 0 for a replay to a URL
    attempt: int = 0  # from 1; 0 for an end
    status: int = 0  # HTTP status of the answer; 0 for none
    reason: str = ""  # why the attempt failed; empty when it did not
    result: str = ""  # how the delivery ended; empty for an attempt
    origin: Origin = Origin.DELIVERY
    detail: str = ""  # what was found behind the reason, in words of `_DETAILS`; empty where they have none for it


class Journal:
    """Collects entries on the event loop and writes them beside it, in a directory that is made when absent."""

    def __init__(self, directory: Path, *, clock_us: Callable[[], int]) -> None:
        self._directory = directory
        self._clock_us = clock_us
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._waiting: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def attempt(
        self,
        partition: int,
        offset: int,
        target: int,
        number: int,
        status: int,
        reason: str,
        origin: Origin = Origin.DELIVERY,
        detail: str = "",
    ) -> None:
        """An attempt has ended; `reason` is empty when it was good. Of `detail` the words that are known are kept."""
        code, number = _REASON_CODE.get(reason, _REASON_CODE["other"]), min(number, 65_535)
        found = next((at for at, words in enumerate(_DETAILS) if words and words in detail), 0) if detail else 0
        why = _ORIGIN_CODE[origin]
        self._add(_FORM.pack(self._clock_us(), offset, partition, target, number, status, code, 0, why, found))

    def end(self, partition: int, offset: int, target: int, result: str) -> None:
        """A delivery has ended otherwise than by a good attempt."""
        code = _RESULT_CODE.get(result, _RESULT_CODE["other"])
        self._add(_FORM.pack(self._clock_us(), offset, partition, target, 0, 0, 0, code, 0, 0))

    def close(self) -> None:
        """Write what waits; blocks."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._flush()
        self._thread.shutdown(wait=True)

    def _add(self, entry: bytes) -> None:
        if self._closed:
            return
        self._waiting.append(entry)
        if self._timer is None:
            self._timer = self._loop.call_later(limits.JOURNAL_FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._thread.submit(self._write, b"".join(waiting))

    def _write(self, entries: bytes) -> None:
        older, newer = (self._directory / name for name in _FILES)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with newer.open("ab") as file:
                file.truncate(file.tell() - file.tell() % _FORM.size)  # what a crash has left of an entry
                file.write(entries)
                is_full = file.tell() >= limits.JOURNAL_BYTES_MAX
            if is_full:
                newer.replace(older)
        except OSError as error:
            _log.warning("attempts were not written down", error=str(error))


def rewrite(sources: Sequence[Path], directory: Path, wants: Callable[[int], bool]) -> None:
    """Write the newest entries of several journals, which no process writes, as one in a directory that is made."""
    newest = deque[bytes](maxlen=limits.JOURNAL_BYTES_MAX // _FORM.size)
    wanted: dict[int, bool] = {}
    with ExitStack() as stack:
        journals = [chain.from_iterable(map(_timed, _opened(source, stack))) for source in sources]
        for _, target, entry in merge(*journals):
            if target not in wanted:
                wanted[target] = wants(target)
            if wanted[target]:
                newest.append(entry)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _FILES[0]).write_bytes(b"".join(newest))


def _timed(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    while len(piece := file.read(_PIECE_BYTES)) >= _FORM.size:
        for start in range(0, len(piece) - _FORM.size + 1, _FORM.size):
            time_us, target = _TIMED.unpack_from(piece, start)
            yield time_us, target, piece[start : start + _FORM.size]


def entries(directory: Path, partition: int, offset: int) -> Iterator[JournalEntry]:
    """What is known of an event's deliveries, the oldest first; safe beside a running server."""
    event = _EVENT.pack(offset, partition)
    with ExitStack() as stack:
        for file in _opened(directory, stack):
            piece = file.read(_PIECE_BYTES)
            while piece:
                yield from _found(piece, event)
                # A short one may end inside an entry that is being written.
                piece = file.read(_PIECE_BYTES) if len(piece) == _PIECE_BYTES else b""


def _opened(directory: Path, stack: ExitStack) -> list[BinaryIO]:
    """The files, the older one first. Both are open before one is read: a server that runs makes them change places."""
    files: list[BinaryIO] = []
    for name in reversed(_FILES):  # the newer first: it may become the older one, never the other way round
        with suppress(FileNotFoundError):
            files.insert(0, stack.enter_context((directory / name).open("rb")))
    if len(files) > 1 and os.path.sameopenfile(*(file.fileno() for file in files)):
        files.pop()
    return files


def _found(piece: bytes, event: bytes) -> Iterator[JournalEntry]:
    """The entries of an event in a piece that begins with one; not one by one, a file has a million."""
    at = piece.find(event)
    while at >= 0:
        start = at - _EVENT_AT
        if start % _FORM.size == 0 and start + _FORM.size <= len(piece):
            time_us, offset, partition, target, attempt, status, reason, result, origin, detail = _FORM.unpack_from(
                piece, start
            )
            if time_us:
                known = reason < len(_REASONS) and result < len(_RESULTS)
                reason_text, result_text = (_REASONS[reason], _RESULTS[result]) if known else ("other", "other")
                why = _ORIGINS[origin] if origin < len(_ORIGINS) else Origin.DELIVERY
                words = _DETAILS[detail] if detail < len(_DETAILS) else ""
                yield JournalEntry(
                    time_us, partition, offset, target, attempt, status, reason_text, result_text, why, words
                )
        at = piece.find(event, at + 1)
