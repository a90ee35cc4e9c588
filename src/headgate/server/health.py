"""The paths that operators' tools ask: whether the server is alive, whether it is ready, and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headgate.observe.exposition import page
from headgate.server import ready
from headgate.server.ready import State
from headgate.settings import Settings

PATHS: Final = ("/livez", "/readyz", "/healthz", "/metrics")
"""Answered as long as this process lives."""

Check = Callable[[], str]
"""Looks at something in this process; says what is wrong, or nothing."""


def routes(settings: Settings, checks: Mapping[str, Check]) -> list[Route]:
    """The paths of health and numbers.

    `/livez` is 200 while this process answers. `/readyz` is 200 while every part is ready, else 503: a JSON object of
    the parts, with `?verbose` a line for each with what it says. `/metrics` is Prometheus' text format.

    Args:
        settings: The server's settings.
        checks: Parts of this process by name; they run in a thread.
    """

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok")

    def readyz(request: Request) -> Response:
        parts = _parts(settings, checks)
        status = 200 if all(state.ready for state in parts.values()) else 503
        if "verbose" not in request.query_params:
            return JSONResponse({part: state.ready for part, state in parts.items()}, status)
        lines = [_line(part, state) for part, state in parts.items()]
        lines.append(f"readyz check {'passed' if status == 200 else 'failed'}")
        return PlainTextResponse("\n".join(lines) + "\n", status)

    # Plain functions run in a thread: adding up the processes' files takes milliseconds.
    def metrics(_: Request) -> Response:
        if not settings.metrics:
            return PlainTextResponse("metrics are switched off: HEADGATE_METRICS=true switches them on\n", 404)
        return Response(page(settings.metrics_directory), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    handlers = {"/livez": livez, "/readyz": readyz, "/healthz": readyz, "/metrics": metrics}
    return [Route(path, handlers[path]) for path in PATHS]


def _parts(settings: Settings, checks: Mapping[str, Check]) -> dict[str, State]:
    parts = ready.states(settings.run_directory)
    for name, check in checks.items():
        problem = check()
        parts[name] = State(not problem, problem)
    return parts


def _line(part: str, state: State) -> str:
    mark, word = ("+", "ok") if state.ready else ("-", "failed")
    return f"[{mark}]{part} {word}{': ' if state.note else ''}{state.note}"
