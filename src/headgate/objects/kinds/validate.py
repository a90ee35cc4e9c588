"""Validation of objects: every broken rule as a cause with its field. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, assert_never
from urllib.parse import urljoin, urlsplit

from cryptography import x509

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.transform import check_transform
from headgate.filter.compile.plan import CompiledFilter, scans_of
from headgate.objects.kinds.credentials import KEY, KEY_RULE, secret_causes, secret_change_causes
from headgate.objects.kinds.egress import RESERVED_NAMESPACES, UrlPolicy, UrlRefusedError
from headgate.objects.kinds.event_policies import policy_causes
from headgate.objects.kinds.event_types import event_type_causes
from headgate.objects.kinds.quotas import not_counted_causes, quota_causes
from headgate.objects.kinds.rbac_rules import binding_causes, ceilings_of, role_causes, role_ref_causes
from headgate.objects.kinds.specs import (
    annotation_causes,
    deduplication_causes,
    delivery_causes,
    field_as_written,
    filter_value_causes,
    log_causes,
    pull_causes,
)
from headgate_api.errors import InvalidInputError
from headgate_api.limits import CA_CERTS_BYTES_MAX, FINALIZERS_MAX, OAUTH_SCOPES_MAX, URL_CHARS_MAX
from headgate_api.objects.errors import (
    Cause,
    InvalidObjectError,
    forbidden,
    invalid,
    not_one_of,
    required,
    too_many,
    value_at,
)
from headgate_api.objects.kinds import (
    API_VERSION,
    BROKER_CLASS,
    BROKER_CLASS_ANNOTATION,
    FILTER_ANNOTATION,
    FILTERS_ANNOTATION,
    RBAC_KINDS,
    AuthSpec,
    Broker,
    ClusterRole,
    ClusterRoleBinding,
    DeliverySpec,
    Destination,
    EventPolicy,
    EventType,
    Kind,
    Metadata,
    Object,
    RbacRole,
    Reference,
    ResourceQuota,
    RoleBinding,
    Routed,
    Secret,
    SecretReference,
    Subscription,
    SubscriptionSpec,
    Trigger,
    TriggerSpec,
)

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}", re.ASCII)
"""A header's name (RFC 9110)."""
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}", re.ASCII)
"""RFC 6749, section 3.3."""
_AUDIENCE_CHARS_MAX: Final = 2_048
_TAKEN: Final = frozenset(
    {"accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host"}
    | {"keep-alive", "prefer", "proxy-authorization", "proxy-connection", "te", "trailer", "traceparent", "tracestate"}
    | {"transfer-encoding", "upgrade", "user-agent"}
)
_TAKEN_PREFIXES: Final = ("ce-", "headgate-", "webhook-")
_CLIENT_AUTHENTICATIONS: Final = ("basic", "body")


def _bearers(auth: AuthSpec) -> list[str]:
    """Its parts that write the header Authorization."""
    return [name for name in ("bearer", "basic", "oauth2") if getattr(auth, name) is not None]


def _auth_causes(at: str, auth: AuthSpec) -> Iterator[Cause]:
    bearers = _bearers(auth)
    for name in bearers[1:]:
        yield forbidden(f"{at}.{name}", f"{bearers[0]} writes the header Authorization already: leave one of them out")
    for name in ("bearer", "basic", "client_certificate", "signature"):
        if (part := getattr(auth, name)) is not None:
            camel = "clientCertificate" if name == "client_certificate" else name
            yield from _reference_causes(f"{at}.{camel}.secretRef", part.secret_ref)
    if auth.header is not None:
        yield from _reference_causes(f"{at}.header.secretRef", auth.header.secret_ref)
        yield from _header_causes(f"{at}.header.name", auth.header.name, has_authorization=bool(bearers))
    if auth.oauth2 is not None:
        where, oauth = f"{at}.oauth2", auth.oauth2
        yield from _reference_causes(f"{where}.secretRef", oauth.secret_ref)
        chosen = oauth.client_authentication or None
        yield from not_one_of(f"{where}.clientAuthentication", chosen, _CLIENT_AUTHENTICATIONS)
        yield from _ca_causes(f"{where}.CACerts", oauth.ca_certs)
        yield from too_many(f"{where}.scopes", len(oauth.scopes), OAUTH_SCOPES_MAX, "scopes")
        for scope in oauth.scopes[:OAUTH_SCOPES_MAX]:
            if not _SCOPE.fullmatch(scope):
                yield invalid(f"{where}.scopes", scope, "a scope has 1 to 256 printable characters and no space")
        yield from _audience_causes(f"{where}.audience", oauth.audience)
        if not oauth.token_url:
            yield required(f"{where}.tokenUrl", "the URL of the token endpoint")
        elif problem := _uri_problem(oauth.token_url, absolute=True):
            yield invalid(f"{where}.tokenUrl", oauth.token_url, problem)


def _reference_causes(at: str, reference: SecretReference) -> Iterator[Cause]:
    if not reference.name:
        yield required(f"{at}.name", "the name of a Secret of the trigger's namespace")
    elif not _NAME.fullmatch(reference.name):
        yield invalid(f"{at}.name", reference.name[:253], "must be the name of a Secret")
    if reference.key and not KEY.fullmatch(reference.key):
        yield invalid(f"{at}.key", reference.key[:253], KEY_RULE)


def _header_causes(at: str, name: str, *, has_authorization: bool) -> Iterator[Cause]:
    lower = name.lower()
    if not name:
        yield required(at, "the header's name, such as X-Api-Key")
    elif not _TOKEN.fullmatch(name):
        yield invalid(at, name[:128], "must be the name of an HTTP header")
    elif lower in _TAKEN or lower.startswith(_TAKEN_PREFIXES):
        yield forbidden(at, f"{name} is a header of the delivery itself")
    elif lower == "authorization" and has_authorization:
        yield forbidden(at, "the header Authorization is written already: leave one of them out")


def _ca_causes(at: str, pem: str) -> Iterator[Cause]:
    if not pem:
        return
    if len(pem) > CA_CERTS_BYTES_MAX:
        yield Cause(at, "FieldValueTooLong", f"Too long: may not be more than {CA_CERTS_BYTES_MAX} bytes")
        return
    try:
        x509.load_pem_x509_certificates(pem.encode())
    except ValueError:
        yield Cause(at, "FieldValueInvalid", "Invalid value: must be certificates in PEM format")


def _audience_causes(at: str, audience: str) -> Iterator[Cause]:
    if len(audience) > _AUDIENCE_CHARS_MAX or not audience.isprintable():
        detail = f"must have at most {_AUDIENCE_CHARS_MAX} printable characters"
        yield invalid(at, audience[:100], detail)


def _twice_causes(at: str, auth: AuthSpec | None, audience: str) -> Iterator[Cause]:
    """That a token for an audience and an `auth` write the same header."""
    for name in _bearers(auth) if auth is not None and audience else ():
        yield forbidden(f"{at}.{name}", "the token for the audience writes the header Authorization already")


NAME_CHARS_MAX: Final = 253
"""A DNS-1123 subdomain."""
LABEL_CHARS_MAX: Final = 63
"""A DNS-1123 label, and the name part of a label's key."""
ANNOTATION_BYTES_MAX: Final = 256 << 10
"""Kubernetes' own bound on all annotations of an object."""

_SOMEWHERE: Final = "http://broker.invalid"
_SOME_BROKER: Final = "/ns/name"
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character"
)


def is_namespace(name: str) -> bool:
    """Whether a text can be a namespace's name."""
    return len(name) <= LABEL_CHARS_MAX and bool(_DNS_LABEL.fullmatch(name)) and name not in RESERVED_NAMESPACES


def object_causes(obj: Object, policy: UrlPolicy) -> tuple[Cause, ...]:
    """Every rule that an object with its defaults breaks by itself, in the order of fields, its filter left aside."""
    return (*_metadata_causes(Kind(obj.kind), obj.metadata), *_causes(obj, policy))


def _causes(obj: Object, policy: UrlPolicy) -> Iterator[Cause]:
    match obj:
        case RbacRole() | ClusterRole():
            return role_causes(obj)
        case RoleBinding() | ClusterRoleBinding():
            return binding_causes(obj)
        case ResourceQuota():
            return quota_causes(obj)
        case Secret():
            return secret_causes(obj)
        case EventPolicy():
            return policy_causes(obj)
        case EventType():
            return event_type_causes(obj)
        case Broker():
            return chain(_broker_causes(obj), _egress_causes(obj, policy))
        case Trigger():
            return chain(_trigger_causes(obj), _transform_causes(obj), _egress_causes(obj, policy))
        case Subscription():
            return chain(_subscription_causes(obj), _transform_causes(obj), _egress_causes(obj, policy))
        case _:
            assert_never(obj)


def change_causes(old: Object, new: Object) -> tuple[Cause, ...]:
    """Every immutable field that differs between two versions of an object."""
    causes = []
    added = [name for name in new.metadata.finalizers if name not in old.metadata.finalizers]
    if old.metadata.deletion_timestamp and added:
        detail = f"no new finalizers can be added if the object is being deleted, found new finalizers {added}"
        causes.append(forbidden("metadata.finalizers", detail))
    if isinstance(old, Broker) and isinstance(new, Broker):
        before, after = (obj.metadata.annotations.get(BROKER_CLASS_ANNOTATION, "") for obj in (old, new))
        if before != after:
            causes.append(invalid(f"metadata.annotations[{BROKER_CLASS_ANNOTATION}]", after, "field is immutable"))
        if old.spec.config != new.spec.config:
            name = new.spec.config.name if new.spec.config else ""
            causes.append(invalid("spec.config", name, "field is immutable"))
        causes.extend(filter_value_causes(old.spec.log, new.spec.log))
    if isinstance(old, RoleBinding | ClusterRoleBinding) and isinstance(new, RoleBinding | ClusterRoleBinding):
        causes.extend(role_ref_causes(old, new))
    if isinstance(old, Routed) and isinstance(new, Routed) and _broker_of(old) != _broker_of(new):
        field = "spec.broker" if new.spec.broker_ref is None else "spec.brokerRef"
        causes.append(invalid(field, new.broker_key, "field is immutable"))
    if isinstance(old, EventType) and isinstance(new, EventType) and old.spec != new.spec:
        detail = "field is immutable: delete the event type and create another one"
        causes.append(invalid("spec", new.spec.type, detail))
    if isinstance(old, Secret) and isinstance(new, Secret):
        causes.extend(secret_change_causes(old, new))
    return tuple(causes)


def _broker_of(obj: Routed) -> tuple[str, Reference | None]:
    """Its broker as it is written: the namespace may not be known yet."""
    return obj.spec.broker, obj.spec.broker_ref


def namespace_causes(metadata: Metadata) -> tuple[Cause, ...]:
    """Every rule that the metadata of a namespace breaks."""
    return (*_namespace_name_causes("metadata.name", metadata.name), *_map_causes(metadata))


def _namespace_name_causes(field: str, name: str) -> Iterator[Cause]:
    if name in RESERVED_NAMESPACES:
        yield invalid(field, name, "the name is reserved for a path of the server")
    elif not is_namespace(name):
        yield invalid(field, name, f"{_LABEL_RULE}; at most {LABEL_CHARS_MAX} characters")


def _metadata_causes(kind: Kind, metadata: Metadata) -> Iterator[Cause]:
    if not metadata.name:
        yield required("metadata.name", "name or generateName is required")
    elif kind in RBAC_KINDS:
        yield from _segment_causes(metadata.name)
    elif len(metadata.name) > NAME_CHARS_MAX or not _DNS_SUBDOMAIN.fullmatch(metadata.name):
        yield invalid("metadata.name", metadata.name, f"{_SUBDOMAIN_RULE}; at most {NAME_CHARS_MAX} characters")
    if kind.is_namespaced:
        yield from _namespace_name_causes("metadata.namespace", metadata.namespace)
    yield from _map_causes(metadata)
    yield from _finalizer_causes(metadata.finalizers)


def _segment_causes(name: str) -> Iterator[Cause]:
    """Names of roles hold colons and the like (`headgate:viewer`); what a path cannot hold they cannot, either."""
    if name in (".", "..") or "/" in name or "%" in name or not name.isprintable() or len(name) > NAME_CHARS_MAX:
        detail = f"must be a segment of a path: no / and no %, at most {NAME_CHARS_MAX} characters"
        yield invalid("metadata.name", name, detail)


def _map_causes(metadata: Metadata) -> Iterator[Cause]:
    for key, value in metadata.labels.items():
        yield from _key_causes("metadata.labels", key)
        if value and (len(value) > LABEL_CHARS_MAX or not _QUALIFIED.fullmatch(value)):
            detail = f"a label's value has at most {LABEL_CHARS_MAX} characters of a name"
            yield invalid("metadata.labels", value, detail)
    for key in metadata.annotations:
        yield from _key_causes("metadata.annotations", key)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.annotations.items())
    if size > ANNOTATION_BYTES_MAX:
        detail = f"Too long: may not be more than {ANNOTATION_BYTES_MAX}"
        yield Cause("metadata.annotations", "FieldValueTooLong", detail)


def _finalizer_causes(finalizers: tuple[str, ...]) -> Iterator[Cause]:
    yield from too_many("metadata.finalizers", len(finalizers), FINALIZERS_MAX, "names")
    for name in finalizers:
        yield from _key_causes("metadata.finalizers", name)


def _key_causes(field: str, key: str) -> Iterator[Cause]:
    prefix, slash, name = key.rpartition("/")
    prefix_is_fine = not slash or (len(prefix) <= NAME_CHARS_MAX and _DNS_SUBDOMAIN.fullmatch(prefix.lower()))
    if not prefix_is_fine or len(name) > LABEL_CHARS_MAX or not _QUALIFIED.fullmatch(name):
        yield invalid(field, key, "a key is a name of at most 63 characters, perhaps after a DNS subdomain and '/'")


def not_on_kafka_causes(obj: Object) -> Iterator[Cause]:
    """What a valid object asks for that a deployment on Kafka has not."""
    if isinstance(obj, ResourceQuota):
        yield from not_counted_causes(obj)


def _broker_causes(broker: Broker) -> Iterator[Cause]:
    if not broker.metadata.annotations.get(BROKER_CLASS_ANNOTATION):
        detail = f"a broker has a class, such as {BROKER_CLASS}"
        yield required(f"metadata.annotations[{BROKER_CLASS_ANNOTATION}]", detail)
    if len(broker.metadata.name) > LABEL_CHARS_MAX:
        # The name becomes the value of a label of its triggers, and a segment of the address.
        detail = f"a broker's name has at most {LABEL_CHARS_MAX} characters"
        yield invalid("metadata.name", broker.metadata.name, detail)
    yield from log_causes(broker.spec.log)
    yield from deduplication_causes(broker.spec.deduplication)
    delivery = broker.spec.delivery
    yield from delivery_causes(delivery)
    yield from _sink_causes(delivery)
    if delivery is not None and delivery.on_filter_error:
        detail = "a filter is a trigger's: set it on the trigger"
        yield invalid("spec.delivery.onFilterError", delivery.on_filter_error, detail)


def _trigger_causes(trigger: Trigger) -> Iterator[Cause]:
    spec = trigger.spec
    yield from _named_broker_causes(spec)
    yield from _destination_causes("spec.subscriber", spec.subscriber)
    if spec.delivery is not None:
        yield from _twice_causes("spec.delivery.auth", spec.delivery.auth, spec.subscriber.audience)
    yield from delivery_causes(spec.delivery)
    yield from _sink_causes(spec.delivery)
    yield from annotation_causes(trigger.metadata)


def _subscription_causes(subscription: Subscription) -> Iterator[Cause]:
    delivery = subscription.spec.delivery
    yield from _named_broker_causes(subscription.spec)
    yield from pull_causes(subscription.spec)
    yield from _sink_causes(delivery)
    if delivery is not None and delivery.auth is not None:
        detail = "consumers come for the events: deadLetterAuth is for the deadLetterSink"
        yield forbidden("spec.delivery.auth", detail)


def _named_broker_causes(spec: TriggerSpec | SubscriptionSpec) -> Iterator[Cause]:
    ref = spec.broker_ref
    if ref is None:
        yield from _name_of_broker_causes("spec.broker", spec.broker)
        return
    if spec.broker:
        yield invalid("spec.broker", spec.broker, "only one of broker, brokerRef")
    yield from _name_of_broker_causes("spec.brokerRef.name", ref.name)
    yield from not_one_of("spec.brokerRef.kind", ref.kind or "Broker", (Kind.BROKER.value,))
    versions = (ref.api_version, API_VERSION, "apiVersion"), (ref.group, Kind.BROKER.group, "group")
    for given, known, name in versions:
        yield from not_one_of(f"spec.brokerRef.{name}", given or known, (known,))
    if ref.namespace:
        yield from _namespace_name_causes("spec.brokerRef.namespace", ref.namespace)


def _name_of_broker_causes(field: str, broker: str) -> Iterator[Cause]:
    if len(broker) > LABEL_CHARS_MAX or not _DNS_SUBDOMAIN.fullmatch(broker):
        yield invalid(field, broker, f"{_SUBDOMAIN_RULE}; at most {LABEL_CHARS_MAX} characters")


def _egress_causes(obj: Broker | Routed, policy: UrlPolicy) -> Iterator[Cause]:
    """Every URL that the server's policy refuses, as far as that shows before names are resolved."""
    delivery = obj.spec.delivery
    destinations = {"spec.delivery.deadLetterSink": delivery.dead_letter_sink if delivery else None}
    if isinstance(obj, Trigger):
        destinations["spec.subscriber"] = obj.spec.subscriber
    for field, destination in destinations.items():
        uri = destination.uri if destination is not None else ""
        if destination is None or not uri or _uri_problem(uri, absolute=destination.ref is None):
            continue
        try:
            # Relative to a broker's address it may still lead elsewhere: `//host/`, `/apis/`.
            policy.check(urljoin((policy.own_url or _SOMEWHERE) + _SOME_BROKER, uri))
        except UrlRefusedError as error:
            yield invalid(f"{field}.uri", uri, error.message)
    for at, auth in _auths(delivery):
        url = auth.oauth2.token_url if auth.oauth2 is not None else ""
        if url and not _uri_problem(url, absolute=True):
            try:
                if policy.check(url).trusted:
                    yield invalid(f"{at}.oauth2.tokenUrl", url, "is a broker of this server, which grants no tokens")
            except UrlRefusedError as error:
                yield invalid(f"{at}.oauth2.tokenUrl", url, error.message)


def _auths(delivery: DeliverySpec | None) -> Iterator[tuple[str, AuthSpec]]:
    """What delivery rules authenticate by, with the paths."""
    if delivery is not None:
        for field, auth in (("auth", delivery.auth), ("deadLetterAuth", delivery.dead_letter_auth)):
            if auth is not None:
                yield f"spec.delivery.{field}", auth


def _sink_causes(delivery: DeliverySpec | None) -> Iterator[Cause]:
    sink = delivery.dead_letter_sink if delivery is not None else None
    if sink is not None:
        yield from _destination_causes("spec.delivery.deadLetterSink", sink)
    for at, auth in _auths(delivery):
        yield from _auth_causes(at, auth)
        if sink is not None and at.endswith("deadLetterAuth"):
            yield from _twice_causes(at, auth, sink.audience)


def _destination_causes(field: str, destination: Destination) -> Iterator[Cause]:
    ref, uri = destination.ref, destination.uri
    if ref is None and not uri:
        yield required(field, "one of uri, ref")
    if ref is not None:
        for name, value in (("kind", ref.kind), ("name", ref.name)):
            if not value:
                yield required(f"{field}.ref.{name}", "a reference names a kind and an object")
        if not ref.api_version and not ref.group:
            yield required(f"{field}.ref.apiVersion", "a reference names an apiVersion")
    if uri and (problem := _uri_problem(uri, absolute=ref is None)):
        yield invalid(f"{field}.uri", uri, problem)
    yield from _ca_causes(f"{field}.CACerts", destination.ca_certs)
    yield from _audience_causes(f"{field}.audience", destination.audience)


def _uri_problem(uri: str, *, absolute: bool) -> str:
    if len(uri) > URL_CHARS_MAX:
        return f"must have at most {URL_CHARS_MAX} characters"
    if not uri.isascii() or not uri.isprintable() or " " in uri:
        return "must be a URL; write other characters than printable ASCII as %xx"
    try:
        parts = urlsplit(uri)
        parts.port  # noqa: B018 - raises ValueError when it is no port
    except ValueError as error:
        return f"must be a URL: {error}"
    if parts.fragment:
        return "must not have a fragment, which is not sent"
    if not absolute and not parts.scheme and not parts.netloc:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "must be an absolute http or https URL"
    if "@" in parts.netloc:
        return "must not carry credentials: everyone who may read the trigger would see them"
    return ""


def scan_warning(plan: CompiledFilter | None) -> tuple[str, ...]:
    """What a filter costs that no look-up finds: a part of it is work for every event of the broker."""
    if plan is None:
        return ()
    compared, left = scans_of(plan)
    what = [
        *([f"{compared} comparison{'s' * (compared > 1)} in the matcher"] if compared else []),
        *(["an evaluation by cel-cpp, which is a hundred times dearer"] if left else []),
    ]
    if not what:
        return ()
    return (
        f"the filter has no ==, startsWith or endsWith to be looked up by: every event of the broker costs "
        f"{' and '.join(what)} (headgate filter explain shows which part)",
    )


def refuse_erased_filter(old: Object, new: Object, document: object) -> None:
    """Other systems' clients drop filter fields that they do not know: their update would deliver everything."""
    fields: list[tuple[str, object, object, str]] = []
    if isinstance(old, Routed) and isinstance(new, Routed):
        fields.append(("spec.filter", old.spec.filter, new.spec.filter, FILTER_ANNOTATION))
        fields.append(("spec.filters", old.spec.filters, new.spec.filters, FILTERS_ANNOTATION))
    elif isinstance(old, RbacRole | ClusterRole) and isinstance(new, RbacRole | ClusterRole):
        fields.append(("rules", ceilings_of(old), ceilings_of(new), FILTERS_ANNOTATION))
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    causes = []
    for field, before, after, annotation in fields:
        if before and not after and isinstance(annotations, Mapping) and annotation in annotations:
            causes.append(invalid(field, "", f"the update would erase what annotation {annotation} still shows"))
    if causes:
        raise InvalidObjectError(
            tuple(causes),
            kind=new.kind,
            name=new.metadata.name,
            hint="to erase it on purpose, remove the annotation as well",
        )


def _transform_causes(obj: Routed) -> Iterator[Cause]:
    """What is wrong with a `spec.transform`."""
    if obj.spec.transform:
        try:
            check_transform(obj.spec.transform)
        except FilterError as error:
            yield filter_cause(error, obj)


def filter_cause(error: InvalidInputError, obj: Object) -> Cause:
    """The compiler's message with its place, at the field it names below `spec`."""
    if not isinstance(error, FilterError):
        return invalid("spec.filter", "", error.message)
    field = field_as_written(obj, error.field) if isinstance(obj, Routed) else error.field
    written: dict[str, object] = {}
    if isinstance(obj, Routed):
        written = {"filter": obj.spec.filter, "filters": obj.spec.filters, "transform": obj.spec.transform}
    elif isinstance(obj, EventPolicy):
        written = {"filters": obj.spec.filters}
    place = f" at character {error.position + 1}" if error.position is not None else ""
    caret = f"\n{error.caret}\n" if error.caret else ""
    if isinstance(obj, RbacRole | ClusterRole):
        return invalid(field, "", f"{error.reason}{place}{caret}")
    return invalid(f"spec.{field}", value_at(written, field), f"{error.reason}{place}{caret}")
