"""The paths of the console, the files behind them, and how people sign in.

They need no token: the pages hold no data, and ask the API as their user. The headers allow no script but the page's
own files: an event that holds HTML would stay text even where a page forgot that it is hostile.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headgate.auth.configuration import JwtSettings
from headgate_api.errors import InvalidInputError

PREFIX: Final = "/ui"
SIGN_IN: Final = "sign-in.json"
_METHODS: Final = ["GET"]
_PACKED_PART: Final = 0.9
"""What is hardly smaller, as a font is, is not worth a browser's work."""
_REFUSED: Final = re.compile(r"q=0(\.0*)?")
FOLDER: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent, and as gzip where that is smaller; its tag has the quotes."""

    body: bytes
    packed: bytes | None
    media_type: str
    etag: str

    @classmethod
    def of(cls, body: bytes, suffix: str) -> StaticFile:
        """A file of these bytes; `suffix` is that of its name, with the dot."""
        packed = gzip.compress(body, mtime=0)
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        return cls(body, packed if len(packed) < _PACKED_PART * len(body) else None, _TYPES[suffix], tag)


def read_files() -> Mapping[str, StaticFile]:
    """Every file below FOLDER by its path there, with slashes. A file of an unknown type is a KeyError."""
    return {
        path.relative_to(FOLDER).as_posix(): StaticFile.of(path.read_bytes(), path.suffix)
        for path in sorted(FOLDER.rglob("*"))
        if path.is_file()
    }


@dataclass(frozen=True, slots=True)
class SignIn:
    """Whether the server knows users, the URL of the OpenID provider (empty: a token is pasted), its client id."""

    available: bool = False
    issuer: str = ""
    client_id: str = ""

    @property
    def origin(self) -> str:
        """Scheme, host and port of the issuer; empty without one."""
        split = urlsplit(self.issuer)
        return f"{split.scheme}://{split.netloc}" if self.issuer else ""

    def json(self) -> bytes:
        said = {"available": self.available, "issuer": self.issuer, "clientId": self.client_id}
        return msgspec.json.encode(said)


def sign_in_of(issuers: Iterable[JwtSettings], client_id: str, *, available: bool) -> SignIn:
    """How people sign in: a token for the console has its `client_id` as an audience; it may be empty."""
    if not client_id:
        return SignIn(available)
    for one in issuers:
        if client_id in one.issuer.audiences:
            return SignIn(available, one.issuer.url, client_id)
    raise InvalidInputError(
        f"HEADGATE_CONSOLE_CLIENT_ID: no issuer of --authentication-config has the audience {client_id!r}",
        hint="add the client's id to the audiences of its issuer: docs/howto/console.md",
    )


class ConsoleRoutes:
    """The handlers; `on_open` is called when somebody opens the console."""

    def __init__(self, sign_in: SignIn, on_open: Callable[[], None] = lambda: None) -> None:
        self._on_open = on_open
        self._files = {**read_files(), SIGN_IN: StaticFile.of(sign_in.json(), ".json")}
        self._headers = headers(sign_in.origin)

    def routes(self) -> Iterator[Route]:
        yield Route("/", self._to_the_pages, methods=_METHODS)
        yield Route(PREFIX, self._to_the_pages, methods=_METHODS)
        yield Route(f"{PREFIX}/", self._index, methods=_METHODS)
        yield Route(f"{PREFIX}/{{file}}", self._file, methods=_METHODS)
        yield Route(f"{PREFIX}/{{folder}}/{{file}}", self._file, methods=_METHODS)

    async def _to_the_pages(self, request: Request) -> Response:
        if request.url.path == "/" and "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
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
        # Weak, as the same file has two forms.
        tagged = {**self._headers, "etag": f"W/{file.etag}", "vary": "accept-encoding"}
        if file.etag in known:
            return Response(status_code=304, headers=tagged)
        typed = {**tagged, "content-type": file.media_type}
        if file.packed is not None and takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(file.packed, headers={**typed, "content-encoding": "gzip"})
        return Response(file.body, headers=typed)


def takes_gzip(accepted: str) -> bool:
    """Whether a header Accept-Encoding names gzip, and not as what is refused."""
    codings = (one.replace(" ", "").lower().split(";") for one in accepted.split(","))
    return any(name == "gzip" and not _REFUSED.fullmatch("".join(rest)) for name, *rest in codings)


def headers(issuer: str) -> dict[str, str]:
    """Of every answer with a file; `issuer` is scheme, host and port of the OpenID provider, empty for none."""
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
