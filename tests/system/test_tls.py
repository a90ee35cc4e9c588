"""A server that speaks TLS alone and demands client certificates: commands, curl, the client, and its own processes."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgate.testing.server import Server
from headgate_api.errors import HeadgateError
from headgate_client.sync import Client
from headgate_client.values import new_event
from tests.certificates import Authority, Pair
from tests.commands import headgate
from tests.go_programs import grpcurl as built_grpcurl
from tests.support import executable
from tests.system.publishing import SECONDS_MAX
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Secured:
    """The server, and what its clients need."""

    server: Server
    authority: Authority
    client: Pair

    @property
    def files(self) -> dict[str, str]:
        found = {"cacert": self.authority.path, "client_cert": self.client.certificate, "client_key": self.client.key}
        return {name: str(path) for name, path in found.items()}

    def command(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """A command against the server: its status, output and messages."""
        done = headgate(*arguments, **{"HEADGATE_SERVER": self.server.url, **environment})
        return done.exit_code, done.stdout, done.stderr

    @property
    def environment(self) -> dict[str, str]:
        return {f"HEADGATE_{name.upper()}": value for name, value in self.files.items()}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    own = authority.issue("server", ("127.0.0.1",))
    client = authority.issue("client", subject="ada", groups=("dev", "ops", "system:masters"))
    given = {"--tls-cert": own.certificate, "--tls-key": own.key, "--tls-ca": authority.path}
    arguments = [str(one) for pair in (given | {"--tls-client-ca": authority.path}).items() for one in pair]
    arguments += ["--fronts", "2", "--audit-log-path", str(folder / "audit.log")]
    context = authority.context(client)
    log = folder / "server.log"
    with Server(folder / "data", log=log, arguments=tuple(arguments), secure=context) as running:
        yield Secured(running, authority, client)


def test_commands_speak_tls(secured: Secured) -> None:
    status, output, messages = secured.command("send", "--type", "t", "--id", "1", **secured.environment)
    assert (status, output, messages) == (0, "accepted 1\n", "")
    options = [word for name, value in secured.files.items() for word in (f"--{name.replace('_', '-')}", value)]
    status, output, _ = secured.command("get", "brokers", *options)
    assert status == 0
    assert f"{secured.server.url}/default/default" in output


def test_commands_say_what_is_wrong(secured: Secured, tmp_path: Path) -> None:
    port = secured.server.port
    stranger = Authority(tmp_path).issue("stranger")
    wrong = {"HEADGATE_CLIENT_CERT": str(stranger.certificate), "HEADGATE_CLIENT_KEY": str(stranger.key)}
    known = secured.environment
    cases = [
        ({"HEADGATE_CACERT": ""}, f"the certificate of 127.0.0.1:{port} is not trusted", "--cacert"),
        ({"HEADGATE_SERVER": f"https://localhost:{port}"}, "does not bear the name localhost", "certificate"),
        ({"HEADGATE_SERVER": f"http://127.0.0.1:{port}"}, f"127.0.0.1:{port} speaks TLS", f"https://127.0.0.1:{port}"),
        ({"HEADGATE_CLIENT_CERT": "", "HEADGATE_CLIENT_KEY": ""}, "not accept this client", "--client-cert"),
        (wrong, "not accept this client", "--client-cert"),
        ({"HEADGATE_CLIENT_KEY": ""}, "--client-cert and --client-key go together", "PEM"),
        ({"HEADGATE_CACERT": str(secured.client.key)}, "--cacert", "PEM"),
        ({"HEADGATE_CACERT": str(tmp_path / "gone")}, "No such file", "PEM"),
    ]
    for changed, message, hint in cases:
        status, output, said = secured.command("get", "brokers", **(known | changed))
        assert (status, output) == (1, ""), said
        error, remedy = said.splitlines()
        assert error.startswith("error: ")
        assert message in error
        assert remedy.startswith("hint: ")
        assert hint in remedy


def test_a_certificate_names_the_user(secured: Secured, tmp_path: Path) -> None:
    """Over HTTP, gRPC and with kubectl; the audit log says whom."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [executable("kubectl"), "--server", secured.server.url, "--cache-dir", str(tmp_path)]
    command += ["--certificate-authority", secured.files["cacert"]]
    shown = ["--client-certificate", secured.files["client_cert"], "--client-key", secured.files["client_key"]]
    label = ["label", "broker", "default", "team=a", "--overwrite"]
    done = subprocess.run([*command, *shown, *label], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with Client(f"https://{secured.server.grpc}", **secured.files) as client:
        client.publish("default", new_event("t", "/s", {}))
    ends = time.monotonic() + SECONDS_MAX
    wanted = {"patch", "create"}
    while wanted:
        lines = [json.loads(line) for line in (secured.authority.path.parent / "audit.log").read_text().splitlines()]
        # Who asks whether the server is ready shows no user; before the first roles are there, he is refused.
        lines = [line for line in lines if not line["requestURI"].startswith("/readyz")]
        wanted -= {line["verb"] for line in lines if line["user"]["username"] == "ada"}
        assert time.monotonic() < ends, lines
        time.sleep(0.1)
    groups = {tuple(line["user"]["groups"]) for line in lines}
    assert groups == {("dev", "ops", "system:masters", "system:authenticated")}


def test_curl_needs_a_certificate(secured: Secured) -> None:
    def curl(*options: str) -> tuple[int, str]:
        command = ["curl", "--silent", "--cacert", str(secured.authority.path), *options, f"{secured.server.url}/livez"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    assert curl("--cert", secured.files["client_cert"], "--key", secured.files["client_key"]) == (0, "ok")
    status, output = curl()
    assert status != 0
    assert output == ""


@pytest.mark.timeout(900)  # grpcurl is built at the first time
@pytest.mark.slow  # Go builds grpcurl
def test_grpcurl_needs_a_certificate(secured: Secured) -> None:
    """It learns the services by reflection, and publishes."""

    program, server = built_grpcurl(), secured.server.grpc

    def grpcurl(*arguments: str, shows: bool = True) -> subprocess.CompletedProcess[str]:
        shown = ["-cert", secured.files["client_cert"], "-key", secured.files["client_key"]] if shows else []
        command = [program, "-cacert", str(secured.authority.path), *shown, "-max-time", "60", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    done = grpcurl(server, "list")
    assert "headgate.v1.Publisher" in done.stdout.splitlines(), done.stderr
    event = {"id": "g", "source": "/grpcurl", "specVersion": "1.0", "type": "t", "textData": "hello"}
    request = json.dumps({"open": {"broker": "default"}, "sequence": 1, "events": [event]})
    done = grpcurl("-d", request, server, "headgate.v1.Publisher/Publish")
    assert (done.returncode, '"first": "1"' in done.stdout) == (0, True), (done.stdout, done.stderr)
    refused = grpcurl(server, "list", shows=False)
    assert (refused.returncode == 0, refused.stdout) == (False, "")


def test_a_broker_says_how_it_is_reached(secured: Secured) -> None:
    secured.server.wait_object_ready("brokers", "default", "default", seconds=SECONDS_MAX)
    status = secured.server.get("brokers", "default", "default")["status"]
    url = f"{secured.server.url}/default/default"
    address = {"name": "https", "url": url, "CACerts": secured.authority.path.read_text()}
    address["audience"] = "eventing.knative.dev/broker/default/default"
    assert (status["address"], status["addresses"]) == (address, [address])


def test_the_client_speaks_tls(secured: Secured) -> None:
    with Client(f"https://{secured.server.grpc}", **secured.files) as client:
        client.publish("default", [new_event("client", "/test", {"n": number}) for number in range(3)])
        with client.read("default", start="earliest", filter='ce.type == "client"', follow=False) as reader:
            assert [read.json() for read in reader] == [{"n": 0}, {"n": 1}, {"n": 2}]
    with (
        Client(f"https://{secured.server.grpc}", cacert=secured.authority.path, patience_s=1.0) as client,
        pytest.raises(HeadgateError),
    ):
        client.publish("default", [new_event("client", "/test", {})])


def test_the_server_reaches_itself(secured: Secured, subscriber: Subscriber) -> None:
    """A reply is stored, and a broker of this server is a subscriber, over no address that demands a certificate."""
    server = secured.server
    for name in ("first", "second"):
        server.create("brokers", "default", name, {})
    reply = json.dumps({"n": 2}).encode()
    headers = [("ce-specversion", "1.0"), ("ce-id", "r"), ("ce-source", "/s"), ("ce-type", "reply")]
    subscriber.answers["asked"] = (200, reply, *headers, ("content-type", "application/json"))
    ref = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "second"}
    triggers = {
        "asked": {"filter": {"attributes": {"type": "question"}}, "subscriber": {"uri": subscriber.url("asked")}},
        "onward": {"filter": {"attributes": {"type": "reply"}}, "subscriber": {"ref": ref}},
    }
    for name, spec in triggers.items():
        server.create("triggers", "default", name, {"broker": "first", **spec})
    for name in triggers:
        server.wait_trigger_ready("default", name)
    assert server.get("triggers", "default", "onward")["status"]["subscriberUri"] == f"{server.url}/default/second"
    with Client(f"https://{server.grpc}", **secured.files) as client:
        client.publish("first", new_event("question", "/test", {"n": 1}, id="q"))
        with client.read("second", start="earliest", follow=True) as reader:
            found = next(iter(reader))
    assert (found.event.id, found.json()) == ("r", {"n": 2})


def test_a_server_that_knows_its_clients_is_not_open(secured: Secured) -> None:
    url = f"{secured.server.url}/readyz?verbose"
    with urllib.request.urlopen(url, context=secured.authority.context(secured.client)) as answer:
        assert b"[!]" not in answer.read()
