"""The paths that operators' tools ask: whether the server is alive, whether it is ready, and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headgate.observe.exposition import page
from headgate.observe.metrics import RESTARTS
from headgate.server import parts, ready
from headgate.server.listening import openness
from headgate.server.ready import PartState
from headgate.settings import Settings

PATHS: Final = ("/livez", "/readyz", "/healthz", "/metrics")
"""Answered as long as this process lives."""

Check = Callable[[], str]
"""Says what is wrong in this process, or nothing."""


def routes(settings: Settings, checks: Mapping[str, Check]) -> list[Route]:
    """The paths of health and numbers; `checks` are of parts of this process, by name, and run in a thread.

    `/livez` is 200 while this process answers. `/readyz` is 200 while every part is ready, else 503: a JSON object of
    the parts, with `?verbose` a line for each with what it says, and one where the server is open to everybody.
    """
    for part in parts.of_server(settings):
        RESTARTS.labels(part.name)  # 0 is a number, too

    told = openness(settings)

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok")

    def readyz(request: Request) -> Response:
        states = _states(settings, checks)
        status = 200 if all(state.ready for state in states.values()) else 503
        if "verbose" not in request.query_params:
            return JSONResponse({part: state.ready for part, state in states.items()}, status)
        lines = [_line(part, state) for part, state in states.items()]
        lines += [f"[!]open: {told}"] if told else []
        lines.append(f"readyz check {'passed' if status == 200 else 'failed'}")
        return PlainTextResponse("\n".join(lines) + "\n", status)

    # Plain functions run in a thread: adding up the processes' files takes milliseconds.
    def metrics(_: Request) -> Response:
        if not settings.metrics:
            return PlainTextResponse("metrics are switched off: HEADGATE_METRICS=true switches them on\n", 404)
        return Response(page(settings.metrics_directory), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    handlers = {"/livez": livez, "/readyz": readyz, "/healthz": readyz, "/metrics": metrics}
    return [Route(path, handlers[path]) for path in PATHS]


def _states(settings: Settings, checks: Mapping[str, Check]) -> dict[str, PartState]:
    states = {part.name: state for part, state in ready.states(settings).items()}
    for name, check in checks.items():
        problem = check()
        states[name] = PartState(not problem, problem)
    return states


def _line(part: str, state: PartState) -> str:
    mark, word = ("+", "ok") if state.ready else ("-", "failed")
    return f"[{mark}]{part} {word}{': ' if state.note else ''}{state.note}"
