"""What does it cost to know who makes a request? Processor time of a remembered token, and single POSTs a second.

    python -m benchmarks.auth                   pairs of runs, without and with a token, one after the other

First the authentication alone, in a loop: a token of an issuer and one of the file, both verified before. Then POSTs
to the real ingress on a real log, as in `ingress`, at two servers in turn, so that both meet the same machine: one
without authentication, and one that remembers the token of an issuer. The goals: under 10 us, and 0.9 of the POSTs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jwt
import uvicorn
import uvloop
from cryptography.hazmat.primitives.asymmetric import rsa

from benchmarks.ingress import PATH, bare, drive, requests
from headgate.auth.authenticator import Authenticator
from headgate.auth.claims import ClaimMapper
from headgate.auth.configuration import read
from headgate.auth.issuer_keys import IssuerKeys
from headgate.auth.json_web_tokens import TrustedIssuer
from headgate.auth.static_tokens import TokenFile, digest_of
from headgate.control.log_spec import DEFAULT_RULE, ServedBroker
from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.app import Ingress
from headgate.ingress.encode import event_commit
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.protocol import http_config
from headgate.limits import GC_YOUNG_OBJECTS
from headgate.log.directory import Partition
from headgate.log.writer import PartitionWriter
from headgate.server.authentication import Authentication

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


# --- alone ---------------------------------------------------------------------------------------


async def alone(token: str, authenticator: Authenticator | None, count: int) -> float:
    """Processor time of one request, in microseconds, of what stands before the application."""

    async def app(scope, receive, send) -> None:
        pass

    guarded = Authentication(authenticator).requests(app)
    headers = [(b"host", b"x"), (b"user-agent", b"bench"), (b"content-type", b"application/json")]
    headers += [(b"ce-id", b"1"), (b"ce-type", b"t"), (b"authorization", b"Bearer " + token.encode())]

    async def run(times: int) -> float:
        began = time.process_time()
        for _ in range(times):
            scope = {"type": "http", "path": PATH, "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1)}
            await guarded(scope, None, None)
        return (time.process_time() - began) / times * 1e6

    await run(1_000)
    return await run(count)


# --- the server process --------------------------------------------------------------------------


async def serve(folder: Path, *, has_token: bool) -> None:
    """Serves ingress on a free port; prints the port and the token, and at the end what it cost."""
    writers = [PartitionWriter(Partition(folder / str(number), "stop"), EVENT_SCHEMA) for number in range(2)]
    commits = [event_commit(writer) for writer in writers]
    brokers = {PATH[1:]: ServedBroker(f"{PATH[1:]}/1", DEFAULT_RULE)}
    authenticator, token = issued(folder)
    behind = Authentication(authenticator if has_token else None)
    app = behind.requests(Ingress(Intake(Partitions(commits), brokers.get), bare))
    server = uvicorn.Server(http_config(app, "127.0.0.1", 0))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)
    cpu_s = time.process_time()
    print(json.dumps({"port": server.servers[0].sockets[0].getsockname()[1], "token": token}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    cpu_s = time.process_time() - cpu_s
    server.should_exit = True
    await running
    for commit in commits:
        await commit.close()
    print(json.dumps({"cpu_s": cpu_s}), flush=True)
    for writer in writers:
        writer.close()


class Running:
    """A server process, and what its answers to all drives together cost; a context manager."""

    def __init__(self, folder: str, connections: int, *, has_token: bool) -> None:
        self._connections = connections
        self._answered = 0
        command = [sys.executable, "-m", "benchmarks.auth", "--serve", "token" if has_token else "open"]
        self._process = subprocess.Popen(
            [*command, "--directory", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._told = json.loads(self._line())
        self._load = [with_token(one, self._told["token"]) for one in requests(1)]
        self.cpu_us = 0.0

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.cpu_us = json.loads(self._line())["cpu_s"] / self._answered * 1e6
        self._process.wait()

    def drive(self, seconds: float) -> float:
        """POSTs a second."""
        times_s, took_s, answered = uvloop.run(drive(self._told["port"], self._load, self._connections, seconds))
        self._answered += answered
        return len(times_s) / took_s

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of runs")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each run")
    parser.add_argument("--connections", type=int, default=64, help="keep-alive connections")
    parser.add_argument("--count", type=int, default=200_000, help="requests of the loop")
    parser.add_argument("--directory", type=Path, help="where logs are made and removed; a real disk, not /dev/shm")
    parser.add_argument("--serve", choices=["open", "token"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve(arguments.directory, has_token=arguments.serve == "token"))
        return
    with tempfile.TemporaryDirectory() as folder:
        authenticator, token = issued(Path(folder))
        for name, given, shown in (
            ("no authentication", None, token),
            ("token of an issuer", authenticator, token),
            ("token of the file", authenticator, STATIC),
        ):
            print(f"{name:20} {uvloop.run(alone(shown, given, arguments.count)):6.2f} us a request", flush=True)
    ratios = []
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as one,
        tempfile.TemporaryDirectory(dir=arguments.directory) as other,
        Running(one, arguments.connections, has_token=False) as plain,
        Running(other, arguments.connections, has_token=True) as known,
    ):
        for number in range(arguments.pairs):
            order = (plain, known) if number % 2 == 0 else (known, plain)
            found = {server: server.drive(arguments.seconds) for server in order}
            ratios.append(found[known] / found[plain])
            print(f"pair {number}: {found[plain]:,.0f} and {found[known]:,.0f} POSTs/s, {ratios[-1]:.3f}", flush=True)
    print(f"median of {arguments.pairs} pairs: {statistics.median(ratios):.3f} of the POSTs without a token")
    print(f"processor time of the server: {plain.cpu_us:.1f} us a POST, {known.cpu_us:.1f} us with a token")


if __name__ == "__main__":
    main()
