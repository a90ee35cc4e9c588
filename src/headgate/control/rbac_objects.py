"""Role, ClusterRole, RoleBinding and ClusterRoleBinding as typed structs: Kubernetes' rbac.authorization.k8s.io/v1."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from headgate.control.metadata import ApiObject, ApiStruct, field_doc

RBAC_GROUP: Final = "rbac.authorization.k8s.io"
RBAC_API_VERSION: Final = f"{RBAC_GROUP}/v1"
"""A misspelt field of a rule would allow more than was meant, so unknown ones are refused whatever the request says."""


class PolicyRule(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """What may be done: with resources, or with paths that are none."""

    verbs: Annotated[
        tuple[str, ...], field_doc("get, list, watch, create, update, patch, delete, ... or * for all.", required=True)
    ] = ()
    api_groups: Annotated[tuple[str, ...], field_doc("API groups of the resources; * for all.")] = ()
    resources: Annotated[
        tuple[str, ...], field_doc("Resources, such as brokers or brokers/events; * for all with their subresources.")
    ] = ()
    resource_names: Annotated[tuple[str, ...], field_doc("Names of the objects; all when it is left out.")] = ()
    non_resource_urls: Annotated[
        tuple[str, ...],
        field_doc("Paths, such as /metrics or /livez/*; of a ClusterRole that a ClusterRoleBinding names."),
    ] = msgspec.field(default=(), name="nonResourceURLs")


class RbacSubject(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Who gets the rights."""

    kind: Annotated[str, field_doc("User, Group or ServiceAccount.", required=True)] = ""
    api_group: Annotated[str, field_doc("rbac.authorization.k8s.io, for a User and a Group.")] = ""
    name: Annotated[str, field_doc("Name of the user, group or service account.", required=True)] = ""
    namespace: Annotated[str, field_doc("Namespace of a service account.")] = ""


class RoleRef(ApiStruct, frozen=True, forbid_unknown_fields=True):
    """Whose rights they are."""

    api_group: Annotated[str, field_doc("Always rbac.authorization.k8s.io.", required=True)] = ""
    kind: Annotated[str, field_doc("Role or ClusterRole.", required=True)] = ""
    name: Annotated[str, field_doc("Name of the role.", required=True)] = ""


_Rules = Annotated[tuple[PolicyRule, ...], field_doc("What may be done; a request needs one rule that allows it.")]
_Subjects = Annotated[tuple[RbacSubject, ...], field_doc("Who gets the rights.")]
_RoleRef = Annotated[RoleRef, field_doc("Whose rights they are. Immutable.", required=True)]


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
