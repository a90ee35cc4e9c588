"""A client of the Model Context Protocol, by the SDK, for tests that are no coroutines."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult, ListToolsResult

from tests.support import REPOSITORY

PROGRAM: Final = Path(sys.executable).with_name("headgate")
ENVIRONMENT: Final = {"PYTHONPATH": str(REPOSITORY / "src")}


class Assistant:
    """Calls tools, and waits for their answers."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal = portal
        self._client = client

    @property
    def version(self) -> str:
        """Of the protocol."""
        return str(self._client.protocol_version)

    def tools(self) -> ListToolsResult:
        return self._portal.call(self._client.list_tools)

    def call(self, tool: str, /, **arguments: Any) -> CallToolResult:
        return self._portal.call(self._client.call_tool, tool, arguments)

    def told(self, tool: str, /, **arguments: Any) -> list[str]:
        """The texts of an answer that is no error."""
        found = self.call(tool, **arguments)
        texts = [block.text for block in found.content]
        assert not found.is_error, texts
        return texts

    def json(self, tool: str, /, **arguments: Any) -> Any:
        """An answer that is whole."""
        (text,) = self.told(tool, **arguments)
        return json.loads(text)

    def refused(self, tool: str, /, **arguments: Any) -> str:
        found = self.call(tool, **arguments)
        (block,) = found.content
        assert found.is_error, block.text
        return str(block.text)


@contextmanager
def by_stdio(*options: object, mode: str = "auto") -> Iterator[Assistant]:
    words = ["mcp", *map(str, options)]
    program = StdioServerParameters(command=str(PROGRAM), args=words, env=ENVIRONMENT)
    with _connected(Client(program, mode=mode)) as assistant:
        yield assistant


@contextmanager
def serving(*options: object) -> Iterator[str]:
    """`headgate mcp --http` on a free port, and its URL."""
    words = [str(PROGRAM), "mcp", "--http", "--listen", "127.0.0.1:0", *map(str, options)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            first = running.stdout.readline()
            assert first.startswith("headgate mcp listens on http://"), first
            yield first.split()[-1]
        finally:
            running.terminate()
            assert running.wait(30) == -signal.SIGTERM


@contextmanager
def by_http(url: str, token: str = "", mode: str = "auto") -> Iterator[Assistant]:
    with _connected(_over_http(url, token, mode)) as assistant:
        yield assistant


@asynccontextmanager
async def _over_http(url: str, token: str, mode: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else None
    async with (
        create_mcp_http_client(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@contextmanager
def _connected(made: AbstractAsyncContextManager[Client]) -> Iterator[Assistant]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(made) as client:
        yield Assistant(portal, client)
