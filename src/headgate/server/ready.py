"""What each part says of itself: small files under run/, each replaced as a whole, for the supervisor and the front.

`PART.ready` is there while the part is ready, and holds its process id; `PART.note` says in a line what it does or
lacks; the part's own loop touches `PART.beat`, so that hanging shows. `PART.refusal` says why it has ended for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headgate.server import child, parts
from headgate.server.parts import ServerPart
from headgate.settings import Settings
from headgate.storage.files import replace_whole
from headgate_api.errors import FatalError
from headgate_api.limits import HEARTBEAT_S, SILENT_S_MAX


@dataclass(frozen=True, slots=True)
class PartState:
    """A part as it is now; `note` is what it says, or what is seen of it, empty for nothing."""

    ready: bool
    note: str = ""


class PartReport:
    """What a part says of itself: a file that the disk does not take is tried again at every beat."""

    def __init__(self, run_directory: Path, part: str) -> None:
        self._directory = run_directory
        self._part = part
        self._noted = ""
        self._beat_at = 0.0
        self._unsaid: dict[str, str | None] = {}
        self._growth = child.Growth()

    def ready(self, is_ready: bool) -> None:
        self._say("ready", str(os.getpid()) if is_ready else None)

    def note(self, text: str) -> None:
        if text != self._noted:
            self._noted = text
            self._say("note", text)

    def beat(self) -> None:
        """Says that the part's loop turns, and looks at its memory; cheap, call it as often as it does."""
        now = time.monotonic()
        if now - self._beat_at >= HEARTBEAT_S:
            self._beat_at = now
            self._growth.look()
            for what, text in list(self._unsaid.items()):
                self._say(what, text)
            with contextlib.suppress(OSError):
                (self._directory / f"{self._part}.beat").touch()

    async def beating(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(HEARTBEAT_S)

    def begun(self) -> None:
        self.ready(True)
        self.note("")

    def turn(self, problem: str) -> None:
        self.beat()
        self.note(problem)

    def _say(self, what: str, text: str | None) -> None:
        """Makes the file `PART.what` hold a text; None for no file."""
        path = self._directory / f"{self._part}.{what}"
        self._unsaid.pop(what, None)
        try:
            if text is None:
                path.unlink(missing_ok=True)
            else:
                replace_whole(path, text.encode())
        except OSError:
            self._unsaid[what] = text


def ended(run_directory: Path, part: str, note: str) -> None:
    """Says that the process of `part` is gone, and why; files that the disk does not let go or take are left."""
    for what in ("ready", "beat"):
        with contextlib.suppress(OSError):
            (run_directory / f"{part}.{what}").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        replace_whole(run_directory / f"{part}.note", note.encode())


def refuse(run_directory: Path, part: str, error: FatalError) -> bool:
    """Says why a part ends and is not to be started again; False when the disk does not take it."""
    try:
        replace_whole(run_directory / f"{part}.refusal", msgspec.json.encode((error.message, error.hint)))
    except OSError:
        return False
    return True


def refusal(run_directory: Path, part: str) -> FatalError:
    """What a part said that has ended for good."""
    try:
        text = (run_directory / f"{part}.refusal").read_bytes()
        message, hint = msgspec.json.decode(text, type=tuple[str, str])
    except (OSError, msgspec.DecodeError):
        return FatalError(f"{part} cannot work, and starting it again does not help", hint="its last line says why")
    return FatalError(message, hint=hint)


def beat_at(run_directory: Path, part: str) -> float | None:
    """When the part's loop last turned, in the file system's time; None before it did."""
    try:
        return (run_directory / f"{part}.beat").stat().st_mtime
    except OSError:
        return None


def parts_ready(settings: Settings) -> dict[ServerPart, bool]:
    """Each part with whether it is ready now."""
    return {part: state.ready for part, state in states(settings).items()}


def states(settings: Settings) -> dict[ServerPart, PartState]:
    """Each part as it is now."""
    return {part: _state(settings.run_directory, part.name) for part in parts.of_server(settings)}


def _state(run_directory: Path, part: str) -> PartState:
    beat = beat_at(run_directory, part)
    silent_s = time.time() - beat if beat is not None else 0.0
    if silent_s > SILENT_S_MAX:
        return PartState(False, f"silent for {silent_s:.0f} s")
    try:
        note = (run_directory / f"{part}.note").read_text()
    except OSError:
        note = ""
    return PartState((run_directory / f"{part}.ready").exists(), note)
