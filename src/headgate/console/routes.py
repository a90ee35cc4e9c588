"""The paths of the console. They need no token: the pages hold no data, and ask the API as their user.

The headers keep a page to what it is: no script but its own files, no other site, no frame around it. So an event that
holds HTML would stay text even where a page forgot that it is hostile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headgate.console.files import INDEX, StaticFile, read_files
from headgate.console.sign_in import SignIn

PREFIX: Final = "/ui"
SIGN_IN: Final = "sign-in.json"
_METHODS: Final = ["GET"]


class ConsoleRoutes:
    """The handlers; `on_open` is called when somebody opens the console."""

    def __init__(self, sign_in: SignIn, on_open: Callable[[], None] = lambda: None) -> None:
        self._on_open = on_open
        self._files = {**read_files(), SIGN_IN: StaticFile.of(sign_in.json(), ".json")}
        self._headers = headers(sign_in.origin)

    def routes(self) -> Iterator[Route]:
        """Where they answer."""
        yield Route("/", self._root, methods=_METHODS)
        yield Route(PREFIX, self._to_the_pages, methods=_METHODS)
        yield Route(f"{PREFIX}/", self._index, methods=_METHODS)
        yield Route(f"{PREFIX}/{{file}}", self._file, methods=_METHODS)
        yield Route(f"{PREFIX}/{{folder}}/{{file}}", self._file, methods=_METHODS)

    async def _root(self, request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
        return self._moved()

    async def _to_the_pages(self, _: Request) -> Response:
        return self._moved()

    def _moved(self) -> Response:
        return RedirectResponse(f"{PREFIX}/", 302, {**self._headers, "vary": "accept"})

    async def _index(self, request: Request) -> Response:
        self._on_open()
        return self._answer(INDEX, request)

    async def _file(self, request: Request) -> Response:
        return self._answer("/".join(request.path_params.values()), request)

    def _answer(self, name: str, request: Request) -> Response:
        file = self._files.get(name)
        if file is None:
            raise HTTPException(404)
        known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
        tagged = {**self._headers, "etag": file.etag}
        if file.etag in known:
            return Response(status_code=304, headers=tagged)
        return Response(file.body, headers={**tagged, "content-type": file.media_type})


def headers(issuer: str) -> dict[str, str]:
    """Of every answer with a file.

    `issuer` is scheme, host and port of the OpenID provider that the console may ask; empty for none.
    """
    policy = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "font-src": "'self'",
        "img-src": "'self'",
        "connect-src": f"'self' {issuer}".strip(),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",
    }
