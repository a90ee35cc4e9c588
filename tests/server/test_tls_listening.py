"""HTTP and gRPC over TLS, as a front serves them: handshakes, clients' certificates, replaced files, both ports."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
import uvloop
from cryptography import x509
from grpc import aio
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from headgate.auth.context import TOKEN_HEADER
from headgate.delivery.retry import Outcome
from headgate.ingress.errors import send_body
from headgate.ingress.http_connection import Connections
from headgate.objects.kinds.egress import UrlPolicy
from headgate.observe.metrics import TLS_HANDSHAKES_FAILED
from headgate.rpc.service import Service
from headgate.server import rpc
from headgate.server.peers import local_http
from headgate.server.peers.inward import InwardTransport, SplitTransport, transports
from headgate.server.processes import front
from headgate.server.processes.front import HttpListeners
from headgate.settings import Settings
from headgate.testing.server import free_port
from headgate_api import limits
from headgate_api.errors import HeadgateError
from headgate_client.aio import AsyncClient
from headgate_client.errors import HandshakeError
from tests.certificates import Authority
from tests.delivery.harness import Subscriber

BODY = b"x" * 300_000


async def hello(scope: Any, receive: Any, send: Any) -> None:
    body = BODY if scope["path"] == "/large" else scope["scheme"].encode()
    await send_body(send, 200, b"text/plain", body, (b"x-path", scope["path"].encode()))


PUBLISHER = Service("headgate.v1.Publisher", {})


class Front:
    """What a front listens on, with an application that answers by itself."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.authority = Authority(folder / "tls")
        self.server = self.authority.issue("server")
        self.client = self.authority.issue("client", groups=("system:masters",))
        tls = {"tls_cert": self.server.certificate, "tls_key": self.server.key}
        places = {"listen": f"127.0.0.1:{free_port()}", "grpc": f"127.0.0.1:{free_port()}"}
        if given.get("tls_mode") == "permissive":
            places |= {"tls_listen": f"127.0.0.1:{free_port()}", "tls_grpc": f"127.0.0.1:{free_port()}"}
        if given.pop("client_auth", None):
            tls["tls_client_ca"] = self.authority.path
        self.settings = Settings(data=folder, **(tls | places | given))

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Front]:
        self.listeners = HttpListeners(self.settings)
        self.listeners.serve(hello)
        watching = asyncio.create_task(self.listeners.watch())
        try:
            await self.listeners.started()
            async with rpc.front(self.settings, PUBLISHER, certificate=self.listeners.certificate):
                yield self
        finally:
            watching.cancel()
            await self.listeners.stop()


def run(work: Callable[[Front], Coroutine[Any, Any, None]], **given: Any) -> None:
    async def in_folder() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with Front(Path(folder), **given).serving() as front:
                await asyncio.wait_for(work(front), 120)

    uvloop.run(in_folder())  # as a front does


async def get(address: str, context: ssl.SSLContext | None, path: str = "/") -> tuple[bytes, bytes]:
    """The body of an answer over a connection of its own, and the server's certificate."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        writer.write(b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path.encode())
        answer = await reader.read()
        secured = writer.get_extra_info("ssl_object")
        shown = secured.getpeercert(True) if secured is not None else b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), answer
    return body, shown


def serial(certificate: bytes) -> int:
    return x509.load_der_x509_certificate(certificate).serial_number


def test_http_over_tls() -> None:
    async def work(front: Front) -> None:
        context = front.authority.context()
        body, shown = await get(front.settings.listen, context)
        assert (body, serial(shown)) == (b"https", front.server.serial)
        large = await asyncio.gather(*(get(front.settings.listen, context, "/large") for _ in range(8)))
        assert {len(body) for body, _ in large} == {len(BODY)}

    run(work)


def test_old_versions_of_tls_are_refused() -> None:
    async def work(front: Front) -> None:
        for newest, is_good in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context = front.authority.context()
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = newest
            if is_good:
                assert (await get(front.settings.listen, context))[0] == b"https"
            else:
                with pytest.raises(ConnectionResetError):  # by the server: the client itself would do it
                    await get(front.settings.listen, context)

    run(work)


def test_a_client_that_does_not_end_its_handshake_has_a_slot_and_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate_api.limits.TLS_HANDSHAKE_S_MAX", 0.5)
    monkeypatch.setattr(limits, "CONNECTIONS_A_CLIENT_MAX", 2)
    made: list[Connections] = []

    def kept() -> Connections:
        made.append(Connections())
        return made[-1]

    monkeypatch.setattr(front, "Connections", kept)

    async def work(front: Front) -> None:
        before = TLS_HANDSHAKES_FAILED.value
        host, _, port = front.settings.listen.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        assert await silent[0][0].read() == b"", "the oldest makes room"
        assert len(made[0]) <= 2
        assert await silent[2][0].read() == b"", "its time is over"
        while len(made[0]):
            await asyncio.sleep(0.01)
        assert TLS_HANDSHAKES_FAILED.value == before + 3
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert not (await reader.read()).startswith(b"HTTP"), "plain HTTP gets no answer"
        for _, one in [*silent, (reader, writer)]:
            one.close()
            with contextlib.suppress(OSError):
                await one.wait_closed()
        assert (await get(front.settings.listen, front.authority.context()))[0] == b"https"
        assert len(made[0]) <= 1

    run(work)


def test_a_required_client_certificate() -> None:
    async def work(front: Front) -> None:
        known, other = front.authority.context(front.client), Authority(front.settings.data / "other", "other")
        assert (await get(front.settings.listen, known))[0] == b"https"
        stranger = front.authority.context(other.issue("stranger"))
        for context in (front.authority.context(), stranger):
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                await get(front.settings.listen, context)
        certificate = {"client_cert": front.client.certificate, "client_key": front.client.key}
        assert await answers(front, **certificate)
        unknown = other.issue("unknown")
        assert not await answers(front)
        assert not await answers(front, client_cert=unknown.certificate, client_key=unknown.key)

    run(work, client_auth=True)


def test_an_optional_client_certificate_must_be_a_good_one() -> None:
    async def work(front: Front) -> None:
        other = Authority(front.settings.data / "other", "other")
        for client in (None, front.client):
            assert (await get(front.settings.listen, front.authority.context(client)))[0] == b"https"
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            await get(front.settings.listen, front.authority.context(other.issue("stranger")))

    run(work, client_auth=True, tls_client_auth="optional", grpc="off")


async def answers(front: Front, address: str = "", **certificate: Any) -> bool:
    """Whether gRPC answers: with an error, as there is no dispatcher here."""
    target = f"https://{address or front.settings.grpc}"
    async with AsyncClient(target, cacert=front.authority.path, patience_s=0.0, **certificate) as client:
        with pytest.raises(HeadgateError) as error:
            await client.stats("none")
        return error.value.code == "part-unavailable"


async def checks_health(front: Front) -> None:
    """A call over a connection of its own that the front itself answers; without an answer it raises."""
    credentials = grpc.ssl_channel_credentials(front.authority.path.read_bytes())
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with aio.secure_channel(front.settings.grpc, credentials, options=options) as channel:
        await HealthStub(channel).Check(HealthCheckRequest(), timeout=60)


def test_a_replaced_certificate_fails_no_request() -> None:
    """Of HTTP and gRPC, while connections are made all the time."""

    async def work(front: Front) -> None:
        context, serials = front.authority.context(), set()
        done = asyncio.Event()

        async def load() -> None:
            while not done.is_set():
                body, shown = await get(front.settings.listen, context)
                assert body == b"https"
                serials.add(serial(shown))
                await checks_health(front)

        loads = [asyncio.create_task(load()) for _ in range(4)]
        wanted = {front.server.serial}
        for _ in range(3):
            wanted.add(front.authority.issue("server").serial)
            while not wanted <= serials:
                await asyncio.sleep(0.05)
                for one in loads:
                    assert not one.done() or one.result() is None
        host, _, port = front.settings.grpc.rpartition(":")
        pem = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)), ca_certs=str(front.authority.path))
        assert x509.load_pem_x509_certificate(pem.encode()).serial_number in wanted - {front.server.serial}
        done.set()
        await asyncio.gather(*loads)

    run(work)


def test_permissive_serves_both_ports() -> None:
    async def work(front: Front) -> None:
        settings, context = front.settings, front.authority.context()
        assert await get(settings.listen, None) == (b"http", b"")
        assert (await get(settings.tls_listen, context))[0] == b"https"
        assert await answers(front, settings.tls_grpc)
        async with AsyncClient(settings.grpc, patience_s=0.0) as client:
            with pytest.raises(HeadgateError) as error:
                await client.stats("none")
            assert error.value.code != "disconnected"

    run(work, tls_mode="permissive")


async def failure(target: str, **options: Any) -> HeadgateError:
    async with AsyncClient(target, patience_s=0.0, **options) as client:
        with pytest.raises(HeadgateError) as error:
            await client.stats("none")
        return error.value


def test_a_client_of_grpc_says_what_is_wrong_with_tls() -> None:
    async def work(front: Front) -> None:
        target, authority = f"https://{front.settings.tls_grpc}", front.authority.path
        stranger = Authority(front.settings.data / "other", "other")
        untrusted = await failure(target, cacert=stranger.path)
        assert isinstance(untrusted, HandshakeError), untrusted
        assert "HEADGATE_CACERT" in untrusted.hint
        front.authority.issue("server", ("headgate.example.com",))
        assert front.listeners.certificate is not None
        for _ in range(2):
            front.listeners.certificate.look()
        named = await failure(target, cacert=authority)
        assert isinstance(named, HandshakeError), named
        assert named.hint == "name the server as its certificate does"
        plain = await failure(f"https://{front.settings.grpc}", cacert=authority)
        assert isinstance(plain, HandshakeError), plain
        assert "speaks no TLS" in plain.hint
        wrong = await failure(front.settings.tls_grpc)
        assert "https://HOST:PORT" in wrong.hint

    run(work, tls_mode="permissive")


def test_the_way_inward_needs_no_address() -> None:
    """A broker of this server is reached by the front's socket, whatever its URL; everything else is not."""

    class Outside:
        async def post(self, url: str, *_: Any) -> Outcome:
            return Outcome(599, detail=url)

    async def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            gone, socket = Path(folder) / "gone", Path(folder) / "in"
            async with local_http.answering(hello, socket):
                inward = InwardTransport([gone, socket])
                policy = UrlPolicy(own_url="https://events.example.com")
                transport = SplitTransport(policy, inward, Outside())
                own = await transport.post("https://events.example.com/ns/broker", [("ce-id", "1")], b"", 10.0)
                assert own.status == 200
                for url in ("https://events.example.com/apis/x", "https://other.example.com/ns/broker"):
                    assert (await transport.post(url, [], b"", 10.0)).detail == url
            nobody = await InwardTransport([gone]).post("https://events.example.com/ns/broker", [], b"", 10.0)
            assert (nobody.status, nobody.reason, nobody.unsent) == (0, "connection", True)

    uvloop.run(work())


def test_only_the_server_itself_is_shown_the_token() -> None:
    """Replies and deliveries to its own brokers show it, whether clients need TLS or not."""

    class Inside:
        shown: ClassVar[list[dict[str, str]]] = []

        async def post(self, _url: str, headers: Sequence[tuple[str, str]], *_: Any) -> Outcome:
            self.shown.append(dict(headers))
            return Outcome(202)

    async def work() -> None:
        async with Subscriber() as target:
            policy = UrlPolicy(own_url=f"http://127.0.0.1:{target.port}")
            own_url, foreign = f"{policy.own_url}/ns/broker", f"http://localhost:{target.port}/x"
            for inward in (None, Inside()):
                async with transports(policy, b"token", inward, None) as (own, outward):
                    assert [(await way.post(own_url, [], b"", 10.0)).status // 100 for way in (own, outward)] == [2, 2]
                    assert (await outward.post(foreign, [], b"", 10.0)).status == 202
            assert [one.header(TOKEN_HEADER) for one in target.requests] == [b"token".hex()] * 2 + [None] * 2
            assert [one[TOKEN_HEADER] for one in Inside.shown] == [b"token".hex()] * 2

    uvloop.run(work())
