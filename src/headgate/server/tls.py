"""The server's certificate: read, tried by a handshake in memory before it is used, and again when its files change.

A new certificate is for new handshakes: connections that are there go on.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from headgate.auth.static_tokens import state_of
from headgate.observe.metrics import TLS_CERTIFICATES
from headgate.settings import ClientAuth, Settings
from headgate_api import limits
from headgate_api.errors import InvalidInputError

if TYPE_CHECKING:
    import grpc

_log = structlog.get_logger(__name__)

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: with forward secrecy and authenticated encryption alone; those of TLS 1.3 all have both."""
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
"""Codes of OpenSSL's verification."""
_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}

FileState = tuple[tuple[int, ...], ...]
"""Of each file its inode, size and time of change; all three empty for one that is not there."""


class TlsFileError(InvalidInputError):
    """A file of certificates or a key does not do for TLS."""

    code = "tls-file"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the key and the certificates are: behind the server's own are those between it and the CA."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE

    @classmethod
    def of(cls, settings: Settings) -> TlsFiles:
        assert settings.tls_cert is not None
        assert settings.tls_key is not None
        return cls(settings.tls_cert, settings.tls_key, settings.tls_client_ca, settings.client_auth)

    def state(self) -> FileState:
        return tuple(state_of(path) for path in (self.certificate, self.key, self.client_ca) if path is not None)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key and the CAs of clients, all of which work, as PEM.

    It is valid until `ends_s`, in seconds since 1970; `state` is that of the files that it was read from.
    """

    context: ssl.SSLContext
    chain: bytes
    key: bytes
    client_ca: bytes | None
    ends_s: float
    state: FileState


def read_certificate(files: TlsFiles) -> Certificate:
    """Reads the files and tries them out: TlsFileError also where no client would accept the certificate."""
    state = files.state()
    chain, key = _read(files.certificate, "--tls-cert"), _read(files.key, "--tls-key")
    if (found := _CERTIFICATE.search(chain)) is None:
        raise TlsFileError(f"--tls-cert {files.certificate} holds no certificate", hint="give a file in PEM format")
    if b"PRIVATE KEY-----" not in key:
        raise TlsFileError(f"--tls-key {files.key} holds no key", hint="give a file in PEM format")
    if b"ENCRYPTED" in key:  # OpenSSL would ask for the passphrase on the terminal
        raise TlsFileError(
            f"--tls-key {files.key} has a passphrase", hint=f"openssl pkey -in {files.key} writes it without one"
        )
    client_ca = _read(files.client_ca, "--tls-client-ca") if files.client_ca is not None else None
    context = _context(files)
    if files.client_ca is not None:
        try:
            context.load_verify_locations(cafile=files.client_ca)
        except ssl.SSLError as error:
            raise TlsFileError(
                f"--tls-client-ca {files.client_ca} holds no certificate of a CA", hint="give a file in PEM format"
            ) from error
        context.verify_mode = _VERIFY[files.client_auth]
    ends_s = _tried(files, found.group())
    if files.state() != state:
        raise TlsFileError("the files of the certificate change while they are read", hint="replace them at once")
    return Certificate(context, chain, key, client_ca, ends_s, state)


def read_ca(path: Path) -> str:
    """The CA that clients need to know the server by, as PEM; TlsFileError when the file is unreadable or has none."""
    text = _read(path, "--tls-ca")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise TlsFileError(f"--tls-ca {path} holds no certificate of a CA", hint="give a file in PEM format") from error
    return text.decode("ascii")


class CertificateKeeper:
    """The certificate in force; TlsFileError: none works. Any thread may read it; `look` is for one at a time."""

    def __init__(self, files: TlsFiles, *, clock_s: Callable[[], float] = time.time) -> None:
        self._files = files
        self._clock_s = clock_s
        self._current = read_certificate(files)
        self._judged = self._seen = self._current.state
        self._warned_s = float("-inf")

    def context(self) -> ssl.SSLContext:
        return self._current.context

    def ends_s(self) -> float:
        return self._current.ends_s

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """What gRPC uses; it asks for the certificate before each handshake, in a thread of its own."""
        import grpc  # here: the supervisor reads certificates, and serves nothing

        given = self._current

        def configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
            pair = certificate.key, certificate.chain
            return grpc.ssl_server_certificate_configuration([pair], certificate.client_ca)

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            current = self._current
            if current is given:
                return None
            given = current
            return configuration(current)

        return grpc.dynamic_ssl_server_credentials(
            configuration(given),
            fetch,  # type: ignore[arg-type] # the stubs do not know that None is no change
            self._files.client_auth is ClientAuth.REQUIRED,
        )

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(limits.TLS_WATCH_S)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Takes up files that have changed and stay as they are since the last look; the old ones stay if they fail."""
        state = self._files.state()
        if state not in (self._judged, self._seen):
            self._seen = state  # perhaps somebody is still writing
            return
        if state != self._judged:
            self._judged = state
            self._take_up()
        self._warn_of_end()

    def _take_up(self) -> None:
        try:
            self._current = read_certificate(self._files)
        except TlsFileError as error:
            TLS_CERTIFICATES.labels("refused").inc()
            _log.error("certificate not replaced, the old one stays", error=error.message, hint=error.hint)
        else:
            TLS_CERTIFICATES.labels("loaded").inc()
            self._warned_s = float("-inf")
            _log.info("certificate replaced", ends=_time(self._current.ends_s))

    def _warn_of_end(self) -> None:
        now_s = self._clock_s()
        is_near = self._current.ends_s - now_s < limits.TLS_EXPIRY_WARNED_S
        if is_near and now_s - self._warned_s >= limits.TLS_EXPIRY_WARNINGS_S:
            self._warned_s = now_s
            file = str(self._files.certificate)
            _log.warning("certificate ends soon", ends=_time(self._current.ends_s), file=file)


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(files.certificate, files.key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsFileError(
                f"the key in {files.key} does not belong to the certificate in {files.certificate}",
                hint="--tls-cert begins with the server's own certificate, and --tls-key is its key",
            ) from error
        why = (error.reason or str(error)).replace("_", " ").lower()
        raise TlsFileError(
            f"the certificate in {files.certificate} with the key in {files.key} cannot be used: {why}",
            hint="give two files in PEM format",
        ) from error
    return context


def _tried(files: TlsFiles, own: bytes) -> float:
    """When the server's own certificate ends, after a handshake with a client that trusts this certificate alone."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(cadata=own.decode("ascii", "replace"))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = _context(files).wrap_bio(to_server, to_client, server_side=True)
    waiting: list[Callable[[], None]] = [client.do_handshake, server.do_handshake]
    while waiting:
        turn = waiting.pop(0)
        try:
            turn()
        except ssl.SSLWantReadError:
            waiting.append(turn)
        except ssl.SSLCertVerificationError as error:
            raise TlsFileError(
                f"--tls-cert {files.certificate}: {_REASONS.get(error.verify_code, error.verify_message)}",
                hint="clients would refuse it: give the server another one",
            ) from error
        except ssl.SSLError as error:
            raise TlsFileError(
                f"--tls-cert {files.certificate}: no handshake is possible: {error.reason}",
                hint="clients would fail: give the server another one",
            ) from error
    shown = client.getpeercert()
    assert shown is not None
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))


_REASONS: Final = {_EXPIRED: "the certificate has expired", _NOT_YET_VALID: "the certificate is not valid yet"}


def _read(path: Path, option: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limits.TLS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsFileError(
            f"{option} {path} cannot be read: {error.strerror}", hint="give a file that the server's user may read"
        ) from error
    if len(content) > limits.TLS_FILE_BYTES_MAX:
        raise TlsFileError(
            f"{option} {path} is over {limits.TLS_FILE_BYTES_MAX} bytes", hint="give a file in PEM format"
        )
    return content


def _time(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))
