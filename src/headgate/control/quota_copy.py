"""Resource quotas in memory, as new as the last write of one that was answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.control.followed import ObjectChange, ObjectCopy
from headgate.control.objects import Kind, Object, ObjectKey, ResourceQuota, key_of
from headgate.control.quota_rules import lowest
from headgate.control.store import Store

QuotaLimits = Mapping[str, Mapping[str, int]]
"""By namespace and resource the most that may be used."""


class QuotaCopy(ObjectCopy):
    """A copy of what the store says of quotas.

    Args:
        store: The objects.

    Attributes:
        limits: Of the namespaces that have quotas; replaced as a whole.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, (Kind.RESOURCE_QUOTA,), "resource quotas")
        self._objects: dict[ObjectKey, ResourceQuota] = {}
        self.limits: QuotaLimits = {}

    def _begin(self, objects: Iterable[Object]) -> None:
        self._objects = {key_of(obj): obj for obj in objects if isinstance(obj, ResourceQuota)}
        self._take()

    def _apply(self, changes: Iterable[ObjectChange]) -> None:
        for key, obj in changes:
            if isinstance(obj, ResourceQuota):
                self._objects[key] = obj
            else:
                self._objects.pop(key, None)
        self._take()

    def _take(self) -> None:
        by_namespace: dict[str, list[ResourceQuota]] = {}
        for key, quota in self._objects.items():
            by_namespace.setdefault(key.namespace, []).append(quota)
        self.limits = {namespace: lowest(quotas) for namespace, quotas in by_namespace.items()}
        self.changed()

    def changed(self) -> None:
        """Called after every change, in the thread that reads."""
