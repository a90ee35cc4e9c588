"""C01-C20: Brokers and Triggers as the control plane's specification has them."""

from __future__ import annotations

from functools import partial
from typing import Final

from headgate_conformance.broker_context import (
    MAY,
    MUST,
    NAMESPACE,
    ONCE,
    SHOULD,
    Check,
    CheckContext,
    Object,
    ViolationError,
    answer,
    expect,
    ready_of,
)

_CLASS: Final = "eventing.knative.dev/broker.class"
_NOBODY: Final = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "nobody-there", "namespace": NAMESPACE}}


def _address(context: CheckContext) -> str:
    url = context.broker()
    structured = b'{"specversion":"1.0","id":"2","source":"/c","type":"t","data":{"a":1}}'
    context.publish(url, "1", data={"a": 1})
    headers = {"content-type": "application/cloudevents+json"}
    context.accepted(url, headers, structured, "an event in structured mode")
    return "binary and structured mode accepted at status.address.url"


def _all_triggers(context: CheckContext) -> str:
    url = context.broker()
    inboxes = [context.subscriber(str(n)) for n in range(3)]
    context.all_ready()
    context.publish(url, "1")
    for inbox in inboxes:
        context.arrive(inbox, "1")
    return "one event came to each of 3 triggers"


def _broker_sink(context: CheckContext) -> str:
    sink = context.inbox("sink")
    rules = {"deadLetterSink": {"uri": sink.url}}
    versions = context.versions("brokers", "b", lambda: context.broker(delivery=rules))
    _set_when_ready(versions, "deadLetterSinkUri", sink.url)
    context.create("brokers", "lost", {"delivery": {"deadLetterSink": _NOBODY}})
    reason = ready_of(context.until_ready("brokers", "lost", "False")).get("reason")
    return f"status.deadLetterSinkUri set whenever Ready; without an address Ready=False ({reason})"


def _set_when_ready(versions: list[Object], name: str, value: str) -> None:
    expect(any(ready_of(item).get("status") == "True" for item in versions), "it does not come to Ready=True")
    for item in versions:
        if ready_of(item).get("status") == "True":
            found = item["status"].get(name)
            expect(found == value, f"status.{name} is {found!r} while Ready=True, not {value!r}")


def _class_default(context: CheckContext) -> str:
    context.broker()
    found = context.get("brokers", "b")["metadata"].get("annotations", {}).get(_CLASS)
    expect(found, f"a broker without the annotation {_CLASS} gets none")
    context.create("brokers", "other", {}, **{_CLASS: "NobodysBroker"})
    item = context.get("brokers", "other")
    expect(ready_of(item).get("status") != "True", "a broker of another class is Ready")
    return f"a missing class becomes {found}; a broker of another class is not served"


def _class_immutable(context: CheckContext) -> str:
    context.broker()

    def change(item: Object) -> None:
        item["metadata"]["annotations"][_CLASS] = "Another"

    context.refuses("another class", lambda: context.replace("brokers", "b", change))
    found = context.get("brokers", "b")["metadata"]["annotations"][_CLASS]
    expect(found != "Another", "the class was changed by a refused update")
    return "another class is refused"


def _config_immutable(context: CheckContext) -> str:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "one", "namespace": NAMESPACE}
    context.create("brokers", "b", {"config": config})

    def change(item: Object) -> None:
        item["spec"]["config"] = {**config, "name": "two"}

    context.refuses("another config", lambda: context.replace("brokers", "b", change))
    expect(context.get("brokers", "b")["spec"]["config"]["name"] == "one", "the config was changed by a refused update")
    return "another config is refused"


def _early_trigger(context: CheckContext) -> str:
    context.subscriber("t")
    return "accepted"


def _unready_without_broker(context: CheckContext) -> str:
    context.subscriber("t")
    ready = ready_of(context.until_ready("triggers", "t", "False"))
    text = f"{ready.get('reason', '')} {ready.get('message', '')}"
    expect("broker" in text.lower(), f"Ready is False, but neither reason nor message names the broker: {text}")
    return f"Ready=False, {ready.get('reason')}"


def _ready_with_broker(context: CheckContext) -> str:
    inbox = context.subscriber("t")
    context.until_ready("triggers", "t", "False")
    url = context.broker()
    context.all_ready()
    context.publish(url, "1")
    context.arrive(inbox, "1")
    return "Ready=True once the broker is there; an event then comes"


def _subscriber_uri(context: CheckContext) -> str:
    context.broker()
    inbox = context.inbox("t")
    _set_when_ready(context.versions("triggers", "t", lambda: context.trigger("t", inbox)), "subscriberUri", inbox.url)
    context.trigger("lost", _NOBODY, wait=False)
    item = context.until_ready("triggers", "lost", "False")
    expect(not item["status"].get("subscriberUri"), "status.subscriberUri is set, but nothing has that name")
    reason = ready_of(item).get("reason")
    expect(reason, "Ready=False has no reason")
    return f"set whenever Ready; without an address empty and Ready=False ({reason})"


def _trigger_sink(context: CheckContext) -> str:
    context.broker()
    inbox, sink = context.inbox("t"), context.inbox("sink")
    rules = {"deadLetterSink": {"uri": sink.url}}
    versions = context.versions("triggers", "t", lambda: context.trigger("t", inbox, delivery=rules))
    _set_when_ready(versions, "deadLetterSinkUri", sink.url)
    context.trigger("lost", inbox, wait=False, delivery={"deadLetterSink": _NOBODY})
    reason = ready_of(context.until_ready("triggers", "lost", "False")).get("reason")
    return f"status.deadLetterSinkUri set whenever Ready; without an address Ready=False ({reason})"


def _mutable(context: CheckContext) -> str:
    url = context.broker()
    context.broker("other")
    before, after = context.inbox("before"), context.inbox("after")
    context.trigger("t", before, filter={"attributes": {"type": "a"}})

    def rebroker(item: Object) -> None:
        item["spec"]["broker"] = context.named("other")

    def change(item: Object) -> None:
        item["spec"]["subscriber"] = {"uri": after.url}
        item["spec"]["filter"] = {"attributes": {"type": "b"}}

    context.refuses("another spec.broker", lambda: context.replace("triggers", "t", rebroker))
    context.replace("triggers", "t", change)
    context.all_ready("t")
    context.publish(url, "1", "a")
    context.publish(url, "2", "b")
    context.arrive(after, "2", what="the new subscriber")
    expect(not before.deliveries, "the former subscriber got an event after the change was Ready")
    return "another spec.broker is refused; another subscriber and filter hold once Ready"


def _all_future_events(context: CheckContext) -> str:
    url = context.broker()
    for number in range(3):
        inbox = context.inbox(str(number))
        context.trigger(str(number), inbox)
        ids = context.publish_all(url, [f"{number}-{n}" for n in range(20)])
        missing = context.missing(inbox, ids)
        expect(not missing, f"{len(missing)} of 20 events published right after Ready=True did not come")
    return "3 times: all of 20 events published at once after Ready=True came"


def _one_broker(context: CheckContext) -> str:
    url, other = context.broker(), context.broker("other")
    inbox, elsewhere = context.subscriber("t"), context.subscriber("elsewhere", broker="other")
    context.all_ready()
    context.publish(url, "1")
    context.publish(other, "2")
    context.arrive(inbox, "1")
    context.arrive(elsewhere, "2")
    return "each of 2 brokers' events came to its own trigger only"


def _destination(context: CheckContext) -> str:
    first, second = context.broker(), context.broker("second")
    ref = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": context.named("second")}
    context.trigger("on", {"ref": ref}, wait=False)
    context.trigger("relative", {"ref": ref, "uri": "?a=b"}, wait=False, filter={"attributes": {"type": "none"}})
    inbox = context.subscriber("t", broker="second")
    context.all_ready()
    found = context.get("triggers", "on")["status"]["subscriberUri"]
    expect(found == second, "a ref to a Broker does not become its address")
    found = context.get("triggers", "relative")["status"]["subscriberUri"]
    expect(found == f"{second}?a=b", "a uri beside a ref is not taken relative to it")
    context.publish(first, "1")
    context.arrive(inbox, "1", what="the second broker's trigger")
    context.trigger("lost", _NOBODY, wait=False)
    reason = ready_of(context.until_ready("triggers", "lost", "False")).get("reason")
    return f"ref to an Addressable, uri relative to it; a Service that is not there: Ready=False ({reason})"


def _attributes(context: CheckContext) -> str:
    url = context.broker()
    filters = {
        "exact": {"type": "order.Paid"},
        "present": {"tenant": ""},
        "both": {"type": "order.Paid", "tenant": "acme"},
        "source": {"source": "/conformance"},
    }
    inboxes = {name: context.subscriber(name, filter={"attributes": wanted}) for name, wanted in filters.items()}
    context.all_ready()
    context.publish(url, "1", "order.Paid")
    context.publish(url, "2", "order.paid", tenant="acme")
    context.publish(url, "3", "order.Paid", tenant="acme")
    context.publish(url, "4", "order.Paid.more", tenant="Acme")
    wanted = {"exact": "13", "present": "234", "both": "3", "source": "1234"}
    for name, ids in wanted.items():
        context.arrive(inboxes[name], *ids, what=f"the filter {name}")
    return "presence, exact and case-sensitive values, empty for any value, several at once"


def _no_filter(context: CheckContext) -> str:
    url = context.broker()
    none, empty = context.subscriber("none"), context.subscriber("empty", filter={})
    context.all_ready()
    for number in range(3):
        context.publish(url, str(number), f"type{number}")
    context.arrive(none, "0", "1", "2", what="a trigger without a filter")
    context.arrive(empty, "0", "1", "2", what="a trigger with an empty filter")
    return "every event came"


def _names(context: CheckContext) -> str:
    context.broker()
    bad = ("Type", "my-ext", "my_ext", "", "ü")
    for number, name in enumerate(bad):
        made = partial(context.subscriber, f"bad{number}", filter={"attributes": {name: "x"}})
        context.refuses(f"the attribute name {name!r}", made)
    context.trigger("good", context.inbox("good"), filter={"attributes": {"ext1": "x", "type": "y"}})
    return f"{len(bad)} invalid names are refused, valid ones are not"


def _written_together(context: CheckContext) -> str:
    context.broker()
    context.trigger("t", context.inbox("t"))

    def lose(item: Object) -> None:
        item["spec"]["subscriber"] = _NOBODY

    def change() -> None:
        context.replace("triggers", "t", lose)
        context.until_ready("triggers", "t", "False")

    for item in context.versions("triggers", "t", change):
        status = item.get("status", {})
        if status.get("observedGeneration", 0) >= 2 and ready_of(item).get("status") != "False":
            raise ViolationError("observedGeneration speaks of the change before the conditions do")
    return "no version of the object had the new observedGeneration with the old conditions"


def _override(context: CheckContext) -> str:
    brokers, own = context.inbox("brokers"), context.inbox("own")
    url = context.broker(delivery=ONCE | {"deadLetterSink": {"uri": brokers.url}})
    failing = context.inbox("failing", answer(500))
    context.trigger("inherits", failing, wait=False, filter={"attributes": {"type": "a"}})
    rules = ONCE | {"deadLetterSink": {"uri": own.url}}
    context.trigger("own", failing, wait=False, filter={"attributes": {"type": "b"}}, delivery=rules)
    context.trigger("any", failing, wait=False, filter={"attributes": {"type": "c"}}, delivery=ONCE)
    context.all_ready()
    for event_id in "abc":
        context.publish(url, event_id, event_id)
    context.arrive(brokers, "a", what="the broker's dead-letter sink")
    context.arrive(own, "b", what="the trigger's dead-letter sink")
    context.arrive(failing, "a", "b", "c", what="the subscriber")
    return "a trigger with any option of its own uses none of its broker's, not even the sink"


CHECKS: Final = (
    Check("C01", MUST, "A Ready Broker has status.address.url and accepts all valid events there", _address),
    Check("C02", MUST, "A Ready Broker forwards events to every associated Ready Trigger", _all_triggers),
    Check("C03", MUST, "A Broker's deadLetterSink is resolved before it is Ready", _broker_sink),
    Check("C04", SHOULD, "The class is selected by annotation, and defaulted", _class_default),
    Check("C05", MUST, "A Broker's class is immutable", _class_immutable),
    Check("C06", MUST, "A Broker's spec.config is immutable", _config_immutable),
    Check("C07", MAY, "A Trigger may be created before its Broker", _early_trigger),
    Check("C08", MUST, "Such a Trigger is not Ready, with the reason", _unready_without_broker),
    Check("C09", SHOULD, "A Trigger becomes Ready when its Broker does", _ready_with_broker),
    Check("C10", MUST, "subscriberUri is set before Ready, empty when it cannot be resolved", _subscriber_uri),
    Check("C11", MUST, "A Trigger's deadLetterSink is resolved before it is Ready", _trigger_sink),
    Check("C12", MUST, "spec.broker never changes; subscriber and filter can", _mutable),
    Check("C13", MUST, "Ready means that all future matching events are sent", _all_future_events),
    Check("C14", MUST, "A Trigger belongs to exactly one Broker", _one_broker),
    Check("C15", MUST, "Destinations: ref, uri, uri relative to ref; errors are Ready=False", _destination),
    Check("C16", MUST, "The attributes filter: present, exact, case-sensitive, empty for any", _attributes),
    Check("C17", MUST, "No filter means all events", _no_filter),
    Check("C18", MUST, "Invalid attribute names in filters are rejected", _names),
    Check("C19", MUST, "Conditions are written together with observedGeneration", _written_together),
    Check("C20", MUST, "A Trigger's delivery replaces the Broker's as a whole", _override),
)
