"""A paused trigger on a real server: its events wait, through a kill -9 as well, and go on in order."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.server import ApiError, Server, condition
from headgate_api.objects.kinds import PAUSED_ANNOTATION
from tests.commands import headgate, told
from tests.support import eventually
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber
from tests.system.test_delivery_contract import metric

pytestmark = pytest.mark.system

EVENTS = 300
"""More than a paused trigger keeps in memory."""


def turned(server: Server, verb: str, *names: str) -> str:
    return told("trigger", verb, *names, "--server", server.url)


@pytest.mark.slow
def test_a_paused_trigger_loses_nothing_and_goes_on_in_order(tmp_path: Path, subscriber: Subscriber) -> None:
    server = Server(tmp_path / "data", log=tmp_path / "server.log")

    def create(name: str, **spec: Any) -> None:
        wanted = {"broker": "default", "subscriber": {"uri": subscriber.url(name)}, **spec}
        server.create("triggers", "default", name, wanted)
        server.wait_trigger_ready("default", name)

    def publish(first: int, count: int) -> None:
        publisher = Publisher(server)
        for number in range(first, first + count):
            assert publisher.publish(str(number), "t", {"n": number}, partitionkey="one") == 202
        publisher.close()

    def came(name: str) -> list[int]:
        return [int(one.id) for one in subscriber.at(name)]

    def delivering() -> Any:
        return condition(server.get("triggers", "default", "waits"), "Delivering")

    with server:
        create("waits", delivery={"order": "ordered"})
        create("runs")
        publish(0, 10)
        eventually(lambda: len(came("waits")) == len(came("runs")) == 10)
        assert turned(server, "pause", "waits") == "trigger default/waits paused\n"
        eventually(lambda: delivering().get("reason") == "Paused")
        assert delivering()["severity"] == "Info"
        assert condition(server.get("triggers", "default", "waits"), "Ready")["status"] == "True"
        eventually(lambda: metric(server, "headgate_triggers_paused") == 1)
        publish(10, EVENTS)
        eventually(lambda: len(came("runs")) == 10 + EVENTS)
        told = len(came("waits"))
        assert told < EVENTS, "what went out before its dispatcher had heard of the pause"
        time.sleep(0.5)
        assert len(came("waits")) == told
        path = f"{server.url}/apis/eventing.knative.dev/v1/namespaces/default/triggers/waits"
        why = server.call("GET", f"{path}/why?id={9 + EVENTS}")
        assert "the trigger is paused" in why["message"]
        stats = server.call("GET", f"{path}/stats")
        assert [one["reason"] for one in stats["troubles"]] == ["Paused"]
        assert stats["stats"]["backlog"] > 0
        assert stats["stats"]["oldestUndelivered"]
        server.kill()

    with server:
        publish(10 + EVENTS, 10)
        eventually(lambda: len(set(came("runs"))) == 20 + EVENTS)
        assert len(came("waits")) == told, "a restart is no end of a pause"
        assert turned(server, "resume", "waits") == "trigger default/waits resumed\n"
        eventually(lambda: len(set(came("waits"))) == 20 + EVENTS)
        assert came("waits")[told:] == list(range(told, 20 + EVENTS)), "each once, in order"
        eventually(lambda: delivering() == {})
        eventually(lambda: metric(server, "headgate_triggers_paused") == 0)


def test_only_true_and_false_pause(server: Server, subscriber: Subscriber) -> None:
    body = {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {"name": "perhaps", "annotations": {PAUSED_ANNOTATION: "perhaps"}},
        "spec": {"broker": "default", "subscriber": {"uri": subscriber.url("perhaps")}},
    }
    with pytest.raises(ApiError) as caught:
        server.call("POST", server.objects_url("triggers", "default"), body)
    (cause,) = caught.value.body["details"]["causes"]
    assert cause["field"] == f"metadata.annotations[{PAUSED_ANNOTATION}]"
    done = headgate("trigger", "pause", "nosuch", "--server", server.url)
    assert (done.exit_code, "not found" in done.stderr) == (1, True)
