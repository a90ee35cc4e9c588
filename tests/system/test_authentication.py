"""A server that knows its users by tokens of a real OpenID provider and of a file: HTTP, gRPC, commands, kubectl."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import ssl
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.server import Server
from headgate_api.errors import HeadgateError, UnauthenticatedError
from headgate_api.limits import TOKEN_BYTES_MAX
from headgate_client.sync import Client
from headgate_client.values import new_event
from tests.auth.issuing import Issuer, b64
from tests.auth.provider import AUDIENCE, Provider
from tests.commands import headgate
from tests.support import eventually, executable
from tests.system.secured import Secured

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

_numbers = itertools.count()
WAIT_S = 90.0


@dataclass(frozen=True)
class Guarded:
    """The server, and how one comes in."""

    server: Server
    provider: Provider
    secure: ssl.SSLContext
    folder: Path
    static: str

    def request(self, path: str, token: str = "", method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
        """The status and the headers of an answer. Each comes from another address: who tries many is slowed down."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            headers |= {"content-type": "application/cloudevents+json"}
        number = next(_numbers)
        connection = http.client.HTTPSConnection(
            "127.0.0.1",
            self.server.port,
            timeout=60,
            context=self.secure,
            source_address=(f"127.0.{1 + number // 250}.{1 + number % 250}", 0),
        )
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.headers

    def refused_tokens(self) -> Counter[str]:
        """How many were refused so far, by reason."""
        call = urllib.request.Request(f"{self.server.url}/metrics", headers={"authorization": f"Bearer {self.static}"})
        with urllib.request.urlopen(call, timeout=60, context=self.secure) as answer:
            text = answer.read().decode()
        found = re.findall(r'^headgate_tokens_refused_total\{reason="([^"]+)"\} (\S+)$', text, re.MULTILINE)
        return Counter({reason: int(float(count)) for reason, count in found})

    def publish(self, token: str, broker: str = "default", id_: str = "1") -> int:
        event = {"specversion": "1.0", "id": id_, "source": "/s", "type": "t"}
        return self.request(f"/default/{broker}", token, "POST", json.dumps(event).encode())[0]

    def command(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        known = {"HEADGATE_SERVER": self.server.url, "HEADGATE_CACERT": self.folder / "ca.pem", **environment}
        done = headgate(*arguments, **known)
        return done.exit_code, done.stdout, done.stderr

    def kubeconfig(self, token: str) -> Path:
        path = self.folder / "kubeconfig"
        path.write_text(f"""\
apiVersion: v1
kind: Config
clusters: [{{name: here, cluster: {{server: "{self.server.url}", certificate-authority: ca.pem}}}}]
users: [{{name: me, user: {{token: "{token}"}}}}]
contexts: [{{name: mine, context: {{cluster: here, user: me, namespace: default}}}}]
current-context: mine
""")
        return path

    def audited(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first line of the audit log of which something is true."""
        ends = time.monotonic() + WAIT_S
        while True:
            lines = [json.loads(line) for line in (self.folder / "audit.log").read_text().splitlines()]
            if found := [line for line in lines if holds(line)]:
                return found[0]
            assert time.monotonic() < ends, lines[-5:]
            time.sleep(0.1)


@pytest.fixture(scope="module")
def guarded(secured: Secured) -> Guarded:
    return Guarded(secured.server, secured.provider, secured.secure, secured.folder, secured.robot)


def test_who_says_nothing_is_refused(guarded: Guarded) -> None:
    for path in ("/livez", "/readyz"):
        assert guarded.request(path)[0] == 200
    for path in ("/readyz?verbose", "/readyz?%76erbose", "/metrics", "/apis", "/default/default/events", "/nowhere"):
        status, headers = guarded.request(path)
        assert (path, status, headers["www-authenticate"]) == (path, 401, 'Bearer realm="headgate"')
    status, headers = guarded.request("/default/default", "wrong", "POST", b"{}")
    assert (status, 'error="invalid_token"' in headers["www-authenticate"]) == (401, True)
    status, _, said = guarded.command("get", "brokers")
    assert (status, "does not say who makes it" in said) == (1, True)


def test_a_token_of_the_provider_comes_in_everywhere(guarded: Guarded) -> None:
    token = guarded.provider.token()
    assert guarded.publish(token) == 202
    (guarded.folder / "token").write_text(f"{token}\n")
    file = str(guarded.folder / "token")
    assert guarded.command("send", "--type", "t", "--id", "2", "--token-file", file)[:2] == (0, "accepted 2\n")
    assert guarded.command("get", "brokers", HEADGATE_TOKEN_FILE=file)[0] == 0
    kubeconfig = str(guarded.kubeconfig(token))
    status, output, said = guarded.command("get", "brokers", "--context", "mine", KUBECONFIG=kubeconfig)
    assert (status, "default" in output, said) == (0, True, "")
    with Client(f"https://{guarded.server.grpc}", cacert=guarded.folder / "ca.pem", token_file=file) as client:
        client.publish("default", new_event("t", "/grpc", {"n": 1}))
        with client.read("default", start="earliest", follow=False) as reader:
            assert sum(1 for _ in reader) >= 3
    line = guarded.audited(lambda one: one["user"]["username"] == "ci" and one["verb"] == "create")
    assert line["user"]["groups"] == ["writers", "system:authenticated"]
    assert line["user"]["extra"] == {"example.com/client": ["ci"]}
    assert line["responseStatus"]["code"] == 202
    assert line["sourceIPs"][0].startswith("127.0.")


def test_kubectl_comes_in_with_a_token(guarded: Guarded) -> None:
    def kubectl(token: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [executable("kubectl"), "--kubeconfig", str(guarded.kubeconfig(token)), *arguments]
        environment = {"PATH": os.environ["PATH"], "HOME": str(guarded.folder)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    done = kubectl(guarded.provider.token(), "get", "brokers")
    assert (done.returncode, "default" in done.stdout) == (0, True), done.stderr
    refused = kubectl("wrong", "get", "brokers")
    assert refused.returncode != 0
    assert "Unauthorized" in refused.stderr or "must be logged in" in refused.stderr


def test_grpc_refuses_what_http_refuses(guarded: Guarded) -> None:
    for token in ("", "wrong", guarded.provider.token(audience="urn:other")):
        options = {"cacert": guarded.folder / "ca.pem", "token": token, "patience_s": 5.0}
        with Client(f"https://{guarded.server.grpc}", **options) as client, pytest.raises(UnauthenticatedError):
            client.publish("default", new_event("t", "/grpc", {}))


def test_forged_tokens_of_the_provider_are_refused_and_counted(guarded: Guarded) -> None:
    """Made by somebody who knows everything of the provider but its private key; or by itself, for another broker."""
    provider, stranger = guarded.provider, Issuer(guarded.provider.url)
    claims = stranger.claims(aud=AUDIENCE, sub="ci", groups=["writers"], client_id="ci")
    (key,) = provider.keys()
    head, body, signature = provider.token().split(".")
    kid, expired = key["kid"], int(time.time()) - 3_600
    forged = [
        ("signature", stranger.token(claims, kid=kid)),
        ("signature", stranger.token(claims | {"exp": expired}, kid=kid)),
        ("signature", f"{head}.{b64(json.dumps(claims | {'sub': 'root'}).encode())}.{signature}"),
        ("key", stranger.token(claims, kid="../../../dev/null")),
        ("algorithm", stranger.token(claims, kid=kid, alg="none")),
        ("algorithm", stranger.token(claims, kid=kid, alg="HS256")),
        ("issuer", stranger.token(claims | {"iss": "https://evil.example"}, kid=kid)),
        ("audience", provider.token(audience="urn:other-broker")),
        ("malformed", f"{head}.{body}."),
        ("malformed", f"{head}.{body}.{signature}" + "A" * TOKEN_BYTES_MAX),
    ]
    before = guarded.refused_tokens()
    for reason, token in forged:
        status, headers = guarded.request("/default/default", token, "POST", b"{}")
        assert (status, 'error="invalid_' in headers["www-authenticate"]) == (401, True), reason
    wanted = before + Counter(reason for reason, _ in forged)
    eventually(lambda: guarded.refused_tokens() >= wanted)


def test_a_token_does_not_go_over_a_network_in_the_clear() -> None:
    with (
        Client("192.0.2.1:1", token="secret", patience_s=1.0) as client,
        pytest.raises(HeadgateError, match="others can read it"),
    ):
        client.publish("default", new_event("t", "/s", {}))


def test_a_token_of_the_file_is_good_until_it_is_revoked(guarded: Guarded) -> None:
    file = str(guarded.folder / "tokens.csv")
    status, output, _ = guarded.command("token", "create", "--user", "guest", "--group", "robots", "--file", file)
    token = output.strip()
    assert status == 0
    eventually(lambda: guarded.publish(token) == 202)
    assert guarded.command("token", "revoke", "--user", "guest", "--file", file)[0] == 0
    eventually(lambda: guarded.publish(token) == 401)
    assert guarded.publish(guarded.static) == 202


def test_the_server_delivers_into_its_own_brokers(guarded: Guarded) -> None:
    """Its own processes need no token, where everybody else does."""
    server = guarded.server
    server.create("brokers", "default", "second", {})
    server.create(
        "triggers",
        "default",
        "onward",
        {
            "broker": "default",
            "filter": {"attributes": {"type": "t"}},
            "subscriber": {"uri": f"{server.url}/default/second"},
        },
    )
    server.wait_trigger_ready("default", "onward")
    assert guarded.publish(guarded.static, id_="onward-1") == 202
    options = {"cacert": guarded.folder / "ca.pem", "token": guarded.static}
    with (
        Client(f"https://{server.grpc}", **options) as client,
        client.read("second", start="earliest", follow=True) as reader,
    ):
        assert next(iter(reader)).event.id
    made = ("create", "/apis/eventing.knative.dev/v1/namespaces/default/triggers")
    line = guarded.audited(lambda one: (one["verb"], one["requestURI"]) == made)
    assert (line["user"]["username"], line["responseStatus"]["code"]) == ("root", 201)


def test_the_audit_log_holds_refusals_and_no_secrets(guarded: Guarded) -> None:
    token = guarded.provider.token(audience="urn:other")
    assert guarded.publish(token) == 401
    line = guarded.audited(
        lambda one: (
            "somebody else" in one["responseStatus"].get("message", "") and one["requestURI"] == "/default/default"
        )
    )
    assert (line["kind"], line["apiVersion"], line["level"]) == ("Event", "audit.k8s.io/v1", "Metadata")
    assert (line["user"]["username"], line["responseStatus"]["code"]) == ("system:anonymous", 401)
    text = (guarded.folder / "audit.log").read_text() + (guarded.folder / "server.log").read_text()
    for secret in (token, guarded.static, token.split(".")[2]):
        assert secret not in text


@pytest.mark.slow
def test_keys_rotate_and_the_provider_may_be_away(guarded: Guarded) -> None:
    old = guarded.provider.token()
    assert guarded.publish(old) == 202
    guarded.provider.rotate()
    new = guarded.provider.token()
    eventually(lambda: guarded.publish(new) == 202)  # an unknown key is looked for, now and then
    assert guarded.publish(old) == 401  # its key is gone
    guarded.provider.stop()
    try:
        assert guarded.publish(new) == 202
        assert guarded.publish(guarded.static) == 202
        eventually(lambda: guarded.publish(old) == 503)  # nobody can say now whose key that is
    finally:
        guarded.provider.start()
        eventually(lambda: guarded.publish(guarded.provider.token()) == 202)
