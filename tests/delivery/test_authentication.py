"""Deliveries say who sends them: real servers that check it, real Secrets, and what changes meanwhile."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus

import pytest
from aiohttp import web
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from headgate.delivery.attempt_service import OutgoingMessage, Recipient
from headgate.delivery.authentication import Access
from headgate.delivery.circuit import Subscriber, SubscriberHealth
from headgate.delivery.journal import Origin
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.post import HttpTransport
from headgate.delivery.retry import SYSTEM, Fate, Outcome, judge
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.credentials import CredentialsError, credentials_of, secret_with_defaults
from headgate.objects.store.store import Store
from headgate.storage.keyring import Keyring
from headgate_api import limits
from headgate_api.objects.kinds import (
    AuthSpec,
    HeaderAuth,
    Kind,
    OAuth2Auth,
    ObjectKey,
    Secret,
    SecretAuth,
    SecretReference,
)
from tests.certificates import Authority
from tests.delivery.harness import attempt_service, event, run, target
from tests.support import until

KEY = base64.b64encode(bytes(range(24))).decode()
OTHER_KEY = base64.b64encode(bytes(range(1, 33))).decode()


def ref(name: str = "s", key: str = "") -> SecretReference:
    return SecretReference(name=name, key=key)


def plain(**auth: str) -> AuthSpec:
    """An auth whose parts need nothing but a Secret, by their names."""
    return AuthSpec(**{name: SecretAuth(secret_ref=ref(secret)) for name, secret in auth.items()})


class Secrets:
    """The Secrets of the namespace `default` of a real store."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(folder / "control.db", keys=Keyring({"k1": bytes(32)}))
        self._admission = Admission(self.store)

    def put(self, name: str = "s", **values: str) -> None:
        document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}
        self._admission.apply(document)

    def delete(self, name: str = "s") -> None:
        self.store.delete(ObjectKey(Kind.SECRET, "default", name))


@pytest.fixture
def secrets(tmp_path: Path) -> Iterator[Secrets]:
    found = Secrets(tmp_path)
    yield found
    found.store.close()


def has_connections(port: int) -> bool:
    """Whether a server's end of a connection to a port of this machine is open (ESTABLISHED or CLOSE_WAIT)."""
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    ends = (line.split()[1:4] for line in lines)
    return any(local.endswith(f":{port:04X}") and state in ("01", "08") for local, _, state in ends)


class Receiver:
    """Takes requests, answers what it is told to, and remembers."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.peers: list[Any] = []
        self.answer: Callable[[web.Request, bytes], web.Response] = lambda *_: web.Response(status=202)
        self.url = ""

    @asynccontextmanager
    async def listening(self, context: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{port}/in"
        try:
            yield self
        finally:
            await runner.cleanup()
            await until(lambda: not has_connections(port))  # of one whose handshake was refused the loop alone knows

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append(({name.lower(): value for name, value in request.headers.items()}, body))
        assert request.transport is not None
        self.peers.append(request.transport.get_extra_info("peercert"))
        return self.answer(request, body)

    @property
    def last(self) -> dict[str, str]:
        return self.requests[-1][0]


class Sender:
    """Makes attempts at one place as a trigger's deliveries do."""

    def __init__(
        self, transport: HttpTransport, secrets: Secrets, url: str, auth: AuthSpec | None, ca: str = ""
    ) -> None:
        self.service = attempt_service(transport, secrets=secrets.store.secrets)
        self.to = Recipient(url=url, access=Access.of("default", auth, ca))

    async def changed(self) -> None:
        await self.service.authentication.refresh()

    async def send(
        self, body: bytes = b'{"n":1}', *, headers: tuple[tuple[str, str], ...] = (), number: int = 1
    ) -> Outcome:
        one = event(number)
        message = OutgoingMessage([("content-type", "application/json"), *headers], body, one, one, "root")
        return await self.service.send(self.to, Delivery(7, 0, 3, 3), message)


Work = Callable[[Sender, Receiver], Any]


def attempt(secrets: Secrets, auth: AuthSpec | None, work: Work) -> None:
    """Does something with a sender and a receiver without TLS."""

    async def all_of_it() -> None:
        async with Receiver().listening() as receiver, HttpTransport() as transport:
            sender = Sender(transport, secrets, receiver.url, auth)
            await sender.changed()
            await work(sender, receiver)

    run(all_of_it())


def test_headers_come_from_secrets_and_no_event_writes_them(secrets: Secrets) -> None:
    secrets.put("bearer", token="abc\n")
    secrets.put("basic", username="u", password="p:ä")
    secrets.put("key", value="k 1")

    async def with_bearer(sender: Sender, receiver: Receiver) -> None:
        theirs = (("authorization", "Bearer evil"), ("x-api-key", "evil"))
        assert (await sender.send(headers=theirs)).status == 202
        assert receiver.last["authorization"] == "Bearer abc"
        assert receiver.last["x-api-key"] == "k 1"

    header = HeaderAuth(name="X-Api-Key", secret_ref=ref("key"))
    attempt(secrets, AuthSpec(bearer=SecretAuth(secret_ref=ref("bearer")), header=header), with_bearer)

    async def with_basic(sender: Sender, receiver: Receiver) -> None:
        assert (await sender.send()).status == 202
        assert base64.b64decode(receiver.last["authorization"].removeprefix("Basic ")) == "u:p:ä".encode()

    attempt(secrets, plain(basic="basic"), with_basic)


def test_a_changed_secret_is_used_by_the_next_attempt_and_a_missing_one_is_waited_for(secrets: Secrets) -> None:
    async def work(sender: Sender, receiver: Receiver) -> None:
        outcome = await sender.send()
        assert (outcome.reason, outcome.detail) == ("credentials", 'SecretNotFound: the Secret "s" does not exist')
        assert judge(outcome) is Fate.AGAIN
        secrets.put(other="x")
        await sender.changed()
        assert (await sender.send()).detail == 'SecretKeyNotFound: the Secret "s" has no value "token"'
        for value in ("one", "two"):
            secrets.put(token=value)
            await sender.changed()
            assert (await sender.send()).status == 202
            assert receiver.last["authorization"] == f"Bearer {value}"
        secrets.delete()
        await sender.changed()
        assert (await sender.send()).reason == "credentials"
        assert len(receiver.requests) == 2

    attempt(secrets, plain(bearer="s"), work)


def test_signatures_are_those_of_standard_webhooks(secrets: Secrets) -> None:
    secrets.put(secret=f"whsec_{KEY} whsec_{OTHER_KEY}\n")

    async def work(sender: Sender, receiver: Receiver) -> None:
        for body in (b'{"n": 1}', b'{"n": 1}', '{"n": "ä"}'.encode()):
            assert (await sender.send(body, headers=(("webhook-id", "evil"),))).status == 202
        for headers, body in receiver.requests:
            for key in (KEY, OTHER_KEY):
                assert Webhook(f"whsec_{key}").verify(body, headers) is not None
            with pytest.raises(WebhookVerificationError):
                Webhook(f"whsec_{KEY}").verify(body + b" ", headers)
            with pytest.raises(WebhookVerificationError):
                Webhook(f"whsec_{KEY[::-1]}").verify(body, headers)
        first, second, _ = (headers["webhook-id"] for headers, _ in receiver.requests)
        assert first == second  # of one event, however often it is tried
        assert "." not in first
        await sender.send(number=2)
        assert receiver.last["webhook-id"] != first
        secrets.put(secret=f"whsec_{OTHER_KEY}")
        await sender.changed()
        await sender.send()
        headers, body = receiver.requests[-1]
        Webhook(f"whsec_{OTHER_KEY}").verify(body, headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(f"whsec_{KEY}").verify(body, headers)
        sender.to = Recipient(url=receiver.url, access=sender.to.access, origin=Origin.REPLAY)
        await sender.send()
        assert receiver.last["webhook-id"] != first  # a replay is another message

    attempt(secrets, plain(signature="s"), work)


def test_redirects_carry_nothing_anywhere(secrets: Secrets) -> None:
    secrets.put(token="abc")

    async def work(sender: Sender, receiver: Receiver) -> None:
        async with Receiver().listening() as elsewhere:
            for status in (301, 302, 307, 308):
                receiver.answer = lambda *_, status=status: web.Response(
                    status=status, headers={"location": elsewhere.url}
                )
                assert (await sender.send()).status == status
            assert elsewhere.requests == []

    attempt(secrets, plain(bearer="s"), work)


def test_client_certificates_and_the_ca_of_one_subscriber(secrets: Secrets, tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    own, first, second = ours.issue("server"), ours.issue("first"), ours.issue("second")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ours.path)
    context.load_cert_chain(own.certificate, own.key)
    context.verify_mode = ssl.CERT_REQUIRED
    ca = ours.path.read_text()

    def subject(peer: Any) -> str:
        return str(dict(pair for names in peer["subject"] for pair in names)["commonName"])

    async def work() -> None:
        async with Receiver().listening(context) as receiver, HttpTransport() as transport:

            async def send(auth: AuthSpec | None, ca: str, url: str = receiver.url) -> Outcome:
                sender = Sender(transport, secrets, url, auth, ca)
                return await sender.send()

            auth = plain(client_certificate="pair")
            secrets.put("pair", **{"tls.crt": first.certificate.read_text(), "tls.key": first.key.read_text()})
            assert (await send(auth, ca)).status == 202
            assert subject(receiver.peers[-1]) == "first"
            named = receiver.url.replace("127.0.0.1", "localhost")
            assert (await send(auth, ca, named)).status == 202
            secrets.put("pair", **{"tls.crt": second.certificate.read_text(), "tls.key": second.key.read_text()})
            assert (await send(auth, ca)).status == 202
            assert subject(receiver.peers[-1]) == "second"
            count = len(receiver.requests)
            for chosen, trusted, reason in (
                (auth, "", "certificate"),
                (auth, other.path.read_text(), "certificate"),
                (None, ca, "connection"),
            ):
                outcome = await send(chosen, trusted)
                assert outcome.reason == reason, outcome
                assert outcome.detail.endswith("give it as CACerts") is (reason == "certificate"), outcome
                assert judge(outcome) is Fate.AGAIN
            secrets.put("pair", **{"tls.crt": first.certificate.read_text(), "tls.key": second.key.read_text()})
            assert (await send(auth, ca)).detail.endswith("it is the key of another certificate")
            assert len(receiver.requests) == count

    run(work())


class TokenEndpoint(Receiver):
    """Grants client credentials as RFC 6749 has it, strictly; and knows which tokens it gave."""

    def __init__(self, client: str = "client:1", secret: str = "s&cret 1") -> None:
        super().__init__()
        self.client, self.secret, self.life_s = client, secret, 3600
        self.given: list[str] = []
        self.answer = self._grant

    def _grant(self, request: web.Request, body: bytes) -> web.Response:
        assert request.method == "POST"
        assert request.content_type == "application/x-www-form-urlencoded"
        form = parse_qs(body.decode(), strict_parsing=True)
        scheme, _, pair = request.headers.get("authorization", "").partition(" ")
        if scheme == "Basic":
            user, _, password = base64.b64decode(pair).decode().partition(":")
            found = (unquote_plus(user), unquote_plus(password))
            assert "client_secret" not in form
        else:
            found = (form["client_id"][0], form["client_secret"][0])
        if found != (self.client, self.secret):
            return web.json_response({"error": "invalid_client", "error_description": self.secret}, status=401)
        assert form["grant_type"] == ["client_credentials"]
        self.given.append(f"token-{len(self.given)}-{form.get('scope', [''])[0].replace(' ', '+')}")
        return web.json_response(
            {"access_token": self.given[-1], "token_type": "Bearer", "expires_in": self.life_s},
            headers={"cache-control": "no-store"},
        )


def with_tokens(secrets: Secrets, work: Callable[[Sender, Receiver, TokenEndpoint], Any], **more: Any) -> None:
    """Does something with a sender, a receiver that takes the endpoint's last token alone, and the endpoint."""

    async def all_of_it() -> None:
        async with (
            Receiver().listening() as receiver,
            TokenEndpoint().listening() as found,
            HttpTransport() as transport,
        ):
            assert isinstance(found, TokenEndpoint)
            endpoint = found

            def judged(request: web.Request, _: bytes) -> web.Response:
                is_current = request.headers.get("authorization") == f"Bearer {endpoint.given[-1]}"
                return web.Response(status=202 if is_current else 401)

            receiver.answer = judged
            secrets.put(client_id=endpoint.client, client_secret=endpoint.secret)
            oauth = OAuth2Auth(token_url=endpoint.url, secret_ref=ref(), **more)
            await work(Sender(transport, secrets, receiver.url, AuthSpec(oauth2=oauth)), receiver, endpoint)

    run(all_of_it())


@pytest.mark.parametrize("where", ["", "body"])
def test_a_token_is_asked_for_once_and_again_when_it_expires(secrets: Secrets, where: str) -> None:
    async def work(sender: Sender, receiver: Receiver, endpoint: TokenEndpoint) -> None:
        outcomes = await asyncio.gather(*(sender.send() for _ in range(20)))
        assert {outcome.status for outcome in outcomes} == {202}
        assert endpoint.given == ["token-0-a+b"]
        form = parse_qs(endpoint.requests[0][1].decode())
        assert form["audience"] == ["https://crm.example/"]
        endpoint.life_s = 0
        secrets.put(client_id=endpoint.client, client_secret=endpoint.secret, more="x")
        sender.service.authentication._tokens._kept.clear()
        await sender.send()
        kept = next(iter(sender.service.authentication._tokens._kept.values()))
        assert kept.until - kept.got_at == pytest.approx(0.9 * limits.OAUTH_RETRY_S)
        kept.until = 0.0  # as after that time
        assert (await sender.send()).status == 202
        assert len(endpoint.given) == 3

    more = {"scopes": ("a", "b"), "audience": "https://crm.example/", "client_authentication": where}
    with_tokens(secrets, work, **more)


def test_a_token_that_is_refused_is_asked_for_anew_once(secrets: Secrets, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(sender: Sender, receiver: Receiver, endpoint: TokenEndpoint) -> None:
        monkeypatch.setattr(limits, "OAUTH_REFUSED_S", 600.0)
        assert (await sender.send()).status == 202
        endpoint.given.append("revoked all before")
        assert (await sender.send()).status == 401  # not so soon
        monkeypatch.setattr(limits, "OAUTH_REFUSED_S", 0.0)
        outcomes = await asyncio.gather(*(sender.send() for _ in range(10)))
        assert {outcome.status for outcome in outcomes} == {202}
        assert len(endpoint.requests) == 2
        receiver.answer = lambda *_: web.Response(status=401)
        monkeypatch.setattr(limits, "OAUTH_REFUSED_S", 600.0)
        before = len(receiver.requests)
        assert [(await sender.send()).status for _ in range(5)] == [401] * 5
        assert len(endpoint.requests) == 2
        assert len(receiver.requests) == before + 5

    with_tokens(secrets, work)


BAD_ANSWERS: dict[str, Callable[..., web.Response]] = {
    "a redirect": lambda *_: web.Response(status=307, headers={"location": "http://127.0.0.1:9/"}),
    "no JSON": lambda *_: web.Response(text="<html>"),
    "no token": lambda *_: web.json_response({}),
    "another type": lambda *_: web.json_response({"access_token": "t", "token_type": "mac"}),
    "a line break": lambda *_: web.json_response({"access_token": "t\r\nx: y", "token_type": "bearer"}),
    "an endless one": lambda *_: web.Response(body=b'{"access_token":"' + b"t" * (4 << 20)),
    "an odd life": lambda *_: web.json_response({"access_token": "t", "token_type": "bearer", "expires_in": "soon"}),
    "an event": lambda *_: web.Response(status=200, headers={"ce-id": "1"}, body=b"{}"),
    "an error": lambda *_: web.json_response({"error": "s&cret 1\n"}, status=400),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS)
def test_what_is_no_token_is_told_and_tried_again(
    secrets: Secrets, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OAUTH_RETRY_S", 600.0)

    async def work(sender: Sender, receiver: Receiver, endpoint: TokenEndpoint) -> None:
        endpoint.answer, good = BAD_ANSWERS[answer], endpoint.answer
        outcomes = [await sender.send() for _ in range(5)]
        assert {(one.reason, judge(one)) for one in outcomes} == {("credentials", Fate.AGAIN)}
        assert outcomes[0].detail.startswith(f"TokenNotGranted: {endpoint.url}: ")
        assert "s&cret" not in outcomes[0].detail
        assert len(endpoint.requests) == 1  # not with every attempt
        assert receiver.requests == []
        endpoint.answer = good
        sender.service.authentication._tokens._kept.clear()
        assert (await sender.send()).status == 202

    with_tokens(secrets, work)


def test_a_wrong_client_is_told_by_the_error_alone(secrets: Secrets) -> None:
    async def work(sender: Sender, receiver: Receiver, endpoint: TokenEndpoint) -> None:
        endpoint.secret = "another"
        assert (await sender.send()).detail == f"TokenNotGranted: {endpoint.url}: status 401 invalid_client"
        secrets.put(client_id=endpoint.client, client_secret="another")
        await sender.changed()
        assert (await sender.send()).status == 202

    with_tokens(secrets, work)


def test_a_trigger_says_what_is_missing() -> None:
    told: list[tuple[int, str]] = []
    health = SubscriberHealth(lambda target, text: told.append((target, text)), SYSTEM)
    subscriber, delivery = Subscriber(target(1, "http://x/")), Delivery(7, 0, 3, 3)
    delivery.started_at = SYSTEM.now()
    health.heard(subscriber, delivery, Outcome(0, "credentials", "TokenNotGranted: http://t/: status 401"))
    health.heard(subscriber, delivery, Outcome(202))
    assert told == [(1, "TokenNotGranted: http://t/: status 401"), (1, "")]
    assert not subscriber.circuit.opened


def test_an_endpoint_is_asked_by_the_policy_of_deliveries(secrets: Secrets) -> None:
    from tests.delivery.test_resolver import LOOPBACK_ONLY

    async def work() -> None:
        secrets.put(client_id="c", client_secret="s")
        async with HttpTransport(LOOPBACK_ONLY) as transport:
            oauth = OAuth2Auth(token_url="http://10.0.0.1/token", secret_ref=ref())
            outcome = await Sender(transport, secrets, "http://127.0.0.1:9/", AuthSpec(oauth2=oauth)).send()
            assert "policy" in outcome.detail

    run(work())


HOSTILE = {
    "CR and LF": "a\r\nx-evil: 1",
    "LF": "a\nb",
    "NUL": "a\0b",
    "no ASCII": "ä",
    "a tab": "a\tb",
    "a space first": " a",
    "nothing": "",
    "line breaks alone": "\r\n\r\n",
    "huge": "x" * (limits.CREDENTIAL_BYTES_MAX + 1),
}


@pytest.mark.parametrize("value", HOSTILE)
def test_values_that_no_header_holds(value: str) -> None:
    header = HeaderAuth(name="X-Api-Key", secret_ref=ref())
    for auth in (plain(bearer="s"), AuthSpec(header=header)):
        with pytest.raises(CredentialsError, match="SecretValueInvalid") as caught:
            credentials_of(auth, secret_of(token=HOSTILE[value], value=HOSTILE[value]))
        assert "evil" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    ["whsec_", f"{KEY}", "whsec_AAAA", f"whsec_{KEY} {KEY}", f"whsk_{KEY}", "whsec_*", " ".join([f"whsec_{KEY}"] * 5)],
)
def test_signing_secrets_that_are_none(value: str) -> None:
    with pytest.raises(CredentialsError, match="SecretValueInvalid") as caught:
        credentials_of(plain(signature="s"), secret_of(secret=value))
    assert KEY not in str(caught.value)


def test_certificates_and_users_that_are_none() -> None:
    for values in ({"tls.crt": "x", "tls.key": "y"}, {"tls.crt": "-----BEGIN CERTIFICATE-----", "tls.key": "y"}):
        with pytest.raises(CredentialsError, match="no certificate"):
            credentials_of(plain(client_certificate="s"), secret_of(**values))
    with pytest.raises(CredentialsError, match="no colon"):
        credentials_of(plain(basic="s"), secret_of(username="a:b", password="p"))
    found = credentials_of(plain(bearer="s", signature="s"), secret_of(token="abc", secret=f"whsec_{KEY}"))
    assert "abc" not in repr(found)


def secret_of(**values: str) -> Callable[[str], Secret]:
    from headgate_api.objects.kinds import Metadata

    made = Secret(api_version="v1", kind="Secret", metadata=Metadata(name="s"), string_data=values)
    return lambda _: secret_with_defaults(made)
