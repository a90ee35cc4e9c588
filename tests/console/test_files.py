"""What a browser gets from the console's paths, and what of other people's code is in it."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from headgate.auth.configuration import ClaimMappings, ClaimOrExpression, IssuerSettings, JwtSettings
from headgate.console.routes import FOLDER, ConsoleRoutes, SignIn, read_files, sign_in_of
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.kinds import status
from headgate_api.errors import InvalidInputError
from headgate_cli.main import COMMANDS

VENDOR = FOLDER / "vendor"
CONTROL = Path(status.__file__).parent
LINES_MAX = 4_500
"""Of our own JavaScript: more would be a framework."""
PAGE_BYTES_MAX = 150_000
"""Of all that a browser loads for a page when it knows nothing yet: scripts, styles, the font."""
ISSUER = JwtSettings(
    IssuerSettings("https://id.example.com/realms/a", ("headgate-console",)),
    ClaimMappings(ClaimOrExpression("sub", "")),
)


@dataclass(frozen=True)
class Answer:
    status_code: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


class Client:
    """Asks the console's routes, without a server."""

    def __init__(self, sign_in: SignIn) -> None:
        self._app = Starlette(routes=list(ConsoleRoutes(sign_in).routes()), exception_handlers=ERROR_HANDLERS)

    def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        given = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": given}
        asyncio.run(self._app(scope, receive, send))
        answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], answered, b"".join(one.get("body", b"") for one in sent))


@pytest.fixture
def client() -> Client:
    return Client(SignIn())


def test_a_browser_is_led_to_the_console_and_nobody_else(client: Client) -> None:
    answer = client.get("/", headers={"accept": "text/html,*/*"})
    assert (answer.status_code, answer.headers["location"]) == (302, "/ui/")
    assert client.get("/", headers={"accept": "application/json"}).json()["kind"] == "Status"
    assert client.get("/ui").headers["location"] == "/ui/"


def test_every_file_is_served_with_its_type_and_the_headers(client: Client) -> None:
    types = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "woff2": "font/woff2"}
    for name, file in read_files().items():
        answer = client.get(f"/ui/{name}")
        assert answer.status_code == 200, name
        assert answer.content == file.body
        assert answer.headers["content-type"] == types.get(name.rpartition(".")[2], file.media_type)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        policy = dict(one.split(" ", 1) for one in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["frame-ancestors"] == "'none'"
        assert {policy[one] for one in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert client.get("/ui/").content == read_files()["index.html"].body


def test_a_file_that_has_not_changed_is_not_sent_again(client: Client) -> None:
    tag = client.get("/ui/main.js").headers["etag"]
    again = client.get("/ui/main.js", headers={"if-none-match": f'"other", {tag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/ui/main.js", headers={"if-none-match": '"other"'}).status_code == 200


def test_what_is_text_is_sent_as_gzip_to_those_who_take_it(client: Client) -> None:
    plain = client.get("/ui/main.js")
    for accepted in ("gzip", "br;q=1.0, GZIP;q=0.8", "deflate, gzip ; q=1"):
        packed = client.get("/ui/main.js", headers={"accept-encoding": accepted})
        assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
        assert gzip.decompress(packed.content) == plain.content
    for accepted in ("", "br", "gzip;q=0", "gzip; q=0.000", "x-gzipped"):
        assert "content-encoding" not in client.get("/ui/main.js", headers={"accept-encoding": accepted}).headers
    font = client.get("/ui/vendor/inter.woff2", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in font.headers, "it is packed already"


@pytest.mark.parametrize("path", ["/ui/none.js", "/ui/../pyproject.toml", "/ui/pages/../main.js", "/ui/pages/none"])
def test_nothing_else_is_served(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_manifest_knows_every_file_of_others() -> None:
    manifest = json.loads((VENDOR / "manifest.json").read_text())["files"]
    assert set(manifest) == {path.name for path in VENDOR.iterdir()} - {"manifest.json"}
    for name, said in manifest.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == said["sha256"], name
        assert re.fullmatch(r"\d+\.\d+\.\d+", said["version"])
    licensed = {name.split(".")[1] for name in manifest if name.startswith("LICENSE.")}
    assert {one["package"].rpartition("/")[2] for one in manifest.values()} <= licensed


def own_scripts() -> dict[str, str]:
    found = sorted(FOLDER.rglob("*.js"))
    return {path.relative_to(FOLDER).as_posix(): path.read_text() for path in found if path.parent != VENDOR}


def loaded_by(*names: str) -> set[str]:
    """Scripts, and those that they import."""
    found, ahead = set[str](), list(names)
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            imported = re.findall(r'from "([^"]+)"', (FOLDER / name).read_text())
            ahead += ((FOLDER / name).parent.joinpath(one).resolve().relative_to(FOLDER).as_posix() for one in imported)
    return found


def test_no_page_is_heavy() -> None:
    sizes = {name: len(file.packed or file.body) for name, file in read_files().items()}
    index = (FOLDER / "index.html").read_text()
    frame = {"index.html", *re.findall(r'(?:href|src)="([^"]+)"', index)}
    assert {"vendor/inter.woff2", "console.css", "main.js"} <= frame
    pages = set(re.findall(r'^  "[^"]+": \["(\w+)", "\w+"\],$', (FOLDER / "shell.js").read_text(), re.M))
    assert {f"{one}.js" for one in pages} == {path.name for path in (FOLDER / "pages").iterdir()} - {"sign_in.js"}
    for page in pages:
        loaded = frame | loaded_by("main.js", f"pages/{page}.js")
        assert sum(sizes[name] for name in loaded) < PAGE_BYTES_MAX, page


def test_the_scripts_stay_small_and_make_no_html() -> None:
    scripts = own_scripts()
    assert sum(text.count("\n") for text in scripts.values()) < LINES_MAX
    for name, text in scripts.items():
        assert text.startswith("/**"), name
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert forbidden not in text, (name, forbidden)
        for place in re.findall(r'from "([^"]+)"', text):
            assert (FOLDER / name).parent.joinpath(place).is_file(), (name, place)
    assert not re.search(r"<script(?![^>]*src=)|<style|style=|https?://", (FOLDER / "index.html").read_text())


def test_every_command_that_the_console_names_exists() -> None:
    named = {found for text in own_scripts().values() for found in re.findall(r"<code>headgate ([a-z]+)", text)}
    assert named
    assert named <= set(COMMANDS)


def test_every_condition_has_words_and_every_reason_of_a_true_one_its_own() -> None:
    """A condition that is True because there is nothing to judge must not be read as a judgement."""
    words = own_scripts()["parts/conditions.js"]
    types, reasons = set(), set()
    of_others = {"AuthenticationEnabled", "SubjectsResolved", "ReferenceExists", "ReferenceNotSet"}
    """Of policies and event types, whose conditions the console does not show."""
    for name in ("status", "event_policies"):
        source = (CONTROL / f"{name}.py").read_text()
        types |= set(re.findall(r'(?:type=|false\(|_untroubled\(|_true_unless\(|warning\(|info\()"(\w+)"', source))
        reasons |= set(re.findall(r'status=TRUE, reason="(\w+)"', source))
    assert {"Addressable", "FilterHealthy", "DependencyReady"} <= types
    assert {one for one in types - of_others if not re.search(rf"^  {one}: \[", words, re.M)} == set()
    assert "DeadLetterSinkNotConfigured" in reasons
    assert {one for one in reasons - of_others if not re.search(rf"^  \"True {one}\": \"", words, re.M)} == set()


def test_signing_in_at_an_issuer() -> None:
    found = sign_in_of([ISSUER], "headgate-console", available=True)
    assert found == SignIn(True, "https://id.example.com/realms/a", "headgate-console")
    answer = Client(found).get("/ui/sign-in.json")
    assert answer.json() == {"available": True, "issuer": found.issuer, "clientId": "headgate-console"}
    assert "connect-src 'self' https://id.example.com;" in answer.headers["content-security-policy"]


def test_signing_in_with_a_token() -> None:
    assert sign_in_of([ISSUER], "", available=True) == SignIn(available=True)
    assert sign_in_of([], "", available=False) == SignIn()


def test_a_client_that_no_issuer_knows_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="audience 'other'") as caught:
        sign_in_of([ISSUER], "other", available=True)
    assert caught.value.hint
