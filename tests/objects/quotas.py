"""Quotas of a namespace as tests set them, and have them known at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headgate.objects.api.admission import Admission
from headgate.objects.store.store import Store
from headgate_api.objects.kinds import Kind, ObjectKey


class KnownQuotas(Protocol):
    """What a process knows of quotas."""

    def refresh(self) -> object: ...


def limit(store: Store, quotas: KnownQuotas, hard: Mapping[str, int], namespace: str = "ns", name: str = "q") -> None:
    metadata = {"name": name, "namespace": namespace}
    made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": dict(hard)}}
    Admission(store).apply(made)
    quotas.refresh()


def unlimit(store: Store, quotas: KnownQuotas, namespace: str = "ns") -> None:
    store.delete(ObjectKey(Kind.RESOURCE_QUOTA, namespace, "q"))
    quotas.refresh()
