"""The manifest of a backup, `backup.json`. It is written last: without it there is no backup."""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from headgate_api.errors import HeadgateError
from headgate_api.limits import BACKUP_FILES_MAX, BACKUP_MANIFEST_BYTES_MAX

MANIFEST: Final = "backup.json"
FORM: Final = 1
"""Version of the manifest and of what lies beside it."""
_NUMBER: Final = r"(?:0|[1-9][0-9]{0,8})"
_PARTITION: Final = r"(?:committed|[0-9]{1,20}\.seg)"
_ALLOWED: Final = re.compile(
    rf"control\.db|log/producers(?:-{_NUMBER})?|log/{_NUMBER}/{_PARTITION}|dispatcher/layout\.json"
    rf"|dispatcher/{_NUMBER}/(?:(?:dispatch|deadletters|replays|subscriptions)\.db|floor\.json"
    rf"|attempts/(?:older|newer)\.bin|outbox/{_PARTITION})",
    re.ASCII,
)
"""The files of a data directory that a backup holds, and no others: names come from whoever made the backup."""


class BackupDamagedError(HeadgateError):
    """A backup is not what was written."""

    code = "backup-damaged"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="take another backup; nothing was restored from this one")


class BackupNewerError(HeadgateError):
    """A newer Headgate made the backup."""

    code = "backup-newer"


class BackupFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a backup, by its place in the data directory; `sha256` is hexadecimal."""

    path: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a backup is: what was acknowledged before `began` is in it, and nothing later than `taken` (RFC 3339).

    `form` is FORM of who made it, `digest` the SHA-256 of the manifest with this field empty, hexadecimal.
    """

    form: int
    headgate: str
    began: str
    taken: str
    files: tuple[BackupFile, ...]
    digest: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.files)

    def encoded(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def sealed(self) -> Manifest:
        bare = msgspec.structs.replace(self, digest="")
        return msgspec.structs.replace(self, digest=hashlib.sha256(msgspec.json.encode(bare)).hexdigest())

    @classmethod
    def decode(cls, body: bytes, where: str) -> Manifest:
        """The manifest that a backup holds; `where` is its name in BackupDamagedError and BackupNewerError."""
        if len(body) > BACKUP_MANIFEST_BYTES_MAX:
            raise BackupDamagedError(f"{where} is larger than {BACKUP_MANIFEST_BYTES_MAX} bytes")
        try:
            form = msgspec.json.decode(body, type=_Form)
            if form.form > FORM:
                raise BackupNewerError(
                    f"{where} was written by Headgate {form.headgate}: its form is {form.form}, this one knows {FORM}",
                    hint="restore it with the version that made it, or a newer one",
                )
            found = msgspec.json.decode(body, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BackupDamagedError(f"{where} is damaged: {error}") from error
        if found != found.sealed():
            raise BackupDamagedError(f"{where} is damaged: its checksum is another one")
        if len(found.files) > BACKUP_FILES_MAX:
            raise BackupDamagedError(f"{where} names {len(found.files)} files, over {BACKUP_FILES_MAX}")
        for one in found.files:
            check_path(one.path)
        return found


class _Form(msgspec.Struct, frozen=True):
    form: int
    headgate: str = "?"


def holds(path: str) -> bool:
    """Whether a backup holds the file with this place in a data directory."""
    return _ALLOWED.fullmatch(path) is not None


def check_path(path: str) -> None:
    """Refuses what is no file of a data directory. Raises BackupDamagedError."""
    if not holds(path):
        raise BackupDamagedError(f"the backup holds {path[:200]!r}, which is no file of a data directory")
