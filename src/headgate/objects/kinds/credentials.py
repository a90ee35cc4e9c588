"""Secrets: their rules and defaults, as Kubernetes has them, and what deliveries authenticate by. Pure.

No message repeats a value.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote_plus

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from headgate_api.limits import CREDENTIAL_BYTES_MAX, SECRET_BYTES_MAX, SIGNING_SECRETS_MAX
from headgate_api.objects.errors import Cause, forbidden, required
from headgate_api.objects.kinds import AuthSpec, OAuth2Auth, Secret, SecretReference

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
_TYPE_CHARS_MAX: Final = 253
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


# --- credentials ----------------------------------------------------------------------------------
# References to Secrets, and their values as an attempt needs them. The reconciler asks whether the values are there,
# and the dispatcher uses them: both by `credentials_of`.


SecretOf = Callable[[str], Secret | None]
"""A Secret of the trigger's namespace by its name; None when there is none."""
_SIGNING_PREFIX: Final = "whsec_"
_SIGNING_BYTES: Final = (24, 64)
_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", re.ASCII)
_BREAKS: Final = b"\r\n"


class CredentialsError(Exception):
    """What a delivery is to authenticate by is not there, or does not do; `reason` is one word, for a condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a TLS client trusts beside the system's CAs, and shows: a certificate and its key. PEM; empty for none."""

    ca_certs: str = ""
    identity: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client of an OAuth 2.0 server: what a token is asked for by; without `tls` by the system's CAs alone."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)
    tls: ClientTls | None = None


@dataclass(frozen=True, slots=True)
class DeliveryCredentials:
    """What an attempt carries: headers, by names in lower case, which take the place of others of these names.

    `identity` is a client certificate and its key as PEM, empty for none. Of the `signing` keys the newest is first.
    `oauth` is where a bearer token comes from.
    """

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    identity: str = field(default="", repr=False)
    signing: tuple[bytes, ...] = field(default=(), repr=False)
    oauth: OAuthClient | None = None


def credentials_of(auth: AuthSpec, secret_of: SecretOf) -> DeliveryCredentials:
    """What the Secrets of a validated `auth` hold now; CredentialsError when one, or a value, is missing or wrong."""
    found = _Secrets(secret_of)
    headers: list[tuple[str, str]] = []
    if auth.bearer is not None:
        headers.append(("authorization", f"Bearer {found.header(auth.bearer.secret_ref, 'token')}"))
    if auth.basic is not None:
        user, password = (found.value(auth.basic.secret_ref, key) for key in ("username", "password"))
        if b":" in user:
            raise found.wrong(auth.basic.secret_ref, "username", "a user's name has no colon")
        headers.append(("authorization", f"Basic {base64.b64encode(user + b':' + password).decode()}"))
    if auth.header is not None:
        headers.append((auth.header.name.lower(), found.header(auth.header.secret_ref, "value")))
    return DeliveryCredentials(
        headers=tuple(headers),
        identity=_identity(found, auth.client_certificate.secret_ref) if auth.client_certificate else "",
        signing=_signing(found, auth.signature.secret_ref) if auth.signature else (),
        oauth=_oauth(found, auth.oauth2) if auth.oauth2 else None,
    )


class _Secrets:
    """Values of Secrets, with the words for those that are missing."""

    def __init__(self, secret_of: SecretOf) -> None:
        self._secret_of = secret_of

    def value(self, reference: SecretReference, key: str) -> bytes:
        """A value without a line break at its end, which files have and values do not."""
        secret = self._secret_of(reference.name)
        if secret is None:
            raise CredentialsError("SecretNotFound", f'the Secret "{reference.name}" does not exist')
        value = value_of(secret, key)
        if value is None:
            raise CredentialsError("SecretKeyNotFound", f'the Secret "{reference.name}" has no value "{key}"')
        value = value.rstrip(_BREAKS)
        if not value:
            raise self.wrong(reference, key, "it is empty")
        if len(value) > CREDENTIAL_BYTES_MAX:
            raise self.wrong(reference, key, f"it is over {CREDENTIAL_BYTES_MAX} bytes")
        return value

    def header(self, reference: SecretReference, default: str) -> str:
        key = reference.key or default
        text = self.value(reference, key).decode("latin-1")
        if not _VALUE.fullmatch(text):
            raise self.wrong(reference, key, "a header holds printable ASCII, and no line break")
        return text

    def wrong(self, reference: SecretReference, key: str, why: str) -> CredentialsError:
        return CredentialsError("SecretValueInvalid", f'the value "{key}" of the Secret "{reference.name}": {why}')


def _identity(found: _Secrets, reference: SecretReference) -> str:
    certificate, key = (found.value(reference, name) for name in ("tls.crt", "tls.key"))
    try:
        public = x509.load_pem_x509_certificates(certificate)[0].public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise found.wrong(reference, "tls.crt", "it is no certificate in PEM format") from None
    try:
        own = serialization.load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise found.wrong(reference, "tls.key", "it is no key in PEM format without a passphrase") from None
    if public != own:
        raise found.wrong(reference, "tls.key", "it is the key of another certificate")
    return f"{certificate.decode('ascii', 'replace')}\n{key.decode('ascii', 'replace')}\n"


def _signing(found: _Secrets, reference: SecretReference) -> tuple[bytes, ...]:
    """Keys of Standard Webhooks: `whsec_` and Base64 of 24 to 64 bytes, several with spaces between."""
    key = reference.key or "secret"
    texts = found.value(reference, key).decode("latin-1").split()
    if not 1 <= len(texts) <= SIGNING_SECRETS_MAX:
        raise found.wrong(reference, key, f"it has {len(texts)} signing secrets, expected 1 to {SIGNING_SECRETS_MAX}")
    keys: list[bytes] = []
    low, high = _SIGNING_BYTES
    for text in texts:
        try:
            made = base64.b64decode(text.removeprefix(_SIGNING_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            made = b""
        if not text.startswith(_SIGNING_PREFIX) or not low <= len(made) <= high:
            raise found.wrong(reference, key, f"a signing secret is whsec_ and Base64 of {low} to {high} bytes")
        keys.append(made)
    return tuple(keys)


def _oauth(found: _Secrets, oauth: OAuth2Auth) -> OAuthClient:
    client, secret = (found.value(oauth.secret_ref, key) for key in ("client_id", "client_secret"))
    fields = {"grant_type": b"client_credentials"}
    if oauth.scopes:
        fields["scope"] = " ".join(oauth.scopes).encode()
    if oauth.audience:
        fields["audience"] = oauth.audience.encode()
    headers = [("content-type", "application/x-www-form-urlencoded"), ("accept", "application/json")]
    if oauth.client_authentication == "body":
        fields |= {"client_id": client, "client_secret": secret}
    else:  # RFC 6749, section 2.3.1: both are encoded as in a form first
        pair = f"{quote_plus(client)}:{quote_plus(secret)}".encode()
        headers.append(("authorization", f"Basic {base64.b64encode(pair).decode()}"))
    body = "&".join(f"{name}={quote_plus(value)}" for name, value in fields.items()).encode()
    tls = ClientTls(ca_certs=oauth.ca_certs) if oauth.ca_certs else None
    return OAuthClient(oauth.token_url, tuple(headers), body, tls)
