"""Tokens that the server signs for subscribers: checked by PyJWT's own client of key sets, over keys that rotate."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from headgate.auth.user import subject_of
from headgate.delivery.authentication import Access, Identity, IdentityTokens, RequestAuthentication
from headgate.delivery.post import HttpTransport
from headgate.delivery.retry import SYSTEM, Outcome
from headgate.objects.store.store import Store
from headgate.storage.keyring import Keyring
from headgate_api.limits import SIGNING_KEY_EARLY_S, SIGNING_KEY_LIFE_S
from headgate_api.objects.kinds import AuthSpec
from tests.delivery.harness import run
from tests.delivery.test_authentication import Receiver, Secrets, ref
from tests.objects.support import Server, running
from tests.objects.test_secrets import files_with

KEYS = Keyring({"k1": bytes(32)})
WHO = Identity(subject_of("shop/crm"), "https://crm.example/")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, keys=KEYS) as one:
        one.store.signing_keys.tend()
        yield one


def checked(server: Server, token: str, audience: str = WHO.audience) -> dict[str, Any]:
    """What a receiver does that knows the issuer alone."""
    configuration = server.request("GET", "/.well-known/openid-configuration").json
    assert configuration["issuer"] == server.url
    client = jwt.PyJWKClient(configuration["jwks_uri"], cache_keys=False, cache_jwk_set=False)
    key = client.get_signing_key_from_jwt(token)
    algorithms = configuration["id_token_signing_alg_values_supported"]
    claims: dict[str, Any] = jwt.decode(token, key, algorithms, audience=audience, issuer=server.url)
    return claims


def signed(server: Server) -> str:
    tokens = IdentityTokens(server.store.signing_keys, server.url, SYSTEM)
    return asyncio.run(tokens.get(WHO))


def test_a_receiver_verifies_a_delivery_by_the_key_set(server: Server, tmp_path: Path) -> None:
    async def work() -> None:
        async with Receiver().listening() as receiver, HttpTransport() as transport:
            tokens = IdentityTokens(server.store.signing_keys, server.url, SYSTEM)
            sender = RequestAuthentication(transport, server.store.secrets, SYSTEM, tokens)
            access = Access("shop", None, identity=WHO)

            async def send() -> Outcome:
                theirs = [("authorization", "Bearer evil")]
                return await sender.post(access, "id", receiver.url, theirs, b"{}", 5.0)

            for _ in range(3):
                assert (await send()).status == 202
            sent = {headers["authorization"] for headers, _ in receiver.requests}
            assert len(sent) == 1  # signed once
            scheme, _, token = sent.pop().partition(" ")
            claims = await asyncio.to_thread(checked, server, token)
            assert scheme == "Bearer"
            assert claims["sub"] == "system:serviceaccount:shop:oidc-eventing.knative.dev-trigger-crm"
            assert claims["aud"] == [WHO.audience]
            assert claims["exp"] - claims["iat"] == 3600
            with pytest.raises(jwt.InvalidAudienceError):
                await asyncio.to_thread(checked, server, token, "https://other.example/")

    run(work())
    server.store.signing_keys.tend()
    assert len(server.request("GET", "/openid/v1/jwks").json["keys"]) == 1
    assert "d" not in server.request("GET", "/openid/v1/jwks").json["keys"][0]  # the private number
    assert files_with(tmp_path, "PRIVATE KEY") == []


def test_keys_rotate_with_an_overlap(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = server.store.signing_keys
    now = [keys._clock_s()]
    monkeypatch.setattr(keys, "_clock_s", lambda: now[0])

    def kid() -> str:
        found = keys.current()
        assert found is not None
        return found.id

    def published() -> list[str]:
        return [one["kid"] for one in server.request("GET", "/openid/v1/jwks").json["keys"]]

    first, before = kid(), signed(server)
    now[0] += SIGNING_KEY_LIFE_S
    keys.tend()
    keys.tend()
    assert len(published()) == 2
    assert kid() == first  # the new one must be known first
    now[0] += SIGNING_KEY_EARLY_S
    keys.tend()
    assert kid() != first
    after = signed(server)
    assert jwt.get_unverified_header(after)["kid"] != jwt.get_unverified_header(before)["kid"]
    for token in (before, after):
        checked(server, token)
    now[0] += SIGNING_KEY_EARLY_S + 1
    keys.tend()
    assert published() == [kid()]
    checked(server, after)
    with pytest.raises(jwt.PyJWKClientError):
        checked(server, before)


def test_without_a_key_nothing_is_sent(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "control.db")

    async def work() -> None:
        async with Receiver().listening() as receiver, HttpTransport() as transport:
            tokens = IdentityTokens(store.signing_keys, "http://x", SYSTEM)
            sender = RequestAuthentication(transport, store.secrets, SYSTEM, tokens)
            outcome = await sender.post(Access("a", None, identity=WHO), "id", receiver.url, [], b"", 5.0)
            assert outcome.detail.startswith("NoSigningKey: ")
            assert receiver.requests == []

    run(work())
    store.signing_keys.tend()
    assert store.signing_keys.public() == []
    store.close()


def test_an_audience_goes_with_other_credentials(tmp_path: Path) -> None:
    from headgate_api.objects.kinds import HeaderAuth

    secrets = Secrets(tmp_path)
    secrets.put(value="k")
    secrets.store.signing_keys.tend()

    async def work() -> None:
        async with Receiver().listening() as receiver, HttpTransport() as transport:
            tokens = IdentityTokens(secrets.store.signing_keys, "http://x", SYSTEM)
            sender = RequestAuthentication(transport, secrets.store.secrets, SYSTEM, tokens)
            auth = AuthSpec(header=HeaderAuth(name="X-Api-Key", secret_ref=ref()))
            await sender.post(Access("default", auth, identity=WHO), "id", receiver.url, [], b"", 5.0)
            assert receiver.last["x-api-key"] == "k"
            assert receiver.last["authorization"].startswith("Bearer ey")

    run(work())
    secrets.store.close()
