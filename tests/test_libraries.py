"""What Headgate uses of libraries beyond their documented API; pyproject.toml pins those libraries."""

from __future__ import annotations

import asyncio
import inspect

import httptools
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http import httptools_impl
from uvicorn.server import ServerState

from headgate.ingress.http_connection import BoundedHttpProtocol, Connections, WriteTimeoutProtocol, http_config

PROTOCOL = httptools_impl.HttpToolsProtocol
CALLED = {
    "_unset_keepalive_if_required",
    "connection_lost",
    "connection_made",
    "on_body",
    "on_headers_complete",
    "on_message_complete",
    "on_response_complete",
    "pause_writing",
    "resume_writing",
    "send_400_response",
}
READ = {"client", "cycle", "flow", "headers", "logger", "loop", "parser", "pipeline", "transport", "url"}
OURS = {
    "_bare_bytes",
    "_began_at",
    "_behind",
    "_body_left",
    "_connections",
    "_in_body",
    "_refused",
    "_slot",
    "_timer",
    "_unread_timer",
}
CHANGED = "uvicorn has changed: read {} again before ingress/http_connection.py is given the new version"


def test_uvicorns_protocol_has_what_ours_overrides_and_calls() -> None:
    assert CALLED - vars(PROTOCOL).keys() == set(), CHANGED.format("HttpToolsProtocol")
    overridden = {name for cls in (BoundedHttpProtocol, WriteTimeoutProtocol) for name in vars(cls)} & vars(
        PROTOCOL
    ).keys()
    for name in overridden - {"__init__", "__module__", "__doc__"}:
        ours, theirs = getattr(BoundedHttpProtocol, name), getattr(PROTOCOL, name)
        assert len(inspect.signature(ours).parameters) == len(inspect.signature(theirs).parameters), CHANGED.format(
            f"HttpToolsProtocol.{name}"
        )


def test_uvicorns_protocol_has_the_attributes_that_ours_reads() -> None:
    async def work() -> PROTOCOL:
        config = http_config(Starlette(), "127.0.0.1", 0)
        config.load()
        made = BoundedHttpProtocol(Connections(), config=config, server_state=ServerState(), app_state={})
        made.on_message_begin()
        return made

    made = asyncio.run(work())
    assert READ - vars(made).keys() == set(), CHANGED.format("HttpToolsProtocol.__init__")
    assert OURS & vars(PROTOCOL).keys() == set(), CHANGED.format("HttpToolsProtocol")
    cycle = inspect.signature(httptools_impl.RequestResponseCycle.__init__).parameters
    assert cycle.keys() >= {"scope", "transport", "flow"}, CHANGED.format("RequestResponseCycle")
    source = inspect.getsource(httptools_impl.RequestResponseCycle.__init__)
    assert "self.response_started" in source, CHANGED.format("RequestResponseCycle")
    assert "self.response_complete" in source, CHANGED.format("RequestResponseCycle")
    assert callable(uvicorn.Server.capture_signals), "uvicorn has changed: server/child.py leaves signals alone by it"


def test_uvicorns_status_lines_and_the_parser_are_as_ours_uses_them() -> None:
    for status in (408, 431, 505):
        assert httptools_impl.STATUS_LINE[status].startswith(b"HTTP/1.1 %d " % status), CHANGED.format("STATUS_LINE")
    assert issubclass(httptools.HttpParserUpgrade, Exception)
    parser = httptools.HttpRequestParser(object())
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
