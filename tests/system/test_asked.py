"""What can a person and a source ask a running server? Why an event did not arrive, and what is wanted at all."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.testing.server import Server
from headgate_api.event.model import DataKind, Event
from tests.commands import headgate, told
from tests.support import eventually
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

pytestmark = pytest.mark.system


def why(server: Server, id_: str, trigger: str) -> dict[str, Any]:
    return json.loads(told("why", id_, "--trigger", trigger, "--server", server.url, "--json"))


def get(server: Server, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(server.url + path, timeout=30) as response:
        return json.load(response)  # type: ignore[no-any-return]


def test_why_and_what_is_wanted(server: Server, subscriber: Subscriber) -> None:
    # Nobody listens there: what matches stays undelivered.
    nowhere = "http://127.0.0.1:9/nowhere"
    for name, uri in (("asked", subscriber.url("asked")), ("unheard", nowhere)):
        spec = {
            "broker": "default",
            "subscriber": {"uri": uri},
            "filter": {"expression": 'ce.type == "asked" && data.total > 100'},
        }
        server.create("triggers", "default", name, spec)
    for name in ("asked", "unheard"):
        server.wait_trigger_ready("default", name)
    publisher = Publisher(server)
    for id_, data in (("yes", {"total": 101}), ("no", {"total": 7}), ("broken", {})):
        assert publisher.publish(id_, "asked", data) == 202
    eventually(lambda: subscriber.ids("asked") == {"yes": 1})
    eventually(lambda: why(server, "yes", "asked")["fate"] == "ended")
    eventually(lambda: why(server, "yes", "unheard").get("attempts", {}).get("failed", 0) >= 1)
    assert why(server, "yes", "unheard")["fate"] == "undelivered"
    eventually(lambda: why(server, "no", "asked")["fate"] == "filter-false")
    assert why(server, "no", "asked")["trace"]["caret"].splitlines()[1].strip() == "^" * len("data.total > 100")
    eventually(lambda: why(server, "broken", "asked")["fate"] == "filter-error")  # it is in another partition
    assert why(server, "nosuch", "asked")["fate"] == "not-stored"
    refused = headgate("why", "1", "--trigger", "nosuch", "--server", server.url)
    assert (refused.exit_code, "not found" in refused.stderr) == (1, True)

    items = json.loads(told("lint", "--server", server.url, "--json"))["items"]
    assert [one["equal"] for one in items if one["name"] == "asked"] == [["Trigger/unheard"]]
    assert "\nTrigger/unheard: the same filter as Trigger/asked\n" in "\n" + told("lint", "--server", server.url)

    asked = "/apis/eventing.knative.dev/v1/namespaces/default/brokers/default/lint?of="
    assert [one["equal"] for one in get(server, f"{asked}Trigger/asked")["items"]] == [["Trigger/unheard"]]
    for wrong, status in (("Trigger/nosuch", 404), ("asked", 400)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(server, asked + wrong)
        assert caught.value.code == status

    every = told("lint", "--all", "--server", server.url)
    assert "\ndefault/default  Trigger/unheard: the same filter as Trigger/asked\n" in "\n" + every
    lines = told("lint", "--all", "--json", "--server", server.url).splitlines()
    assert "default/default" in {json.loads(line)["broker"] for line in lines}

    found = get(server, "/apis/headgate.dev/v1/namespaces/default/brokers/default/filter")
    wanted = Event("1.0", "1", "/s", "asked", data_kind=DataKind.JSON, data=b'{"total": 101}')
    assert program(found["cel"]).evaluate(wanted).kind is OutcomeKind.TRUE, "other triggers of the broker may widen it"
    # Its neighbours below the same prefix answer too. Other namespaces of the shared server may have dead letters.
    assert get(server, "/apis/headgate.dev/v1/namespaces/default/deadletters")["items"] == []
    with pytest.raises(urllib.error.HTTPError):
        get(server, "/apis/headgate.dev/v1/nosuch")
    for name in ("asked", "unheard"):
        server.delete("triggers", "default", name)
