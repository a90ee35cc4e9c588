"""Broker, Trigger and Subscription as typed structs: Knative's objects (eventing.knative.dev/v1) and Headgate's own.

JSON names are camelCase. What Knative has and Headgate does not do yet is no field here: `decode` refuses it by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

GROUP: Final = "eventing.knative.dev"
VERSION: Final = "v1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
OWN_GROUP: Final = "headgate.dev"
OWN_API_VERSION: Final = f"{OWN_GROUP}/{VERSION}"
"""Of the kinds that Knative does not have."""

BROKER_CLASS_ANNOTATION: Final = "eventing.knative.dev/broker.class"
BROKER_CLASS: Final = "Headgate"
"""The class that Headgate serves, and the default."""
BROKER_LABEL: Final = "eventing.knative.dev/broker"
"""Set on every trigger, as Knative does, so that `-l eventing.knative.dev/broker=x` lists a broker's triggers."""
ORDER_ANNOTATION: Final = "headgate.dev/delivery.order"
"""`ordered` or `unordered` (default): whether a trigger's events go out one after the other."""
ORDER_ANNOTATION_KAFKA: Final = "kafka.eventing.knative.dev/delivery.order"
"""The same, as Knative's Kafka broker names it."""
FILTER_ANNOTATION: Final = "headgate.dev/filter"
FILTERS_ANNOTATION: Final = "headgate.dev/filters"
"""Copies of `spec.filter` and `spec.filters` that some of Knative's own clients cannot say, so that their updates do
not erase them unseen."""
DEPENDENCY_ANNOTATION: Final = "knative.dev/dependency"

JsonObject = dict[str, Any]
"""A decoded JSON object whose meaning another room knows (`spec.filter`) or which is about to be decoded."""


class Kind(StrEnum):
    """The kinds that can be written."""

    BROKER = "Broker"
    TRIGGER = "Trigger"
    SUBSCRIPTION = "Subscription"

    @property
    def plural(self) -> str:
        """The name in URLs: `brokers`."""
        return f"{self.value.lower()}s"

    @property
    def group(self) -> str:
        """The API group: `eventing.knative.dev`."""
        return OWN_GROUP if self is Kind.SUBSCRIPTION else GROUP

    @property
    def api_version(self) -> str:
        """Group and version: `eventing.knative.dev/v1`."""
        return f"{self.group}/{VERSION}"

    @property
    def resource(self) -> str:
        """How messages name it: `brokers.eventing.knative.dev`."""
        return f"{self.plural}.{self.group}"


class _Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Written as Kubernetes writes: camelCase, what is empty is left out.

    They hold no cycles, and ten thousand of them would stop the event loop beside when garbage is collected.
    """


class ManagedFields(_Struct, frozen=True):
    """Which fields a manager owns.

    Attributes:
        operation: `Apply` or `Update`.
        time: RFC 3339, of his last write.
        fields_v1: The fields as a tree, in JSON: only server-side apply reads it.
        subresource: Nothing but the object itself is written by clients.
    """

    manager: str = ""
    operation: str = ""
    api_version: str = ""
    time: str = ""
    fields_type: str = ""
    fields_v1: msgspec.Raw = msgspec.Raw(b"{}")
    subresource: str = ""


class Metadata(_Struct, frozen=True):
    """`metadata`, as far as it is kept.

    Attributes:
        resource_version: Decimal text of the store's counter at the last change of the object.
        generation: Grows by one with every change of `spec`.
        creation_timestamp: RFC 3339, whole seconds, UTC.
        deletion_timestamp: When it was deleted, while finalizers keep it; written alike.
        finalizers: Who has still something to do before a deleted object goes.
        managed_fields: Who owns which field.
    """

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    managed_fields: tuple[ManagedFields, ...] = ()

    @property
    def path(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class Reference(_Struct, frozen=True):
    """`KReference`: another object by name."""

    api_version: str = ""
    group: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""


class Destination(_Struct, frozen=True):
    """Where events go: a URI, an object, or a URI relative to an object's address."""

    uri: str = ""
    ref: Reference | None = None


class DeliverySpec(_Struct, frozen=True):
    """`spec.delivery` as written; `delivery.resolve` gives it units and defaults.

    Up to `format` they are Knative's, behind it Headgate's.
    """

    retry: int | None = None
    backoff_policy: str = ""
    backoff_delay: str = ""
    timeout: str = ""
    dead_letter_sink: Destination | None = None
    retry_after_max: str = ""
    format: str = ""
    order: str = ""
    parallelism: int | None = None
    batch_size: int | None = None
    batch_wait: str = ""
    on_filter_error: str = ""
    rate_limit: int | float | None = None


class Condition(_Struct, frozen=True):
    """One statement about an object: `status` is "True", "False" or "Unknown"; an empty severity is an error."""

    type: str
    status: str
    severity: str = ""
    last_transition_time: str = ""
    reason: str = ""
    message: str = ""


class Address(_Struct, frozen=True):
    """Where a broker accepts events."""

    name: str = ""
    url: str = ""


class LogSpec(_Struct, frozen=True):
    """`spec.log` as written: how a broker's events are stored; `logrules.resolve` gives it types and defaults.

    Attributes:
        filter_size_bytes: Bloom filter of a chunk.
        filter_value: An attribute's name or CEL text; immutable, chunks already written hold values by it.
        compression: "none", "lz4" or "zstd".
    """

    filter_size_bytes: int | None = None
    filter_value: str = ""
    compression: str = ""


class BrokerSpec(_Struct, frozen=True):
    """`config` is kept and immutable, and has no effect here."""

    config: Reference | None = None
    delivery: DeliverySpec | None = None
    log: LogSpec | None = None


class BrokerStatus(_Struct, frozen=True):
    """Written by the reconciler only."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    address: Address | None = None
    dead_letter_sink_uri: str = ""


class Broker(_Struct, frozen=True):
    """A named entry that accepts events."""

    api_version: str
    kind: str
    metadata: Metadata
    spec: BrokerSpec = BrokerSpec()
    status: BrokerStatus = BrokerStatus()


class TriggerSpec(_Struct, frozen=True):
    """Filter + subscriber + delivery rules; `filter` and `filters` are the compiler's language (`filter/dialects`).

    Filters that are not empty are what counts, as in Knative.
    """

    broker: str = ""
    filter: JsonObject | None = None
    filters: tuple[JsonObject, ...] = ()
    subscriber: Destination = Destination()
    delivery: DeliverySpec | None = None


class TriggerStatus(_Struct, frozen=True):
    """Written by the reconciler only; `filter_errors` is ours: events for which the filter was an error."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    subscriber_uri: str = ""
    dead_letter_sink_uri: str = ""
    filter_errors: int = 0


class Trigger(_Struct, frozen=True):
    """A push subscription to one broker."""

    api_version: str
    kind: str
    metadata: Metadata
    spec: TriggerSpec = TriggerSpec()
    status: TriggerStatus = TriggerStatus()

    @property
    def broker_key(self) -> str:
        """The broker as `namespace/name`."""
        return f"{self.metadata.namespace}/{self.spec.broker}"


class SubscriptionSpec(_Struct, frozen=True):
    """Filter + how consumers share what passes it; the filters are a trigger's.

    Attributes:
        consumer_metadata: Names `anytag...` and `alltag...` ask for tags (`filter/dialects/tags.py`), beside the
            filters; other names are the consumer's own.
        consumer_filter: What makes a filter of the metadata: `tags` (default), or one that a package brings.
        type: `exclusive`, `failover` or `shared`.
        max_deliveries: How often an event is handed out at most; then it is a dead letter. None: without end.
        delivery: Where dead letters go, and how; what else triggers have there is refused.
        ack_timeout: ISO 8601; an event that is not acknowledged by then is handed out again.
        filter_from: From where on the filter counts: `now`, `beginning` or a position.
    """

    broker: str = ""
    filter: JsonObject | None = None
    filters: tuple[JsonObject, ...] = ()
    consumer_metadata: dict[str, str] = {}
    consumer_filter: str = ""
    type: str = ""
    max_deliveries: int | None = None
    delivery: DeliverySpec | None = None
    ack_timeout: str = ""
    filter_from: str = ""


class SubscriptionStatus(_Struct, frozen=True):
    """Written by the reconciler only."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    dead_letter_sink_uri: str = ""
    filter_errors: int = 0


class Subscription(_Struct, frozen=True):
    """A pull subscription to one broker: consumers come and take."""

    api_version: str
    kind: str
    metadata: Metadata
    spec: SubscriptionSpec = SubscriptionSpec()
    status: SubscriptionStatus = SubscriptionStatus()

    @property
    def broker_key(self) -> str:
        """The broker as `namespace/name`."""
        return f"{self.metadata.namespace}/{self.spec.broker}"


class Namespace(_Struct, frozen=True):
    """A name that others lie in; only its metadata is kept."""

    api_version: str
    kind: str
    metadata: Metadata
    status: dict[str, str] = {}


Routed = Trigger | Subscription
"""What the matcher matches for: objects with a target id."""
Object = Broker | Trigger | Subscription
Status = BrokerStatus | TriggerStatus | SubscriptionStatus
TYPES: Final[dict[Kind, type[Broker] | type[Trigger] | type[Subscription]]] = {
    Kind.BROKER: Broker,
    Kind.TRIGGER: Trigger,
    Kind.SUBSCRIPTION: Subscription,
}


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """What names an object."""

    kind: Kind
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def key_of(obj: Object) -> ObjectKey:
    """The key under which an object is stored."""
    return ObjectKey(Kind(obj.kind), obj.metadata.namespace, obj.metadata.name)


_DECODERS: Final[
    dict[Kind, msgspec.json.Decoder[Broker] | msgspec.json.Decoder[Trigger] | msgspec.json.Decoder[Subscription]]
] = {
    Kind.BROKER: msgspec.json.Decoder(Broker),
    Kind.TRIGGER: msgspec.json.Decoder(Trigger),
    Kind.SUBSCRIPTION: msgspec.json.Decoder(Subscription),
}
_ENCODER: Final = msgspec.json.Encoder()


def encode(obj: Object | Namespace) -> bytes:
    """An object as JSON, the form that is stored and sent."""
    return _ENCODER.encode(obj)


def decode_stored(kind: Kind, body: bytes) -> Object:
    """An object from the JSON that `encode` made."""
    return _DECODERS[kind].decode(body)
