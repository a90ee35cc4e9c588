"""How commands reach a server: TLS, tokens and contexts as options of each of them, and failed handshakes as errors."""

from __future__ import annotations

import functools
import os
import ssl
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from typer.main import get_command

from headgate_api.bearer import TokenSource
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.kubeconfig import KubeContext, read_context

if TYPE_CHECKING:
    from typer._click import Command

_PROBE_S_MAX: Final = 5.0
"""How long a port is asked whether it speaks TLS."""
_WRONG_NAME: Final = frozenset({62, 64})
"""OpenSSL's codes for a host name and an address that the certificate does not bear."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_CLIENT_REFUSED: Final = ("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE")
"""Parts of the alerts with which a server ends a handshake for the client's certificate."""


class TlsFailedError(UnavailableError):
    """No TLS connection to the server is possible as things are."""

    code = "tls"


_NOTHING: Final = KubeContext("")
_given: Final = ContextVar("given", default=_NOTHING)
"""What the options of the command say."""
_known: Final = ContextVar("known", default=_NOTHING)
"""What the context says that --context names."""


def with_access_options(command: Command) -> Command:
    """Gives the options of access to a command that has --server, and to all below it."""
    for one in getattr(command, "commands", {}).values():
        with_access_options(one)
    if any(parameter.name == "server" for parameter in command.params):
        command.params += _parameters()
    return command


def context() -> ssl.SSLContext:
    """What a request to an https URL uses, by the options of the command.

    Raises:
        InvalidInputError: A file cannot be used.
    """
    known = _given.get().or_else(_known.get())
    return _tls(known.cacert, known.client_cert, known.client_key)


def authorization(url: str) -> str:
    """The header `Authorization` of a request, by the options of the command; empty without a token.

    Raises:
        InvalidInputError: There is no token in the file, or it would go over a network in the clear.
    """
    where, known = urlsplit(url), _given.get().or_else(_known.get())
    tokens = _tokens(known.token, known.token_file)
    return tokens.header(where.hostname or "", is_tls=where.scheme == "https")


@functools.lru_cache(1)
def _tokens(token: str, token_file: str) -> TokenSource:
    return TokenSource(token, token_file)


def handshake_error(server: str, error: BaseException) -> TlsFailedError | None:
    """What a failure of a request means for TLS, and what to do; None when it is none of TLS."""
    where = urlsplit(server)
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _WRONG_NAME:
            return TlsFailedError(
                f"the certificate of {where.netloc} does not bear the name {where.hostname}: {error.verify_message}",
                hint="name the server as its certificate does",
            )
        return TlsFailedError(
            f"the certificate of {where.netloc} is not trusted: {error.verify_message}",
            hint="--cacert FILE (HEADGATE_CACERT) names the CA that signed it",
        )
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if any(name in reason for name in _NO_TLS):
            return TlsFailedError(f"{where.netloc} does not speak TLS", hint=f"use http://{where.netloc}")
        if any(name in reason for name in _CLIENT_REFUSED):
            return TlsFailedError(
                f"{where.netloc} does not accept this client: {reason.replace('_', ' ').lower()}",
                hint="--client-cert FILE and --client-key FILE show a certificate of a CA that the server knows",
            )
        return TlsFailedError(f"no TLS connection to {where.netloc}: {reason}", hint="check --server")
    is_broken = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
    if where.scheme == "https" and is_broken:  # in TLS 1.3 a server refuses a client after the client's handshake
        return TlsFailedError(
            f"{where.netloc} closed the connection: perhaps it does not accept this client's certificate",
            hint="--client-cert FILE and --client-key FILE show a certificate of a CA that the server knows",
        )
    if where.scheme == "http" and is_broken and _speaks_tls(where.hostname, where.port):
        return TlsFailedError(f"{where.netloc} speaks TLS", hint=f"use --server https://{where.netloc}")
    return None


@functools.lru_cache(1)
def _tls(cacert: str, client_cert: str, client_key: str) -> ssl.SSLContext:
    try:
        made = ssl.create_default_context(cafile=cacert or None)
    except OSError as error:
        raise _unusable("--cacert", cacert, error) from error
    if bool(client_cert) is not bool(client_key):
        raise InvalidInputError("--client-cert and --client-key go together", hint="give two files in PEM format")
    if client_cert:
        try:
            made.load_cert_chain(client_cert, client_key)
        except OSError as error:
            raise _unusable("--client-cert", client_cert, error) from error
    return made


def _unusable(option: str, path: str, error: OSError) -> InvalidInputError:
    why = (error.reason or "no PEM").replace("_", " ").lower() if isinstance(error, ssl.SSLError) else error.strerror
    return InvalidInputError(f"{option} {path} cannot be used: {why}", hint="give a file in PEM format")


def _speaks_tls(host: str | None, port: int | None) -> bool:
    """Whether a handshake gets an answer of TLS; nothing is sent but the handshake."""
    import socket

    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host or "", port or 80), _PROBE_S_MAX) as plain,
            asking.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def _kept(parameter: typer.CallbackParam, value: str | None) -> str | None:
    assert parameter.name is not None
    _given.set(replace(_given.get(), **{parameter.name: value or ""}))
    return value


def _kept_context(ctx: typer.Context, value: str | None) -> str | None:
    """Keeps the context; its server and namespace take the place of what else is said, but for options."""
    known = read_context(value) if value else _NOTHING
    _known.set(known)
    if value:
        os.environ["HEADGATE_SERVER"] = known.server
        if known.namespace:
            ctx.default_map = {**(ctx.default_map or {}), "namespace": known.namespace}
    return value


def _option(help: str, callback: Any = _kept, **more: Any) -> Any:  # noqa: ANN401 - typer's
    """An option that keeps its value by itself."""
    return typer.Option(help=help, callback=callback, expose_value=False, **more)


def _parameters() -> list[Any]:
    """The parameters of access as typer makes them."""

    def options(
        cacert: Annotated[
            str | None,
            _option(
                "PEM file of the CAs that sign the server's certificate. Default: the system's.",
                envvar="HEADGATE_CACERT",
            ),
        ] = None,
        client_cert: Annotated[
            str | None, _option("PEM file of the client certificate to present.", envvar="HEADGATE_CLIENT_CERT")
        ] = None,
        client_key: Annotated[
            str | None, _option("PEM file of the client certificate's key.", envvar="HEADGATE_CLIENT_KEY")
        ] = None,
        token_file: Annotated[
            str | None, _option("File of the bearer token to send.", envvar="HEADGATE_TOKEN_FILE")
        ] = None,
        context: Annotated[
            str | None,
            _option(
                "Context of the kubeconfig (KUBECONFIG): server, CA, certificate, token.",
                _kept_context,
                envvar="HEADGATE_CONTEXT",
                is_eager=True,
            ),
        ] = None,
    ) -> None:
        pass

    holder = typer.Typer(add_completion=False)
    holder.command()(options)
    return list(get_command(holder).params)
