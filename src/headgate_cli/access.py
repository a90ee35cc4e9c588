"""How commands reach a server: TLS, tokens and contexts as options of each of them."""

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
from headgate_api.errors import InvalidInputError
from headgate_api.kubeconfig import KubeContext, read_context

if TYPE_CHECKING:
    from typer._click import Command

_Command = TypeVar("_Command", bound=Callable[..., Any])
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
            os.environ["HEADGATE_NAMESPACE"] = known.namespace
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
