"""A store whose writers have rights: what roles and bindings give them is asked of each write."""

from __future__ import annotations

from typing import Any, Final

from headgate.objects.api.admission import Admission
from headgate.objects.api.bootstrap import bootstrap
from headgate.objects.api.grants import Grants
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.kinds.managers import Manager, WriteOptions
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate.objects.views.copies import RbacCopy
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.objects.support import broker

RBAC: Final = "rbac.authorization.k8s.io"


def by(user: Any) -> WriteOptions:
    return WriteOptions(Manager("kubectl", user=user))


class RightsWorld:
    """A namespace has the broker `orders`; `itself` may write everything."""

    def __init__(self, store: Store, namespace: str) -> None:
        self.store = store
        self.roles = RbacCopy(store)
        grants = Grants(store, UrlPolicy(), self.roles.authorizer, self.roles.refresh)
        self.admission = Admission(store, grants=grants)
        self.reconciler = Reconciler(store, rights=grants)
        self.itself = Admission(store)
        bootstrap(self.itself)
        self.itself.create(Kind.BROKER, broker("orders"), namespace=namespace)

    def bind(self, role: str = "blue", namespace: str = "shop", *, kind: str = "User", who: str = "blue") -> ObjectKey:
        made = self.itself.apply(
            {
                "apiVersion": f"{RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": f"{role.replace(':', '-')}-{who}", "namespace": namespace},
                "subjects": [{"kind": kind, "apiGroup": RBAC, "name": who}],
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            }
        )
        self.roles.refresh()
        return ObjectKey(Kind.ROLE_BINDING, namespace, made.obj.metadata.name)
