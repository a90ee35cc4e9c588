"""How commands reach a server: TLS, tokens and contexts as options of each of them, and failed handshakes as errors."""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

import typer
from typer.main import get_command

from headgate_api.bearer import TokenSource
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.kubeconfig import KubeContext, read_context

if TYPE_CHECKING:
    from typer._click import Command

_Command = TypeVar("_Command", bound=Callable[..., Any])
_PROBE_S_MAX: Final = 5.0
"""How long a port is asked whether it speaks TLS."""
_WRONG_NAME: Final = frozenset({62, 64})
"""OpenSSL's codes for a host name and an address that the certificate does not bear."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_CLIENT_REFUSED: Final = ("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE")
"""Parts of the alerts with which a server ends a handshake for the client's certificate."""
_SHOW_CERTIFICATE: Final = "--client-cert FILE and --client-key FILE show a certificate of a CA that the server knows"


class TlsFailedError(UnavailableError):
    """No TLS connection to the server is possible as things are."""

    code = "tls"


_OPTIONS: Final = {
    "cacert": "PEM file of the CAs that sign the server's certificate. Default: the system's.",
    "client_cert": "PEM file of the client certificate to present.",
    "client_key": "PEM file of the client certificate's key.",
    "token_file": "File of the bearer token to send.",
    "context": "Context of the kubeconfig (KUBECONFIG): server, CA, certificate, token.",
}
_NOTHING: Final = KubeContext("")
_given: Final = ContextVar("given", default=_NOTHING)
"""What the options of the command say."""
_known: Final = ContextVar("known", default=_NOTHING)
"""What the context says that --context names."""


def with_options(options: Mapping[str, Any]) -> Callable[[_Command], _Command]:
    """Gives a command options from a table, as typer reads them from its signature: None where they are not given."""
    each = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=one) for name, one in options.items()]

    def given(command: _Command) -> _Command:
        command.__annotations__ = dict(options)
        command.__signature__ = Signature(each)  # type: ignore[attr-defined]
        return command

    return given


def with_access_options(command: Command) -> Command:
    """Gives the options of access to a command that has --server, and to all below it."""
    for one in getattr(command, "commands", {}).values():
        with_access_options(one)
    if any(parameter.name == "server" for parameter in command.params):
        command.params += _parameters()
    return command


def context() -> ssl.SSLContext:
    """What a request to an https URL uses, by the options of the command; InvalidInputError for an unusable file."""
    known = _given.get().or_else(_known.get())
    return _tls(known.cacert, known.client_cert, known.client_key)


def authorization(url: str) -> str:
    """The header `Authorization` of a request, by the options of the command; empty without a token.

    InvalidInputError where there is no token in the file, or it would go over a network in the clear.
    """
    where, known = urlsplit(url), _given.get().or_else(_known.get())
    tokens = _tokens(known.token, known.token_file)
    return tokens.header(where.hostname or "", is_tls=where.scheme == "https")


_tokens: Final = functools.lru_cache(1)(TokenSource)


def handshake_error(server: str, error: BaseException) -> TlsFailedError | None:
    """What a failure of a request means for TLS, and what to do; None when it is none of TLS."""
    where = urlsplit(server)
    host, says, hint = where.netloc, "", ""
    is_broken = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
    if isinstance(error, ssl.SSLCertVerificationError):
        says = f"the certificate of {host} is not trusted: {error.verify_message}"
        hint = "--cacert FILE (HEADGATE_CACERT) names the CA that signed it"
        if error.verify_code in _WRONG_NAME:
            says = f"the certificate of {host} does not bear the name {where.hostname}: {error.verify_message}"
            hint = "name the server as its certificate does"
    elif isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        says, hint = f"no TLS connection to {host}: {reason}", "check --server"
        if any(name in reason for name in _NO_TLS):
            says, hint = f"{host} does not speak TLS", f"use http://{host}"
        elif any(name in reason for name in _CLIENT_REFUSED):
            says, hint = f"{host} does not accept this client: {reason.replace('_', ' ').lower()}", _SHOW_CERTIFICATE
    elif where.scheme == "https" and is_broken:  # in TLS 1.3 a server refuses a client after the client's handshake
        says = f"{host} closed the connection: perhaps it does not accept this client's certificate"
        hint = _SHOW_CERTIFICATE
    elif where.scheme == "http" and is_broken and _speaks_tls(where.hostname, where.port):
        says, hint = f"{host} speaks TLS", f"use --server https://{host}"
    return TlsFailedError(says, hint=hint) if says else None


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


def _parameters() -> list[Any]:
    options = {
        name: Annotated[
            str | None,
            typer.Option(
                help=says,
                callback=_kept_context if name == "context" else _kept,
                expose_value=False,
                envvar=f"HEADGATE_{name.upper()}",
                is_eager=name == "context",
            ),
        ]
        for name, says in _OPTIONS.items()
    }
    holder = typer.Typer(add_completion=False)
    holder.command()(with_options(options)(lambda: None))
    return list(get_command(holder).params)
