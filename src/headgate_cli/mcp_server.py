"""The server of the Model Context Protocol, on standard input and output or over HTTP; it needs the extra mcp."""

from __future__ import annotations

import contextlib
import hmac
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import anyio
import anyio.from_thread
import anyio.to_thread
import mcp_types as types
import typer
import uvicorn
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings

from headgate_api import __version__
from headgate_api.bearer import TokenSource
from headgate_api.errors import HeadgateError, InvalidInputError, OverloadedError, UnavailableError
from headgate_api.limits import MCP_BODY_BYTES_MAX, MCP_CALL_S_MAX, MCP_CALLS_MAX, MCP_CONNECTIONS_MAX, MCP_STOP_S_MAX
from headgate_cli.tools import INSTRUCTIONS, TOOLS, Asker

_PATH: Final = "/mcp"
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]


class CallsOverloadError(OverloadedError):
    """Enough calls of tools are under way."""

    code = "tool-calls"


class Calls:
    """Answers calls of tools, each in a thread of its own, MCP_CALLS_MAX at the same time.

    When `is_over` says so, calls end with what they have.
    """

    def __init__(self, server: str, namespace: str, is_over: Callable[[], bool]) -> None:
        self._server = server
        self._namespace = namespace
        self._is_over = is_over
        self._under_way = 0
        self._threads = anyio.CapacityLimiter(MCP_CALLS_MAX)

    async def list_tools(self, _: ServerRequestContext, __: object) -> types.ListToolsResult:
        only_read = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)
        found = (
            types.Tool(
                name=name,
                title=tool.title,
                description=tool.says,
                input_schema=tool.schema(),
                annotations=only_read,
            )
            for name, tool in TOOLS.items()
        )
        return types.ListToolsResult(tools=list(found))

    async def call_tool(self, _: ServerRequestContext, call: types.CallToolRequestParams) -> types.CallToolResult:
        """The answer, or the error as its text: an assistant reads it, and asks again."""
        try:
            texts, failed = await self._texts(call.name, call.arguments or {}), False
        except HeadgateError as error:
            hint = f"\nhint: {error.hint}" if error.hint else ""
            texts, failed = [f"error: {error.message}{hint}"], True
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text) for text in texts], is_error=failed
        )

    async def _texts(self, name: str, arguments: dict[str, Any]) -> list[str]:
        tool = TOOLS.get(name)
        if tool is None:
            raise InvalidInputError(f"there is no tool {name[:100]!r}", hint=f"there are: {', '.join(TOOLS)}")
        if self._under_way == MCP_CALLS_MAX:
            raise CallsOverloadError(
                f"{MCP_CALLS_MAX} calls are under way (MCP_CALLS_MAX)", hint="ask again when one has ended"
            )
        ends = time.monotonic() + MCP_CALL_S_MAX

        def goes_on() -> bool:
            anyio.from_thread.check_cancelled()
            return time.monotonic() < ends and not self._is_over()

        asker = Asker(self._server, self._namespace, goes_on)
        self._under_way += 1
        try:
            return await anyio.to_thread.run_sync(tool.answer, asker, arguments, limiter=self._threads)
        finally:
            self._under_way -= 1


def _protocol(calls: Calls) -> Server[Any]:
    return Server(
        "headgate",
        title="Headgate",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=calls.list_tools,
        on_call_tool=calls.call_tool,
    )


def serve_stdio(server: str, namespace: str) -> None:
    """Answers on standard input and output until the input ends. Every text of ours and of the SDK goes to stderr."""
    # A thread that waits for input would hold Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    async def serve() -> None:
        protocol = _protocol(Calls(server, namespace, lambda: False))
        async with stdio_server() as (read, write):
            await protocol.run(read, write, protocol.create_initialization_options())

    anyio.run(serve)


def serve_http(
    server: str, namespace: str, host: str, port: int, tokens: TokenSource, host_names: tuple[str, ...]
) -> None:
    """Answers over HTTP until Ctrl-C; prints its URL. UnavailableError where it cannot listen there."""
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=MCP_CONNECTIONS_MAX
        )
    except OSError as error:
        raise UnavailableError(
            f"cannot listen on {host}, port {port}: {error.strerror}", hint="--listen names another address"
        ) from error
    port = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    names = [f"{name}:{port}" for name in dict.fromkeys((shown, "127.0.0.1", "localhost", "[::1]", *host_names))]
    names += host_names  # behind a proxy on the scheme's own port
    calls = Calls(server, namespace, lambda: running.should_exit)
    app: _App = _protocol(calls).streamable_http_app(
        streamable_http_path=_PATH,
        # Nothing is kept between requests, so there are no sessions to bound.
        json_response=True,
        stateless_http=True,
        max_request_body_size=MCP_BODY_BYTES_MAX,
        transport_security=TransportSecuritySettings(
            allowed_hosts=names,
            allowed_origins=[f"{scheme}://{name}" for scheme in ("http", "https") for name in names],
        ),
    )
    config = uvicorn.Config(
        _guarded(app, tokens) if tokens else app,
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MCP_CONNECTIONS_MAX,
        timeout_graceful_shutdown=MCP_STOP_S_MAX,
        lifespan="on",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    typer.echo(f"headgate mcp listens on http://{shown}:{port}{_PATH}")
    running = uvicorn.Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        running.run(sockets=[listening])


def _guarded(app: _App, tokens: TokenSource) -> _App:
    """Lets in who shows the token."""

    async def guarded(scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "http" and not _shows(scope, tokens):
            head = [(b"www-authenticate", b"Bearer"), (b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 401, "headers": head})
            says = b"error: show the token of --client-token-file\nhint: Authorization: Bearer TOKEN\n"
            await send({"type": "http.response.body", "body": says})
            return
        await app(scope, receive, send)

    return guarded


def _shows(scope: _Message, tokens: TokenSource) -> bool:
    try:
        wanted = f"Bearer {tokens.token()}".encode()
    except InvalidInputError:  # the file is gone: nobody is let in
        return False
    shown = [value for name, value in scope["headers"] if name == b"authorization"]
    return len(shown) == 1 and hmac.compare_digest(shown[0], wanted)
