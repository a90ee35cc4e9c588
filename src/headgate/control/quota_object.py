"""ResourceQuota as a typed struct: Kubernetes' object of the core group."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headgate.control.metadata import ApiObject, ApiStruct, field_doc


class ResourceQuotaSpec(ApiStruct, frozen=True):
    """What a namespace may use at most."""

    hard: Annotated[
        dict[str, int | str],
        field_doc("By the name of a resource, such as count/triggers.eventing.knative.dev, the most that may be used."),
    ] = msgspec.field(default_factory=dict)
    """Clients write quantities as numbers too; stored they are text."""


class ResourceQuotaStatus(ApiStruct, frozen=True):
    """What it uses."""

    hard: Annotated[dict[str, str], field_doc("The limits that are in force.")] = msgspec.field(default_factory=dict)
    used: Annotated[dict[str, str], field_doc("What the namespace uses of each.")] = msgspec.field(default_factory=dict)


class ResourceQuota(ApiObject, frozen=True):
    """Limits of what a namespace uses, over all its objects."""

    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()
