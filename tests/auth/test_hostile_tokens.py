"""Tokens that must not be believed: each is refused with 401 and `WWW-Authenticate`, and counted by its reason."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.context import USER
from headgate.auth.credentials import Credentials
from headgate.auth.errors import CredentialsRefusedError
from headgate.auth.user import User
from headgate.observe.metrics import TOKENS_REFUSED
from headgate.server.authentication import AuthenticatedRequests
from headgate_api.limits import CLOCK_SKEW_S, TOKEN_BYTES_MAX
from tests.auth.issuing import AUDIENCE, URL, Issuer, authenticator, b64

REAL = Issuer()
STRANGER = Issuer()
Make = Callable[[], str]


def after(seconds: int) -> Callable[[], int]:
    """A time so long after the one at which a token is made."""
    return lambda: int(time.time()) + seconds


def claimed(**changed: Any) -> Make:
    """A token whose claims are changed; a function gives its claim when the token is made."""
    return lambda: REAL.token(
        REAL.claims(**{name: claim() if callable(claim) else claim for name, claim in changed.items()})
    )


def headed(**changed: Any) -> Make:
    return lambda: REAL.token(None, **changed)


def forged(**changed: Any) -> Make:
    """Signed by a stranger's key."""
    return lambda: STRANGER.token(None, **changed)


def raw(head: str, body: str) -> Make:
    return lambda: REAL.signed(head.encode(), body.encode())


def jwk_of(issuer: Issuer) -> dict[str, Any]:
    return issuer.keys[0]


HEAD = '{"alg":"RS256","kid":"rsa"}'
BODY = json.dumps(REAL.claims())


def repeated(name: str, first: str, second: str) -> str:
    rest = json.dumps({key: value for key, value in REAL.claims().items() if key != name})[1:-1]
    return f'{{"{name}":{first},{rest},"{name}":{second}}}'


TWICE = repeated("sub", '"ada"', '"root"')


def edited(part: int, change: Callable[[str], str]) -> Make:
    def make() -> str:
        parts = REAL.token().split(".")
        parts[part] = change(parts[part])
        return ".".join(parts)

    return make


def swapped() -> str:
    """The claims of one token under the signature of another."""
    one, other = REAL.token().split("."), REAL.token(REAL.claims(sub="root")).split(".")
    return ".".join([one[0], other[1], one[2]])


HOSTILE: dict[str, tuple[str, Make]] = {
    # times
    "expired": ("expired", claimed(exp=after(-3_600))),
    "expired a moment beyond the skew": ("expired", claimed(exp=after(-CLOCK_SKEW_S - 5))),
    "expired in 1970": ("expired", claimed(exp=0)),
    "not yet valid": ("not-yet-valid", claimed(nbf=after(3_600))),
    "not yet valid beyond the skew": ("not-yet-valid", claimed(nbf=after(CLOCK_SKEW_S + 30))),
    "issued in the future": ("not-yet-valid", claimed(iat=after(3_600))),
    "no expiry": ("claims", claimed(exp=...)),
    "expiry null": ("malformed", claimed(exp=None)),
    "expiry as a text": ("malformed", claimed(exp=lambda: str(after(600)()))),
    "expiry true": ("malformed", claimed(exp=True)),
    "expiry negative": ("malformed", claimed(exp=-1)),
    "expiry beyond all times": ("malformed", claimed(exp=1e300)),
    "expiry a list": ("malformed", claimed(exp=lambda: [after(600)()])),
    "nbf a text": ("malformed", claimed(nbf="0")),
    # for whom, by whom
    "another audience": ("audience", claimed(aud="somebody-else")),
    "a replay at another broker": ("audience", claimed(aud="https://other-broker.example")),
    "other audiences": ("audience", claimed(aud=["a", "b"])),
    "audience in another case": ("audience", claimed(aud=AUDIENCE.upper())),
    "audience with a space": ("audience", claimed(aud=f"{AUDIENCE} ")),
    "no audience": ("audience", claimed(aud=...)),
    "audiences of none": ("audience", claimed(aud=[])),
    "audience a number": ("malformed", claimed(aud=1)),
    "an audience that is none": ("malformed", claimed(aud=[AUDIENCE, 1])),
    "audience an object": ("malformed", claimed(aud={AUDIENCE: True})),
    "another issuer": ("issuer", claimed(iss="https://evil.example")),
    "the issuer with a slash": ("issuer", claimed(iss=f"{URL}/")),
    "the issuer in another case": ("issuer", claimed(iss=URL.upper())),
    "issuers as a list": ("issuer", claimed(iss=[URL])),
    "no issuer": ("issuer", claimed(iss=...)),
    # algorithms
    "none": ("algorithm", headed(alg="none")),
    "None": ("algorithm", headed(alg="None")),
    "nOnE without signature": ("malformed", lambda: REAL.token(None, alg="nOnE").rpartition(".")[0] + "."),
    "HMAC with the public key": ("algorithm", headed(alg="HS256")),
    "HMAC with the public key, 512": ("algorithm", headed(alg="HS512")),
    "algorithm in another case": ("algorithm", headed(alg="rs256")),
    "an unknown algorithm": ("algorithm", headed(alg="RS1")),
    "secp256k1": ("algorithm", headed(alg="ES256K")),
    "no algorithm": ("algorithm", headed(alg=...)),
    "algorithm null": ("algorithm", headed(alg=None)),
    "algorithms as a list": ("algorithm", headed(alg=["RS256"])),
    "another hash than the signature's": ("signature", raw(HEAD.replace("256", "512"), BODY)),
    "PSS said, PKCS1 made": ("signature", raw(HEAD.replace("RS", "PS"), BODY)),
    "an EC algorithm with the RSA key": ("key", headed(alg="ES256", kid="rsa")),
    "an RSA algorithm with the EC key": ("key", headed(alg="RS256", kid="ec")),
    # keys and signatures
    "a stranger's key": ("signature", forged()),
    "a stranger's EC key": ("signature", forged(alg="ES256", kid="ec")),
    "a stranger's Ed25519 key": ("signature", forged(alg="EdDSA", kid="ed")),
    "a stranger's key without a name": ("signature", forged(kid=...)),
    "an unknown key": ("key", headed(kid="gone")),
    "kid a path": ("key", headed(kid="../../../../dev/null")),
    "kid a file": ("key", headed(kid="/proc/sys/kernel/randomize_va_space")),
    "kid a URL": ("key", headed(kid="https://evil.example/key")),
    "kid SQL": ("key", headed(kid="x' UNION SELECT 'key'--")),
    "kid a command": ("key", headed(kid="$(touch /tmp/x)|id")),
    "kid with NUL": ("malformed", headed(kid="rsa\0")),
    "kid a number": ("header", headed(kid=1)),
    "kid a list": ("header", headed(kid=["rsa"])),
    "kid without end": ("header", headed(kid="k" * 2_000)),
    "jwk in the header": ("signature", lambda: STRANGER.token(None, jwk=jwk_of(STRANGER))),
    "jwk in the header, unknown name": ("key", lambda: STRANGER.token(None, jwk=jwk_of(STRANGER), kid="own")),
    "jku in the header": ("signature", forged(jku="https://evil.example/jwks")),
    "x5u in the header": ("signature", forged(x5u="https://evil.example/cert")),
    "x5c in the header": ("signature", forged(x5c=["MIIB"])),
    "crit": ("header", headed(crit=["exp"])),
    "crit of nothing": ("header", headed(crit=[])),
    "an unencoded payload": ("header", headed(b64=False)),
    "compressed": ("header", headed(zip="DEF")),
    "another type": ("header", headed(typ="logout+jwt")),
    "changed claims": ("signature", swapped),
    "a signature cut off": ("signature", edited(2, lambda text: text[:-6])),
    "a signature of zeros": ("signature", edited(2, lambda text: "A" * len(text))),
    "an EC signature of zeros": ("signature", lambda: REAL.token(None, alg="ES256", kid="ec")[:-86] + "A" * 86),
    # text
    "no signature": ("malformed", lambda: REAL.token().rpartition(".")[0]),
    "an empty signature": ("malformed", lambda: REAL.token().rpartition(".")[0] + "."),
    "four parts": ("malformed", lambda: REAL.token() + ".x"),
    "an encrypted token": ("malformed", lambda: ".".join(["eyJhbGciOiJkaXIifQ", "", "a", "b", "c"])),
    "only dots": ("malformed", lambda: ".."),
    "no token at all": ("malformed", lambda: "hello"),
    "padding": ("malformed", edited(0, lambda text: text + "==")),
    "standard Base64": ("malformed", edited(1, lambda text: "+/" + text)),
    "a space within": ("malformed", edited(1, lambda text: text[:5] + " " + text[5:])),
    "bits that mean nothing": ("malformed", edited(0, lambda text: text[:-1] + chr(ord(text[-1]) + 1))),
    "a line's end within": ("malformed", edited(1, lambda text: text[:5] + "\n" + text[5:])),
    "oversized": ("malformed", lambda: REAL.token(REAL.claims(pad="x" * TOKEN_BYTES_MAX))),
    "deep JSON": ("malformed", raw(HEAD, "[" * 5_000 + "]" * 5_000)),
    "deep JSON in a claim": ("malformed", raw(HEAD, BODY[:-1] + ',"d":' + "[" * 4_000 + "]" * 4_000 + "}")),
    "a nested token": ("malformed", lambda: REAL.signed(HEAD.encode(), REAL.token().encode())),
    "claims as a list": ("malformed", raw(HEAD, f"[{BODY}]")),
    "claims a text": ("malformed", raw(HEAD, '"ada"')),
    "a header that is a list": ("malformed", raw('["RS256"]', BODY)),
    "a header that is no JSON": ("malformed", raw("alg: RS256", BODY)),
    "header not in UTF-8": ("malformed", lambda: REAL.signed(b'{"alg":"RS256","k":"\xff"}', BODY.encode())),
    "the subject twice": ("malformed", raw(HEAD, TWICE)),
    "the audience twice": ("malformed", raw(HEAD, repeated("aud", f'"{AUDIENCE}"', '"x"'))),
    "the algorithm twice": ("malformed", raw('{"alg":"RS256","alg":"none","kid":"rsa"}', BODY)),
    "the subject twice, once escaped": ("malformed", raw(HEAD, TWICE.replace("sub", "s\\u0075b", 1))),
    "NaN as expiry": ("malformed", raw(HEAD, BODY.replace(str(json.loads(BODY)["exp"]), "NaN"))),
    "a number without end": ("malformed", raw(HEAD, BODY[:-1] + ',"n":1e99999}')),
    # claims
    "no subject": ("claims", claimed(sub=...)),
    "an empty subject": ("claims", claimed(sub="")),
    "subject a number": ("malformed", claimed(sub=1)),
    "subject null": ("malformed", claimed(sub=None)),
    "subject with NUL": ("malformed", claimed(sub="ada\0root")),
    "subject with a lone surrogate": ("malformed", raw(HEAD, BODY[:-1] + ',"y":"\\ud800"}')),
    "subject with a line's end": ("claims", claimed(sub="ada\nroot")),
    "groups a number": ("claims", claimed(groups=1)),
    "groups with a number": ("claims", claimed(groups=["a", 1])),
    "groups an object": ("claims", claimed(groups={"a": 1})),
    "groups without end": ("claims", claimed(groups=["g" * 100] * 100)),
    "a claim that breaks a rule": ("claims", claimed(level=1)),
    "a claim of another type in a rule": ("claims", claimed(level="high")),
    "a user that breaks a rule": ("user", claimed(sub="system:admin")),
}  # fmt: skip


async def answered(token: str, folder: Path) -> tuple[int, dict[bytes, bytes], User | None]:
    """How a server answers a request with a token: status, headers, and who it took the client for."""
    seen: list[User] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope[USER])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer " + token.encode("latin-1"))]
    scope = {"type": "http", "path": "/default/default", "method": "POST", "query_string": b"", "headers": headers}
    await AuthenticatedRequests(app, authenticator(REAL, folder), None)(scope, None, send)  # type: ignore[arg-type]
    return sent[0]["status"], dict(sent[0]["headers"]), seen[0] if seen else None


def test_a_good_token_is_believed(tmp_path: Path) -> None:
    for header in ({}, {"alg": "PS256"}, {"alg": "ES256", "kid": "ec"}, {"alg": "EdDSA", "kid": "ed"}, {"kid": ...}):
        token = REAL.token(REAL.claims(groups=["dev"], level=4, aud=["x", AUDIENCE]), **header)
        status, _, user = asyncio.run(answered(token, tmp_path))
        assert (status, user) == (200, User("oidc:ada", ("dev", "system:authenticated")))


@pytest.mark.parametrize("changed", [{"exp": after(-5)}, {"nbf": after(20)}, {"iat": after(20)}, {"typ": "x"}])
def test_clocks_may_differ_a_little(changed: dict[str, Any], tmp_path: Path) -> None:
    status, _, _ = asyncio.run(answered(claimed(**changed)(), tmp_path))
    assert status == 200


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_token_is_refused(name: str, tmp_path: Path) -> None:
    reason, make = HOSTILE[name]
    before = TOKENS_REFUSED.labels(reason).value
    status, headers, user = asyncio.run(answered(make(), tmp_path))
    assert (status, user) == (401, None)
    assert headers[b"www-authenticate"].startswith(b'Bearer realm="headgate", error="invalid_')
    assert b"connection" in headers
    assert TOKENS_REFUSED.labels(reason).value == before + 1, {
        labels: child.value for labels, child in TOKENS_REFUSED.children.items() if child.value
    }


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 60


def test_what_is_refused_says_nothing_of_the_token(tmp_path: Path) -> None:
    async def challenge() -> bytes:
        _, headers, _ = await answered(REAL.token(REAL.claims(sub="secret-name", aud="secret-aud")), tmp_path)
        return headers[b"www-authenticate"]

    assert b"secret" not in asyncio.run(challenge())


def test_a_withdrawn_key_is_refused_at_once(tmp_path: Path) -> None:
    """Also for a token that is remembered."""

    async def statuses() -> list[str]:
        issuer = Issuer()
        found = authenticator(issuer, tmp_path)
        (trusted,) = found._issuers
        credentials = Credentials((f"Bearer {issuer.token()}".encode(),))
        names = [(await found.authenticate(credentials)).name]
        issuer.keys = issuer.keys[1:]
        await trusted.keys.refresh()
        try:
            await found.authenticate(credentials)
        except CredentialsRefusedError as error:
            names.append(error.reason)
        return names

    assert asyncio.run(statuses()) == ["oidc:ada", "key"]


@pytest.mark.parametrize(
    "values",
    [
        [b"Basic dXNlcjpwYXNz"],
        [b"Bearer"],
        [b"Bearer "],
        [b"bearer a b"],
        [b"Bearer \xff"],
        [b"Bearer a", b"Bearer b"],
        [b""],
        [f"Token {b64(b'x')}".encode()],
    ],
)
def test_a_header_that_is_no_bearer_token_is_refused(values: list[bytes], tmp_path: Path) -> None:
    async def refusal() -> str:
        try:
            await authenticator(REAL, tmp_path).authenticate(Credentials(tuple(values)))
        except CredentialsRefusedError as error:
            return error.reason
        return ""

    assert asyncio.run(refusal()) in ("scheme", "malformed")
