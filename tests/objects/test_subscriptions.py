"""Is a Subscription an object like the others, and what does routing see of it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.request import condition as condition_of
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.decode import decode_object
from headgate.objects.kinds.routing import PullRules, RoutingTable, Target
from headgate.objects.kinds.specs import compiler_input
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate_api.objects.errors import InvalidObjectError, MalformedObjectError
from headgate_api.objects.kinds import Kind, ObjectKey, Subscription
from headgate_cli import preview
from tests.objects.support import Server, condition, trigger

BASE = "/apis/headgate.dev/v1"
PATH = f"{BASE}/namespaces/default/subscriptions"


def subscription(name: str = "s1", *, broker: str = "default", **spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "headgate.dev/v1",
        "kind": "Subscription",
        "metadata": {"name": name},
        "spec": {"broker": broker, **spec},
    }


def test_it_is_routed_without_an_address_and_its_name_is_its_own(admission: Admission) -> None:
    admission.create(Kind.TRIGGER, trigger("same"))
    before = admission.store.desired_generation()
    asked = {"expression": "ce.type == 'a'"}
    admission.create(
        Kind.SUBSCRIPTION, subscription("same", filter=asked, type="shared", ackTimeout="PT5S", filterFrom="now")
    )
    table = admission.store.snapshot()
    assert table.generation == before + 1
    of_trigger, pulled = table.targets.values()
    assert (of_trigger.name, of_trigger.pull) == ("default/same", None)
    assert (pulled.name, pulled.subscriber_uri) == ("default/same", "")
    assert pulled.pull is not None
    assert pulled.pull == PullRules("shared", 5.0, filter_id=pulled.pull.filter_id)
    assert pulled.needs == before + 1
    assert pulled.filter.cel == 'ce.type == "a"'
    admission.store.delete(ObjectKey(Kind.SUBSCRIPTION, "default", "same"))
    assert [target.id for target in admission.store.snapshot().targets.values()] == [of_trigger.id]
    assert admission.store.desired_generation() == before + 2


def only(table: RoutingTable) -> Target:
    (target,) = table.targets.values()
    return target


def test_a_change_of_type_moves_no_generation_a_change_of_filter_does(admission: Admission) -> None:
    admission.create(Kind.SUBSCRIPTION, subscription())
    first = admission.store.snapshot()
    admission.apply(subscription(type="failover"))
    second = admission.store.snapshot()
    assert (second.generation, only(second).id) == (first.generation, only(first).id)
    assert second.version > first.version
    before, pull = only(first).pull, only(second).pull
    assert before is not None
    assert pull == PullRules("failover", filter_id=before.filter_id)
    admission.apply(subscription(type="failover", filter={"attributes": {"type": "a"}}))
    third = admission.store.snapshot()
    assert (third.generation, only(third).id) == (first.generation + 1, only(first).id)
    assert only(third).needs == third.generation
    changed = only(third).pull
    assert changed is not None
    assert changed.filter_id != before.filter_id
    admission.apply(subscription(type="failover", filter={"attributes": {"type": "a"}}, filterFrom="0:5"))
    fourth = admission.store.snapshot()
    pull = only(fourth).pull
    assert pull is not None
    assert (fourth.generation, pull.history) == (third.generation, "0:5")
    assert pull.filter_id not in (before.filter_id, changed.filter_id)


def test_tags_of_consumer_metadata_stand_beside_the_filters(admission: Admission) -> None:
    tags = {"anytag1": "red", "alltag": "hot", "team": "blue"}
    for name, spec in {
        "a-none": {},
        "b-filter": {"filter": {"attributes": {"type": "a"}}},
        "c-filters": {"filters": [{"exact": {"type": "a"}}, {"prefix": {"source": "/b"}}]},
    }.items():
        admission.create(Kind.SUBSCRIPTION, subscription(name, consumerMetadata=tags, **spec))
    none, one, two = (target.filter.cel for target in admission.store.snapshot().targets.values())
    assert '"red"' in none
    assert '"hot"' in none
    assert "blue" not in none
    assert 'ce.type == "a"' in one
    assert '"red"' in one
    assert 'startsWith("/b")' in two
    assert '"hot"' in two
    without = admission.create(Kind.SUBSCRIPTION, subscription("d", consumerMetadata={"team": "blue"}))
    assert without.obj.metadata.name == "d"
    assert [*admission.store.snapshot().targets.values()][-1].filter.cel == "true"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"type": "sometimes"}, "spec.type"),
        ({"filterFrom": "yesterday"}, "spec.filterFrom"),
        ({"filterFrom": "0:1,0:2"}, "spec.filterFrom"),
        ({"maxDeliveries": 0}, "spec.maxDeliveries"),
        ({"maxDeliveries": 1_001}, "spec.maxDeliveries"),
        ({"maxDeliveries": "3"}, "spec.maxDeliveries"),
        ({"delivery": {"parallelism": 3}}, "spec.delivery.parallelism"),
        ({"delivery": {"onFilterError": "deadLetter"}}, "spec.delivery.onFilterError"),
        ({"delivery": {"ttl": "PT1M"}}, "spec.delivery.ttl"),
        ({"delivery": {"delay": "PT1M"}}, "spec.delivery.delay"),
        ({"delivery": {"onExpired": "deadLetter"}}, "spec.delivery.onExpired"),
        ({"delivery": {"backoffDelay": "soon"}}, "spec.delivery.backoffDelay"),
        ({"delivery": {"deadLetterSink": {"uri": "ftp://x/"}}}, "spec.delivery.deadLetterSink.uri"),
        ({"delivery": {"deadLetterSink": {"uri": "http://169.254.169.254/"}}}, "spec.delivery.deadLetterSink.uri"),
        ({"transform": '{"type": 5}'}, "spec.transform"),
        ({"ackTimeout": "soon"}, "spec.ackTimeout"),
        ({"ackTimeout": "PT0.5S"}, "spec.ackTimeout"),
        ({"ackTimeout": "P2D"}, "spec.ackTimeout"),
        ({"consumerMetadata": {f"n{number}": "" for number in range(65)}}, "spec.consumerMetadata"),
        ({"filter": {"expression": "ce.type =="}}, "spec.filter.expression"),
        ({"filter": {"expression": "ce.type =="}, "consumerMetadata": {"anytag": "a"}}, "spec.filter.expression"),
        ({"filters": [{"cel": "1 +"}], "consumerMetadata": {"anytag": "a"}}, "spec.filters[0].cel"),
        ({"consumerMetadata": {"anytag": "x" * 70_000}}, "spec.consumerMetadata.anytag"),
    ],
)
def test_what_is_refused_names_its_field(admission: Admission, spec: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidObjectError) as raised:
        admission.create(Kind.SUBSCRIPTION, subscription(**spec))  # type: ignore[arg-type]
    assert [cause.field for cause in raised.value.causes] == [field]
    assert 'Subscription.headgate.dev "s1" is invalid' in raised.value.message


def test_unknown_fields_another_group_and_another_broker_are_refused(admission: Admission) -> None:
    with pytest.raises(MalformedObjectError, match=r'unknown field "spec\.subscriber"'):
        admission.create(Kind.SUBSCRIPTION, subscription(subscriber={"uri": "http://x/"}))
    knatives = {**subscription(), "apiVersion": "messaging.knative.dev/v1"}
    with pytest.raises(MalformedObjectError, match="apiVersion"):
        admission.create(Kind.SUBSCRIPTION, knatives)
    admission.create(Kind.SUBSCRIPTION, subscription())
    with pytest.raises(InvalidObjectError, match="immutable"):
        admission.apply(subscription(broker="other"))


def test_it_is_ready_when_its_filter_is_in_force_and_its_broker_is(store: Store, admission: Admission) -> None:
    reconciler = Reconciler(store)
    reconciler.step()
    admission.create(Kind.SUBSCRIPTION, subscription("s1", filter={"attributes": {"type": "a"}}))
    admission.create(Kind.SUBSCRIPTION, subscription("s2", broker="absent"))
    reconciler.step()

    def reasons(name: str) -> tuple[str, str]:
        obj = store.get(ObjectKey(Kind.SUBSCRIPTION, "default", name))
        (ready,) = [one for one in obj.status.conditions if one.type == "Ready"]
        assert obj.status.observed_generation == 1
        return ready.status, ready.reason

    assert reasons("s1") == ("Unknown", "FilterNotInForce")
    assert reasons("s2") == ("False", "BrokerDoesNotExist")
    store.counters.activate(store.desired_generation())
    reconciler.step()
    assert reasons("s1") == ("True", "")


def test_routing_and_status_outlive_a_restart(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "control.db")
    Admission(store).create(Kind.SUBSCRIPTION, subscription(type="shared"))
    before = store.snapshot()
    store.close()
    store = Store.open(tmp_path / "control.db")
    assert store.snapshot().targets == before.targets
    store.close()


def test_over_http(server: Server) -> None:
    made = server.request("POST", PATH, subscription(type="shared", filter={"cel": "ce.type == 'a'"}))
    assert made.status == 201, made.json
    assert made.json["apiVersion"] == "headgate.dev/v1"
    assert condition(made.json, "Ready")["status"] == "Unknown"
    (found,) = server.request("GET", f"{BASE}/subscriptions").json["items"]
    assert found["spec"]["type"] == "shared"
    resources = server.request("GET", BASE).json["resources"]
    assert {"subscriptions", "subscriptions/status"} == {one["name"] for one in resources}
    assert "headgate.dev" in [one["name"] for one in server.request("GET", "/apis").json["groups"]]
    schemas = server.request("GET", "/openapi/v3/apis/headgate.dev/v1").json["components"]["schemas"]
    assert set(schemas["dev.headgate.v1.Subscription"]["properties"]["spec"]["properties"]) == {
        *(
            "broker",
            "brokerRef",
            "filter",
            "filters",
            "consumerMetadata",
            "consumerFilter",
            "type",
            "ackTimeout",
            "filterFrom",
        ),
        *("maxDeliveries", "delivery", "transform"),
    }
    missing = server.request("GET", f"{PATH}/none")
    assert missing.json["message"] == 'subscriptions.headgate.dev "none" not found'
    assert missing.json["details"]["group"] == "headgate.dev"
    assert server.request("DELETE", f"{PATH}/s1").status == 200
    assert server.request("GET", PATH).json["items"] == []


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"filter": {"cel": "data.n > 1"}},
        {"filters": [{"cel": "data.n > 1"}], "filter": {"cel": "data.n > 2"}},
        {"filters": [{"cel": "data.n > 1"}, {"prefix": {"type": "a"}}]},
        {"consumerMetadata": {"anytag1": "gold", "host": "x"}},
        {"consumerMetadata": {"alltag1": "gold"}, "consumerFilter": "tags", "filter": {"exact": {"type": "a"}}},
        {"consumerMetadata": {"anytag1": "gold"}, "filters": [{"cel": "data.n > 1"}, {"cesql": "type = 'a'"}]},
    ],
)
def test_a_preview_counts_the_filter_that_is_stored(spec: dict[str, Any]) -> None:
    stored = decode_object(Kind.SUBSCRIPTION, subscription(**spec)).obj
    assert isinstance(stored, Subscription)
    previewed = condition_of(preview.filter_of(spec), "filter")
    assert previewed == compile_filter(*compiler_input(stored)).cel
