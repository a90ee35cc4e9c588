"""Discovery of OpenID Connect, for receivers of deliveries: who signs the tokens, and by which keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.control.http import json_response
from headgate.control.signing_keys import ALGORITHM
from headgate.control.store import Store

DISCOVERY: Final = "/.well-known/openid-configuration"
KEYS: Final = "/openid/v1/jwks"
"""As Kubernetes has it."""


class IdentityApi:
    """The handlers.

    Args:
        store: Has the keys, and knows the server's URL, which is the issuer.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def routes(self) -> Iterator[Route]:
        """Where they answer."""
        yield Route(DISCOVERY, self._configuration, methods=["GET"])
        yield Route(KEYS, self._keys, methods=["GET"])

    async def _configuration(self, request: Request) -> Response:
        issuer = await run_in_threadpool(self._store.public_url)
        return json_response(
            {
                "issuer": issuer,
                "jwks_uri": f"{issuer}{KEYS}",
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": [ALGORITHM],
            }
        )

    async def _keys(self, request: Request) -> Response:
        response = json_response({"keys": await run_in_threadpool(self._store.signing_keys.public)})
        response.headers["content-type"] = "application/jwk-set+json"
        return response
