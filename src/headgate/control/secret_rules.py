"""Rules and defaults of Secrets, as Kubernetes has them. No cause repeats a value."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from headgate_api.control.errors import Cause, forbidden, required
from headgate_api.control.objects import Secret
from headgate_api.limits import SECRET_BYTES_MAX

TYPE_DEFAULT: Final = "Opaque"
KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}", re.ASCII)
KEY_RULE: Final = "a key has 1 to 253 letters, digits, '-', '_' or '.'"
_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
}
"""Values that a Secret of a type has."""
_JSON: Final = frozenset({".dockerconfigjson", ".dockercfg"})
_BASIC_AUTH: Final = "kubernetes.io/basic-auth"
_TOKEN: Final = "kubernetes.io/service-account-token"


def secret_with_defaults(secret: Secret) -> Secret:
    """The Secret with a type, and what was written as text among its data."""
    written = {key: base64.b64encode(value.encode()).decode() for key, value in secret.string_data.items()}
    return msgspec.structs.replace(secret, type=secret.type or TYPE_DEFAULT, data=secret.data | written, string_data={})


def value_of(secret: Secret, key: str) -> bytes | None:
    """One value; None when there is none."""
    text = secret.data.get(key)
    return base64.b64decode(text) if text is not None else None


def size_bytes(secret: Secret) -> int:
    """Bytes of all values."""
    return sum(len(text) // 4 * 3 - text[-2:].count("=") for text in secret.data.values())


def secret_causes(secret: Secret) -> Iterator[Cause]:
    """Every rule that a Secret breaks by itself; its defaults are set."""
    if len(secret.type) > _TYPE_CHARS_MAX or not secret.type.isprintable():
        yield Cause("type", "FieldValueInvalid", f"a type has at most {_TYPE_CHARS_MAX} printable characters")
    if secret.type == _TOKEN:
        yield forbidden("type", "there are no service accounts here whose tokens it could hold")
    values: dict[str, bytes] = {}
    for key, text in secret.data.items():
        if not KEY.fullmatch(key) or key in (".", "..") or key.startswith(".."):
            yield Cause(f"data[{key[:253]}]", "FieldValueInvalid", KEY_RULE)
        try:
            values[key] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            detail = "the value must be Base64; write text into stringData"
            yield Cause(f"data[{key[:253]}]", "FieldValueInvalid", detail)
    if sum(map(len, values.values())) > SECRET_BYTES_MAX:
        yield Cause("data", "FieldValueTooLong", f"Too long: may not be more than {SECRET_BYTES_MAX} bytes")
    for key in _NEEDED.get(secret.type, ()):
        if key not in secret.data:
            yield required(f"data[{key}]", f"a Secret of the type {secret.type} has it")
        elif key in _JSON and not _is_json(values.get(key, b"")):
            yield Cause(f"data[{key}]", "FieldValueInvalid", "the value must be a JSON object")
    if secret.type == _BASIC_AUTH and not {"username", "password"} & secret.data.keys():
        yield required("data[username]", f"a Secret of the type {_BASIC_AUTH} has a username or a password")


_TYPE_CHARS_MAX: Final = 253


def _is_json(value: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(value), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def secret_change_causes(old: Secret, new: Secret) -> Iterator[Cause]:
    """What may not differ between two versions."""
    if old.type != new.type:
        yield Cause("type", "FieldValueInvalid", "field is immutable")
    if old.immutable and not new.immutable:
        yield forbidden("immutable", "field is immutable when `immutable` is set")
    if old.immutable and old.data != new.data:
        yield forbidden("data", "field is immutable when `immutable` is set")
