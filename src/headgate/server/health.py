"""Is the server alive, is it ready, what are its numbers? The three paths that every operator's tools ask."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headgate.observe.exposition import page
from headgate.server import ready
from headgate.settings import Settings


def routes(settings: Settings) -> list[Route]:
    """`/livez` (200 while this process answers), `/readyz` (200 while every part is ready, else 503) and `/metrics`."""

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        parts = ready.parts_ready(settings.run_directory)
        return JSONResponse(parts, 200 if all(parts.values()) else 503)

    # Plain functions run in a thread: adding up the processes' files takes milliseconds.
    def metrics(_: Request) -> Response:
        if not settings.metrics:
            return PlainTextResponse("metrics are switched off: HEADGATE_METRICS=true switches them on\n", 404)
        return Response(page(settings.metrics_directory), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return [Route("/livez", livez), Route("/readyz", readyz), Route("/healthz", readyz), Route("/metrics", metrics)]
