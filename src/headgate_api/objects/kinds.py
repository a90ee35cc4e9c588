"""The objects as typed structs: Knative's (eventing.knative.dev), Kubernetes' of the core group, and Headgate's own.

Those of who may do what are in `headgate_api/objects/access_objects.py`.

JSON names are camelCase. What Knative has and Headgate does not do yet is no field here: `decode` refuses it by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

import msgspec

from headgate_api.objects.access_objects import RBAC_GROUP as RBAC_GROUP
from headgate_api.objects.access_objects import ClusterRole as ClusterRole
from headgate_api.objects.access_objects import ClusterRoleBinding as ClusterRoleBinding
from headgate_api.objects.access_objects import EventPolicy as EventPolicy
from headgate_api.objects.access_objects import RbacRole as RbacRole
from headgate_api.objects.access_objects import RoleBinding as RoleBinding
from headgate_api.objects.metadata import NO_MEMBERS, ApiObject, ApiStruct, ObjectStatus, doc
from headgate_api.objects.metadata import UNKNOWN_FIELDS as UNKNOWN_FIELDS
from headgate_api.objects.metadata import Condition as Condition
from headgate_api.objects.metadata import JsonObject as JsonObject
from headgate_api.objects.metadata import ManagedFields as ManagedFields
from headgate_api.objects.metadata import Metadata as Metadata

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
PAUSED_ANNOTATION: Final = "headgate.dev/delivery.paused"
"""`true` or `false` (default): whether a trigger's events wait. An annotation, as Knative's own clients keep those that
they do not know, and drop fields."""
CREATOR_ANNOTATION: Final = "eventing.knative.dev/creator"
MODIFIER_ANNOTATION: Final = "eventing.knative.dev/lastModifier"
"""Who made an object, and who last changed its spec, as in Knative: written by a server that knows its users."""
SUBSCRIBER_ANNOTATION: Final = "headgate.dev/subscriber"
"""By whose right a broker of another namespace sends its events here, as JSON: written by a server that knows users."""
FILTER_ANNOTATION: Final = "headgate.dev/filter"
FILTERS_ANNOTATION: Final = "headgate.dev/filters"
"""Copies of `spec.filter` and `spec.filters` that some of Knative's own clients cannot say, so that their updates do
not erase them unseen."""
DEPENDENCY_ANNOTATION: Final = "knative.dev/dependency"


class Kind(StrEnum):
    """The kinds that can be written."""

    BROKER = "Broker"
    TRIGGER = "Trigger"
    SUBSCRIPTION = "Subscription"
    EVENT_POLICY = "EventPolicy"
    EVENT_TYPE = "EventType"
    SECRET = "Secret"
    RESOURCE_QUOTA = "ResourceQuota"
    ROLE = "Role"
    CLUSTER_ROLE = "ClusterRole"
    ROLE_BINDING = "RoleBinding"
    CLUSTER_ROLE_BINDING = "ClusterRoleBinding"

    @property
    def plural(self) -> str:
        name = self.value.lower()
        return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"

    @property
    def group(self) -> str:
        """The API group: `eventing.knative.dev`; empty for a kind of the core group."""
        if self in RBAC_KINDS:
            return RBAC_GROUP
        if self in CORE_KINDS:
            return CORE_GROUP
        return OWN_GROUP if self is Kind.SUBSCRIPTION else GROUP

    @property
    def is_namespaced(self) -> bool:
        """Whether its objects lie in namespaces."""
        return self not in (Kind.CLUSTER_ROLE, Kind.CLUSTER_ROLE_BINDING)

    @property
    def version(self) -> str:
        return _VERSIONS.get(self, VERSION)

    @property
    def api_version(self) -> str:
        """Group and version: `eventing.knative.dev/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

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


_VERSIONS: Final = {Kind.EVENT_POLICY: "v1alpha1", Kind.EVENT_TYPE: "v1beta2"}
"""Of what Knative may still change."""
RBAC_KINDS: Final = (Kind.ROLE, Kind.CLUSTER_ROLE, Kind.ROLE_BINDING, Kind.CLUSTER_ROLE_BINDING)
"""Who may do what."""
CORE_KINDS: Final = (Kind.SECRET, Kind.RESOURCE_QUOTA)
"""Of Kubernetes' oldest group, which has no name."""
APPLIED_TOGETHER: Final[Mapping[Kind, str]] = MappingProxyType(
    {Kind.TRIGGER: "triggerapplies", Kind.SUBSCRIPTION: "subscriptionapplies"}
)
"""Kinds of which several are applied by one request, and the last segment of its path."""
EVENTING_KINDS: Final = (Kind.BROKER, Kind.TRIGGER, Kind.SUBSCRIPTION, Kind.EVENT_POLICY, Kind.EVENT_TYPE)
"""What events are about."""
KINDS_WITH_STATUS: Final = (*EVENTING_KINDS, Kind.RESOURCE_QUOTA)
"""What has a `spec` and a `status`."""
FRONT_KINDS: Final = (*RBAC_KINDS, Kind.BROKER, Kind.EVENT_POLICY, Kind.RESOURCE_QUOTA)
"""What every front knows before a write of one is answered."""


_CA_CERTS: Final[str] = msgspec.field(default="", name="CACerts")


class Reference(ApiStruct, frozen=True):
    """`KReference`: another object by name."""

    api_version: Annotated[str, doc("API version of the object, such as v1.")] = ""
    group: Annotated[str, doc("API group of the object, instead of apiVersion.")] = ""
    kind: Annotated[str, doc("Kind of the object.", required=True)] = ""
    namespace: Annotated[str, doc("Namespace of the object; the trigger's own when it is left out.")] = ""
    name: Annotated[str, doc("Name of the object.", required=True)] = ""


class Destination(ApiStruct, frozen=True):
    """Where events go: a URI, an object, or a URI relative to an object's address."""

    uri: Annotated[str, doc("Absolute http or https URL.")] = ""
    ref: Annotated[
        Reference | None, doc("An object with an address; without Kubernetes only a Broker of this server.")
    ] = None
    audience: Annotated[str, doc("Audience of a token that the server signs for each request.")] = ""
    ca_certs: Annotated[str, doc("CA of the URL's host, as PEM, beside the system's.")] = _CA_CERTS


class SecretReference(ApiStruct, frozen=True):
    """A Secret of the trigger's namespace, or one of its values."""

    name: Annotated[str, doc("Name of the Secret.", required=True)] = ""
    key: Annotated[str, doc("Which of its values; each use has a default.")] = ""


class SecretAuth(ApiStruct, frozen=True):
    """What needs nothing but a Secret."""

    secret_ref: Annotated[SecretReference, doc("Where the values are.", required=True)] = SecretReference()


class HeaderAuth(ApiStruct, frozen=True):
    """A header of any name."""

    name: Annotated[str, doc("Name of the header.", required=True)] = ""
    secret_ref: Annotated[SecretReference, doc("Its value; the key is value by default.", required=True)] = (
        SecretReference()
    )


class OAuth2Auth(ApiStruct, frozen=True):
    """A bearer token by OAuth 2.0 client credentials (RFC 6749, section 4.4)."""

    token_url: Annotated[str, doc("URL of the token endpoint.", required=True)] = ""
    secret_ref: Annotated[
        SecretReference, doc("Client: its values are client_id and client_secret.", required=True)
    ] = SecretReference()
    scopes: Annotated[tuple[str, ...], doc("Scopes to ask for.")] = ()
    audience: Annotated[str, doc("Parameter audience of the request, which some servers want.")] = ""
    client_authentication: Annotated[
        str,
        doc("Where the client's secret stands: in a header (basic, the default) or the body.", enum=["basic", "body"]),
    ] = ""
    ca_certs: Annotated[str, doc("CA of the token endpoint, as PEM, beside the system's.")] = _CA_CERTS


class AuthSpec(ApiStruct, frozen=True):
    """`spec.delivery.auth`: one of bearer, basic and oauth2 at most; the others go with each other."""

    bearer: Annotated[SecretAuth | None, doc("Authorization: Bearer; the key is token by default.")] = None
    basic: Annotated[SecretAuth | None, doc("Authorization: Basic; the values are username and password.")] = None
    oauth2: Annotated[OAuth2Auth | None, doc("A token of an OAuth 2.0 server.")] = None
    header: Annotated[HeaderAuth | None, doc("A header, such as X-Api-Key.")] = None
    client_certificate: Annotated[
        SecretAuth | None, doc("TLS client certificate; the values are tls.crt and tls.key.")
    ] = None
    signature: Annotated[
        SecretAuth | None,
        doc("Signature by Standard Webhooks; the key is secret by default, its value one or more whsec_ secrets."),
    ] = None


class DeliverySpec(ApiStruct, frozen=True):
    """`spec.delivery` as written; `delivery_spec.delivery_rules` gives it units and defaults.

    Up to `format` they are Knative's, behind it Headgate's.
    """

    retry: Annotated[int | None, doc("Attempts after the first one; those of 24 hours when it is left out.")] = None
    backoff_policy: Annotated[str, doc("How waits grow; exponential by default.", enum=["linear", "exponential"])] = ""
    backoff_delay: Annotated[str, doc("ISO 8601 duration before the first retry; PT0.2S by default.")] = ""
    timeout: Annotated[str, doc("ISO 8601 duration of one attempt; PT30S by default.")] = ""
    dead_letter_sink: Annotated[
        Destination | None,
        doc("Where events go that cannot be delivered: uri, or ref, or a uri relative to ref's address."),
    ] = None
    retry_after_max: Annotated[
        str, doc("ISO 8601 duration: what a Retry-After may make of a wait; PT0S ignores it.")
    ] = ""
    format: Annotated[str, doc("How events are sent; binary by default.", enum=["binary", "json", "batch"])] = ""
    order: Annotated[str, doc("Unordered by default.", enum=["ordered", "unordered"])] = ""
    parallelism: Annotated[int | None, doc("Attempts at the same time; 32 when it is left out.")] = None
    batch_size: Annotated[
        int | None, doc("Events of one batch at most, with format batch; 100 when it is left out.")
    ] = None
    batch_wait: Annotated[str, doc("ISO 8601 duration: how long a batch waits for events; PT0.1S by default.")] = ""
    on_filter_error: Annotated[
        str,
        doc(
            "What becomes of events for which the filter is an error; drop by default. A trigger's only.",
            enum=["drop", "deadLetter"],
        ),
    ] = ""
    ttl: Annotated[
        str,
        doc(
            "ISO 8601 duration from when an event was stored, or was to be sent: it is not sent later. No bound when it"
            " is left out."
            " Not of subscriptions."
        ),
    ] = ""
    delay: Annotated[
        str,
        doc(
            "ISO 8601 duration from when an event was stored: it is not sent before; at once when it is left out."
            " At most P7D. Not of subscriptions."
        ),
    ] = ""
    on_expired: Annotated[
        str,
        doc(
            "What becomes of events that are too late, by ttl or their expirytime; drop by default."
            " Not of subscriptions.",
            enum=["drop", "deadLetter"],
        ),
    ] = ""
    rate_limit: Annotated[int | float | None, doc("Attempts a second at most; no bound when it is left out.")] = None
    auth: Annotated[AuthSpec | None, doc("How requests to the subscriber say who sends them.")] = None
    dead_letter_auth: Annotated[AuthSpec | None, doc("The same of requests to deadLetterSink.")] = None
    handshake: Annotated[bool, doc("Whether a subscriber is asked first, by the CloudEvents webhook handshake.")] = (
        False
    )


class Address(ApiStruct, frozen=True):
    """Where a broker accepts events."""

    name: Annotated[str, doc("http or https.")] = ""
    url: Annotated[str, doc("URL for POST.")] = ""
    ca_certs: Annotated[str, doc("CA by which clients know the server, as PEM.")] = _CA_CERTS
    audience: Annotated[str, doc("Audience of tokens for the broker, of a server that knows its users.")] = ""


class PolicyReference(ApiStruct, frozen=True):
    """An EventPolicy that applies to a broker."""

    api_version: Annotated[str, doc("API version of the policy.", required=True)] = ""
    name: Annotated[str, doc("Name of the policy.", required=True)] = ""


class LogSpec(ApiStruct, frozen=True):
    """`spec.log` as written: how a broker's events are stored; `log_spec.log_rule` gives it types and defaults."""

    filter_size_bytes: Annotated[
        int | None, doc("Bloom filter of a chunk, 16 to 255 bytes; 16 when it is left out.")
    ] = None
    filter_value: Annotated[
        str,
        doc(
            "What readers skip chunks by: an attribute's name, or CEL whose value is a string; type when it"
            " is left out. Immutable."
        ),
    ] = ""
    """Immutable, because chunks already written hold values by it."""
    compression: Annotated[str, doc("Of chunks; none by default.", enum=["none", "lz4", "zstd"])] = ""
    retention: Annotated[
        str, doc("ISO 8601 duration after which nobody sees the broker's events; as the log when it is left out.")
    ] = ""


class DeduplicationSpec(ApiStruct, frozen=True):
    """`spec.deduplication` as written: of events with the same source and id, the first one of a window is stored."""

    window: Annotated[str, doc("ISO 8601 duration, as PT10M; from 1 s to 1 day.")] = ""


class BrokerSpec(ApiStruct, frozen=True):
    """What a broker is to be."""

    config: Annotated[Reference | None, doc("Kept for compatibility, without effect. Immutable.")] = None
    delivery: Annotated[
        DeliverySpec | None, doc("Delivery rules of the broker's triggers that have none of their own.")
    ] = None
    log: Annotated[LogSpec | None, doc("How the broker's events are stored.")] = None
    deduplication: Annotated[
        DeduplicationSpec | None,
        doc("Within a window an event that comes again, by source and id, is accepted and not stored again."),
    ] = None


class BrokerStatus(ObjectStatus, frozen=True):
    """What a broker is."""

    address: Annotated[Address | None, doc("Where the broker accepts events.")] = None
    addresses: Annotated[tuple[Address, ...], doc("All such addresses, of a server with TLS.")] = ()
    dead_letter_sink_uri: Annotated[str, doc("Where events go that cannot be delivered.")] = ""
    policies: Annotated[tuple[PolicyReference, ...], doc("EventPolicies that apply to the broker and are Ready.")] = ()


class Broker(ApiObject, frozen=True):
    """A named entry that accepts events."""

    spec: BrokerSpec = BrokerSpec()
    status: BrokerStatus = BrokerStatus()


class _RoutedSpec(ApiStruct, frozen=True):
    """What triggers and subscriptions share; `filter` and `filters` are the compiler's language (`filter/dialects`).

    Filters that are not empty are what counts, as in Knative.
    """

    broker: Annotated[str, doc("Name of the broker; default when it is left out. Immutable.")] = ""
    broker_ref: Annotated[
        Reference | None,
        doc("A broker of another namespace, instead of broker; needs the right knsubscribe on it. Immutable."),
    ] = None
    filter: JsonObject | None = None
    filters: tuple[JsonObject, ...] = ()
    transform: Annotated[
        str,
        doc(
            "CEL that builds the event to be sent from the one that is stored: a map of attributes and data, such as"
            ' {"type": "order.v2", "data": {"id": data.id}}. What it does not name stays, null removes it.'
        ),
    ] = ""


class _RoutedObject(ApiObject, frozen=True):
    spec: _RoutedSpec = _RoutedSpec()

    @property
    def broker_key(self) -> str:
        """`namespace/name` of its broker."""
        ref = self.spec.broker_ref
        if ref is None:
            return f"{self.metadata.namespace}/{self.spec.broker}"
        return f"{ref.namespace or self.metadata.namespace}/{ref.name}"

    @property
    def is_foreign(self) -> bool:
        """Whether its broker is of another namespace."""
        return self.broker_key.partition("/")[0] != self.metadata.namespace

    @property
    def name_at_broker(self) -> str:
        """Its own name where its broker's objects are listed: with the namespace where that is not the broker's."""
        return self.metadata.path if self.is_foreign else self.metadata.name

    @property
    def broker_name(self) -> str:
        """Of its broker, for lists: with the namespace where that is another one."""
        return self.broker_key if self.is_foreign else self.broker_key.partition("/")[2]


class TriggerSpec(_RoutedSpec, frozen=True):
    """Filter + subscriber + delivery rules."""

    subscriber: Annotated[
        Destination, doc("Where the events go: uri, or ref, or a uri relative to ref's address.", required=True)
    ] = Destination()
    delivery: Annotated[DeliverySpec | None, doc("Delivery rules; they replace the broker's as a whole.")] = None


CEILING_DOC: Final = "CEL: of the events that the filter wants, the right of its writer gives those that this matches."


class TriggerStatus(ObjectStatus, frozen=True):
    """What a trigger is."""

    subscriber_uri: Annotated[str, doc("Where events go.")] = ""
    dead_letter_sink_uri: Annotated[str, doc("Where events go that cannot be delivered.")] = ""
    filter_errors: Annotated[int, doc("Events for which the filter was an error; they were not delivered.")] = 0
    ceiling: Annotated[str, doc(CEILING_DOC)] = ""


class Trigger(_RoutedObject, frozen=True):
    """A push subscription to one broker."""

    spec: TriggerSpec = TriggerSpec()
    status: TriggerStatus = TriggerStatus()


class SubscriptionSpec(_RoutedSpec, frozen=True):
    """Filter + how consumers share what passes it."""

    consumer_metadata: Annotated[
        dict[str, str], doc("Names anytag... and alltag... ask for tags, beside the filters.")
    ] = NO_MEMBERS
    """Other names are the consumer's own."""
    consumer_filter: Annotated[str, doc("What makes a filter of consumerMetadata: tags (default) or a package's.")] = ""
    type: Annotated[
        str,
        doc(
            "One consumer and others are refused (exclusive, the default), one and the next takes over (failover),"
            " or several that each get other events (shared), all of one partitionkey in order (keyShared).",
            enum=["exclusive", "failover", "shared", "keyShared"],
        ),
    ] = ""
    max_deliveries: Annotated[
        int | None,
        doc(
            "How often an event is handed out at most, 1 to 1000; then it goes to the deadLetterSink, or is dropped"
            " and counted. Without it an event is handed out until it is acknowledged."
        ),
    ] = None
    delivery: Annotated[
        DeliverySpec | None,
        doc("How dead letters are sent to deadLetterSink; replaces the broker's as a whole."),
    ] = None
    ack_timeout: Annotated[
        str,
        doc("ISO 8601 duration until an event that is not acknowledged is handed out again; PT30S by default."),
    ] = ""
    filter_from: Annotated[
        str, doc("From where on the filter counts: now, beginning, or a position such as 0:123,1:456.")
    ] = ""


class SubscriptionStatus(ObjectStatus, frozen=True):
    """What a subscription is."""

    dead_letter_sink_uri: Annotated[str, doc("Where events go that were handed out maxDeliveries times.")] = ""
    filter_errors: Annotated[int, doc("Events for which the filter was an error; they are not handed out.")] = 0
    ceiling: Annotated[str, doc(CEILING_DOC)] = ""


class Subscription(_RoutedObject, frozen=True):
    """A pull subscription to one broker: consumers come and take."""

    spec: SubscriptionSpec = SubscriptionSpec()
    status: SubscriptionStatus = SubscriptionStatus()


class EventTypeReference(ApiStruct, frozen=True):
    """`KReference`: who has events of the type."""

    api_version: Annotated[str, doc("API version of the object: eventing.knative.dev/v1.")] = ""
    group: Annotated[str, doc("API group of the object, instead of apiVersion.")] = ""
    kind: Annotated[str, doc("Kind of the object: Broker.", required=True)] = ""
    namespace: Annotated[str, doc("Namespace of the object; the event type's own when it is left out.")] = ""
    name: Annotated[str, doc("Name of the object.", required=True)] = ""


class EventTypeSpec(ApiStruct, frozen=True):
    """Which events there are."""

    type: Annotated[str, doc("The events' type.", required=True)] = ""
    source: Annotated[str, doc("The events' source, a URI.")] = ""
    schema: Annotated[str, doc("Where the schema of their data is, a URI.")] = ""
    schema_data: Annotated[str, doc("The schema itself, as a text that nobody reads here.")] = ""
    broker: Annotated[str, doc("Name of a broker, instead of reference; deprecated in Knative.")] = ""
    reference: Annotated[EventTypeReference | None, doc("Where the events are: a broker.")] = None
    description: Annotated[str, doc("What they are, for people.")] = ""


class EventTypeStatus(ObjectStatus, frozen=True):
    """What an event type is."""


class EventType(ApiObject, frozen=True):
    """A type of events that can be had from a broker, for people and tools who look for one. All of it is immutable."""

    spec: EventTypeSpec = EventTypeSpec()
    status: EventTypeStatus = EventTypeStatus()


class Secret(ApiObject, frozen=True):
    """Small values that no one else may read; stored encrypted."""

    type: Annotated[str, doc("What it is for, such as kubernetes.io/tls; Opaque by default. Immutable.")] = ""
    data: Annotated[dict[str, str], doc("Values in Base64.")] = NO_MEMBERS
    string_data: Annotated[dict[str, str], doc("Values as text: written into data, never shown.")] = NO_MEMBERS
    immutable: Annotated[bool, doc("Whether its values may never change again.")] = False

    def __repr__(self) -> str:
        """Without the values: an object ends up in messages."""
        return f"Secret({self.metadata.path})"


class ResourceQuotaSpec(ApiStruct, frozen=True):
    """What a namespace may use at most."""

    hard: Annotated[
        dict[str, int | str],
        doc("By the name of a resource, such as count/triggers.eventing.knative.dev, the most that may be used."),
    ] = NO_MEMBERS
    """Clients write quantities as numbers too; stored they are text."""


class ResourceQuotaStatus(ApiStruct, frozen=True):
    """What it uses."""

    hard: Annotated[dict[str, str], doc("The limits that are in force.")] = NO_MEMBERS
    used: Annotated[dict[str, str], doc("What the namespace uses of each.")] = NO_MEMBERS


class ResourceQuota(ApiObject, frozen=True):
    """Limits of what a namespace uses, over all its objects."""

    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class Namespace(ApiObject, frozen=True):
    """A name that others lie in; only its metadata is kept."""

    status: dict[str, str] = NO_MEMBERS


Routed = Trigger | Subscription
"""What the matcher matches for: objects with a target id."""
Eventing = Broker | Trigger | Subscription | EventPolicy | EventType
"""What events are about."""
WithStatus = Eventing | ResourceQuota
"""What has a `spec` and a `status`."""
RbacObject = RbacRole | ClusterRole | RoleBinding | ClusterRoleBinding
Object = WithStatus | Secret | RbacObject
TYPES: Final[dict[Kind, type[WithStatus] | type[Secret] | type[RbacObject]]] = {
    Kind.BROKER: Broker,
    Kind.TRIGGER: Trigger,
    Kind.SUBSCRIPTION: Subscription,
    Kind.EVENT_POLICY: EventPolicy,
    Kind.EVENT_TYPE: EventType,
    Kind.SECRET: Secret,
    Kind.RESOURCE_QUOTA: ResourceQuota,
    Kind.ROLE: RbacRole,
    Kind.CLUSTER_ROLE: ClusterRole,
    Kind.ROLE_BINDING: RoleBinding,
    Kind.CLUSTER_ROLE_BINDING: ClusterRoleBinding,
}


class ObjectKey(NamedTuple):
    """What names an object; in the order of columns of control.db."""

    kind: Kind
    namespace: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.name}"


def content(obj: Object) -> object:
    """What an object says beside its metadata and its status."""
    return obj.spec if isinstance(obj, WithStatus) else msgspec.structs.replace(obj, metadata=Metadata())


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
