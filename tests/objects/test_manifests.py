from __future__ import annotations

from pathlib import Path

import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.api.bootstrap import load
from headgate_api.objects.kinds import Kind, ObjectKey
from headgate_api.objects.manifests import ManifestError, read_path
from tests.objects.support import stored_brokers

BROKER = "apiVersion: eventing.knative.dev/v1\nkind: Broker\nmetadata: {name: orders}\n"
TRIGGER = """\
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: gold}
spec:
  broker: orders
  filter: {expression: data.tier == "gold"}
  subscriber: {uri: "http://127.0.0.1:9/"}
"""
T = ObjectKey(Kind.TRIGGER, "default", "gold")


def test_a_directory_is_applied_in_any_order(admission: Admission, tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a.yaml").write_text(f"{TRIGGER}---\n---\n{TRIGGER.replace('gold}', 'gold2}')}")
    (folder / "deeper" / "z.yml").write_text(BROKER)
    (folder / "list.json").write_text(
        '{"kind": "List", "apiVersion": "v1", "items": [{"kind": "Broker", "apiVersion": "eventing.knative.dev/v1",'
        ' "metadata": {"name": "b3", "namespace": "other"}}]}'
    )
    (folder / "README.md").write_text("not a manifest")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "c.yaml").write_text("not: an object")
    assert load(admission, folder) == {"created": 4}
    assert load(admission, folder) == {"unchanged": 4}
    (folder / "a.yaml").write_text(TRIGGER.replace('"gold"', '"silver"'))
    assert load(admission, folder) == {"configured": 1, "unchanged": 2}


NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: a}}\n"


def test_a_directory_may_bring_its_namespaces(admission: Admission, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{NAMESPACE}---\n{BROKER.replace('orders', 'orders, namespace: shop')}")
    assert load(admission, tmp_path) == {"created": 2}
    made = admission.store.namespaces.get("shop")
    assert (made.metadata.labels["team"], bool(made.metadata.creation_timestamp)) == ("a", True)
    assert load(admission, tmp_path) == {"unchanged": 2}
    (tmp_path / "a.yaml").write_text(NAMESPACE.replace("team: a", "tier: b"))
    assert load(admission, tmp_path) == {"configured": 1}
    assert admission.store.namespaces.get("shop").metadata.labels.items() >= {("team", "a"), ("tier", "b")}
    (tmp_path / "b.yaml").write_text(f"{NAMESPACE}---\n{NAMESPACE.replace('shop', 'No')}")
    with pytest.raises(ManifestError) as error:
        load(admission, tmp_path)
    twice, wrong = error.value.problems
    assert "Namespace shop is in" in twice
    assert "b.yaml, document 2" in wrong


def test_what_others_added_is_kept(admission: Admission, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(TRIGGER)
    load(admission, tmp_path)
    admission.merge(T, {"metadata": {"labels": {"team": "a"}}})
    assert load(admission, tmp_path) == {"unchanged": 1}
    assert admission.store.get(T).metadata.labels["team"] == "a"


def test_errors_name_file_document_and_field_and_nothing_is_applied(admission: Admission, tmp_path: Path) -> None:
    bad = TRIGGER.replace('data.tier == "gold"', "data.tier ==")
    (tmp_path / "a.yaml").write_text(f"{BROKER}---\n{bad}")
    (tmp_path / "b.yaml").write_text("kind: Service\n")
    (tmp_path / "c.yaml").write_text(BROKER)
    with pytest.raises(ManifestError) as error:
        load(admission, tmp_path)
    first, second, third = error.value.problems
    assert first.startswith(f"{tmp_path / 'a.yaml'}, document 2 (Trigger gold): spec.filter.expression: ")
    assert second.startswith(f"{tmp_path / 'b.yaml'}, document 1: kind is 'Service'")
    assert third.startswith(f"{tmp_path / 'c.yaml'}, document 1: Broker default/orders is in ")
    assert [one.metadata.name for one in stored_brokers(admission.store)] == ["default"]


def test_an_immutable_field_is_found_before_anything_is_applied(admission: Admission, tmp_path: Path) -> None:
    (tmp_path / "z.yaml").write_text(TRIGGER)
    load(admission, tmp_path)
    (tmp_path / "a.yaml").write_text(BROKER)
    (tmp_path / "z.yaml").write_text(TRIGGER.replace("broker: orders", "broker: other"))
    with pytest.raises(ManifestError, match=r"spec.broker.*immutable"):
        load(admission, tmp_path)
    assert [one.metadata.name for one in stored_brokers(admission.store)] == ["default"]


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ManifestError, match="no such file"):
        list(read_path(tmp_path / "nope"))
    (tmp_path / "a.yaml").write_text("a: [")
    with pytest.raises(ManifestError, match=r"a\.yaml: .*line 2"):
        list(read_path(tmp_path))
    monkeypatch.setattr("headgate_api.objects.manifests.MANIFEST_BYTES_MAX", 2)
    with pytest.raises(ManifestError, match="over 2 bytes"):
        list(read_path(tmp_path))
