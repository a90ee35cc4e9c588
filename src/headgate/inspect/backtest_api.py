"""The API of backtests: what a filter would have taken of a broker's stored events.

    POST /apis/headgate.dev/v1/namespaces/NS/brokers/NAME/backtest
    {"filter", "against", "from", "to", "share", "triggers", "next"}

A request counts a bounded piece of the log; with `next` of its answer the next one goes on. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.control.bodies import decode_as
from headgate.control.http import JSON, json_response, read_body, while_connected
from headgate.control.objects import OWN_API_VERSION
from headgate.control.queries import user_of
from headgate.inspect.backtest import Backtests
from headgate.inspect.backtest_messages import BacktestRequest

_PATH: Final = f"/apis/{OWN_API_VERSION}/namespaces/{{namespace}}/brokers/{{name}}/backtest"
_CLIENT_GONE: Final = 499  # nobody sees it


class BacktestApi:
    """The handler.

    Args:
        backtests: Answers requests.
    """

    def __init__(self, backtests: Backtests) -> None:
        self._backtests = backtests

    def routes(self) -> Iterator[Route]:
        """Where it answers."""
        yield Route(_PATH, self._backtest, methods=["POST"])

    async def _backtest(self, request: Request) -> Response:
        wanted = decode_as(await read_body(request, frozenset({JSON, ""})), BacktestRequest, "the request")
        broker = f"{request.path_params['namespace']}/{request.path_params['name']}"
        page = await while_connected(request.receive, self._backtests.page(broker, wanted, user_of(request).name))
        return Response(status_code=_CLIENT_GONE) if page is None else json_response(page)
