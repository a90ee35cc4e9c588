from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.kinds.routing import TargetFindings, TargetReport
from headgate.objects.kinds.status import BrokerState, StatusInputs, routed_status
from headgate.objects.store.database import StoreUnavailableError
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate.objects.views.copies import ServedBrokers
from headgate_api.objects.kinds import Condition, Kind, ObjectKey, Routed, Trigger, TriggerStatus
from tests.objects.support import broker, trigger
from tests.objects.test_subscriptions import subscription

T1 = ObjectKey(Kind.TRIGGER, "default", "t1")
DEFAULT = ObjectKey(Kind.BROKER, "default", "default")
READY_BROKER = BrokerState(served=True, ready=True)
FACTS = StatusInputs(READY_BROKER, None, "http://x/", needs=3, active_generation=3)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def served_brokers(store: Store) -> ServedBrokers:
    """A copy that is told of every write."""
    brokers = ServedBrokers(store)
    brokers.refresh()
    store.on_broker(brokers.refresh)
    return brokers


def conditions(store: Store, key: ObjectKey = T1) -> dict[str, Condition]:
    return {condition.type: condition for condition in store.get(key).status.conditions}


def ready(store: Store, key: ObjectKey = T1) -> tuple[str, str]:
    found = conditions(store, key).get("Ready")
    return (found.status, found.reason) if found else ("", "")


def test_a_filter_that_should_be_written_otherwise_is_ready_and_says_so(admission: Admission) -> None:
    obj = admission.create(Kind.TRIGGER, trigger(filter={"sourceAndType": {"type": "a"}})).obj
    assert isinstance(obj, Trigger)
    made = {one.type: one for one in routed_status(obj, FACTS, now="2026-01-01T00:00:00Z").conditions}
    assert made["Ready"].status == "True"
    said = made["FilterAdvisable"]
    assert (said.status, said.severity, said.reason) == ("False", "Warning", "DialectDeprecated")
    assert "spec.filter.sourceAndType" in said.message


@pytest.mark.parametrize(
    ("document", "broker_order", "is_said"),
    [
        (trigger(), "", False),
        (trigger(delivery={"order": "ordered"}), "", True),
        (trigger(delivery={"order": "ordered", "format": "batch"}), "", True),
        (trigger(), "ordered", True),
        (trigger(delivery={"retry": 1}), "ordered", False),
        (trigger(delivery={"order": "unordered"}), "ordered", False),
        (subscription(), "", True),
        (subscription(type="failover"), "", True),
        (subscription(type="shared"), "", False),
    ],
)
def test_who_gets_events_in_order_reads_of_which_events(
    admission: Admission, document: Mapping[str, Any], broker_order: str, is_said: bool
) -> None:
    """Events without a partitionkey are spread over partitions: the object says it for as long as it stands."""
    obj = admission.create(Kind(document["kind"]), document).obj
    assert isinstance(obj, Routed)
    inputs = replace(FACTS, broker=replace(READY_BROKER, order=broker_order))
    made = {one.type: one for one in routed_status(obj, inputs, now="2026-01-01T00:00:00Z").conditions}
    assert made["Ready"].status == "True"
    assert ("Ordered" in made) is is_said
    if is_said:
        assert (made["Ordered"].status, made["Ordered"].severity) == ("True", "Info")
        assert "without one in any order" in made["Ordered"].message


def test_a_brokers_order_reaches_the_condition_of_its_triggers(admission: Admission) -> None:
    reconciler = Reconciler(admission.store)
    admission.create(Kind.BROKER, broker("b"))
    admission.create(Kind.TRIGGER, trigger(broker="b"))
    reconciler.step()
    assert "Ordered" not in conditions(admission.store)
    admission.merge(ObjectKey(Kind.BROKER, "default", "b"), {"spec": {"delivery": {"order": "ordered"}}})
    reconciler.step()
    assert conditions(admission.store)["Ordered"].reason == "ByPartitionKey"


@pytest.mark.parametrize(
    ("inputs", "status", "reason"),
    [
        (FACTS, "True", ""),
        (replace(FACTS, broker=None), "False", "BrokerDoesNotExist"),
        (replace(FACTS, broker=BrokerState(True, ready=False, reason="Why")), "False", "Why"),
        (replace(FACTS, subscriber_uri=""), "False", "RefNotResolvable"),
        (replace(FACTS, active_generation=2), "Unknown", "FilterNotInForce"),
        (replace(FACTS, active_generation=2, broker=None), "False", "BrokerDoesNotExist"),
        (replace(FACTS, plan_error="no longer"), "False", "FilterInvalid"),
        (replace(FACTS, found=TargetFindings(3, "boom")), "True", ""),
        (replace(FACTS, active_generation=9), "True", ""),
    ],
)
def test_ready_from_facts(admission: Admission, inputs: StatusInputs, status: str, reason: str) -> None:
    obj = admission.create(Kind.TRIGGER, trigger()).obj
    assert isinstance(obj, Trigger)
    made = routed_status(obj, inputs, now="2026-01-01T00:00:00Z")
    found = next(condition for condition in made.conditions if condition.type == "Ready")
    assert (found.status, found.reason) == (status, reason)
    assert made.observed_generation == obj.metadata.generation
    # C10: a Ready trigger has its subscriberUri; one that cannot be resolved has none.
    assert made.subscriber_uri == inputs.subscriber_uri


def test_a_transition_time_moves_with_the_status_only(admission: Admission) -> None:
    obj = admission.create(Kind.TRIGGER, trigger()).obj
    assert isinstance(obj, Trigger)
    first = routed_status(msgspec.structs.replace(obj, status=TriggerStatus()), FACTS, now="1")
    second = routed_status(msgspec.structs.replace(obj, status=first), replace(FACTS, active_generation=1), now="2")
    times = {condition.type: condition.last_transition_time for condition in second.conditions}
    assert times == {
        "BacklogKept": "1",
        "BrokerReady": "1",
        "DeadLetterSinkResolved": "1",
        "DependencyReady": "1",
        "EventsKept": "1",
        "FilterHealthy": "1",
        "Ready": "2",
        "Subscribed": "2",
        "SubscriberHealthy": "1",
        "SubscriberResolved": "1",
    }


def test_a_trigger_is_ready_when_its_generation_is_in_force(admission: Admission) -> None:
    store = admission.store
    reconciler = Reconciler(store)
    admission.create(Kind.TRIGGER, trigger())
    reconciler.step()
    assert ready(store) == ("Unknown", "FilterNotInForce")
    store.counters.activate(1)
    reconciler.step()
    assert ready(store) == ("True", "")
    # Another filter: not ready from the very write on, before any reconciler looks.
    changed = admission.merge(T1, {"spec": {"filter": {"expression": "ce.type == 'a'"}}}).obj
    assert ready(store) == ("Unknown", "FilterNotInForce")
    assert changed.status.observed_generation == changed.metadata.generation == 2
    # Another subscriber is no new filter.
    store.counters.activate(2)
    reconciler.step()
    admission.merge(T1, {"spec": {"subscriber": {"uri": "http://127.0.0.1:9/b"}}})
    assert ready(store) == ("True", "")


def sink(uri: str) -> dict[str, object]:
    return {"delivery": {"deadLetterSink": {"uri": uri}}}


def test_a_trigger_shows_its_sink_or_its_brokers(admission: Admission) -> None:
    """C03, C11, C20: resolved before Ready; the trigger's rules replace the broker's as a whole."""
    store = admission.store
    reconciler = Reconciler(store)
    admission.create(Kind.BROKER, broker("b", **sink("http://dead/broker")))
    admission.create(Kind.TRIGGER, trigger("none", broker="b"))
    admission.create(Kind.TRIGGER, trigger("own", broker="b", **sink("http://dead/own")))
    admission.create(Kind.TRIGGER, trigger("other", broker="b", delivery={"retry": 1}))
    store.counters.activate(store.desired_generation())
    reconciler.step()

    def shown(name: str) -> tuple[str, str]:
        found = store.get(ObjectKey(Kind.TRIGGER, "default", name)).status
        assert isinstance(found, TriggerStatus)
        return found.dead_letter_sink_uri, ready(store, ObjectKey(Kind.TRIGGER, "default", name))[0]

    assert store.get(ObjectKey(Kind.BROKER, "default", "b")).status.dead_letter_sink_uri == "http://dead/broker"
    assert [shown(name) for name in ("none", "own", "other")] == [
        ("http://dead/broker", "True"),
        ("http://dead/own", "True"),
        ("", "True"),
    ]
    uris = {target.name: target.delivery.dead_letter_uri for target in store.snapshot().targets.values()}
    assert uris == {
        "default/none": "http://dead/broker",
        "default/own": "http://dead/own",
        "default/other": None,
    }
    admission.merge(ObjectKey(Kind.BROKER, "default", "b"), {"spec": sink("http://dead/moved")})
    reconciler.step()
    assert shown("none") == ("http://dead/moved", "True")
    first, *_ = store.snapshot().targets.values()
    assert first.delivery.dead_letter_uri == "http://dead/moved"


@pytest.mark.parametrize("kind", [Kind.BROKER, Kind.TRIGGER])
def test_a_sink_that_cannot_be_resolved_keeps_its_object_from_being_ready(admission: Admission, kind: Kind) -> None:
    store = admission.store
    reconciler = Reconciler(store)
    reference = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "graves", "namespace": "dead"}
    spec = {"delivery": {"deadLetterSink": {"ref": reference}}}
    key = ObjectKey(kind, "default", "x")
    admission.create(kind, broker("x", **spec) if kind is Kind.BROKER else trigger("x", **spec))
    store.counters.activate(store.desired_generation())
    reconciler.step()
    assert ready(store, key) == ("False", "BrokerDoesNotExist")
    assert store.get(key).status.dead_letter_sink_uri == ""
    graves = broker("graves")
    graves["metadata"]["namespace"] = "dead"
    admission.create(Kind.BROKER, graves)
    reconciler.step()
    reconciler.step()
    assert ready(store, key) == ("True", "")
    assert store.get(key).status.dead_letter_sink_uri == "http://127.0.0.1:8080/dead/graves"
    store.public_url.set("http://moved:1")
    reconciler.step()
    assert store.get(key).status.dead_letter_sink_uri == "http://moved:1/dead/graves"
    service = {"apiVersion": "v1", "kind": "Service", "name": "s"}
    admission.merge(key, {"spec": {"delivery": {"deadLetterSink": {"ref": service | {"namespace": None}}}}})
    reconciler.step()
    assert ready(store, key) == ("False", "RefNotResolvable")


def test_a_trigger_may_come_before_its_broker(admission: Admission) -> None:
    store = admission.store
    reconciler, brokers = Reconciler(store), served_brokers(store)
    admission.create(Kind.TRIGGER, trigger(broker="later"))
    store.counters.activate(1)
    reconciler.step()
    assert ready(store) == ("False", "BrokerDoesNotExist")
    assert "default/later" in conditions(store)["Ready"].message
    assert brokers.get("default/later") is None
    admission.create(Kind.BROKER, broker("later"))
    reconciler.step()
    assert ready(store)[0] == "Unknown"  # the matcher knows nothing of this broker yet
    store.counters.activate(2)
    reconciler.step()
    assert ready(store) == ("True", "")
    assert brokers.get("default/later") is not None
    store.delete(ObjectKey(Kind.BROKER, "default", "later"))
    reconciler.step()
    assert ready(store) == ("False", "BrokerDoesNotExist")
    assert brokers.get("default/later") is None


def test_a_broker_made_anew_is_another_one(admission: Admission) -> None:
    """Its triggers are not Ready before the matcher knows it, and whoever made it publishes into it at once."""
    store, key = admission.store, ObjectKey(Kind.BROKER, "default", "b")
    reconciler, brokers = Reconciler(store), served_brokers(store)
    first = admission.create(Kind.BROKER, broker("b")).obj.metadata.uid
    admission.create(Kind.TRIGGER, trigger(broker="b"))
    store.counters.activate(1)
    reconciler.step()
    reconciler.step()
    assert ready(store) == ("True", "")

    def sources() -> list[str]:
        return [target.broker for target in store.snapshot().targets.values()]

    def served() -> str:
        found = brokers.get("default/b")
        return found.identity if found is not None else ""

    assert sources() == [served()] == [f"default/b/{first}"]
    store.delete(key)
    assert served() == ""
    assert sources() == [f"default/b/{first}"]  # what it has accepted is still matched
    second = admission.create(Kind.BROKER, broker("b")).obj.metadata.uid
    assert ready(store)[0] == "False"
    assert sources() == [served()] == [f"default/b/{second}"]
    (target,) = store.snapshot().targets.values()
    assert store.snapshot().generation == target.needs == 2
    reconciler.step()
    assert ready(store)[0] == "Unknown"
    admission.create(Kind.TRIGGER, trigger("t2", broker="b"))
    assert set(sources()) == {f"default/b/{second}"}


def test_a_history_begins_anew_with_its_broker(admission: Admission) -> None:
    store = admission.store
    admission.create(Kind.SUBSCRIPTION, subscription(broker="b"))

    def filter_id() -> str:
        (target,) = store.snapshot().targets.values()
        assert target.pull is not None
        return target.pull.filter_id

    before = filter_id()
    admission.create(Kind.BROKER, broker("b"))
    assert filter_id() != before
    before = filter_id()
    admission.store.replace(store.get(ObjectKey(Kind.BROKER, "default", "b")))
    assert filter_id() == before


def test_a_broker_is_served_before_it_says_ready(admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    store = admission.store
    reconciler = Reconciler(store)
    admission.create(Kind.BROKER, broker("b"))
    brokers, served = ServedBrokers(store), []
    store.on_broker(brokers.refresh)
    write = store.write_statuses

    def spy(changed):  # type: ignore[no-untyped-def]
        served.append(brokers.get("default/b") is not None)
        return write(changed)

    monkeypatch.setattr(store, "write_statuses", spy)
    reconciler.step()
    assert served == [True]
    assert ready(store, ObjectKey(Kind.BROKER, "default", "b")) == ("True", "")


def test_a_broker_has_its_address_and_follows_the_server(admission: Admission) -> None:
    store = admission.store
    reconciler = Reconciler(store)
    store.public_url.set("http://gate:1")
    ref = {"kind": "Broker", "apiVersion": "eventing.knative.dev/v1", "name": "default"}
    admission.create(Kind.TRIGGER, trigger(subscriber={"ref": ref, "uri": "/default/default?x=1"}))
    reconciler.step()
    found = store.get(DEFAULT)
    assert found.status.address.url == "http://gate:1/default/default"  # type: ignore[union-attr]
    store.public_url.set("http://gate:2")
    reconciler.step()
    found = store.get(DEFAULT)
    assert found.status.address.url == "http://gate:2/default/default"  # type: ignore[union-attr]
    moved = store.get(T1)
    assert isinstance(moved, Trigger)
    assert moved.status.subscriber_uri == "http://gate:2/default/default?x=1"


def test_a_broker_of_another_class_is_not_served(admission: Admission) -> None:
    document = broker("kafka")
    document["metadata"]["annotations"] = {"eventing.knative.dev/broker.class": "Kafka"}
    admission.create(Kind.BROKER, document)
    admission.create(Kind.TRIGGER, trigger(broker="kafka"))
    reconciler, brokers = Reconciler(admission.store), served_brokers(admission.store)
    reconciler.step()
    assert ready(admission.store, ObjectKey(Kind.BROKER, "default", "kafka")) == ("False", "BrokerClassNotServed")
    assert ready(admission.store) == ("False", "BrokerClassNotServed")
    assert brokers.get("default/kafka") is None
    assert "default/kafka" not in admission.store.snapshot().brokers


def test_unresolvable_subscribers_say_why(admission: Admission) -> None:
    ref = {"kind": "Service", "apiVersion": "v1", "name": "svc"}
    admission.create(Kind.TRIGGER, trigger(subscriber={"ref": ref}))
    ours = {"kind": "Broker", "apiVersion": "eventing.knative.dev/v1", "name": "nope"}
    admission.create(Kind.TRIGGER, trigger("t2", subscriber={"ref": ours}))
    Reconciler(admission.store).step()
    found = conditions(admission.store)["SubscriberResolved"]
    assert (found.status, found.reason) == ("False", "RefNotResolvable")
    assert "Service default/svc" in found.message
    second = ObjectKey(Kind.TRIGGER, "default", "t2")
    assert conditions(admission.store, second)["SubscriberResolved"].reason == "BrokerDoesNotExist"


def test_nothing_is_written_when_nothing_changed(admission: Admission) -> None:
    store = admission.store
    for number in range(5):
        admission.create(Kind.TRIGGER, trigger(f"t{number}"))
    store.counters.activate(5)
    reconciler = Reconciler(store)
    assert reconciler.step() == 6
    version = store.counters.version()
    assert reconciler.step() == 0
    assert Reconciler(store).step() == 0
    assert store.counters.version() == version


def test_only_the_triggers_concerned_are_rewritten(admission: Admission) -> None:
    store = admission.store
    reconciler = Reconciler(store)
    admission.create(Kind.BROKER, broker("b"))
    for number in range(6):
        admission.create(Kind.TRIGGER, trigger(f"t{number}", broker="b" if number % 2 else "default"))
    store.counters.activate(4)
    reconciler.step()
    assert [ready(store, ObjectKey(Kind.TRIGGER, "default", f"t{n}"))[0] for n in range(6)] == ["True"] * 4 + [
        "Unknown"
    ] * 2
    store.counters.activate(5)
    assert reconciler.step() == 1
    store.counters.activate(6)
    assert reconciler.step() == 1
    store.delete(ObjectKey(Kind.BROKER, "default", "b"))
    assert reconciler.step() == 3


def test_filter_errors_are_a_warning_shown_every_few_seconds(admission: Admission) -> None:
    store, clock = admission.store, Clock()
    reconciler = Reconciler(store, clock_s=clock, report_s=5.0)
    admission.create(Kind.TRIGGER, trigger())
    store.counters.activate(1)
    reconciler.step()
    store.reports.report([TargetReport(1, 2, "no such key: tier", "shop 17")])
    assert reconciler.step() == 1
    found = conditions(store)["FilterHealthy"]
    assert (found.status, found.severity, found.reason) == ("False", "Warning", "FilterErrors")
    assert "2 events" in found.message
    assert "no such key: tier" in found.message
    assert "shop 17" in found.message
    assert ready(store) == ("True", "")
    for _ in range(4):
        clock.now_s += 1
        store.reports.report([TargetReport(1, 1, "again", "shop 18")])
        assert reconciler.step() == 0
    clock.now_s += 1
    assert reconciler.step() == 1
    assert "6 events" in conditions(store)["FilterHealthy"].message


def test_events_given_up_are_a_warning_that_stays(admission: Admission) -> None:
    store, reconciler = admission.store, Reconciler(admission.store, report_s=0.0)
    admission.create(Kind.TRIGGER, trigger())
    store.counters.activate(1)
    reconciler.step()
    assert conditions(store)["EventsKept"].status == "True"
    store.reports.report(
        [TargetReport(1, 0, "", "", dropped=2, last_dropped="partition 0, offset 7: status 500 at attempt 4")]
    )
    store.reports.report([TargetReport(1, 1, "boom", "s 1")])
    store.reports.report([TargetReport(1, 0, "", "", "", 1, "partition 0, offset 9: timeout at attempt 4")])
    store.reports.forget_trouble(lambda _: True)
    reconciler.step()
    found = conditions(store)["EventsKept"]
    assert (found.status, found.severity, found.reason) == ("False", "Warning", "EventsDropped")
    assert found.message == "3 events were given up and dropped; last: partition 0, offset 9: timeout at attempt 4"
    assert ready(store) == ("True", "")


def test_a_backlog_near_its_bounds_is_a_warning(admission: Admission) -> None:
    store, reconciler = admission.store, Reconciler(admission.store, report_s=0.0)
    admission.create(Kind.TRIGGER, trigger())
    store.counters.activate(1)
    store.reports.report([TargetReport(1, 0, "", "", backlog="BacklogNearLimit: the oldest go at 168 hours")])
    store.reports.report([TargetReport(1, 1, "boom", "s 1")])  # says nothing of it: as before
    reconciler.step()
    found = conditions(store)["BacklogKept"]
    assert (found.status, found.severity, found.reason) == ("False", "Warning", "BacklogNearLimit")
    assert found.message == "the oldest go at 168 hours"
    assert conditions(store)["SubscriberHealthy"].status == "True"
    assert ready(store) == ("True", "")
    store.reports.report([TargetReport(1, 0, "", "", backlog="")])
    reconciler.step()
    assert conditions(store)["BacklogKept"].status == "True"


def test_trouble_with_a_subscriber_is_a_warning_until_it_is_over(admission: Admission) -> None:
    store, reconciler = admission.store, Reconciler(admission.store, report_s=0.0)
    admission.create(Kind.TRIGGER, trigger(delivery={"rateLimit": 2}))
    store.counters.activate(1)
    store.reports.report([TargetReport(1, 0, "", "", "CircuitOpen: 32 attempts in a row met nobody: dead")])
    reconciler.step()
    store.reports.report([TargetReport(1, 1, "boom", "s 1")])  # says nothing of the subscriber: as before
    reconciler.step()
    status = store.get(T1).status
    found = {condition.type: condition for condition in status.conditions}
    assert (found["SubscriberHealthy"].status, found["SubscriberHealthy"].reason) == ("False", "CircuitOpen")
    assert found["SubscriberHealthy"].severity == "Warning"
    assert found["SubscriberHealthy"].message == "32 attempts in a row met nobody: dead"
    assert found["Ready"].status == "True"
    store.reports.forget_trouble(lambda _: True)  # a new dispatcher
    reconciler.step()
    found = {condition.type: condition for condition in store.get(T1).status.conditions}
    assert (found["SubscriberHealthy"].status, found["FilterHealthy"].status) == ("True", "False")


def test_a_change_during_a_pass_is_not_overwritten(admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    store = admission.store
    reconciler = Reconciler(store)
    admission.create(Kind.TRIGGER, trigger())
    reconciler.step()
    store.counters.activate(1)
    stale = store.stale_routed

    def interrupted(*args):  # type: ignore[no-untyped-def]
        found = stale(*args)
        if found and not interrupted.done:  # type: ignore[attr-defined]
            interrupted.done = True  # type: ignore[attr-defined]
            admission.merge(T1, {"spec": {"filter": {"expression": "ce.type == 'a'"}}})
        return found

    interrupted.done = False  # type: ignore[attr-defined]
    monkeypatch.setattr(store, "stale_routed", interrupted)
    assert reconciler.step() == 0
    assert ready(store) == ("Unknown", "FilterNotInForce")
    store.counters.activate(2)
    reconciler.step()
    assert ready(store) == ("True", "")


def test_two_reconcilers_agree(admission: Admission, tmp_path: Path) -> None:
    other = Store.open(tmp_path / "control.db")
    one, two = Reconciler(admission.store), Reconciler(other)
    admission.create(Kind.TRIGGER, trigger())
    one.step()
    assert two.step() == 0
    other.counters.activate(1)
    two.step()
    assert one.step() == 0
    assert ready(admission.store) == ("True", "")
    other.close()


def test_the_loop_follows_the_store_and_outlives_a_failure(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = admission.store

    async def main() -> None:
        stop = asyncio.Event()
        reconciler = Reconciler(store)
        fail_once = [True]
        step = reconciler.step

        def failing() -> int:
            if fail_once:
                fail_once.pop()
                raise StoreUnavailableError("disk full")
            return step()

        monkeypatch.setattr(reconciler, "step", failing)
        loop = asyncio.create_task(reconciler.run(stop))
        await asyncio.to_thread(admission.create, Kind.TRIGGER, trigger())
        await asyncio.to_thread(store.counters.activate, 1)
        async with asyncio.timeout(20):
            while (await asyncio.to_thread(ready, store))[0] != "True":
                await asyncio.sleep(0.002)
        stop.set()
        await loop
        assert not fail_once

    asyncio.run(main())
