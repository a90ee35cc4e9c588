"""Conditions and status of all kinds that have conditions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin

import msgspec

from headgate.auth.event_policies import DefaultMode, broker_audience
from headgate.filter.tools.advice import NEVER_TRUE, advice
from headgate.objects.kinds.event_policies import is_trigger_reference, subjects_of
from headgate.objects.kinds.event_types import broker_of
from headgate.objects.kinds.routing import NOTHING_FOUND, TargetFindings
from headgate.objects.kinds.specs import ServedBroker, is_paused, keeps_order, log_rule
from headgate_api.event.names import identity
from headgate_api.objects.access_objects import EventPolicyStatus
from headgate_api.objects.kinds import (
    API_VERSION,
    BROKER_CLASS,
    BROKER_CLASS_ANNOTATION,
    DEPENDENCY_ANNOTATION,
    GROUP,
    PAUSED_ANNOTATION,
    Address,
    AuthSpec,
    Broker,
    BrokerStatus,
    Condition,
    DeliverySpec,
    Destination,
    EventPolicy,
    EventType,
    EventTypeStatus,
    Kind,
    Metadata,
    PolicyReference,
    Routed,
    SubscriptionStatus,
    Trigger,
    TriggerStatus,
)
from headgate_api.objects.metadata import FALSE, TRUE, UNKNOWN, ObjectStatus, false, info, summary, timed, warning

_NO_USERS: Final = "the server does not ask who sends events, so EventPolicies have no effect"
_SHOWN_MAX: Final = 5
"""Names in the message of a condition."""
ERROR_CHARS_MAX: Final = 500
"""A filter error in a condition's message: errors quote events, and a status is read by people."""


@dataclass(frozen=True, slots=True)
class ServerUrls:
    """Where clients reach this server: its URLs, those of TLS first; the last is to be used where TLS is no must.

    `ca_certs` is the CA by which clients know it, as PEM; empty where they know it without. `default_mode` says who may
    send to a broker without EventPolicy; None where nobody is asked who he is.
    """

    urls: tuple[str, ...]
    ca_certs: str = ""
    default_mode: DefaultMode | None = None

    def addresses(self, path: str) -> tuple[Address, ...]:
        """Those of the broker `namespace/name`."""
        schemes = [(url.partition("://")[0], url) for url in self.urls]
        audience = broker_audience(path) if self.default_mode is not None else ""
        return tuple(
            Address(
                name=scheme,
                url=broker_url(url, path),
                ca_certs=self.ca_certs if scheme == "https" else "",
                audience=audience,
            )
            for scheme, url in schemes
        )


@dataclass(frozen=True, slots=True)
class DeadLetterSink:
    """Where dead letters go, `written` for people; `uri` is None without a sink, empty when the sink has no address."""

    uri: str | None = None
    broker: str = ""
    written: str = ""


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker as its triggers see it; `sink`, `auths` and `order` are for those without delivery rules.

    `served` says whether its class is Headgate's, `reason` why it is not ready.
    """

    served: bool
    ready: bool
    reason: str = ""
    sink: DeadLetterSink = DeadLetterSink()
    auths: tuple[AuthSpec, ...] = ()
    order: str = ""


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """What the status of a trigger or subscription depends on beside the object; a subscription has no subscriber.

    A broker is None when none is named, or there is none of that name. `subscriber_uri` is empty when the subscriber
    has no address. `needs` is the generation that holds its filter. `plan_error` says why the stored filter no longer
    compiles, `stopped` what was seen of a filter that matched regularly and has stopped; empty for nothing.
    `credentials` says what is wrong with the Secrets that its deliveries authenticate by, as "Reason: message"; empty
    for nothing, None when they need none. `is_never_true`: no event makes its filter true. `is_forbidden`: the right to
    take the events of a broker of another namespace is gone. `ceiling` and `within` are as in `CompiledFilter`.
    """

    broker: BrokerState | None
    subscriber_broker: BrokerState | None
    subscriber_uri: str
    needs: int
    active_generation: int
    plan_error: str = ""
    sink: DeadLetterSink = DeadLetterSink()
    sink_broker: BrokerState | None = None
    found: TargetFindings = NOTHING_FOUND
    stopped: str = ""
    credentials: str | None = None
    is_never_true: bool = False
    is_forbidden: bool = False
    ceiling: str = ""
    within: str = ""


def ready_of(status: ObjectStatus) -> Condition | None:
    """The condition that sums up all others; None before an object's first reconciliation."""
    return next((one for one in status.conditions if one.type == "Ready"), None)


def _true_unless(type_: str, reason: str, problem: str) -> Condition:
    """False with a problem, else True."""
    return false(type_, reason, problem) if problem else Condition(type=type_, status=TRUE)


def is_served(broker: Broker) -> bool:
    """Whether the broker's class is Headgate's."""
    return broker.metadata.annotations.get(BROKER_CLASS_ANNOTATION, BROKER_CLASS) == BROKER_CLASS


def identity_of(broker: Broker) -> str:
    """The identity of a stored broker."""
    return identity(broker.metadata.path, broker.metadata.uid)


def served_broker(broker: Broker | None) -> ServedBroker | None:
    """A stored broker as it takes events; None when it is not served here."""
    return (
        ServedBroker(identity_of(broker), log_rule(broker.spec.log, broker.spec.deduplication))
        if broker and is_served(broker)
        else None
    )


def broker_state(broker: Broker, public_url: str = "") -> BrokerState:
    """A stored broker as its triggers see it."""
    delivery = broker.spec.delivery
    sink, auths = sink_of(broker.metadata, delivery, public_url), auths_of(delivery)
    order = delivery.order if delivery is not None else ""
    is_ready, reason = False, "BrokerNotReconciled"
    if (ready := ready_of(broker.status)) and broker.status.observed_generation == broker.metadata.generation:
        is_ready, reason = ready.status == TRUE, ready.reason
    return BrokerState(is_served(broker), is_ready, reason, sink, auths, order)


def auths_of(delivery: DeliverySpec | None) -> tuple[AuthSpec, ...]:
    """What requests by these rules authenticate by."""
    found = (delivery.auth, delivery.dead_letter_auth) if delivery is not None else ()
    return tuple(auth for auth in found if auth is not None)


def broker_url(public_url: str, path: str) -> str:
    """Where the broker `namespace/name` accepts events."""
    return f"{public_url.rstrip('/')}/{path}"


def referenced_broker(metadata: Metadata, destination: Destination) -> str:
    """`namespace/name` of the broker that a destination refers to; empty when it refers to something else."""
    ref = destination.ref
    if ref is None or ref.kind != Kind.BROKER or not (ref.api_version == API_VERSION or ref.group == GROUP):
        return ""
    return f"{ref.namespace or metadata.namespace}/{ref.name}"


def destination_uri(metadata: Metadata, destination: Destination, public_url: str) -> str:
    """The address of a destination, empty when only Kubernetes could say (C10, C15: a URI is relative to the ref).

    `metadata` is of the object that names the destination: references are relative to its namespace.
    """
    if destination.ref is None:
        return destination.uri
    broker = referenced_broker(metadata, destination)
    if not broker:
        return ""
    address = broker_url(public_url, broker)
    return urljoin(address, destination.uri) if destination.uri else address


def sink_of(metadata: Metadata, delivery: DeliverySpec | None, public_url: str) -> DeadLetterSink:
    """Where an object's delivery rules send dead letters (C03, C11)."""
    if delivery is None or delivery.dead_letter_sink is None:
        return DeadLetterSink()
    destination = delivery.dead_letter_sink
    ref = destination.ref
    written = f"{ref.kind} {ref.namespace or metadata.namespace}/{ref.name}" if ref else destination.uri
    broker = referenced_broker(metadata, destination)
    return DeadLetterSink(destination_uri(metadata, destination, public_url), broker, written)


def broker_status(
    broker: Broker,
    *,
    server: ServerUrls,
    now: str,
    is_there: Callable[[str], bool] = lambda _: True,
    policies: Sequence[EventPolicy] = (),
    is_lacking: bool = False,
) -> BrokerStatus:
    """The status of a broker (C01, C03, C04); `now`, RFC 3339, is for conditions that change.

    `is_there` says whether a broker `namespace/name` is served. `policies` apply to it, and have their newest statuses.
    `is_lacking`: not all events of its window for deduplication are known.
    """
    sink = sink_of(broker.metadata, broker.spec.delivery, server.urls[-1])
    addresses: tuple[Address, ...] = ()
    if is_served(broker):
        addresses = server.addresses(broker.metadata.path)
        addressable = Condition(type="Addressable", status=TRUE)
    else:
        found = broker.metadata.annotations[BROKER_CLASS_ANNOTATION]
        message = f'annotation {BROKER_CLASS_ANNOTATION} is "{found}", this server serves "{BROKER_CLASS}"'
        addressable = false("Addressable", "BrokerClassNotServed", message)
    needed = [
        addressable,
        _sink_resolved(sink, is_there(sink.broker)),
        policies_condition(policies, server.default_mode),
    ]
    conditions = (*needed, summary(needed), *_deduplicated(broker, is_lacking))
    return BrokerStatus(
        observed_generation=broker.metadata.generation,
        conditions=timed(conditions, broker.status.conditions, now),
        address=addresses[-1] if addresses else None,
        addresses=addresses if any(address.name == "https" for address in addresses) else (),
        dead_letter_sink_uri=(sink.uri or "") if needed[1].status == TRUE else "",
        policies=ready_policies(policies),
    )


def _deduplicated(broker: Broker, is_lacking: bool) -> Iterator[Condition]:
    """Whether a broker that is to store an event once does so: it is Ready in any case."""
    if broker.spec.deduplication is None or not is_served(broker):
        return
    if is_lacking:
        window = broker.spec.deduplication.window
        message = (
            f"not all events of the last {window} are known: there were too many (DEDUPLICATION_EVENTS_MAX), or the log"
            " has lost some. Until the window is over, an event that comes again may be stored again"
        )
        yield false("Deduplicated", "WindowIncomplete", message)
    else:
        yield Condition(type="Deduplicated", status=TRUE)


_LEFT_BY_EVENTS: Final = frozenset({"FilterHealthy", "EventsKept", "BacklogKept", "SubscriberHealthy"})


def without_findings(obj: Routed) -> Routed:
    """An object for somebody who must not learn of its events: nothing that they have left in its status."""
    conditions = tuple(one for one in obj.status.conditions if one.type not in _LEFT_BY_EVENTS)
    status = msgspec.structs.replace(obj.status, conditions=conditions, filter_errors=0)
    return msgspec.structs.replace(obj, status=status)


def routed_status(obj: Routed, inputs: StatusInputs, *, now: str) -> TriggerStatus | SubscriptionStatus:
    """The status of a trigger or subscription (C08, C09, C10, C11, C13, C19); `now` is RFC 3339."""
    sink = _sink_resolved(inputs.sink, inputs.sink_broker is not None and inputs.sink_broker.served)
    needed = [_broker_ready(obj, inputs), sink, *_credentials_resolved(inputs), _subscribed(inputs)]
    warnings = [_filter_healthy(inputs.found, inputs.stopped), *_kept(inputs.found), *_filter_advisable(obj, inputs)]
    warnings += [*_ordered(obj, inputs.broker), *_within_ceiling(inputs)]
    status: TriggerStatus | SubscriptionStatus = SubscriptionStatus()
    if isinstance(obj, Trigger):
        subscriber = _subscriber_resolved(obj, inputs)
        needed[1:1] = [_dependency_ready(obj), subscriber]
        warnings += [_untroubled("SubscriberHealthy", inputs.found.trouble), *_delivering(obj)]
        status = TriggerStatus(subscriber_uri=inputs.subscriber_uri if subscriber.status == TRUE else "")
    return msgspec.structs.replace(
        status,
        observed_generation=obj.metadata.generation,
        conditions=timed((*needed, *warnings, summary(needed)), obj.status.conditions, now),
        dead_letter_sink_uri=(inputs.sink.uri or "") if sink.status == TRUE else "",
        filter_errors=inputs.found.filter_errors,
        ceiling=inputs.ceiling,
    )


def _broker_ready(trigger: Routed, inputs: StatusInputs) -> Condition:
    broker = inputs.broker
    if inputs.is_forbidden:
        message = f'who last changed it may no longer subscribe to the broker "{trigger.broker_key}" (knsubscribe)'
        return false("BrokerReady", "SubscribeForbidden", message)
    if broker is None:
        return false("BrokerReady", "BrokerDoesNotExist", f'broker "{trigger.broker_key}" does not exist')
    if not broker.ready:
        reason = broker.reason or "BrokerNotReady"
        return false("BrokerReady", reason, f'broker "{trigger.broker_key}" is not ready')
    return Condition(type="BrokerReady", status=TRUE)


def _dependency_ready(trigger: Trigger) -> Condition:
    has_dependency = DEPENDENCY_ANNOTATION in trigger.metadata.annotations
    problem = f"annotation {DEPENDENCY_ANNOTATION} names an object that only Kubernetes could look up"
    return _true_unless("DependencyReady", "DependencyNotSupported", problem if has_dependency else "")


def _subscriber_resolved(trigger: Trigger, inputs: StatusInputs) -> Condition:
    ref = trigger.spec.subscriber.ref
    if not inputs.subscriber_uri:
        named = f"{ref.kind} {ref.namespace or trigger.metadata.namespace}/{ref.name}" if ref else "nothing"
        message = (
            f"spec.subscriber.ref names {named}, which cannot be looked up without Kubernetes: use spec.subscriber.uri"
        )
        return false("SubscriberResolved", "RefNotResolvable", message)
    wanted = referenced_broker(trigger.metadata, trigger.spec.subscriber)
    is_missing = wanted and (inputs.subscriber_broker is None or not inputs.subscriber_broker.served)
    problem = f'spec.subscriber.ref: broker "{wanted}" does not exist' if is_missing else ""
    return _true_unless("SubscriberResolved", "BrokerDoesNotExist", problem)


def _sink_resolved(sink: DeadLetterSink, broker_is_there: bool) -> Condition:
    if sink.uri is None:
        return Condition(type="DeadLetterSinkResolved", status=TRUE, reason="DeadLetterSinkNotConfigured")
    if not sink.uri:
        message = f"deadLetterSink.ref names {sink.written}, which cannot be looked up without Kubernetes: use uri"
        return false("DeadLetterSinkResolved", "RefNotResolvable", message)
    is_missing = sink.broker and not broker_is_there
    problem = f'deadLetterSink.ref: broker "{sink.broker}" does not exist' if is_missing else ""
    return _true_unless("DeadLetterSinkResolved", "BrokerDoesNotExist", problem)


def _credentials_resolved(inputs: StatusInputs) -> Iterator[Condition]:
    """There where deliveries authenticate; while it is False their attempts fail, and are tried again."""
    if inputs.credentials is None:
        return
    reason, _, message = inputs.credentials.partition(": ")
    yield _true_unless("CredentialsResolved", reason, message)


def _subscribed(inputs: StatusInputs) -> Condition:
    if inputs.plan_error:
        return false("Subscribed", "FilterInvalid", inputs.plan_error)
    if inputs.active_generation < inputs.needs:
        message = f"generation {inputs.needs} of the filters is not in force yet"
        return Condition(type="Subscribed", status=UNKNOWN, reason="FilterNotInForce", message=message)
    return Condition(type="Subscribed", status=TRUE)


def _filter_healthy(found: TargetFindings, stopped: str) -> Condition:
    if not found.filter_errors:
        if stopped:
            return warning("FilterHealthy", "StoppedMatching", stopped)
        return Condition(type="FilterHealthy", status=TRUE)
    count = f"{found.filter_errors} event{'s' if found.filter_errors > 1 else ''}"
    last = f"last: {found.last_error[:ERROR_CHARS_MAX]} (event {found.last_error_event[:ERROR_CHARS_MAX]})"
    message = f"the filter was an error for {count}, which were not delivered; {last}"
    if stopped:  # errors may be old, and the silence is of now
        return warning("FilterHealthy", "StoppedMatching", f"{stopped}; before that {message}")
    return warning("FilterHealthy", "FilterErrors", message)


def _kept(found: TargetFindings) -> tuple[Condition, Condition]:
    """Operators see that events will be given up for their age or number, and that some were (D19)."""
    backlog = _untroubled("BacklogKept", found.backlog)
    if not found.dropped:
        return backlog, Condition(type="EventsKept", status=TRUE)
    count = f"{found.dropped} event{'s were' if found.dropped > 1 else ' was'}"
    last = found.last_dropped[:ERROR_CHARS_MAX]
    return backlog, warning("EventsKept", "EventsDropped", f"{count} given up and dropped; last: {last}")


def _untroubled(type_: str, trouble: str) -> Condition:
    """What the dispatcher reports as "Reason: message"; True without a report."""
    if not trouble:
        return Condition(type=type_, status=TRUE)
    reason, _, message = trouble.partition(": ")
    return warning(type_, reason, message[:ERROR_CHARS_MAX])


def _delivering(trigger: Trigger) -> tuple[Condition, ...]:
    """There while the trigger is paused."""
    if not is_paused(trigger.metadata):
        return ()
    message = f'annotation {PAUSED_ANNOTATION} is "true": its events wait until it is "false" or gone'
    return (info("Delivering", "Paused", message),)


def _ordered(obj: Routed, broker: BrokerState | None) -> tuple[Condition, ...]:
    """There where events come in order. True, and says of which events: nobody can mend it for all of them."""
    if not keeps_order(obj, broker.order if broker is not None else ""):
        return ()
    message = "events with the same partitionkey come in their order, those without one in any order"
    return (Condition(type="Ordered", status=TRUE, reason="ByPartitionKey", severity="Info", message=message),)


CEILINGS: Final = {
    "inside": "every event that the filter wants is below the ceiling of its writer's right",
    "cut": "events that the filter wants are cut off by the ceiling of its writer's right",
    "unknown": "events that the filter wants may be cut off by the ceiling of its writer's right",
}
"""How a filter stands to its ceiling, in words, see `filter/tools/ceiling.py`."""


def _within_ceiling(inputs: StatusInputs) -> tuple[Condition, ...]:
    """There where the right by which it gets events has a ceiling."""
    if not inputs.ceiling:
        return ()
    said = inputs.within or "unknown"  # of a filter that does not compile nothing else is known
    status = {"inside": TRUE, "cut": FALSE}.get(said, UNKNOWN)
    message = CEILINGS[said]
    return (Condition("WithinCeiling", status, severity="Info", reason=said.capitalize(), message=message),)


def _filter_advisable(trigger: Routed, inputs: StatusInputs) -> tuple[Condition, ...]:
    """There when the filter works and should be written otherwise."""
    found = advice(trigger.spec.filter, trigger.spec.filters)
    if inputs.is_never_true:
        found = (NEVER_TRUE, *found)
    if not found:
        return ()
    message = "; ".join(one.message for one in found)
    return (warning("FilterAdvisable", found[0].reason, message),)


# --- event policies and event types -------------------------------------------------------------------


def policy_status(
    policy: EventPolicy, *, knows_users: bool, is_trigger: Callable[[str], bool], now: str
) -> EventPolicyStatus:
    """The status of a policy, with Knative's conditions; `now` is RFC 3339, `is_trigger` may block."""
    problems = _joined(list(_unresolved(policy, is_trigger)), "; ")
    needed = (
        _true_unless("AuthenticationEnabled", "AuthenticationDisabled", "" if knows_users else _NO_USERS),
        _true_unless("SubjectsResolved", "SubjectsNotResolved", problems),
    )
    return EventPolicyStatus(
        observed_generation=policy.metadata.generation,
        conditions=timed((*needed, summary(needed)), policy.status.conditions, now),
        from_=subjects_of(policy),
    )


def _unresolved(policy: EventPolicy, is_trigger: Callable[[str], bool]) -> Iterator[str]:
    for number, one in enumerate(policy.spec.from_):
        if one.ref is None:
            continue
        path = f"{one.ref.namespace}/{one.ref.name}"
        if not is_trigger_reference(one.ref):
            yield f"spec.from[{number}].ref: only Kubernetes can look up {one.ref.kind} {path}: use sub"
        elif not is_trigger(path):
            yield f'spec.from[{number}].ref: trigger "{path}" does not exist'


def policies_condition(policies: Sequence[EventPolicy], mode: DefaultMode | None) -> Condition:
    """What a broker's status says about the policies that apply to it; without a mode nobody is asked who he is."""
    if mode is None:
        return Condition(type="EventPoliciesReady", status=TRUE, reason="AuthenticationDisabled", message=_NO_USERS)
    if not policies:
        message = f'the default authorization mode is "{mode}"'
        return Condition(type="EventPoliciesReady", status=TRUE, reason="DefaultAuthorizationMode", message=message)
    unready = _joined([one.metadata.name for one in policies if not _is_ready(one)], ", ")
    problem = f"event policies {unready} are not ready" if unready else ""
    return _true_unless("EventPoliciesReady", "EventPoliciesNotReady", problem)


def ready_policies(policies: Sequence[EventPolicy]) -> tuple[PolicyReference, ...]:
    """Those that a broker's status lists."""
    api_version = Kind.EVENT_POLICY.api_version
    return tuple(PolicyReference(api_version=api_version, name=one.metadata.name) for one in policies if _is_ready(one))


def _is_ready(policy: EventPolicy) -> bool:
    return (ready := ready_of(policy.status)) is not None and ready.status == TRUE


def _joined(texts: Sequence[str], separator: str) -> str:
    more = len(texts) - _SHOWN_MAX
    return separator.join(texts[:_SHOWN_MAX]) + (f"{separator}and {more} more" if more > 0 else "")


def event_type_status(event_type: EventType, *, is_there: Callable[[str], bool], now: str) -> EventTypeStatus:
    """The status of an EventType, with Knative's conditions; `now` is RFC 3339."""
    exists = _reference_exists(event_type, is_there)
    return EventTypeStatus(
        observed_generation=event_type.metadata.generation,
        conditions=timed((exists, summary((exists,))), event_type.status.conditions, now),
    )


def _reference_exists(event_type: EventType, is_there: Callable[[str], bool]) -> Condition:
    broker, reference = broker_of(event_type), event_type.spec.reference
    if broker:
        problem = "" if is_there(broker) else f'broker "{broker}" does not exist'
        return _true_unless("ReferenceExists", "BrokerDoesNotExist", problem)
    if reference is not None:
        message = f"only Kubernetes can look up {reference.kind} {reference.name}: a Broker can be named here"
        return Condition(type="ReferenceExists", status=UNKNOWN, reason="ReferenceGetFailed", message=message)
    message = "spec.reference is not set"
    return Condition(type="ReferenceExists", status=TRUE, reason="ReferenceNotSet", message=message)
