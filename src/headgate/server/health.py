"""Is the server alive, is it ready, what are its numbers? The three paths that every operator's tools ask."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headgate.server import ready


def routes(run_directory: Path) -> list[Route]:
    """`/livez` (200 while this process answers), `/readyz` (200 while every part is ready, else 503) and `/metrics`."""

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        parts = ready.parts_ready(run_directory)
        return JSONResponse(parts, 200 if all(parts.values()) else 503)

    # Plain functions run in a thread: adding up the processes' files takes milliseconds.
    def metrics(_: Request) -> Response:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [Route("/livez", livez), Route("/readyz", readyz), Route("/healthz", readyz), Route("/metrics", metrics)]
