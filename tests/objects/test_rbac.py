"""Roles and bindings as objects: their rules, the roles of the start, copies that follow, and kubectl's protobuf."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.auth.rules import Attributes
from headgate.auth.user import ANONYMOUS, authenticated
from headgate.objects.api import kubernetes_pb2 as pb
from headgate.objects.api.admission import Admission
from headgate.objects.api.bootstrap import AUTO_UPDATE, ROLES, bootstrap
from headgate.objects.api.http import decode_protobuf
from headgate.objects.kinds.managers import APPLY, Manager, WriteOptions
from headgate.objects.store.store import Store
from headgate.objects.views.copies import RbacCopy
from headgate_api import limits
from headgate_api.objects.access_objects import RBAC_API_VERSION
from headgate_api.objects.errors import InvalidObjectError, MalformedObjectError
from headgate_api.objects.kinds import ClusterRole, Kind, ObjectKey, RoleBinding

RULE = {"verbs": ["get"], "apiGroups": ["eventing.knative.dev"], "resources": ["brokers"]}
REFERENCE = {"kind": "Role", "name": "r"}
EDITOR = ObjectKey(Kind.CLUSTER_ROLE, "", "headgate:editor")


def document(kind: str, name: str = "r", **content: object) -> dict[str, Any]:
    return {"apiVersion": RBAC_API_VERSION, "kind": kind, "metadata": {"name": name}, **content}


def role(**changes: object) -> dict[str, Any]:
    return document("Role", rules=[RULE | changes])


def binding(*subjects: dict[str, str], **reference: str) -> dict[str, Any]:
    return document("RoleBinding", subjects=list(subjects), roleRef=REFERENCE | reference)


WRONG: list[tuple[Kind, dict[str, Any], str]] = [
    (Kind.ROLE, role(verbs=[]), "rules[0].verbs"),
    (Kind.ROLE, role(apiGroups=[]), "rules[0].apiGroups"),
    (Kind.ROLE, role(resources=[]), "rules[0].resources"),
    (Kind.ROLE, document("Role", rules=[{"verbs": ["get"], "nonResourceURLs": ["/x"]}]), "rules[0].nonResourceURLs"),
    (Kind.ROLE, role(verbs=["get"] * (limits.RBAC_RULE_ITEMS_MAX + 1)), "rules[0].verbs"),
    (Kind.ROLE, role(resources=["x" * (limits.RBAC_TEXT_CHARS_MAX + 1)]), "rules[0].resources"),
    (Kind.ROLE, document("Role", rules=[RULE] * (limits.RBAC_RULES_MAX + 1)), "rules"),
    (Kind.ROLE, role(resourceName=["x"]), "rules[0]"),
    (Kind.ROLE, role(verbs="get"), "rules[0].verbs"),
    (Kind.ROLE, document("Role", "a/b", rules=[]), "metadata.name"),
    (Kind.ROLE, document("Role", "..", rules=[]), "metadata.name"),
    (
        Kind.CLUSTER_ROLE,
        document("ClusterRole", rules=[RULE | {"nonResourceURLs": ["/x"]}]),
        "rules[0].nonResourceURLs",
    ),
    (
        Kind.CLUSTER_ROLE,
        document("ClusterRole", rules=[{"verbs": ["get"], "nonResourceURLs": ["x"]}]),
        "rules[0].nonResourceURLs",
    ),
    (
        Kind.CLUSTER_ROLE,
        document("ClusterRole", rules=[{"verbs": ["get"], "nonResourceURLs": ["/*/x"]}]),
        "rules[0].nonResourceURLs",
    ),
    (Kind.CLUSTER_ROLE, document("ClusterRole", aggregationRule={"clusterRoleSelectors": [{}]}), "aggregationRule"),
    (Kind.ROLE_BINDING, binding({"kind": "User", "name": "a"}, kind="Broker"), "roleRef.kind"),
    (Kind.ROLE_BINDING, binding({"kind": "User", "name": "a"}, name=""), "roleRef.name"),
    (Kind.ROLE_BINDING, binding({"kind": "User", "name": "a"}, apiGroup="x"), "roleRef.apiGroup"),
    (Kind.ROLE_BINDING, binding({"kind": "Robot", "name": "a"}), "subjects[0].kind"),
    (Kind.ROLE_BINDING, binding({"kind": "User", "name": ""}), "subjects[0].name"),
    (Kind.ROLE_BINDING, binding({"kind": "User", "name": "a", "namespace": "b"}), "subjects[0].namespace"),
    (Kind.ROLE_BINDING, binding({"kind": "ServiceAccount", "name": "a", "apiGroup": "x"}), "subjects[0].apiGroup"),
    (Kind.ROLE_BINDING, binding(*[{"kind": "User", "name": "a"}] * (limits.RBAC_SUBJECTS_MAX + 1)), "subjects"),
    (Kind.CLUSTER_ROLE_BINDING, document("ClusterRoleBinding", roleRef=REFERENCE), "roleRef.kind"),
]


@pytest.mark.parametrize(("kind", "wrong", "field"), WRONG)
def test_what_breaks_a_rule_is_refused_with_its_field(
    admission: Admission, kind: Kind, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidObjectError) as error:
        admission.create(kind, wrong)
    assert field in [cause.field for cause in error.value.causes]


def test_a_cluster_role_lies_in_no_namespace(admission: Admission) -> None:
    with pytest.raises(MalformedObjectError, match="no namespace"):
        admission.create(Kind.CLUSTER_ROLE, document("ClusterRole") | {"metadata": {"name": "r", "namespace": "a"}})
    made = admission.create(Kind.CLUSTER_ROLE, document("ClusterRole", "a:b", rules=[RULE])).obj
    assert (made.metadata.namespace, made.metadata.name) == ("", "a:b")
    names, _ = admission.store.namespaces.all()
    assert [one.metadata.name for one in names] == ["default"]


def test_defaults_and_what_cannot_change(admission: Admission) -> None:
    made = admission.create(Kind.ROLE_BINDING, binding({"kind": "User", "name": "a"})).obj
    assert isinstance(made, RoleBinding)
    assert made.role_ref.api_group == made.subjects[0].api_group == "rbac.authorization.k8s.io"
    key = ObjectKey(Kind.ROLE_BINDING, "default", "r")
    with pytest.raises(InvalidObjectError, match="cannot change roleRef"):
        admission.merge(key, {"roleRef": {"name": "other"}})
    admission.merge(key, {"subjects": []})


def test_a_start_restores_what_the_roles_lack(admission: Admission) -> None:
    assert bootstrap(admission) == len(ROLES) + 5
    assert bootstrap(admission) == 0
    admission.merge(EDITOR, {"rules": [RULE | {"verbs": ["praise"]}]})
    everybody = ObjectKey(Kind.CLUSTER_ROLE_BINDING, "", "system:discovery")
    admission.merge(everybody, {"subjects": []})
    assert bootstrap(admission) == 2
    there = admission.store.get(EDITOR)
    assert isinstance(there, ClusterRole)
    assert there.rules[0].verbs == ("praise",)
    assert set(ROLES["headgate:editor"]) <= set(there.rules)
    admission.merge(EDITOR, {"rules": [], "metadata": {"annotations": {AUTO_UPDATE: "false"}}})
    assert bootstrap(admission) == 0


def test_a_copy_follows_every_write(admission: Admission, store: Store) -> None:
    bootstrap(admission)
    copy = RbacCopy(store)
    ann, wanted = authenticated("ann"), Attributes("get", "eventing.knative.dev", "brokers", "", "default", "x")
    copy.refresh()
    assert not copy.authorizer.allowed(ann, wanted).allowed
    admission.create(Kind.ROLE_BINDING, binding({"kind": "User", "name": "ann"}))
    copy.refresh()
    assert not copy.authorizer.allowed(ann, wanted).allowed  # there is no such role yet
    admission.create(Kind.ROLE, role())
    copy.refresh()
    assert copy.authorizer.allowed(ann, wanted).allowed
    assert not copy.authorizer.allowed(ANONYMOUS, wanted).allowed
    admission.merge(ObjectKey(Kind.ROLE, "default", "r"), {"rules": []})
    copy.refresh()
    assert not copy.authorizer.allowed(ann, wanted).allowed
    admission.merge(ObjectKey(Kind.ROLE, "default", "r"), {"rules": [RULE]})
    store.delete(ObjectKey(Kind.ROLE_BINDING, "default", "r"))
    copy.refresh()
    assert not copy.authorizer.allowed(ann, wanted).allowed


def test_an_apply_owns_rules_and_subjects(admission: Admission) -> None:
    key = ObjectKey(Kind.ROLE, "default", "r")
    first = admission.server_side_apply(key, role(), WriteOptions(Manager("one", APPLY)))
    assert first.outcome == "created"
    changed = admission.server_side_apply(key, role(verbs=["list"]), WriteOptions(Manager("one", APPLY)))
    assert bytes(changed.obj.metadata.managed_fields[0].fields_v1) == b'{"f:rules":{}}'


def test_protobuf_of_kubectl(admission: Admission) -> None:
    made = pb.RoleBinding(
        metadata=pb.ObjectMeta(name="b", labels={"a": "b"}),
        subjects=[pb.Subject(kind="User", apiGroup="rbac.authorization.k8s.io", name="jane")],
        roleRef=pb.RoleRef(apiGroup="rbac.authorization.k8s.io", kind="Role", name="r"),
    )

    def body(message: Any, kind: str = "RoleBinding", version: str = RBAC_API_VERSION) -> bytes:
        type_ = pb.TypeMeta(apiVersion=version, kind=kind)
        return b"k8s\0" + bytes(pb.Unknown(typeMeta=type_, raw=message.SerializeToString()).SerializeToString())

    stored = admission.create(Kind.ROLE_BINDING, decode_protobuf(body(made))).obj
    assert isinstance(stored, RoleBinding)
    assert (stored.subjects[0].name, stored.metadata.labels) == ("jane", {"a": "b"})
    asked = pb.SubjectAccessReview(spec=pb.SubjectAccessReview.Spec(user="u", extra={"k": pb.ExtraValue(items=["v"])}))
    found: Any = decode_protobuf(body(asked, "SubjectAccessReview", "authorization.k8s.io/v1"))
    assert found["spec"] == {"user": "u", "extra": {"k": ["v"]}}
    wanted = pb.DeleteOptions(dryRun=["All"], preconditions=pb.DeleteOptions.Preconditions(uid="u"))
    options: Any = decode_protobuf(body(wanted, "DeleteOptions", "v1"))
    assert (options["dryRun"], options["preconditions"]) == (["All"], {"uid": "u"})
    for wrong in (b"", b"k8s", b"k8s\0\xff\xff", b"{}", body(made, "Pod", "v1"), body(made)[:-3]):
        with pytest.raises(MalformedObjectError):
            decode_protobuf(wrong)
