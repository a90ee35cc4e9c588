"""A transform on a real server: refused with its place, shown, applied to pushes, pulls, replays and dead letters."""

from __future__ import annotations

import json

import pytest

from headgate.testing.server import ApiError, Server
from tests.commands import told
from tests.support import eventually
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber
from tests.system.test_subscriptions import ask

pytestmark = pytest.mark.system

TRANSFORM = '{"type": "order.v2", "total": string(data.total), "data": {"id": data.id}}'


def test_subscribers_and_consumers_get_what_a_transform_makes(server: Server, subscriber: Subscriber) -> None:
    filter_ = {"expression": 'ce.type == "shaped" && data.id > 0'}
    spec = {"broker": "default", "filter": filter_, "subscriber": {"uri": subscriber.url("shaped")}}
    with pytest.raises(ApiError) as refused:
        server.create("triggers", "default", "shaped", spec | {"transform": '{"type": "a", "Total": data.total}'})
    assert refused.value.status == 422
    assert refused.value.body["details"]["causes"][0]["field"] == "spec.transform"
    assert '"Total"' in refused.value.body["message"]
    server.create("triggers", "default", "shaped", spec | {"transform": TRANSFORM})
    subscription = {"broker": "default", "filter": filter_, "transform": TRANSFORM, "type": "shared"}
    server.create("subscriptions", "default", "shaped", subscription)
    server.wait_trigger_ready("default", "shaped")
    server.wait_object_ready("subscriptions", "default", "shaped")
    publisher = Publisher(server)
    for number in (1, 2):
        assert publisher.publish(f"s{number}", "shaped", {"id": number, "total": 9.5, "card": "4111"}) == 202
    assert publisher.publish("s3", "shaped", {"id": 3}) == 202
    eventually(lambda: subscriber.ids("shaped") == {"s1": 1, "s2": 1})
    for sent in subscriber.at("shaped"):
        assert (sent.headers["ce-type"], sent.headers["ce-total"]) == ("order.v2", "9.5")
        assert json.loads(sent.body) == {"id": int(sent.id[1:])}
    pulled = ask(server, "pull", {"consumer": "a", "wait": 20}, name="shaped")
    assert {one["event"]["type"] for one in pulled["events"]} == {"order.v2"}
    assert sorted(one["event"]["data"]["id"] for one in pulled["events"]) == [1, 2]
    path = f"{server.objects_url('triggers', 'default')}/shaped"
    assert "the transform is an error" in eventually(
        lambda: (why := server.call("GET", f"{path}/why?id=s3")["message"]) and "transform" in why and why
    )
    eventually(lambda: server.get("triggers", "default", "shaped")["status"].get("filterErrors") == 1)
    told("replay", "--target", "shaped", "--from", "earliest", "--server", server.url)
    eventually(lambda: subscriber.ids("shaped") == {"s1": 2, "s2": 2})
    assert {sent.headers["ce-type"] for sent in subscriber.at("shaped")} == {"order.v2"}
    for kind in ("triggers", "subscriptions"):
        server.delete(kind, "default", "shaped")
