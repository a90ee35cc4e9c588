"""The keys of an issuer: when they are fetched, which are taken, and what happens while it is away."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from headgate.auth.errors import CredentialsRefusedError, IssuerUnavailableError
from headgate.auth.issuer_keys import IssuerClient, IssuerFailedError, IssuerKeys, read_keys
from headgate_api.limits import ISSUER_ANSWER_BYTES_MAX, ISSUER_KEYS_MAX, ISSUER_REFETCH_S_MIN
from tests.auth.issuing import URL, Issuer
from tests.certificates import Authority


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def run(test: Callable[[Issuer, IssuerKeys, Clock], Any]) -> Any:
    issuer, clock = Issuer(), Clock()
    keys = IssuerKeys(URL, "", issuer.fetch, clock_s=clock)
    return asyncio.run(test(issuer, keys, clock))


def test_unknown_keys_are_looked_for_now_and_then() -> None:
    async def test(issuer: Issuer, keys: IssuerKeys, clock: Clock) -> None:
        assert [one.kid for one in await keys.find("rsa", "RS256")] == ["rsa"]
        assert issuer.asked == [f"{URL}/.well-known/openid-configuration", f"{URL}/jwks"]
        for number in range(1_000):
            with pytest.raises(CredentialsRefusedError):
                await keys.find(f"unknown-{number}", "RS256")
        assert len(issuer.asked) == 2
        clock.now_s += ISSUER_REFETCH_S_MIN
        issuer.keys[0]["kid"] = "new"
        assert await keys.find("new", "RS256")
        with pytest.raises(CredentialsRefusedError):
            await keys.find("rsa", "RS256")
        assert len(issuer.asked) == 4

    run(test)


def test_all_who_wait_share_a_fetch() -> None:
    async def test(issuer: Issuer, keys: IssuerKeys, clock: Clock) -> None:
        found = await asyncio.gather(*(keys.find("rsa", "RS256") for _ in range(50)))
        assert len(found) == 50
        assert len(issuer.asked) == 2

    run(test)


def test_who_gives_up_waiting_does_not_break_off_the_fetch() -> None:
    async def test(issuer: Issuer, keys: IssuerKeys, clock: Clock) -> None:
        first = asyncio.create_task(keys.find("rsa", "RS256"))
        second = asyncio.create_task(keys.find("rsa", "RS256"))
        await asyncio.sleep(0)
        first.cancel()
        assert await second
        assert len(issuer.asked) == 2

    run(test)


def test_while_the_issuer_is_away_known_keys_stay() -> None:
    async def test(issuer: Issuer, keys: IssuerKeys, clock: Clock) -> None:
        issuer.is_away = True
        with pytest.raises(IssuerUnavailableError):
            await keys.find("rsa", "RS256")
        issuer.is_away = False
        clock.now_s += ISSUER_REFETCH_S_MIN
        assert await keys.find("rsa", "RS256")
        issuer.is_away = True
        clock.now_s += 1e6
        assert await keys.find("rsa", "RS256")
        with pytest.raises(IssuerUnavailableError):
            await keys.find("other", "RS256")
        assert await keys.find("rsa", "RS256")

    run(test)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"issuer": "https://evil.example", "jwks_uri": f"{URL}/jwks"},
        {"issuer": URL},
        {"issuer": URL, "jwks_uri": 1},
        {"issuer": URL, "jwks_uri": "http://issuer.example/jwks"},
        {"issuer": URL, "jwks_uri": "file:///etc/passwd"},
        {"issuer": URL, "jwks_uri": "https://u:p@issuer.example/"},
    ],
)
def test_a_discovery_document_of_somebody_else_is_refused(document: object) -> None:
    async def test() -> None:
        async def fetch(url: str) -> object:
            return document if url.endswith("configuration") else {"keys": Issuer().keys}

        with pytest.raises(IssuerUnavailableError):
            await IssuerKeys(URL, "", fetch).find("rsa", "RS256")

    asyncio.run(test())


def test_only_keys_for_signatures_are_taken() -> None:
    issuer = Issuer()
    (good, ec, ed) = issuer.keys
    weak = jwt.algorithms.RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
    private = jwt.algorithms.RSAAlgorithm.to_jwk(issuer.rsa, as_dict=True)
    bad: list[object] = [
        {**good, "use": "enc"},
        {**good, "key_ops": ["encrypt"]},
        {**good, "kid": 1},
        {**good, "alg": "HS256"},
        {**good, "alg": "ES256"},
        {**good, "n": "!"},
        {**weak, "kid": "weak"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
        {**ec, "crv": "secp256k1"},
        {**ec, "x": "AAAA"},
        {**ed, "crv": "X25519"},
        "rsa",
        None,
    ]
    assert read_keys({"keys": bad}) == ()
    found = read_keys({"keys": [{**private, "alg": "PS256", "key_ops": ["verify"]}, ec, ed]})
    assert [sorted(one.algorithms) for one in found] == [["PS256"], ["ES256"], ["EdDSA"]]
    assert isinstance(found[0].key, rsa.RSAPublicKey)
    for document in ([], {}, {"keys": {}}, {"keys": [good] * (ISSUER_KEYS_MAX + 1)}):
        with pytest.raises(IssuerFailedError):
            read_keys(document)


class Answers(BaseHTTPRequestHandler):
    """By the path: a size, a redirect, a status."""

    def do_GET(self) -> None:
        if self.path == "/large":
            self.send_response(200)
            self.end_headers()
            for _ in range(64):
                self.wfile.write(b" " * (ISSUER_ANSWER_BYTES_MAX // 16))
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b" ")
                    time.sleep(0.05)
        elif self.path == "/deep":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"[" * 500_000)
        elif self.path == "/moved":
            self.send_response(302)
            self.send_header("location", "/good")
            self.end_headers()
        else:
            body = json.dumps({"path": self.path}).encode() if self.path == "/good" else b"<html>"
            self.send_response(500 if self.path == "/broken" else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(secure: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if secure is not None:
        server.socket = secure.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def got(client: IssuerClient, url: str) -> object:
    try:
        return await client.get(url)
    except IssuerFailedError as error:
        return error.message


def test_the_client_is_bounded_and_follows_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(port: int) -> None:
        client = IssuerClient()
        here = f"http://127.0.0.1:{port}"
        assert await got(client, f"{here}/good") == {"path": "/good"}
        for path, message in (
            ("/moved", "status 302"),
            ("/broken", "status 500"),
            ("/deep", "does not answer as an issuer does"),
            ("/html", "does not answer as an issuer does"),
            ("/large", f"over {ISSUER_ANSWER_BYTES_MAX} bytes"),
        ):
            assert message in str(await got(client, here + path))
        monkeypatch.setattr("headgate.auth.issuer_keys.ISSUER_FETCH_S_MAX", 0.3)
        assert "does not answer as an issuer does" in str(await got(client, f"{here}/slow"))
        assert "must begin with https" in str(await got(client, "http://issuer.example/"))
        await client.close()

    with answering() as port:
        asyncio.run(test(port))


def test_the_client_trusts_the_authority_that_it_is_given(tmp_path: Path) -> None:
    async def test(port: int, authority: str) -> tuple[object, object]:
        url = f"https://127.0.0.1:{port}/good"
        return await got(IssuerClient(authority), url), await got(IssuerClient(), url)

    authority = Authority(tmp_path)
    pair = authority.issue("issuer")
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(pair.certificate, pair.key)
    with answering(secure) as port:
        trusted, stranger = asyncio.run(test(port, authority.path.read_text()))
    assert trusted == {"path": "/good"}
    assert "does not answer as an issuer does" in str(stranger)
