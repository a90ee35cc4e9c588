"""`headgate mcp`: what commands ask a server, as tools of an assistant by the Model Context Protocol."""

from __future__ import annotations

import ipaddress
import re
import sys
from importlib.util import find_spec
from typing import Annotated, Final

import typer

from headgate_api.bearer import TokenSource, is_here
from headgate_api.errors import InvalidInputError, NotFoundError
from headgate_api.event.names import NAMESPACE_DEFAULT
from headgate_cli.client import SERVER_DEFAULT
from headgate_cli.options import Namespace, Server

LISTEN_DEFAULT: Final = "127.0.0.1:8090"
_ADDRESS: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+)):([0-9]{1,5})")
_OF_SDK: Final = "mcp_types"
"""A package of the SDK that its versions before 2 did not have."""


class MissingExtraError(NotFoundError):
    """The SDK of the Model Context Protocol is not installed."""

    code = "missing-extra"

    def __init__(self) -> None:
        super().__init__("headgate mcp needs the extra mcp", hint="pip install 'headgate-client[mcp]'")


def mcp(
    http: Annotated[bool, typer.Option("--http", help="Serve streamable HTTP, not standard input and output.")] = False,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="With --http: where. Port 0 takes a free one.")
    ] = LISTEN_DEFAULT,
    client_token_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="With --http: a bearer token that assistants must show. Needed beyond this machine.",
            show_default=False,
        ),
    ] = "",
    host_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --http: a further name by which assistants call it. Repeatable."),
    ] = None,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Let an assistant ask a server: why, trace, tail, list, describe, explain, convert, backtest, lint.

    It speaks the Model Context Protocol on standard input and output, and its tools only read, with your rights. With
    --http everybody who can connect has them: give --client-token-file on a machine that others use.

    \b
    Examples:
      headgate mcp --server https://headgate.example.com --token-file ~/.headgate-token
      headgate mcp --http --client-token-file assistants.token
    """  # noqa: D301 - click reads \b as "keep these lines"
    if not http and (listen != LISTEN_DEFAULT or client_token_file or host_name):
        raise InvalidInputError("--listen, --client-token-file and --host-name are for HTTP", hint="add --http")
    if find_spec(_OF_SDK) is None:
        raise MissingExtraError
    from headgate_cli import mcp_server  # here: it needs the extra

    if not http:
        if sys.stdin.isatty():
            typer.echo("headgate mcp waits for an assistant on standard input; Ctrl-C ends it", err=True)
        mcp_server.serve_stdio(server, namespace)
        return
    host, port = _address(listen)
    tokens = TokenSource(path=client_token_file, option="--client-token-file")
    tokens.token()  # an unusable file is said now
    if not tokens and not is_here(host):
        raise InvalidInputError(
            f"everybody who reaches {host} would have your rights",
            hint="--client-token-file FILE holds a token that assistants must show; or listen on 127.0.0.1",
        )
    mcp_server.serve_http(server, namespace, host, port, tokens, tuple(host_name or ()))


def _address(listen: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(listen)
    host, port = (found[1] or found[2], int(found[3])) if found is not None else ("", -1)
    try:
        if host != "localhost":
            ipaddress.ip_address(host)
    except ValueError:
        port = -1
    if not 0 <= port < 1 << 16:
        raise InvalidInputError(f"--listen {listen!r} is no address and port", hint=f"for example {LISTEN_DEFAULT}")
    return host, port
