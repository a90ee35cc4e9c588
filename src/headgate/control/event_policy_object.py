"""EventPolicy as typed structs: Knative's eventing.knative.dev/v1alpha1.

A misspelt field would let in more than was meant, so unknown ones below `spec` are refused whatever the request says.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from headgate.control.metadata import ApiObject, ApiStruct, JsonObject, ObjectStatus, field_doc


class SelectorRequirement(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """One condition on a label (Kubernetes' `LabelSelectorRequirement`)."""

    key: Annotated[str, field_doc("The label.", required=True)] = ""
    operator: Annotated[
        str,
        field_doc("In, NotIn, Exists or DoesNotExist.", required=True, enum=["In", "NotIn", "Exists", "DoesNotExist"]),
    ] = ""
    values: Annotated[tuple[str, ...], field_doc("Of In and NotIn.")] = ()


class BrokerSelector(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Brokers by their labels; all conditions must hold."""

    api_version: Annotated[str, field_doc("eventing.knative.dev/v1.", required=True)] = ""
    kind: Annotated[str, field_doc("Broker.", required=True)] = ""
    match_labels: Annotated[dict[str, str], field_doc("Labels with their values.")] = msgspec.field(
        default_factory=dict
    )
    match_expressions: Annotated[tuple[SelectorRequirement, ...], field_doc("Further conditions on labels.")] = ()


class BrokerReference(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """A broker of the policy's namespace."""

    api_version: Annotated[str, field_doc("eventing.knative.dev/v1.", required=True)] = ""
    kind: Annotated[str, field_doc("Broker.", required=True)] = ""
    name: Annotated[str, field_doc("Name of the broker.", required=True)] = ""


class PolicyTarget(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Brokers that a policy is for: one by name, or some by their labels."""

    ref: Annotated[BrokerReference | None, field_doc("One broker.")] = None
    selector: Annotated[BrokerSelector | None, field_doc("Brokers by their labels.")] = None


class SenderReference(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """An object that sends events."""

    api_version: Annotated[str, field_doc("API version of the object.", required=True)] = ""
    kind: Annotated[str, field_doc("Kind of the object; without Kubernetes only Trigger.", required=True)] = ""
    name: Annotated[str, field_doc("Name of the object.", required=True)] = ""
    namespace: Annotated[str, field_doc("Its namespace; the policy's own when it is left out.")] = ""


class PolicySender(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Who may send: an object, or a user by name."""

    ref: Annotated[SenderReference | None, field_doc("An object that sends events.")] = None
    sub: Annotated[
        str, field_doc("Name of a user; a * at its end stands for any rest: system:serviceaccount:shop:*.")
    ] = ""


class EventPolicySpec(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Which senders may send which events to which brokers; `filters` are the compiler's language."""

    to: Annotated[
        tuple[PolicyTarget, ...], field_doc("Brokers that it is for; all of the namespace when it is left out.")
    ] = ()
    from_: Annotated[tuple[PolicySender, ...], field_doc("Who may send.")] = msgspec.field(default=(), name="from")
    filters: tuple[JsonObject, ...] = ()


class EventPolicyStatus(ObjectStatus, frozen=True):
    """What a policy is."""

    from_: Annotated[tuple[str, ...], field_doc("Names of users that spec.from means, with * where it has one.")] = (
        msgspec.field(default=(), name="from")
    )


class EventPolicy(ApiObject, frozen=True):
    """Who may send which events to brokers of its namespace."""

    spec: EventPolicySpec = EventPolicySpec()
    status: EventPolicyStatus = EventPolicyStatus()
