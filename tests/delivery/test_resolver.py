"""Is the address that was judged the one connected to? Real sockets, a resolver of our own."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from headgate.auth.context import current_user
from headgate.auth.user import User, authenticated, sender_of
from headgate.delivery import http_connections
from headgate.delivery import resolver as resolver_module
from headgate.delivery.http_connections import ConnectionPools
from headgate.delivery.post import HttpTransport
from headgate.delivery.resolver import Hop, Route
from headgate.delivery.resolver import Routes as ResolvedRoutes
from headgate.delivery.retry import Outcome
from headgate.objects.kinds.credentials import ClientTls
from headgate.objects.kinds.egress import Listener, UrlPolicy
from headgate.server.processes.shard_deliveries import SenderIdentity
from headgate.settings import networks_of
from headgate_api import limits
from tests.delivery.harness import EventLog, Routes, Subscriber, event, matcher, run, running, target
from tests.support import executable, until

LOOPBACK_ONLY = UrlPolicy(reach="public", allow=networks_of("127.0.0.1"))


class Resolver:
    """Answers in turn; the last answer stays. An answer may be an error."""

    def __init__(self, *answers: list[str] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        await self.gate.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def post(transport: HttpTransport, url: str) -> Outcome:
    return await transport.post(url, [("ce-id", "1")], b"data", 5.0)


def test_a_name_is_sent_to_the_address_that_was_judged_with_its_host_header() -> None:
    async def work() -> None:
        async with Subscriber() as subscriber:
            resolver = Resolver(["127.0.0.1"])
            async with HttpTransport(LOOPBACK_ONLY, resolver) as transport:
                url = f"http://Shop.Example:{subscriber.port}/hook?a=%20b"
                assert (await post(transport, url)).status == 202
                assert (await post(transport, url)).status == 202
            assert resolver.asked == ["shop.example"], "one answer serves for a while"
            for request in subscriber.requests:
                assert request.path == "/hook?a=%20b"
                assert request.header("host") == f"shop.example:{subscriber.port}"
            assert subscriber.connections == 1

    run(work())


def test_names_that_hang_delay_those_of_no_other_namespace_or_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that the loud team asks for as well, behind all of its own."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def ask(host: str, _: int) -> list[str]:
        if host.startswith("hangs"):
            begun.release()
            assert go_on.wait(60)
        return ["127.0.0.1"]

    monkeypatch.setattr(resolver_module, "_addresses", ask)
    count = limits.DNS_THREADS_MAX

    async def work() -> None:
        routes = ResolvedRoutes(LOOPBACK_ONLY, ConnectionPools())

        def find(who: User, host: str) -> asyncio.Task[Route]:
            current_user.set(who)
            return asyncio.create_task(routes.find(f"http://{host}/", 60.0))

        loud = sender_of("loud/t")
        hanging = [find(loud, f"hangs{number}.example") for number in range(2 * count)]
        behind = find(loud, "shared.example")
        try:
            for _ in range(count // 2):
                assert await asyncio.to_thread(begun.acquire, timeout=60)
            for who, host in (
                (sender_of("quiet/t"), "shared.example"),
                (sender_of("loud/other"), "own.example"),
                (authenticated("owner of a replay"), "shared.example"),
            ):
                assert (await find(who, host)).refusal is None
            assert not any(one.done() for one in hanging)
        finally:
            go_on.set()
        assert not (await behind).refusal
        assert not any([(await one).refusal for one in hanging])
        await routes.close()

    run(work())


def test_a_connection_that_a_subscriber_may_be_closing_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "IDLE_CONNECTION_S", 0.7)

    async def work() -> None:
        async with Subscriber() as subscriber, HttpTransport() as transport:
            for pause_s in (0.0, 0.0, 1.5):
                await asyncio.sleep(pause_s)
                assert (await post(transport, f"http://127.0.0.1:{subscriber.port}/")).status == 202
            assert subscriber.connections == 2

    run(work())


@pytest.mark.parametrize("bad", ["10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.2", "127.0.0.2"])
def test_a_name_that_leads_to_a_refused_address_is_not_connected_to(bad: str) -> None:
    async def work() -> None:
        async with HttpTransport(LOOPBACK_ONLY, Resolver([bad])) as transport:
            outcome = await post(transport, "http://evil.example/")
            assert (outcome.status, outcome.reason) == (0, "policy")
            assert "evil.example" in outcome.detail

    run(work())


def test_of_several_addresses_only_the_good_ones_are_used_and_the_next_when_one_refuses() -> None:
    async def work() -> None:
        async with Subscriber() as subscriber:
            policy = UrlPolicy(reach="public", allow=networks_of("127.0.0.0/8"))
            resolver = Resolver(["10.0.0.1", "127.0.0.9", "127.0.0.1"])  # nobody listens on the second
            async with HttpTransport(policy, resolver) as transport:
                for _ in range(3):
                    assert (await post(transport, f"http://many.example:{subscriber.port}/")).status == 202

    run(work())


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_what_one_address_has_read_is_not_sent_to_the_next(reset: bool) -> None:
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\ndata"))
        if reset:
            writer.transport.abort()
        else:
            writer.close()

    async def work() -> None:
        server = await asyncio.start_server(hear, ["127.0.0.1"], 0)
        port = server.sockets[0].getsockname()[1]
        async with (
            server,
            await asyncio.start_server(hear, ["127.0.0.2"], port),
            HttpTransport(resolve=Resolver(["127.0.0.1", "127.0.0.2"])) as transport,
        ):
            outcome = await post(transport, f"http://many.example:{port}/")
            assert (outcome.status, outcome.reason, outcome.unsent) == (0, "connection", False)
            assert len(heard) == 1
            nobody = await post(transport, "http://127.0.0.1:1/")
            assert (nobody.reason, nobody.unsent) == ("refused", True)

    run(work())


def test_an_attempts_time_covers_the_name_and_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    async def attempt(
        _self: HttpTransport, _hop: Hop, _headers: object, _body: bytes, timeout_s: float, _connect_s: float, _: object
    ) -> Outcome:
        given.append(timeout_s)
        await asyncio.sleep(0.02)
        return Outcome(0, "connection", unsent=True)

    async def work() -> None:
        resolver = Resolver([f"127.0.0.{n}" for n in range(1, 5)])
        resolver.gate.clear()
        async with HttpTransport(resolve=resolver) as transport:
            began = asyncio.get_running_loop().time()
            late = await transport.post("http://slow.example/", [], b"", 0.05)
            assert late.reason == "timeout"
            assert asyncio.get_running_loop().time() - began < limits.DNS_S_MAX / 2
            asyncio.get_running_loop().call_later(0.1, resolver.gate.set)
            await transport.post("http://slower.example/", [], b"", 9.0)
            assert given == sorted(given, reverse=True)
            assert len(set(given)) == 4
            assert given[0] < 8.95
            given.clear()
            await transport.post("http://slower.example/", [], b"", 0.01)
            assert len(given) < 4

    monkeypatch.setattr(HttpTransport, "_try", attempt)
    run(work())


def test_a_name_that_changes_its_address_meanwhile_is_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: harmless when asked first, another address later."""
    monkeypatch.setattr(limits, "DNS_TTL_S", 0.0)

    async def work() -> None:
        async with Subscriber() as subscriber:
            resolver = Resolver(["127.0.0.1"], ["10.0.0.1"])
            async with HttpTransport(LOOPBACK_ONLY, resolver) as transport:
                url = f"http://rebinds.example:{subscriber.port}/"
                assert (await post(transport, url)).status == 202
                while (outcome := await post(transport, url)).status == 202:
                    await asyncio.sleep(0)
                assert outcome.reason == "policy"
            assert len(resolver.asked) >= 2

    run(work())


def test_a_resolver_that_hangs_or_fails_later_costs_nothing_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DNS_TTL_S", 0.0)
    monkeypatch.setattr(limits, "DNS_FAILURE_S", 0.0)

    async def work() -> None:
        async with Subscriber() as subscriber:
            resolver = Resolver(["127.0.0.1"], OSError("no resolver"), OSError("no resolver"))
            async with HttpTransport(LOOPBACK_ONLY, resolver) as transport:
                url = f"http://known.example:{subscriber.port}/"
                assert (await post(transport, url)).status == 202
                for _ in range(5):
                    assert (await post(transport, url)).status == 202
                resolver.gate.clear()
                for _ in range(5):
                    assert (await post(transport, url)).status == 202
                assert len(resolver.asked) >= 3
                unknown = asyncio.create_task(post(transport, "http://unknown.example/"))
                assert (await post(transport, url)).status == 202
                resolver.gate.set()
                outcome = await unknown
                assert (outcome.reason, "no resolver" in outcome.detail) == ("dns", True)

    run(work())


def test_a_name_nobody_answers_for_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DNS_S_MAX", 0.05)

    async def work() -> None:
        resolver = Resolver(["127.0.0.1"])
        resolver.gate.clear()
        async with HttpTransport(LOOPBACK_ONLY, resolver) as transport:
            outcomes = await asyncio.gather(*(post(transport, "http://slow.example/") for _ in range(20)))
            assert {outcome.reason for outcome in outcomes} == {"timeout"}
            assert len(resolver.asked) == 1, "who asks for the same name waits for the same answer"

    run(work())


def test_the_systems_resolver_knows_localhost() -> None:
    async def work() -> None:
        async with Subscriber() as subscriber, HttpTransport() as transport:
            assert (await post(transport, f"http://localhost:{subscriber.port}/")).status == 202
            assert (await post(transport, "http://no-such-name.invalid/")).reason == "dns"

    run(work())


def test_a_name_that_no_resolver_takes_is_a_failed_attempt() -> None:
    async def work() -> None:
        async with HttpTransport() as transport:
            for host in ("a..b", "a" * 64 + ".example", "\u00fc" * 60 + ".example"):
                outcome = await post(transport, f"http://{host}/")
                assert (outcome.status, outcome.reason) == (0, "policy")
        for answer in (UnicodeError("label empty or too long"), ["nonsense"]):
            async with HttpTransport(resolve=Resolver(answer)) as transport:
                outcome = await post(transport, "http://odd.example/")
                assert (outcome.status, outcome.reason) == (0, "dns")
                assert "odd.example" in outcome.detail

    run(work())


def test_tls_names_are_pinned_and_their_certificates_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [
        executable("openssl"),
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=shop.example",
    ]
    command += ["-addext", "subjectAltName=DNS:shop.example", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    trusted = http_connections.tls_context(ClientTls(certificate.read_text()))
    monkeypatch.setattr(resolver_module, "tls_context", lambda _: trusted)
    heads: list[bytes] = []
    names: list[str | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 202 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async def work() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.sni_callback = lambda _socket, name, _context: names.append(name)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with HttpTransport(LOOPBACK_ONLY, Resolver(["127.0.0.1"])) as transport:
            outcome = await post(transport, f"https://shop.example:{port}/")
            assert outcome.status == 202, outcome
            assert b"host: shop.example:%d" % port in heads[0].lower()
            assert names == ["shop.example"]
            refused = await post(transport, f"https://other.example:{port}/")
            assert (refused.reason, "Hostname mismatch" in refused.detail) == ("certificate", True), refused
        async with HttpTransport(LOOPBACK_ONLY, Resolver(["10.0.0.1"])) as transport:
            assert (await post(transport, f"https://shop.example:{port}/")).reason == "policy"
        server.close()

    run(work())


def test_a_name_that_leads_to_this_server_is_connected_to_for_its_brokers_only() -> None:
    async def work() -> None:
        async with Subscriber() as server:
            here = ipaddress.ip_address("127.0.0.1")
            policy = UrlPolicy(own=(Listener("", server.port, lambda address: address == here, takes_events=True),))
            async with HttpTransport(policy, Resolver(["127.0.0.1"])) as transport:
                for path in ("apis/x/v1/namespaces/default/triggers", "%61pis/x", "metrics"):
                    outcome = await post(transport, f"http://other.example:{server.port}/{path}")
                    assert (outcome.status, outcome.reason) == (0, "policy")
                    assert "own API" in outcome.detail
                assert (await post(transport, f"http://other.example:{server.port}/ns/broker")).status == 202
            assert [request.path for request in server.requests] == ["/ns/broker"]

    run(work())


def test_a_refused_name_is_tried_again_told_and_never_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REPORT_S_MIN", 0.01)
    log = EventLog(tmp_path)

    async def work() -> None:
        async with Subscriber() as subscriber:
            url = f"http://localhost:{subscriber.port}/"
            routes = Routes(target(1, url, retry=2, backoff_delay_s=0.01))
            public = SenderIdentity(policy=UrlPolicy(reach="public"))
            async with running(tmp_path, routes, identity=public) as work, matcher(work) as peer:
                log.append([event(0)])
                peer.match((0, 1))
                await until(lambda: any(report.trouble for report in routes.reports))
                await until(lambda: work.dispatcher.unfinished == 0)
                (trouble,) = {report.trouble for report in routes.reports if report.trouble}
                assert trouble.startswith("UrlRefused: localhost: address ")
            assert subscriber.connections == 0

    run(work())
    log.close()
