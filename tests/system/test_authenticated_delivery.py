"""Deliveries that say who they are: through the whole server, while Secrets change, and after it was killed."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from standardwebhooks.webhooks import Webhook

from headgate.storage.keyring import head_of
from headgate.testing.server import ApiError, Server, condition, free_port
from tests.objects.test_secrets import files_with, sealed
from tests.support import eventually, times
from tests.system.publishing import SECONDS_MAX, Publisher
from tests.system.secured import key_line
from tests.system.subscriber import Delivery, Subscriber

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

KEY = base64.b64encode(bytes(range(24))).decode()
CLEAR = ("first-clear-token-", "sink-clear-token", KEY)


def put(server: Server, name: str, **values: str) -> None:
    url = server.objects_url("secrets", "default")
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}
    try:
        server.call("PUT", f"{url}/{name}", document)
    except ApiError as error:
        if error.status != 404:
            raise
        server.call("POST", url, document)


def reference(name: str) -> dict[str, Any]:
    return {"secretRef": {"name": name}}


def test_secrets_come_change_under_load_and_go_nowhere_else(server: Server) -> None:
    publisher = Publisher(server)
    with Subscriber() as subscriber:
        allowed = ["Bearer first-clear-token-0"]

        def judged(delivery: Delivery) -> tuple[int, bytes]:
            return (202 if delivery.headers.get("authorization") in allowed else 401), b""

        subscriber.answers = {"crm": judged, "bad": (400, b"no"), "sink": (202, b"")}
        spec = {
            "broker": "default",
            "filter": {"attributes": {"type": "signed"}},
            "subscriber": {"uri": subscriber.url("crm")},
            "delivery": {"auth": {"bearer": reference("crm"), "signature": reference("signing")}},
        }
        # Before its Secrets are there: the trigger says so, and its events wait.
        server.create("triggers", "default", "crm", spec)
        eventually(
            lambda: (
                condition(server.get("triggers", "default", "crm"), "CredentialsResolved").get("reason") is not None
            ),
            lambda: server.get("triggers", "default", "crm"),
        )
        found = condition(server.get("triggers", "default", "crm"), "CredentialsResolved")
        assert (found["status"], found["reason"]) == ("False", "SecretNotFound")
        eventually(
            lambda: condition(server.get("triggers", "default", "crm"), "Subscribed")["status"] == "True", lambda: ""
        )
        assert publisher.publish("early", "signed", {"n": 0}) == 202
        put(server, "signing", secret=f"whsec_{KEY}")
        put(server, "crm", token="first-clear-token-0")
        server.wait_trigger_ready("default", "crm", seconds=SECONDS_MAX)
        eventually(lambda: "early" in subscriber.ids("crm"), lambda: server.get("triggers", "default", "crm"))
        delivery = subscriber.at("crm")[0]
        Webhook(f"whsec_{KEY}").verify(delivery.body, delivery.headers)

        # Rotation under load: the subscriber takes the old token and the new one, as people rotate.
        stop, sent = threading.Event(), []

        def publish() -> None:
            mine = Publisher(server)
            while not stop.is_set():
                assert mine.publish(f"load-{len(sent)}", "signed", {"n": len(sent)}) == 202
                sent.append(len(sent))
                time.sleep(0.002)

        thread = threading.Thread(target=publish)
        thread.start()
        took = []
        try:
            for number in range(1, 1 + times(2, 5)):
                token = f"first-clear-token-{number}"
                allowed[:] = [allowed[-1], f"Bearer {token}"]
                put(server, "crm", token=token)
                changed = time.monotonic()
                eventually(
                    lambda: subscriber.deliveries[-1].headers.get("authorization") == allowed[-1], lambda: allowed
                )
                took.append(time.monotonic() - changed)
                enough = len(sent) + 50
                eventually(lambda enough=enough: len(sent) >= enough, lambda: len(sent))
        finally:
            stop.set()
            thread.join()
        eventually(lambda: len(subscriber.ids("crm")) == len(sent) + 1, lambda: len(subscriber.ids("crm")))
        assert set(subscriber.ids("crm").values()) == {1}, "an attempt was refused"
        print(f"a changed Secret was used after {[round(one, 2) for one in took]} s, {len(sent)} events meanwhile")

        # A sink has its own; what is the subscriber's is never shown to it.
        put(server, "sink", value="sink-clear-token")
        dead = spec | {
            "filter": {"attributes": {"type": "dead"}},
            "subscriber": {"uri": subscriber.url("bad")},
            "delivery": {
                "auth": {"bearer": reference("crm")},
                "deadLetterSink": {"uri": subscriber.url("sink")},
                "deadLetterAuth": {"header": {"name": "X-Api-Key", **reference("sink")}},
            },
        }
        server.create("triggers", "default", "dead", dead)
        server.wait_trigger_ready("default", "dead", seconds=SECONDS_MAX)
        publisher.publish("d1", "dead", {"n": 1})
        eventually(lambda: bool(subscriber.at("sink")), lambda: subscriber.deliveries[-1])
        (letter,) = subscriber.at("sink")
        assert letter.headers["x-api-key"] == "sink-clear-token"
        assert "authorization" not in letter.headers
        assert subscriber.at("bad")[0].headers["authorization"] == allowed[-1]

        # A replay is signed and has the token, too.
        before = len(subscriber.at("crm"))
        url = f"{server.url}/apis/headgate.dev/v1/namespaces/default/replays"
        server.call("POST", url, {"trigger": "crm", "from": "earliest", "filter": 'ce.id == "early"', "rate": 100})
        eventually(lambda: len(subscriber.at("crm")) > before, lambda: server.call("GET", url))
        again = subscriber.at("crm")[-1]
        assert again.headers["authorization"] == allowed[-1]
        Webhook(f"whsec_{KEY}").verify(again.body, again.headers)


def test_a_token_for_an_audience_is_checked_by_the_servers_key_set(server: Server) -> None:
    with Subscriber() as subscriber:
        spec = {
            "broker": "default",
            "filter": {"attributes": {"type": "identified"}},
            "subscriber": {"uri": subscriber.url("oidc"), "audience": "https://crm.example/"},
        }
        server.create("triggers", "default", "oidc", spec)
        server.wait_trigger_ready("default", "oidc", seconds=SECONDS_MAX)
        Publisher(server).publish("1", "identified", {"n": 1})
        eventually(lambda: bool(subscriber.at("oidc")), lambda: server.get("triggers", "default", "oidc"))
        token = subscriber.at("oidc")[0].headers["authorization"].removeprefix("Bearer ")
        configuration = server.call("GET", f"{server.url}/.well-known/openid-configuration")
        key = jwt.PyJWKClient(configuration["jwks_uri"]).get_signing_key_from_jwt(token)
        claims = jwt.decode(token, key, ["ES256"], audience="https://crm.example/", issuer=server.url)
        assert claims["sub"] == "system:serviceaccount:default:oidc-eventing.knative.dev-trigger-oidc"


def test_a_secret_may_be_larger_than_other_objects(server: Server) -> None:
    whole = base64.b64encode(bytes(1 << 20)).decode()
    url = server.objects_url("secrets", "default")
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "large"}, "data": {"a": whole}}
    server.call("POST", url, document)
    assert server.call("GET", f"{url}/large")["data"]["a"] == whole
    trigger = {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {"name": "x"},
        "spec": {"a": whole},
    }
    with pytest.raises(ApiError, match="413"):
        server.call("POST", server.objects_url("triggers", "default"), trigger)
    server.delete("secrets", "default", "large")


@pytest.mark.slow  # a restored backup has its Secrets again, and no log or file of it says them
def test_no_file_holds_them_and_a_killed_server_has_them_again(server: Server) -> None:
    with Subscriber() as subscriber:
        put(server, "late", token="first-clear-token-late")
        spec = {
            "broker": "default",
            "filter": {"attributes": {"type": "late"}},
            "subscriber": {"uri": subscriber.url("late")},
            "delivery": {"auth": {"bearer": reference("late")}},
        }
        server.create("triggers", "default", "late", spec)
        server.wait_trigger_ready("default", "late", seconds=SECONDS_MAX)
        Publisher(server).publish("1", "late", {"n": 1})
        eventually(lambda: bool(subscriber.at("late")))
        shown = server.call("GET", f"{server.objects_url('triggers', 'default')}/late/why?id=1")
        server.kill()
        for text in CLEAR:
            assert files_with(server.data.parent, text) == []
            assert text not in json.dumps(shown)
        # A server that cannot read its Secrets does not start, and says which key it lacks.
        keys, old = server.data.parent / "keys", key_line("k1", 0)
        keys.write_text(key_line("k3", 3))
        command = [
            Path(sys.executable).with_name("headgate"),
            "serve",
            "--data",
            server.data,
            "--secrets-key-file",
            keys,
        ]
        addresses = ["--listen", f"127.0.0.1:{free_port()}", "--grpc", "off"]
        done = subprocess.run(
            [*map(str, command), *addresses], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 78
        assert "by 'k1'" in done.stderr
        assert "hint: " in done.stderr
        # With a new first key all are encrypted anew, and are what they were.
        keys.write_text(key_line("k2", 2) + old)
        server.start()
        Publisher(server).publish("2", "late", {"n": 2})
        eventually(lambda: "2" in subscriber.ids("late"))
        assert subscriber.at("late")[-1].headers["authorization"] == "Bearer first-clear-token-late"
        eventually(
            lambda: {head_of(body).key for body in sealed(server.data)} == {"k2"}, lambda: "encrypted by the old key"
        )
