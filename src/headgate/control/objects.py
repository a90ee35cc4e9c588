"""Broker, Trigger and Subscription as typed structs: Knative's objects (eventing.knative.dev/v1) and Headgate's own.

JSON names are camelCase. What Knative has and Headgate does not do yet is no field here: `decode` refuses it by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

GROUP: Final = "eventing.knative.dev"
VERSION: Final = "v1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CORE_GROUP: Final = ""
"""Of Kubernetes' oldest kinds."""
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

UNKNOWN_FIELDS: Final = {"x-kubernetes-preserve-unknown-fields": True}
"""Of a schema that says nothing of its fields."""
JsonObject = dict[str, Any]
"""A decoded JSON object whose meaning another room knows (`spec.filter`) or which is about to be decoded."""


class Kind(StrEnum):
    """The kinds that can be written."""

    BROKER = "Broker"
    TRIGGER = "Trigger"
    SUBSCRIPTION = "Subscription"
    SECRET = "Secret"

    @property
    def plural(self) -> str:
        """The name in URLs: `brokers`."""
        return f"{self.value.lower()}s"

    @property
    def group(self) -> str:
        """The API group: `eventing.knative.dev`; empty for a kind of the core group."""
        return {Kind.SUBSCRIPTION: OWN_GROUP, Kind.SECRET: CORE_GROUP}.get(self, GROUP)

    @property
    def api_version(self) -> str:
        """Group and version: `eventing.knative.dev/v1`."""
        return f"{self.group}/{VERSION}" if self.group else VERSION

    @property
    def root(self) -> str:
        """Where its group is served: `/apis/eventing.knative.dev/v1`, or `/api/v1`."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{VERSION}"

    @property
    def resource(self) -> str:
        """How messages name it: `brokers.eventing.knative.dev`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def full_name(self) -> str:
        """How messages name one: `Broker.eventing.knative.dev`."""
        return f"{self.value}.{self.group}" if self.group else self.value


def _doc(description: str, *, required: bool = False, **schema: object) -> msgspec.Meta:
    """What `kubectl explain` shows of a field, and what else OpenAPI says of it."""
    return msgspec.Meta(description=description, extra_json_schema=schema or None, extra={"required": required})


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
    """`metadata`, as far as it is kept. Times are RFC 3339, whole seconds, UTC."""

    name: Annotated[str, _doc("Name, unique in the namespace; a DNS-1123 subdomain.")] = ""
    generate_name: Annotated[str, _doc("Prefix of a name that the server makes up, when name is left out.")] = ""
    namespace: Annotated[str, _doc("Namespace; any DNS-1123 label, it need not be created.")] = ""
    uid: Annotated[str, _doc("Unique in time and space; given by the server.")] = ""
    resource_version: Annotated[str, _doc("Changes with every write; given by the server.")] = ""
    """Decimal text of the store's counter at the last change of the object."""
    generation: Annotated[int, _doc("Grows with every change of spec; given by the server.")] = 0
    creation_timestamp: Annotated[str, _doc("Given by the server.", format="date-time")] = ""
    deletion_timestamp: Annotated[
        str, _doc("When it was deleted; it goes with its last finalizer.", format="date-time")
    ] = ""
    deletion_grace_period_seconds: Annotated[
        int | None, _doc("Always 0: nothing but finalizers delays a deletion.")
    ] = None
    labels: Annotated[dict[str, str], _doc("Names and values to select by.")] = {}
    annotations: Annotated[dict[str, str], _doc("Names and values for programs and people.")] = {}
    finalizers: Annotated[
        tuple[str, ...],
        _doc("Who has something to do before a deleted object goes.", **{"x-kubernetes-list-type": "set"}),
    ] = ()
    managed_fields: Annotated[
        tuple[ManagedFields, ...],
        _doc("Who owns which fields; written by the server.", items=UNKNOWN_FIELDS | {"type": "object"}),
    ] = ()

    @property
    def path(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class Reference(_Struct, frozen=True):
    """`KReference`: another object by name."""

    api_version: Annotated[str, _doc("API version of the object, such as v1.")] = ""
    group: Annotated[str, _doc("API group of the object, instead of apiVersion.")] = ""
    kind: Annotated[str, _doc("Kind of the object.", required=True)] = ""
    namespace: Annotated[str, _doc("Namespace of the object; the trigger's own when it is left out.")] = ""
    name: Annotated[str, _doc("Name of the object.", required=True)] = ""


class Destination(_Struct, frozen=True):
    """Where events go: a URI, an object, or a URI relative to an object's address."""

    uri: Annotated[str, _doc("Absolute http or https URL.")] = ""
    ref: Annotated[
        Reference | None, _doc("An object with an address; without Kubernetes only a Broker of this server.")
    ] = None


class DeliverySpec(_Struct, frozen=True):
    """`spec.delivery` as written; `delivery_spec.delivery_rules` gives it units and defaults.

    Up to `format` they are Knative's, behind it Headgate's.
    """

    retry: Annotated[int | None, _doc("Attempts after the first one; 10 when it is left out.")] = None
    backoff_policy: Annotated[str, _doc("How waits grow; exponential by default.", enum=["linear", "exponential"])] = ""
    backoff_delay: Annotated[str, _doc("ISO 8601 duration before the first retry; PT0.2S by default.")] = ""
    timeout: Annotated[str, _doc("ISO 8601 duration of one attempt; PT30S by default.")] = ""
    dead_letter_sink: Annotated[
        Destination | None,
        _doc("Where events go that cannot be delivered: uri, or ref, or a uri relative to ref's address."),
    ] = None
    retry_after_max: Annotated[
        str, _doc("ISO 8601 duration: what a Retry-After may make of a wait; PT0S ignores it.")
    ] = ""
    format: Annotated[str, _doc("How events are sent; binary by default.", enum=["binary", "json", "batch"])] = ""
    order: Annotated[str, _doc("Unordered by default.", enum=["ordered", "unordered"])] = ""
    parallelism: Annotated[int | None, _doc("Attempts at the same time; 32 when it is left out.")] = None
    batch_size: Annotated[
        int | None, _doc("Events of one batch at most, with format batch; 100 when it is left out.")
    ] = None
    batch_wait: Annotated[str, _doc("ISO 8601 duration: how long a batch waits for events; PT0.1S by default.")] = ""
    on_filter_error: Annotated[
        str,
        _doc(
            "What becomes of events for which the filter is an error; drop by default. A trigger's only.",
            enum=["drop", "deadLetter"],
        ),
    ] = ""
    rate_limit: Annotated[int | float | None, _doc("Attempts a second at most; no bound when it is left out.")] = None


class Condition(_Struct, frozen=True):
    """One statement about an object."""

    type: Annotated[str, _doc("What the statement is about.", required=True)]
    status: Annotated[str, _doc("True, False or Unknown.", required=True)]
    severity: Annotated[str, _doc("Empty for an error; Warning or Info do not keep the object from being Ready.")] = ""
    last_transition_time: Annotated[str, _doc("When the status last changed.", format="date-time")] = ""
    reason: Annotated[str, _doc("Why, in one word.")] = ""
    message: Annotated[str, _doc("Why, in a sentence.")] = ""


class Address(_Struct, frozen=True):
    """Where a broker accepts events."""

    name: Annotated[str, _doc("http or https.")] = ""
    url: Annotated[str, _doc("URL for POST.")] = ""
    ca_certs: Annotated[str, _doc("CA by which clients know the server, as PEM.")] = msgspec.field(
        default="", name="CACerts"
    )


class LogSpec(_Struct, frozen=True):
    """`spec.log` as written: how a broker's events are stored; `log_spec.log_rule` gives it types and defaults."""

    filter_size_bytes: Annotated[
        int | None, _doc("Bloom filter of a chunk, 16 to 255 bytes; 16 when it is left out.")
    ] = None
    filter_value: Annotated[
        str,
        _doc(
            "What readers skip chunks by: an attribute's name, or CEL whose value is a string; type when it"
            " is left out. Immutable."
        ),
    ] = ""
    """Immutable, because chunks already written hold values by it."""
    compression: Annotated[str, _doc("Of chunks; none by default.", enum=["none", "lz4", "zstd"])] = ""


class _Status(_Struct, frozen=True):
    """Written by the reconciler only."""

    observed_generation: Annotated[int, _doc("The generation that the conditions are about.")] = 0
    conditions: Annotated[
        tuple[Annotated[Condition, _doc("One statement about the object.")], ...],
        _doc("What is fine and what is not."),
    ] = ()


class _Object(_Struct, frozen=True):
    """What every kind has beside `spec` and `status`."""

    api_version: str
    kind: str
    metadata: Metadata


class BrokerSpec(_Struct, frozen=True):
    """What a broker is to be."""

    config: Annotated[Reference | None, _doc("Kept for compatibility, without effect. Immutable.")] = None
    delivery: Annotated[
        DeliverySpec | None, _doc("Delivery rules of the broker's triggers that have none of their own.")
    ] = None
    log: Annotated[LogSpec | None, _doc("How the broker's events are stored.")] = None


class BrokerStatus(_Status, frozen=True):
    """What a broker is."""

    address: Annotated[Address | None, _doc("Where the broker accepts events.")] = None
    addresses: Annotated[tuple[Address, ...], _doc("All such addresses, of a server with TLS.")] = ()
    dead_letter_sink_uri: Annotated[str, _doc("Where events go that cannot be delivered.")] = ""


class Broker(_Object, frozen=True):
    """A named entry that accepts events."""

    spec: BrokerSpec = BrokerSpec()
    status: BrokerStatus = BrokerStatus()


class _RoutedSpec(_Struct, frozen=True):
    """What triggers and subscriptions share; `filter` and `filters` are the compiler's language (`filter/dialects`).

    Filters that are not empty are what counts, as in Knative.
    """

    broker: Annotated[str, _doc("Name of the broker; default when it is left out. Immutable.")] = ""
    filter: JsonObject | None = None
    filters: tuple[JsonObject, ...] = ()


class _RoutedObject(_Object, frozen=True):
    spec: _RoutedSpec = _RoutedSpec()

    @property
    def broker_key(self) -> str:
        """The broker as `namespace/name`."""
        return f"{self.metadata.namespace}/{self.spec.broker}"


class TriggerSpec(_RoutedSpec, frozen=True):
    """Filter + subscriber + delivery rules."""

    subscriber: Annotated[
        Destination, _doc("Where the events go: uri, or ref, or a uri relative to ref's address.", required=True)
    ] = Destination()
    delivery: Annotated[DeliverySpec | None, _doc("Delivery rules; they replace the broker's as a whole.")] = None


class TriggerStatus(_Status, frozen=True):
    """What a trigger is."""

    subscriber_uri: Annotated[str, _doc("Where events go.")] = ""
    dead_letter_sink_uri: Annotated[str, _doc("Where events go that cannot be delivered.")] = ""
    filter_errors: Annotated[int, _doc("Events for which the filter was an error; they were not delivered.")] = 0


class Trigger(_RoutedObject, frozen=True):
    """A push subscription to one broker."""

    spec: TriggerSpec = TriggerSpec()
    status: TriggerStatus = TriggerStatus()


class SubscriptionSpec(_RoutedSpec, frozen=True):
    """Filter + how consumers share what passes it."""

    consumer_metadata: Annotated[
        dict[str, str], _doc("Names anytag... and alltag... ask for tags, beside the filters.")
    ] = {}
    """Other names are the consumer's own."""
    consumer_filter: Annotated[str, _doc("What makes a filter of consumerMetadata: tags (default) or a package's.")] = (
        ""
    )
    type: Annotated[
        str,
        _doc(
            "One consumer and others are refused (exclusive, the default), one and the next takes over (failover),"
            " or several that each get other events (shared).",
            enum=["exclusive", "failover", "shared"],
        ),
    ] = ""
    max_deliveries: Annotated[
        int | None,
        _doc(
            "How often an event is handed out at most, 1 to 1000; then it goes to the deadLetterSink, or is dropped"
            " and counted. Without it an event is handed out until it is acknowledged."
        ),
    ] = None
    delivery: Annotated[
        DeliverySpec | None,
        _doc("How dead letters are sent to deadLetterSink; replaces the broker's as a whole."),
    ] = None
    ack_timeout: Annotated[
        str,
        _doc("ISO 8601 duration until an event that is not acknowledged is handed out again; PT30S by default."),
    ] = ""
    filter_from: Annotated[
        str, _doc("From where on the filter counts: now, beginning, or a position such as 0:123,1:456.")
    ] = ""


class SubscriptionStatus(_Status, frozen=True):
    """What a subscription is."""

    dead_letter_sink_uri: Annotated[str, _doc("Where events go that were handed out maxDeliveries times.")] = ""
    filter_errors: Annotated[int, _doc("Events for which the filter was an error; they are not handed out.")] = 0


class Subscription(_RoutedObject, frozen=True):
    """A pull subscription to one broker: consumers come and take."""

    spec: SubscriptionSpec = SubscriptionSpec()
    status: SubscriptionStatus = SubscriptionStatus()


class Namespace(_Object, frozen=True):
    """A name that others lie in; only its metadata is kept."""

    status: dict[str, str] = {}


class Secret(_Object, frozen=True):
    """Small values that no one else may read; stored encrypted."""

    type: Annotated[str, _doc("What it is for, such as kubernetes.io/tls; Opaque by default. Immutable.")] = ""
    data: Annotated[dict[str, str], _doc("Values in Base64.")] = {}
    string_data: Annotated[dict[str, str], _doc("Values as text: written into data, never shown.")] = {}
    immutable: Annotated[bool, _doc("Whether its values may never change again.")] = False

    def __repr__(self) -> str:
        """Without the values: an object ends up in messages."""
        return f"Secret({self.metadata.path})"


Routed = Trigger | Subscription
"""What the matcher matches for: objects with a target id."""
Reconciled = Broker | Trigger | Subscription
"""What has a spec, and a status that the reconciler writes."""
Object = Reconciled | Secret
TYPES: Final[dict[Kind, type[Broker] | type[Trigger] | type[Subscription] | type[Secret]]] = {
    Kind.BROKER: Broker,
    Kind.TRIGGER: Trigger,
    Kind.SUBSCRIPTION: Subscription,
    Kind.SECRET: Secret,
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


_DECODERS: Final = {kind: msgspec.json.Decoder(struct) for kind, struct in TYPES.items()}
_ENCODER: Final = msgspec.json.Encoder()


def encode(obj: Object | Namespace) -> bytes:
    """An object as JSON, the form that is stored and sent."""
    return _ENCODER.encode(obj)


def decode_stored(kind: Kind, body: bytes) -> Object:
    """An object from the JSON that `encode` made."""
    return _DECODERS[kind].decode(body)
