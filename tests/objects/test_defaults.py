"""What an object is given that its author left out."""

from __future__ import annotations

import pytest

from headgate_api.objects.kinds import API_VERSION, OWN_API_VERSION
from tests.objects.support import Server, broker, condition
from tests.support import eventually

ORDERS = f"/apis/{API_VERSION}/namespaces/orders"


@pytest.mark.parametrize(
    ("kind", "api_version", "spec"),
    [
        ("Trigger", API_VERSION, {"subscriber": {"uri": "http://127.0.0.1:9/sink"}}),
        ("Trigger", API_VERSION, {"broker": "", "subscriber": {"uri": "http://127.0.0.1:9/sink"}}),
        ("Subscription", OWN_API_VERSION, {"type": "shared"}),
    ],
)
def test_without_a_broker_it_is_the_default_one_of_the_namespace(
    server: Server, kind: str, api_version: str, spec: dict[str, object]
) -> None:
    plural = f"/apis/{api_version}/namespaces/orders/{kind.lower()}s"
    document = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "t1"}, "spec": spec}
    made = server.request("POST", plural, document)
    assert made.status == 201
    assert made.json["spec"]["broker"] == "default"
    assert made.json["metadata"]["labels"] == {"eventing.knative.dev/broker": "default"}
    ready = condition(made.json, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "BrokerDoesNotExist")
    assert '"orders/default"' in ready["message"]
    server.request("POST", f"{ORDERS}/brokers", broker("default"))

    def is_ready() -> bool:
        found = server.request("GET", f"{plural}/t1").json
        return condition(found, "Ready")["status"] == "True"

    eventually(is_ready)
    # A document that still leaves it out changes nothing.
    assert server.request("PUT", f"{plural}/t1", document).json["metadata"]["generation"] == 1
