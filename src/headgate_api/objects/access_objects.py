"""Objects of who may do what, as typed structs: Kubernetes' rbac.authorization.k8s.io/v1, and Knative's EventPolicy.

A misspelt field would allow more than was meant, so unknown ones are refused whatever the request says.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from headgate_api.objects.metadata import NO_MEMBERS, ApiObject, ApiStruct, JsonObject, ObjectStatus, doc

RBAC_GROUP: Final = "rbac.authorization.k8s.io"
RBAC_API_VERSION: Final = f"{RBAC_GROUP}/v1"


class PolicyRule(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """What may be done: with resources, or with paths that are none."""

    verbs: Annotated[
        tuple[str, ...], doc("get, list, watch, create, update, patch, delete, ... or * for all.", required=True)
    ] = ()
    api_groups: Annotated[tuple[str, ...], doc("API groups of the resources; * for all.")] = ()
    resources: Annotated[
        tuple[str, ...], doc("Resources, such as brokers or brokers/events; * for all with their subresources.")
    ] = ()
    resource_names: Annotated[tuple[str, ...], doc("Names of the objects; all when it is left out.")] = ()
    non_resource_urls: Annotated[
        tuple[str, ...],
        doc("Paths, such as /metrics or /livez/*; of a ClusterRole that a ClusterRoleBinding names."),
    ] = msgspec.field(default=(), name="nonResourceURLs")
    filter: JsonObject | None = None
    filters: tuple[JsonObject, ...] = ()
    """A ceiling: of a broker's events the rule gives only these. The compiler's language, as in a trigger."""


class RbacSubject(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Who gets the rights."""

    kind: Annotated[str, doc("User, Group or ServiceAccount.", required=True)] = ""
    api_group: Annotated[str, doc("rbac.authorization.k8s.io, for a User and a Group.")] = ""
    name: Annotated[str, doc("Name of the user, group or service account.", required=True)] = ""
    namespace: Annotated[str, doc("Namespace of a service account.")] = ""


class RoleRef(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Whose rights they are."""

    api_group: Annotated[str, doc("Always rbac.authorization.k8s.io.", required=True)] = ""
    kind: Annotated[str, doc("Role or ClusterRole.", required=True)] = ""
    name: Annotated[str, doc("Name of the role.", required=True)] = ""


_Rules = Annotated[tuple[PolicyRule, ...], doc("What may be done; a request needs one rule that allows it.")]
_Subjects = Annotated[tuple[RbacSubject, ...], doc("Who gets the rights.")]
_RoleRef = Annotated[RoleRef, doc("Whose rights they are. Immutable.", required=True)]


class RbacRole(ApiObject, frozen=True):
    """Rights in one namespace."""

    rules: _Rules = ()


class ClusterRole(ApiObject, frozen=True):
    """Rights in every namespace, or in the one of a RoleBinding that names it."""

    rules: _Rules = ()


class RoleBinding(ApiObject, frozen=True):
    """Gives somebody the rights of a role in one namespace."""

    subjects: _Subjects = ()
    role_ref: _RoleRef = RoleRef()


class ClusterRoleBinding(ApiObject, frozen=True):
    """Gives somebody the rights of a cluster role everywhere."""

    subjects: _Subjects = ()
    role_ref: _RoleRef = RoleRef()


# --- EventPolicy: eventing.knative.dev/v1alpha1 --------------------------------------------------


class SelectorRequirement(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """One condition on a label (Kubernetes' `LabelSelectorRequirement`)."""

    key: Annotated[str, doc("The label.", required=True)] = ""
    operator: Annotated[
        str,
        doc("In, NotIn, Exists or DoesNotExist.", required=True, enum=["In", "NotIn", "Exists", "DoesNotExist"]),
    ] = ""
    values: Annotated[tuple[str, ...], doc("Of In and NotIn.")] = ()


class BrokerSelector(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Brokers by their labels; all conditions must hold."""

    api_version: Annotated[str, doc("eventing.knative.dev/v1.", required=True)] = ""
    kind: Annotated[str, doc("Broker.", required=True)] = ""
    match_labels: Annotated[dict[str, str], doc("Labels with their values.")] = NO_MEMBERS
    match_expressions: Annotated[tuple[SelectorRequirement, ...], doc("Further conditions on labels.")] = ()


class BrokerReference(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """A broker of the policy's namespace."""

    api_version: Annotated[str, doc("eventing.knative.dev/v1.", required=True)] = ""
    kind: Annotated[str, doc("Broker.", required=True)] = ""
    name: Annotated[str, doc("Name of the broker.", required=True)] = ""


class PolicyTarget(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Brokers that a policy is for: one by name, or some by their labels."""

    ref: Annotated[BrokerReference | None, doc("One broker.")] = None
    selector: Annotated[BrokerSelector | None, doc("Brokers by their labels.")] = None


class SenderReference(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """An object that sends events."""

    api_version: Annotated[str, doc("API version of the object.", required=True)] = ""
    kind: Annotated[str, doc("Kind of the object; without Kubernetes only Trigger.", required=True)] = ""
    name: Annotated[str, doc("Name of the object.", required=True)] = ""
    namespace: Annotated[str, doc("Its namespace; the policy's own when it is left out.")] = ""


class PolicySender(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Who may send: an object, or a user by name."""

    ref: Annotated[SenderReference | None, doc("An object that sends events.")] = None
    sub: Annotated[str, doc("Name of a user; a * at its end stands for any rest: system:serviceaccount:shop:*.")] = ""


class EventPolicySpec(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Which senders may send which events to which brokers; `filters` are the compiler's language."""

    to: Annotated[
        tuple[PolicyTarget, ...], doc("Brokers that it is for; all of the namespace when it is left out.")
    ] = ()
    from_: Annotated[tuple[PolicySender, ...], doc("Who may send.")] = msgspec.field(default=(), name="from")
    filters: tuple[JsonObject, ...] = ()


class EventPolicyStatus(ObjectStatus, frozen=True):
    """What a policy is."""

    from_: Annotated[tuple[str, ...], doc("Names of users that spec.from means, with * where it has one.")] = (
        msgspec.field(default=(), name="from")
    )


class EventPolicy(ApiObject, frozen=True):
    """Who may send which events to brokers of its namespace."""

    spec: EventPolicySpec = EventPolicySpec()
    status: EventPolicyStatus = EventPolicyStatus()
