"""Keys by which stored Secrets are encrypted: read from a file or a command, and the sealed form that they make.

A sealed text is a line of JSON that names the key and the nonce, and behind it AES-256-GCM's bytes; the format is in
docs/spec/secrets.md. Nothing here puts a key or a text into an error.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headgate.settings import Settings
from headgate_api.errors import FatalError, HeadgateError, UnavailableError
from headgate_api.limits import SECRET_FILE_BYTES_MAX, SECRETS_KEY_COMMAND_S_MAX, SECRETS_KEYS_MAX

KEY_BYTES: Final = 32
"""AES-256."""
_NONCE_BYTES: Final = 12
_FORM: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,63}", re.ASCII)
_HINT: Final = 'a key is a line NAME:BASE64 of 32 random bytes: echo "k1:$(openssl rand -base64 32)"'


class SecretsKeyError(FatalError):
    """The keys of Secrets cannot be read, or do not open what is stored."""

    code = "secrets-key"


class NoSecretsKeyError(HeadgateError):
    """A Secret cannot be stored: the server has no key to encrypt it by."""

    code = "no-secrets-key"
    http_status = 403

    def __init__(self) -> None:
        super().__init__(
            "Secrets cannot be stored: this server has no key to encrypt them by",
            hint="start it with --secrets-key-file or --secrets-key-command",
        )


class SealedError(UnavailableError):
    """A stored Secret cannot be opened by the keys that the server has."""

    code = "secret-sealed"


class Head(msgspec.Struct, frozen=True):
    """The first line of a sealed text: the name of the key that it needs, and the uid that it is bound to."""

    sealed: int
    key: str
    uid: str
    nonce: str


_HEAD: Final = msgspec.json.Decoder(Head)


class Keyring:
    """Keys by name: the first one encrypts, all of them decrypt. There is at least one, 32 bytes each."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self.first = next(iter(keys))

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._ciphers)})"

    def __contains__(self, name: str) -> bool:
        return name in self._ciphers

    def seal(self, text: bytes, *, path: str, uid: str) -> bytes:
        """Encrypt a text by the first key, with a nonce of its own; it opens for this path and uid alone."""
        nonce = os.urandom(_NONCE_BYTES)
        head = Head(_FORM, self.first, uid, base64.b64encode(nonce).decode())
        sealed = self._ciphers[self.first].encrypt(nonce, text, _bound(path, uid))
        return msgspec.json.encode(head) + b"\n" + sealed

    def open(self, sealed: bytes, *, path: str) -> bytes:
        """The text that `seal` encrypted; SealedError when its key is not here, or it was changed or moved."""
        head, _, body = sealed.partition(b"\n")
        try:
            found = _HEAD.decode(head)
            nonce = base64.b64decode(found.nonce, validate=True)
        except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error) as error:
            raise _damaged(path) from error
        cipher = self._ciphers.get(found.key)
        if cipher is None:
            raise SealedError(
                f"the Secret {path} is encrypted by the key {found.key!r}, which this server does not have",
                hint="put the key into the file of --secrets-key-file, and start the server again",
            )
        try:
            return cipher.decrypt(nonce, body, _bound(path, found.uid))
        except (InvalidTag, ValueError) as error:
            raise _damaged(path) from error


def _damaged(path: str) -> SealedError:
    return SealedError(
        f"the stored Secret {path} cannot be decrypted: it is damaged, or its key has another value now",
        hint="restore control.db or the key from a copy, or delete the Secret and create it again",
    )


def head_of(sealed: bytes) -> Head:
    """The first line of a sealed text; empty where it cannot be read."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return _HEAD.decode(sealed.partition(b"\n")[0])
    return Head(0, "", "", "")


def _bound(path: str, uid: str) -> bytes:
    """What a sealed text is bound to: neither a path nor a uid has a line break."""
    return f"{path}\n{uid}".encode()


def keyring_of(settings: Settings) -> Keyring | None:
    """The keys that the settings name; None where they name none. It may block as long as the command takes."""
    if settings.secrets_key_file is not None and settings.secrets_key_command:
        raise SecretsKeyError(
            "--secrets-key-file and --secrets-key-command exclude each other", hint="leave one of them out"
        )
    if settings.secrets_key_file is not None:
        return parsed(_file(settings.secrets_key_file), f"--secrets-key-file {settings.secrets_key_file}")
    if settings.secrets_key_command:
        return parsed(_output(settings.secrets_key_command), "the output of --secrets-key-command")
    return None


def parsed(text: bytes, source: str) -> Keyring:
    """Keys from lines NAME:BASE64 in ASCII; empty lines, and those that begin with #, say nothing."""
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith(b"#"):
            continue
        name, _, value = stripped.partition(b":")
        try:
            known = name.strip().decode("ascii")
            key = base64.b64decode(value.strip(), validate=True)
        except (UnicodeDecodeError, binascii.Error) as error:
            raise SecretsKeyError(f"{source}, line {number}: no key", hint=_HINT) from error
        if not _NAME.fullmatch(known) or len(key) != KEY_BYTES:
            raise SecretsKeyError(
                f"{source}, line {number}: no key: the name has 1 to 63 letters, digits, dots, dashes or underscores,"
                f" the value {KEY_BYTES} bytes",
                hint=_HINT,
            )
        if known in keys:
            raise SecretsKeyError(f"{source}, line {number}: there are two keys {known!r}", hint="names differ")
        keys[known] = key
    if not 1 <= len(keys) <= SECRETS_KEYS_MAX:
        raise SecretsKeyError(f"{source} has {len(keys)} keys, expected 1 to {SECRETS_KEYS_MAX}", hint=_HINT)
    return Keyring(keys)


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(SECRET_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SecretsKeyError(
            f"--secrets-key-file {path} cannot be read: {error.strerror}",
            hint="give a file that the server's user may read",
        ) from error
    if len(content) > SECRET_FILE_BYTES_MAX:
        raise SecretsKeyError(f"--secrets-key-file {path} is over {SECRET_FILE_BYTES_MAX} bytes", hint=_HINT)
    return content


def _output(command: str) -> bytes:
    """What a command prints, run without a shell. What it says of its own errors may hold keys: nobody is told."""
    hint = "run it by hand, as the server's user"
    try:
        process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except (OSError, ValueError, IndexError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no command"
        raise SecretsKeyError(f"--secrets-key-command cannot be run: {why}", hint=hint) from error
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(SECRETS_KEY_COMMAND_S_MAX, stop)
    timer.start()
    try:
        assert process.stdout is not None
        with process.stdout as stream:
            printed = stream.read(SECRET_FILE_BYTES_MAX + 1)
        if len(printed) > SECRET_FILE_BYTES_MAX:
            process.kill()
        status = process.wait()
    finally:
        timer.cancel()
    if late.is_set():
        problem = f"--secrets-key-command did not end within {SECRETS_KEY_COMMAND_S_MAX:g} s"
    elif len(printed) > SECRET_FILE_BYTES_MAX:
        problem = f"--secrets-key-command printed over {SECRET_FILE_BYTES_MAX} bytes"
    elif status:
        problem = f"--secrets-key-command ended with status {status}"
    else:
        return printed
    raise SecretsKeyError(problem, hint=hint)
