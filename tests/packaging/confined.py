"""A `headgate` that runs as in a container: a read-only root, a volume, a user without rights, no privileges."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

USER: Final = 10001
_PREPARE: Final = """
set -eu
source=$1 root=$2 volume=$3 place=$4 repository=$5 closed=$6 interpreter=$7
shift 7
mount --bind "$source" "$root"
[ -e "$root/etc/hosts" ] || touch "$root/etc/hosts"
mount --bind /etc/hosts "$root/etc/hosts"
mount -o remount,bind,ro "$root"
mount --bind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777,noexec,nosuid,nodev tmpfs "$root/tmp"
mount --bind "$volume" "$root$place"
if [ -n "$repository" ]; then
  mount --bind "$repository" "$root/mnt"
  mount -o remount,bind,ro "$root/mnt"
  { cat /etc/passwd; echo "headgate:x:10001:10001::/srv:/usr/sbin/nologin"; } > "$root/tmp/passwd"
  mount --bind "$root/tmp/passwd" "$root/etc/passwd"
fi
if [ -n "$closed" ]; then
  mount -t tmpfs -o mode=755 tmpfs "$root$closed"
  mkdir -p "$root$interpreter"
  mount --bind "$interpreter" "$root$interpreter"
  mount -o remount,bind,ro "$root$interpreter"
  mount -o remount,ro "$root$closed"
fi
exec chroot "$root" "$@"
"""
_UNPRIVILEGED: Final = (
    *("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"),
    *("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"),
)


@dataclass(frozen=True)
class Confinement:
    """What a container gives to its processes; root alone can give it.

    Attributes:
        source: The root directory, which cannot be written.
        mount: An empty directory, on which it is mounted.
        volume: The directory that can be written, beside a /tmp of its own.
        place: Where the volume is seen.
        environment: All of it.
        headgate: The command.
        entry: What starts it as the container's first process.
        repository: What is seen at /mnt, read-only, with a user of the image's name; None for neither.
        interpreter: What is seen where it is, read-only, also inside a directory that others may not enter.
    """

    source: Path
    mount: Path
    volume: Path
    place: str
    environment: Mapping[str, str]
    headgate: Sequence[str]
    repository: Path | None = None
    interpreter: Path | None = None
    entry: Sequence[str] = ()

    def program(self, path: Path) -> Path:
        """Writes a program that is `headgate` in the container; its process is that of the command itself."""
        above = self.interpreter.parents if self.interpreter is not None else ()
        closed = next((one for one in reversed(above) if not one.stat().st_mode & 0o001), "")
        seen = (self.repository or "", closed, self.interpreter or "")
        paths = map(str, (self.source, self.mount, self.volume, self.place, *seen))
        command = ("unshare", "--mount", "sh", "-c", _PREPARE, "prepare", *paths, *self._unprivileged())
        command += (*self.entry, *self.headgate)
        path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        path.chmod(0o755)
        return path

    def beside(self, process: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `headgate` beside another one that runs, as a container's health check does."""
        enter = ("nsenter", "--target", str(process), "--mount", "--root")
        return subprocess.run(
            [*enter, *self._unprivileged(), *self.headgate, *arguments], capture_output=True, text=True, timeout=60
        )

    def _unprivileged(self) -> tuple[str, ...]:
        pairs = (f"{name}={text}" for name, text in self.environment.items())
        return ("env", "-i", *pairs, *_UNPRIVILEGED)
