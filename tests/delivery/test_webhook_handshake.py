"""The CloudEvents webhook handshake with a real receiver: asked first, agreed or not, by answer or by callback."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from headgate.delivery.attempt_service import AttemptService, OutgoingMessage, Recipient
from headgate.delivery.circuit import Subscriber
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.post import HttpTransport
from headgate.delivery.retry import SYSTEM, Fate, Outcome, judge
from headgate.delivery.webhook_handshake import Handshakes
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.store.handshake_grants import allowed_per_s
from headgate.server.peers.inward import inside
from headgate_api import limits
from tests.delivery.harness import attempt_service, event, run, spec, target
from tests.delivery.test_authentication import Receiver
from tests.objects.support import Server, running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as one:
        one.store.server_secret.prepare()
        yield one


class Agreeing(Receiver):
    """Answers OPTIONS with these headers, and takes what it is sent."""

    def __init__(self, **headers: str) -> None:
        super().__init__()
        self.headers = {f"WebHook-Allowed-{name.title()}": value for name, value in headers.items()}
        self.methods: list[str] = []
        self.answer = self._answer

    def _answer(self, request: web.Request, _: bytes) -> web.Response:
        self.methods.append(request.method)
        if request.method == "OPTIONS":
            return web.Response(status=200, headers=self.headers | {"Allow": "POST", "ce-id": "1"})
        return web.Response(status=202)


def service(transport: HttpTransport, server: Server, **more: Any) -> AttemptService:
    return attempt_service(
        transport, handshakes=Handshakes(transport, server.store.handshakes, server.url, SYSTEM, **more)
    )


async def send(by: AttemptService, to: Recipient) -> Outcome:
    one = event(1)
    message = OutgoingMessage(
        [("content-type", "application/json"), ("webhook-request-origin", "evil")], b"{}", one, one, ""
    )
    return await by.send(to, Delivery(7, 0, 3, 3), message)


def recipient(url: str, **rules: Any) -> Recipient:
    return Recipient(url=url, rules=spec(handshake=True, **rules))


def test_who_agrees_is_asked_once_and_then_sent_to(server: Server) -> None:
    async def work() -> None:
        async with Agreeing(origin="127.0.0.1", rate="*").listening() as found, HttpTransport() as transport:
            assert isinstance(found, Agreeing)
            by = service(transport, server)
            outcomes = await asyncio.gather(*(send(by, recipient(found.url, rate_per_s=2.0)) for _ in range(5)))
            assert {outcome.status for outcome in outcomes} == {202}
            assert found.methods == ["OPTIONS", *["POST"] * 5]
            asked, posted = found.requests[0][0], found.last
            assert asked["webhook-request-origin"] == posted["webhook-request-origin"] == "127.0.0.1"
            assert asked["webhook-request-rate"] == "120"
            assert asked["webhook-request-callback"].startswith(f"{server.url}/handshake/v1/allow?id=")
            assert "webhook-request-callback" not in posted
            not_asked = Recipient(url=found.url, rules=spec())
            await send(by, not_asked)
            assert found.methods[-2:] == ["POST", "POST"]

    run(work())


@pytest.mark.parametrize("headers", [{}, {"rate": "5"}, {"origin": "other.example"}, {"origin": "*", "rate": "often"}])
def test_who_does_not_agree_is_sent_nothing(server: Server, headers: dict[str, str]) -> None:
    async def work() -> None:
        async with Agreeing(**headers).listening() as found, HttpTransport() as transport:
            assert isinstance(found, Agreeing)
            by = service(transport, server)
            for _ in range(3):
                outcome = await send(by, recipient(found.url))
                assert outcome.reason == "handshake"
                assert outcome.detail.startswith("HandshakeRefused: ")
                assert judge(outcome) is Fate.AGAIN
            assert found.methods == ["OPTIONS"]

    run(work())


def test_a_callback_allows_later_and_says_how_often(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with Agreeing().listening() as found, HttpTransport() as transport:
            assert isinstance(found, Agreeing)
            by = service(transport, server)
            subscriber = Subscriber(target(1, found.url, handshake=True))
            to = dataclasses.replace(recipient(found.url), subscriber=subscriber)
            assert (await send(by, to)).reason == "handshake"
            parts = urlsplit(found.requests[0][0]["webhook-request-callback"])
            path = f"{parts.path}?{parts.query}"
            for wrong in (f"{path}x", path.replace("key=", "key=x"), parts.path, f"{parts.path}?id=a&key=b"):
                assert (await asyncio.to_thread(server.request, "GET", wrong)).status == 403
            bad = {"WebHook-Allowed-Rate": "0"}
            assert (await asyncio.to_thread(server.request, "POST", path, headers=bad)).status == 400
            await by.refresh()
            assert (await send(by, to)).reason == "handshake"
            rate = {"WebHook-Allowed-Rate": "2"}
            answer = await asyncio.to_thread(server.request, "POST", path, headers=rate)
            assert (answer.status, answer.json) == (200, {"allowed": True})
            await by.refresh()
            assert (await send(by, to)).status == 202
            assert found.methods == ["OPTIONS", "POST"]
            assert subscriber.per_s == pytest.approx(1 / 30)  # the trigger's limit now
            late = await send(by, dataclasses.replace(to, rules=spec(handshake=True, timeout_s=0.5)))
            assert late.detail == "AllowedRate: 2 requests a minute are allowed"
            assert len(found.methods) == 2

    run(work())


def test_the_lower_of_two_rates_counts() -> None:
    subscriber = Subscriber(target(1, "http://x/", rate_per_s=2.0))
    for allowed, expected in ((None, 2.0), (1.0, 1.0), (5.0, 2.0)):
        subscriber.allowed_per_s = allowed
        assert subscriber.per_s == expected
        assert subscriber.rate is not None
        assert subscriber.rate.per_s == expected
    assert [allowed_per_s(text) for text in (None, "*", "120")] == [None, None, 2.0]
    for text in ("0", "-1", "1.5", "", " ", "9" * 10, "ten"):
        if text.strip():
            with pytest.raises(ValueError, match="WebHook-Allowed-Rate"):
                allowed_per_s(text)


def test_everybody_is_asked_where_events_go_to_the_internet_but_for_the_own_brokers(server: Server) -> None:
    async def work() -> None:
        policy = UrlPolicy(own_url=server.url)
        async with Agreeing(origin="*").listening() as found, HttpTransport() as transport:
            assert isinstance(found, Agreeing)
            handshakes = Handshakes(
                transport,
                server.store.handshakes,
                server.url,
                SYSTEM,
                is_own=lambda url: bool(inside(policy, url)),
                always=True,
            )
            by = attempt_service(transport, handshakes=handshakes)
            assert (await send(by, Recipient(url=found.url, rules=spec()))).status == 202
            assert found.methods == ["OPTIONS", "POST"]
            assert not handshakes.wanted(spec(), f"{server.url}/default/default")

    run(work())


def test_a_permission_is_asked_for_again_when_it_is_old(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_S", 0.0)

    async def work() -> None:
        async with Agreeing(origin="*").listening() as found, HttpTransport() as transport:
            assert isinstance(found, Agreeing)
            by = service(transport, server)
            await send(by, recipient(found.url))
            found.headers = {}
            assert (await send(by, recipient(found.url))).reason == "handshake"
            assert found.methods == ["OPTIONS", "POST", "OPTIONS"]

    run(work())
