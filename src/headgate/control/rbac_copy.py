"""Roles and bindings in memory, as new as the last write of one that was answered, and the decisions by them."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.auth.authorizer import RbacAuthorizer
from headgate.control.followed import ObjectChange, ObjectCopy
from headgate.control.objects import RBAC_KINDS, Object, ObjectKey, key_of
from headgate.control.rbac_rules import AnyBinding, AnyRole, policy
from headgate.control.store import Store


class RbacCopy(ObjectCopy):
    """A copy of what the store says of rights.

    Args:
        store: The objects.

    Attributes:
        authorizer: Decides by the copy.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, RBAC_KINDS, "roles and bindings")
        self.authorizer = RbacAuthorizer()
        self._objects: dict[ObjectKey, AnyRole | AnyBinding] = {}

    def _begin(self, objects: Iterable[Object]) -> None:
        self._objects = {key_of(obj): obj for obj in objects if isinstance(obj, AnyRole | AnyBinding)}
        self._decide()

    def _apply(self, changes: Iterable[ObjectChange]) -> None:
        for key, obj in changes:
            if isinstance(obj, AnyRole | AnyBinding):
                self._objects[key] = obj
            else:
                self._objects.pop(key, None)
        self._decide()

    def _decide(self) -> None:
        roles = [obj for obj in self._objects.values() if isinstance(obj, AnyRole)]
        bindings = [obj for obj in self._objects.values() if isinstance(obj, AnyBinding)]
        self.authorizer.policy = policy(roles, bindings)
