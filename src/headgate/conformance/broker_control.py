"""C01-C20: Brokers and Triggers as the control plane's specification has them."""

from __future__ import annotations

from functools import partial
from typing import Final

from headgate.conformance.broker_context import MAY, MUST, SHOULD, Check, CheckContext, expect, ready_of
from headgate.conformance.broker_environment import NAMESPACE, Facility, Object, ViolationError, answer

_CLASS: Final = "eventing.knative.dev/broker.class"
_NOBODY: Final = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "nobody-there", "namespace": NAMESPACE}}
_ONCE: Final = {"retry": 0, "backoffDelay": "PT0.05S", "backoffPolicy": "linear"}


def _address(scene: CheckContext) -> str:
    url = scene.broker()
    structured = b'{"specversion":"1.0","id":"2","source":"/c","type":"t","data":{"a":1}}'
    scene.publish(url, "1", data={"a": 1})
    status, _, _ = scene.post(url, {"content-type": "application/cloudevents+json"}, structured)
    expect(200 <= status < 300, f"an event in structured mode is answered with {status}")
    return "binary and structured mode accepted at status.address.url"


def _all_triggers(scene: CheckContext) -> str:
    url = scene.broker()
    inboxes = [scene.inbox(str(n)) for n in range(3)]
    for number, inbox in enumerate(inboxes):
        scene.trigger(str(number), inbox, wait=False)
    scene.all_ready("0", "1", "2")
    scene.publish(url, "1")
    for inbox in inboxes:
        scene.arrive(inbox, "1")
    return "one event came to each of 3 triggers"


def _broker_sink(scene: CheckContext) -> str:
    sink = scene.inbox("sink")
    rules = {"deadLetterSink": {"uri": sink.url}}
    versions = scene.versions("brokers", "b", lambda: scene.broker(delivery=rules))
    _set_when_ready(versions, "deadLetterSinkUri", sink.url)
    scene.create("brokers", "lost", {"delivery": {"deadLetterSink": _NOBODY}})
    reason = ready_of(scene.until_ready("brokers", "lost", "False")).get("reason")
    return f"status.deadLetterSinkUri set whenever Ready; without an address Ready=False ({reason})"


def _set_when_ready(versions: list[Object], name: str, value: str) -> None:
    expect(any(ready_of(item).get("status") == "True" for item in versions), "it does not come to Ready=True")
    for item in versions:
        if ready_of(item).get("status") == "True":
            found = item["status"].get(name)
            expect(found == value, f"status.{name} is {found!r} while Ready=True, not {value!r}")


def _class_default(scene: CheckContext) -> str:
    scene.broker()
    found = scene.get("brokers", "b")["metadata"].get("annotations", {}).get(_CLASS)
    expect(found, f"a broker without the annotation {_CLASS} gets none")
    scene.create("brokers", "other", {}, **{_CLASS: "NobodysBroker"})
    item = scene.get("brokers", "other")
    expect(ready_of(item).get("status") != "True", "a broker of another class is Ready")
    return f"a missing class becomes {found}; a broker of another class is not served"


def _class_immutable(scene: CheckContext) -> str:
    scene.broker()

    def change(item: Object) -> None:
        item["metadata"]["annotations"][_CLASS] = "Another"

    scene.refuses("another class", lambda: scene.replace("brokers", "b", change))
    found = scene.get("brokers", "b")["metadata"]["annotations"][_CLASS]
    expect(found != "Another", "the class was changed by a refused update")
    return "another class is refused"


def _config_immutable(scene: CheckContext) -> str:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "one", "namespace": NAMESPACE}
    scene.create("brokers", "b", {"config": config})

    def change(item: Object) -> None:
        item["spec"]["config"] = {**config, "name": "two"}

    scene.refuses("another config", lambda: scene.replace("brokers", "b", change))
    expect(scene.get("brokers", "b")["spec"]["config"]["name"] == "one", "the config was changed by a refused update")
    return "another config is refused"


def _early_trigger(scene: CheckContext) -> str:
    scene.trigger("t", scene.inbox("t"), wait=False)
    return "accepted"


def _unready_without_broker(scene: CheckContext) -> str:
    scene.trigger("t", scene.inbox("t"), wait=False)
    ready = ready_of(scene.until_ready("triggers", "t", "False"))
    text = f"{ready.get('reason', '')} {ready.get('message', '')}"
    expect("broker" in text.lower(), f"Ready is False, but neither reason nor message names the broker: {text}")
    return f"Ready=False, {ready.get('reason')}"


def _ready_with_broker(scene: CheckContext) -> str:
    inbox = scene.inbox("t")
    scene.trigger("t", inbox, wait=False)
    scene.until_ready("triggers", "t", "False")
    url = scene.broker()
    scene.all_ready("t")
    scene.publish(url, "1")
    scene.arrive(inbox, "1")
    return "Ready=True once the broker is there; an event then comes"


def _subscriber_uri(scene: CheckContext) -> str:
    scene.broker()
    inbox = scene.inbox("t")
    _set_when_ready(scene.versions("triggers", "t", lambda: scene.trigger("t", inbox)), "subscriberUri", inbox.url)
    scene.trigger("lost", _NOBODY, wait=False)
    item = scene.until_ready("triggers", "lost", "False")
    expect(not item["status"].get("subscriberUri"), "status.subscriberUri is set, but nothing has that name")
    reason = ready_of(item).get("reason")
    expect(reason, "Ready=False has no reason")
    return f"set whenever Ready; without an address empty and Ready=False ({reason})"


def _trigger_sink(scene: CheckContext) -> str:
    scene.broker()
    inbox, sink = scene.inbox("t"), scene.inbox("sink")
    rules = {"deadLetterSink": {"uri": sink.url}}
    versions = scene.versions("triggers", "t", lambda: scene.trigger("t", inbox, delivery=rules))
    _set_when_ready(versions, "deadLetterSinkUri", sink.url)
    scene.trigger("lost", inbox, wait=False, delivery={"deadLetterSink": _NOBODY})
    reason = ready_of(scene.until_ready("triggers", "lost", "False")).get("reason")
    return f"status.deadLetterSinkUri set whenever Ready; without an address Ready=False ({reason})"


def _mutable(scene: CheckContext) -> str:
    url = scene.broker()
    scene.broker("other")
    before, after = scene.inbox("before"), scene.inbox("after")
    scene.trigger("t", before, filter={"attributes": {"type": "a"}})

    def rebroker(item: Object) -> None:
        item["spec"]["broker"] = scene.named("other")

    def change(item: Object) -> None:
        item["spec"]["subscriber"] = {"uri": after.url}
        item["spec"]["filter"] = {"attributes": {"type": "b"}}

    scene.refuses("another spec.broker", lambda: scene.replace("triggers", "t", rebroker))
    scene.replace("triggers", "t", change)
    scene.all_ready("t")
    scene.publish(url, "1", "a")
    scene.publish(url, "2", "b")
    scene.arrive(after, "2", what="the new subscriber")
    expect(not before.deliveries, "the former subscriber got an event after the change was Ready")
    return "another spec.broker is refused; another subscriber and filter hold once Ready"


def _all_future_events(scene: CheckContext) -> str:
    url = scene.broker()
    for number in range(3):
        inbox = scene.inbox(str(number))
        scene.trigger(str(number), inbox)
        ids = [f"{number}-{n}" for n in range(20)]
        for event_id in ids:
            scene.publish(url, event_id)
        scene.happens(lambda inbox=inbox, ids=ids: set(ids) <= set(inbox.ids))  # type: ignore[misc]
        missing = set(ids) - set(inbox.ids)
        expect(not missing, f"{len(missing)} of 20 events published right after Ready=True did not come")
    return "3 times: all of 20 events published at once after Ready=True came"


def _one_broker(scene: CheckContext) -> str:
    url, other = scene.broker(), scene.broker("other")
    inbox, elsewhere = scene.inbox("t"), scene.inbox("elsewhere")
    scene.trigger("t", inbox, wait=False)
    scene.trigger("elsewhere", elsewhere, broker="other")
    scene.all_ready("t")
    scene.publish(url, "1")
    scene.publish(other, "2")
    scene.arrive(inbox, "1")
    scene.arrive(elsewhere, "2")
    return "each of 2 brokers' events came to its own trigger only"


def _destination(scene: CheckContext) -> str:
    first, second = scene.broker(), scene.broker("second")
    inbox = scene.inbox("t")
    ref = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": scene.named("second")}
    scene.trigger("on", {"ref": ref}, wait=False)
    scene.trigger("relative", {"ref": ref, "uri": "?a=b"}, wait=False, filter={"attributes": {"type": "none"}})
    scene.trigger("t", inbox, broker="second")
    scene.all_ready("on", "relative")
    found = scene.get("triggers", "on")["status"]["subscriberUri"]
    expect(found == second, "a ref to a Broker does not become its address")
    found = scene.get("triggers", "relative")["status"]["subscriberUri"]
    expect(found == f"{second}?a=b", "a uri beside a ref is not taken relative to it")
    scene.publish(first, "1")
    scene.arrive(inbox, "1", what="the second broker's trigger")
    scene.trigger("lost", _NOBODY, wait=False)
    reason = ready_of(scene.until_ready("triggers", "lost", "False")).get("reason")
    return f"ref to an Addressable, uri relative to it; a Service that is not there: Ready=False ({reason})"


def _attributes(scene: CheckContext) -> str:
    url = scene.broker()
    filters = {
        "exact": {"type": "order.Paid"},
        "present": {"tenant": ""},
        "both": {"type": "order.Paid", "tenant": "acme"},
        "source": {"source": "/conformance"},
    }
    for name, attributes in filters.items():
        scene.trigger(name, scene.inbox(name), wait=False, filter={"attributes": attributes})
    scene.all_ready(*filters)
    scene.publish(url, "1", "order.Paid")
    scene.publish(url, "2", "order.paid", tenant="acme")
    scene.publish(url, "3", "order.Paid", tenant="acme")
    scene.publish(url, "4", "order.Paid.more", tenant="Acme")
    wanted = {"exact": "13", "present": "234", "both": "3", "source": "1234"}
    for name, ids in wanted.items():
        scene.arrive(scene.stage.inboxes[f"/c16/{name}"], *ids, what=f"the filter {name}")
    return "presence, exact and case-sensitive values, empty for any value, several at once"


def _no_filter(scene: CheckContext) -> str:
    url = scene.broker()
    none, empty = scene.inbox("none"), scene.inbox("empty")
    scene.trigger("none", none, wait=False)
    scene.trigger("empty", empty, wait=False, filter={})
    scene.all_ready("none", "empty")
    for number in range(3):
        scene.publish(url, str(number), f"type{number}")
    scene.arrive(none, "0", "1", "2", what="a trigger without a filter")
    scene.arrive(empty, "0", "1", "2", what="a trigger with an empty filter")
    return "every event came"


def _names(scene: CheckContext) -> str:
    scene.broker()
    bad = ("Type", "my-ext", "my_ext", "", "ü")
    for number, name in enumerate(bad):
        filter_ = {"attributes": {name: "x"}}
        made = partial(scene.trigger, f"bad{number}", scene.inbox("t"), wait=False, filter=filter_)
        scene.refuses(f"the attribute name {name!r}", made)
    scene.trigger("good", scene.inbox("good"), filter={"attributes": {"ext1": "x", "type": "y"}})
    return f"{len(bad)} invalid names are refused, valid ones are not"


def _written_together(scene: CheckContext) -> str:
    scene.broker()
    scene.trigger("t", scene.inbox("t"))

    def lose(item: Object) -> None:
        item["spec"]["subscriber"] = _NOBODY

    def change() -> None:
        scene.replace("triggers", "t", lose)
        scene.until_ready("triggers", "t", "False")

    for item in scene.versions("triggers", "t", change):
        status = item.get("status", {})
        if status.get("observedGeneration", 0) >= 2 and ready_of(item).get("status") != "False":
            raise ViolationError("observedGeneration speaks of the change before the conditions do")
    return "no version of the object had the new observedGeneration with the old conditions"


def _override(scene: CheckContext) -> str:
    brokers, own = scene.inbox("brokers"), scene.inbox("own")
    url = scene.broker(delivery=_ONCE | {"deadLetterSink": {"uri": brokers.url}})
    failing = scene.inbox("failing", answer(500))
    scene.trigger("inherits", failing, wait=False, filter={"attributes": {"type": "a"}})
    rules = _ONCE | {"deadLetterSink": {"uri": own.url}}
    scene.trigger("own", failing, wait=False, filter={"attributes": {"type": "b"}}, delivery=rules)
    scene.trigger("any", failing, wait=False, filter={"attributes": {"type": "c"}}, delivery=_ONCE)
    scene.all_ready("inherits", "own", "any")
    for event_id in "abc":
        scene.publish(url, event_id, event_id)
    scene.arrive(brokers, "a", what="the broker's dead-letter sink")
    scene.arrive(own, "b", what="the trigger's dead-letter sink")
    scene.arrive(failing, "a", "b", "c", what="the subscriber")
    return "a trigger with any option of its own uses none of its broker's, not even the sink"


_API: Final = (Facility.API,)
CHECKS: Final = (
    Check("C01", MUST, "A Ready Broker has status.address.url and accepts all valid events there", _API, _address),
    Check("C02", MUST, "A Ready Broker forwards events to every associated Ready Trigger", _API, _all_triggers),
    Check("C03", MUST, "A Broker's deadLetterSink is resolved before it is Ready", _API, _broker_sink),
    Check("C04", SHOULD, "The class is selected by annotation, and defaulted", _API, _class_default),
    Check("C05", MUST, "A Broker's class is immutable", _API, _class_immutable),
    Check("C06", MUST, "A Broker's spec.config is immutable", _API, _config_immutable),
    Check("C07", MAY, "A Trigger may be created before its Broker", _API, _early_trigger),
    Check("C08", MUST, "Such a Trigger is not Ready, with the reason", _API, _unready_without_broker),
    Check("C09", SHOULD, "A Trigger becomes Ready when its Broker does", _API, _ready_with_broker),
    Check("C10", MUST, "subscriberUri is set before Ready, empty when it cannot be resolved", _API, _subscriber_uri),
    Check("C11", MUST, "A Trigger's deadLetterSink is resolved before it is Ready", _API, _trigger_sink),
    Check("C12", MUST, "spec.broker never changes; subscriber and filter can", _API, _mutable),
    Check("C13", MUST, "Ready means that all future matching events are sent", _API, _all_future_events),
    Check("C14", MUST, "A Trigger belongs to exactly one Broker", _API, _one_broker),
    Check("C15", MUST, "Destinations: ref, uri, uri relative to ref; errors are Ready=False", _API, _destination),
    Check("C16", MUST, "The attributes filter: present, exact, case-sensitive, empty for any", _API, _attributes),
    Check("C17", MUST, "No filter means all events", _API, _no_filter),
    Check("C18", MUST, "Invalid attribute names in filters are rejected", _API, _names),
    Check("C19", MUST, "Conditions are written together with observedGeneration", _API, _written_together),
    Check("C20", MUST, "A Trigger's delivery replaces the Broker's as a whole", _API, _override),
)
