"""What does it cost to know who makes a request, and whether he may? Single POSTs a second, and processor time.

    python -m benchmarks.auth                   slices of 0.5 s at four servers in turn

First what stands before the application alone, in a loop: nobody is asked, a token of an issuer, one of the file; both
were verified before, and rights are decided by roles and bindings.

Then POSTs to four servers of the same parts as a front has (names of the server, authentication, rights, ingress on a
real log, each on its own): open, with a token and rights, open over TLS, with both over TLS. Every request bears the
token, so that all servers read the same bytes. Connections stay open, and the servers are driven in turn by short
slices, forwards and backwards, so that each meets the same machine. What is printed are medians of the ratios within a
round, with the middle half of them: a machine that is busy for some rounds does not move them. Beside the rates stands
the processor time of the server a POST, which says what a busy machine hides. The goals: under 10 us for the token, and
0.9 of the POSTs without.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import uvloop
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.certificates import Authority

from benchmarks.ingress import PATH, bare, requests
from headgate.auth.authenticator import Authenticator
from headgate.auth.authorizer import (
    AlwaysAllow,
    Authorizer,
    Binding,
    BindingSubject,
    RbacAuthorizer,
    RbacPolicy,
    RoleKey,
    SubjectKind,
)
from headgate.auth.configuration import read
from headgate.auth.issuer_keys import IssuerKeys
from headgate.auth.json_web_tokens import ClaimMapper, TrustedIssuer
from headgate.auth.rules import AccessRule
from headgate.auth.static_tokens import TokenFile, digest_of
from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.encode import event_commit
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.publish_http import Ingress
from headgate.log.directory import Partition
from headgate.log.writer import PartitionWriter
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.server.authentication import Authentication
from headgate.server.authorization import Authorization
from headgate.server.hosts import HostCheck, Hosts
from headgate.server.processes.front import HttpListeners
from headgate.settings import Settings
from headgate.testing.server import free_port
from headgate_api.limits import GC_YOUNG_OBJECTS

URL = "https://issuer.example"
STATIC = "headgate_static"
CONFIGURATION = f"""
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer: {{url: "{URL}", audiences: [headgate]}}
  claimMappings:
    username: {{claim: sub, prefix: "oidc:"}}
    groups: {{expression: "claims.groups.map(g, 'oidc:' + g)"}}
"""


def issued(folder: Path) -> tuple[Authenticator, str]:
    """An authenticator that trusts an issuer and a file, and a token of that issuer."""
    key = rsa.generate_private_key(65537, 2048)
    jwk = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)

    async def fetch(url: str) -> object:
        return {"keys": [jwk]} if url.endswith("/jwks") else {"issuer": URL, "jwks_uri": f"{URL}/jwks"}

    (folder / "issuers.yaml").write_text(CONFIGURATION)
    (folder / "tokens.csv").write_text(f"sha256:{digest_of(STATIC.encode()).hex()},robot,,robots\n")
    (settings,) = read(folder / "issuers.yaml")
    issuer = TrustedIssuer(URL, ("headgate",), IssuerKeys(URL, "", fetch), ClaimMapper(settings, "jwt[0]"))
    claims = {"iss": URL, "aud": "headgate", "sub": "ada", "exp": int(time.time()) + 3_600, "groups": ["dev", "ops"]}
    return Authenticator(TokenFile(folder / "tokens.csv"), (issuer,)), jwt.encode(claims, key, "RS256")


def with_token(request: bytes, token: str) -> bytes:
    """A request of HTTP/1.1 with the header `Authorization`."""
    line, rest = request.split(b"\r\n", 1)
    return line + b"\r\nauthorization: Bearer " + token.encode() + b"\r\n" + rest


def rights(namespaces: int = 50) -> Authorizer:
    """Decides by as many bindings in other namespaces, and one by which a group publishes where the requests go."""
    rule = AccessRule(frozenset({"create"}), frozenset({"eventing.knative.dev"}), frozenset({"brokers/events"}))
    role = RoleKey("publisher")
    own = PATH.split("/")[1]
    named = [own, *(f"team-{number}" for number in range(namespaces))]
    groups = (BindingSubject(SubjectKind.GROUP, "oidc:dev"), BindingSubject(SubjectKind.USER, "robot"))
    authorizer = RbacAuthorizer()
    authorizer.policy = RbacPolicy({role: (rule,)}, [Binding(one, one, role, groups) for one in named])
    return authorizer


def guarded(app, authenticator: Authenticator | None):
    """An application behind what a front has before it."""
    authorization = Authorization(AlwaysAllow() if authenticator is None else rights())
    behind = Authentication(authenticator).requests(authorization.requests(app))
    return HostCheck(behind, Hosts.of(Settings()))


# --- alone ---------------------------------------------------------------------------------------


async def alone(token: str, authenticator: Authenticator | None, count: int) -> float:
    """Processor time of one request, in microseconds, of what stands before the application."""

    async def app(scope, receive, send) -> None:
        pass

    asked = guarded(app, authenticator)
    headers = [(b"host", b"127.0.0.1"), (b"user-agent", b"bench"), (b"content-type", b"application/json")]
    headers += [(b"ce-id", b"1"), (b"ce-type", b"t"), (b"authorization", b"Bearer " + token.encode())]
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": PATH, "query_string": b""}
    scope |= {"headers": headers, "client": ("127.0.0.1", 1)}

    async def run(times: int) -> float:
        began = time.process_time()
        for _ in range(times):
            await asked(dict(scope), None, refused)
        return (time.process_time() - began) / times * 1e6

    await run(1_000)
    return await run(count)


async def refused(message) -> None:
    """Nothing is answered here but refusals."""
    raise RuntimeError(f"refused: {message}")


# --- the server process --------------------------------------------------------------------------


async def serve(folder: Path, *, has_token: bool, is_tls: bool) -> None:
    """Serves ingress until standard input ends; prints where, and what clients show and trust."""
    writers = [PartitionWriter(Partition(folder / str(number), "stop"), EVENT_SCHEMA) for number in range(2)]
    commits = [event_commit(writer) for writer in writers]
    brokers = {PATH[1:]: ServedBroker(f"{PATH[1:]}/1", DEFAULT_RULE)}
    authenticator, token = issued(folder)
    app = guarded(Ingress(Intake(Partitions(commits), brokers.get), bare), authenticator if has_token else None)
    authority = Authority(folder)
    pair = authority.issue("server")
    files = {"tls_cert": pair.certificate, "tls_key": pair.key} if is_tls else {}
    port = free_port()
    listeners = HttpListeners(Settings(data=folder, listen=f"127.0.0.1:{port}", grpc="off", **files))
    serving = listeners.serve(app)
    await listeners.started()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)
    print(json.dumps({"port": port, "token": token, "ca": str(authority.path) if is_tls else ""}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await listeners.stop()
    for task in serving:
        task.cancel()
    for commit in commits:
        await commit.close()
    for writer in writers:
        writer.close()


# --- the client ----------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """Sends one request after the other while it may; counts the answers."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source = source
        self._got = b""
        self._transport = asyncio.Transport()
        self._idle = asyncio.Event()
        self._may_send = False
        self._failure: Exception | None = None
        self.answered = 0
        self._idle.set()

    def connection_made(self, transport) -> None:
        """Waits until it may send."""
        self._transport = transport

    def go(self) -> None:
        """Sends until it is told to stop."""
        self._may_send = True
        self._idle.clear()
        self._transport.write(next(self._source))

    async def stop(self) -> None:
        """Returns when the request under way is answered."""
        self._may_send = False
        await self._idle.wait()
        if self._failure is not None:
            raise self._failure

    def data_received(self, data: bytes) -> None:
        """Counts an answer and sends the next request."""
        self._got += data
        if not self._got.endswith(b"\r\n\r\n"):
            return
        if not self._got.startswith(b"HTTP/1.1 202"):
            self._end(RuntimeError(f"refused: {self._got[:300]!r}"))
            return
        self._got = b""
        self.answered += 1
        if self._may_send:
            self._transport.write(next(self._source))
        else:
            self._idle.set()

    def connection_lost(self, error) -> None:
        """Ends the measurement if it is under way."""
        self._end(error or RuntimeError("the server closed the connection"))

    def _end(self, failure: Exception) -> None:
        self._failure = failure
        self._idle.set()


class Running:
    """A server process and connections to it; `close` ends both."""

    def __init__(self, folder: str, name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.auth", "--serve", name, "--directory", folder]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._told = json.loads(self._process.stdout.readline())
        self._clock = (~self._process.pid << 3) | 2  # CPUCLOCK_SCHED of a process: see clock_getcpuclockid(3)
        self._made: list[Connection] = []

    async def connect(self, connections: int) -> None:
        """Opens the connections."""
        source = itertools.cycle([with_token(one, self._told["token"]) for one in requests(1)])
        context = ssl.create_default_context(cafile=self._told["ca"]) if self._told["ca"] else None
        loop, port = asyncio.get_running_loop(), self._told["port"]
        for _ in range(connections):
            _, made = await loop.create_connection(lambda: Connection(source), "127.0.0.1", port, ssl=context)
            self._made.append(made)

    async def slice(self, seconds: float) -> tuple[float, float]:
        """POSTs a second, and processor time of the server in microseconds a POST, of so many seconds."""
        cpu_s, began_s, answered = time.clock_gettime(self._clock), time.perf_counter(), self._answered
        for one in self._made:
            one.go()
        await asyncio.sleep(seconds)
        for one in self._made:
            await one.stop()
        count = self._answered - answered
        return count / (time.perf_counter() - began_s), (time.clock_gettime(self._clock) - cpu_s) / count * 1e6

    @property
    def _answered(self) -> int:
        return sum(one.answered for one in self._made)

    def close(self) -> None:
        """Ends the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


SERVERS = {"open": "open", "token": "token + RBAC", "open-tls": "open, TLS", "token-tls": "token + RBAC, TLS"}
"""The servers by their names here, as they are printed."""
PAIRS = (("token", "open"), ("open-tls", "open"), ("token-tls", "open-tls"))
"""What is compared with what."""


async def measured(running: dict[str, Running], rounds: int, seconds: float, connections: int) -> None:
    """Drives the servers in turn, and prints what came out."""
    for server in running.values():
        await server.connect(connections)
        await server.slice(seconds)  # to warm it up
    found: list[dict[str, tuple[float, float]]] = []
    for number in range(rounds):
        names = list(running) if number % 2 == 0 else list(reversed(running))
        found.append({name: await running[name].slice(seconds) for name in names})
        shown = ", ".join(f"{SERVERS[name]} {found[-1][name][0]:,.0f}" for name in running)
        print(f"round {number}: {shown} POSTs/s", flush=True)
    print()
    for name, shown in SERVERS.items():
        rate, cpu_us = (statistics.median(one[name][part] for one in found) for part in (0, 1))
        print(f"{shown:18} {rate:8,.0f} POSTs/s  {cpu_us:6.1f} us of processor time a POST")
    for name, beside in PAIRS:
        rates = sorted(one[name][0] / one[beside][0] for one in found)
        costs = statistics.median(one[name][1] - one[beside][1] for one in found)
        low, high = rates[len(rates) // 4], rates[-1 - len(rates) // 4]
        half = max(1, round(0.98 * len(rates) ** 0.5))  # ranks around the median that hold it in 95 of 100 runs
        least, most = rates[max(0, len(rates) // 2 - half)], rates[min(len(rates) - 1, len(rates) // 2 + half)]
        print(
            f"{SERVERS[name]} beside {SERVERS[beside]}: {statistics.median(rates):.3f} of the POSTs "
            f"(95 % of the median {least:.3f} to {most:.3f}, middle half of {rounds} rounds {low:.3f} to {high:.3f}), "
            f"{costs:+.1f} us a POST"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="slices at each server")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of each slice")
    parser.add_argument("--connections", type=int, default=64, help="keep-alive connections to each server")
    parser.add_argument("--count", type=int, default=200_000, help="requests of the loop")
    parser.add_argument("--directory", type=Path, help="where logs are made and removed; a real disk, not /dev/shm")
    parser.add_argument("--serve", choices=list(SERVERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        is_tls = arguments.serve.endswith("-tls")
        uvloop.run(serve(arguments.directory, has_token=arguments.serve.startswith("token"), is_tls=is_tls))
        return
    with tempfile.TemporaryDirectory() as folder:
        authenticator, token = issued(Path(folder))
        for name, given, shown in (
            ("nobody is asked", None, token),
            ("token of an issuer", authenticator, token),
            ("token of the file", authenticator, STATIC),
        ):
            print(f"{name:20} {uvloop.run(alone(shown, given, arguments.count)):6.2f} us a request", flush=True)
    if not arguments.rounds:
        return
    with contextlib.ExitStack() as stack:
        running = {}
        for name in SERVERS:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory))
            running[name] = Running(folder, name)
            stack.callback(running[name].close)
        uvloop.run(measured(running, arguments.rounds, arguments.seconds, arguments.connections))


if __name__ == "__main__":
    main()
