"""The real kubectl and Kubernetes' own Python client against the API."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes import client as library  # of `library` each class when it is asked for: all of them take seconds
from kubernetes import watch

from headgate.objects.kinds.routing import TargetReport
from headgate_api.objects.kinds import GROUP, VERSION
from tests.objects.support import WAIT_S, Server, broker, trigger
from tests.support import eventually, executable

MANIFEST = """\
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata:
  name: gold
spec:
  broker: orders
  filter:
    expression: ce.type == "order" && data.tier == "gold"
  subscriber:
    uri: http://127.0.0.1:9/sink
---
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata:
  name: orders
"""

Kubectl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kubectl(server: Server, tmp_path: Path) -> Kubectl:
    program = executable("kubectl")
    home = tmp_path / "home"
    home.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": "/dev/null"}

    def run(*arguments: str, fails: bool = False, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [program, "--server", server.url, "--cache-dir", str(tmp_path / "cache"), *arguments]
        done = subprocess.run(
            command, env=environment, input=stdin, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def applied(kubectl: Kubectl) -> str:
    return kubectl("apply", "-f", "-", stdin=MANIFEST).stdout


def test_apply_creates_updates_and_leaves_alone(kubectl: Kubectl, applied: str, server: Server) -> None:
    assert applied == "trigger.eventing.knative.dev/gold created\nbroker.eventing.knative.dev/orders created\n"
    assert kubectl("apply", "-f", "-", stdin=MANIFEST).stdout.count("unchanged") == 2
    done = kubectl("apply", "-f", "-", stdin=MANIFEST.replace('"gold"', '"silver"'))
    assert "trigger.eventing.knative.dev/gold configured" in done.stdout
    found = server.request("GET", server.path("triggers", "gold")).json
    assert found["metadata"]["generation"] == 2
    assert '"silver"' in found["spec"]["filter"]["expression"]
    # Another dialect: what the file no longer says goes.
    attributes = MANIFEST.replace('expression: ce.type == "order" && data.tier == "gold"', "attributes: {type: order}")
    kubectl("apply", "-f", "-", stdin=attributes)
    assert server.request("GET", server.path("triggers", "gold")).json["spec"]["filter"] == {
        "attributes": {"type": "order"}
    }


def test_get_in_all_forms(kubectl: Kubectl, applied: str) -> None:
    kubectl("wait", "--for=condition=Ready", "trigger/gold", "broker/orders", "--timeout=20s")
    heads, row = kubectl("get", "triggers").stdout.splitlines()
    assert heads.split() == ["NAME", "BROKER", "SUBSCRIBER_URI", "AGE", "READY", "REASON", "WARNINGS"]
    assert row.split()[:3] == ["gold", "orders", "http://127.0.0.1:9/sink"]
    heads, *rows = kubectl("get", "brokers").stdout.splitlines()
    assert heads.split() == ["NAME", "URL", "AGE", "READY", "REASON"]
    assert [row.split()[0] for row in rows] == ["default", "orders"]
    assert "FILTER" in kubectl("get", "trigger", "gold", "-o", "wide").stdout
    assert kubectl("get", "trigger", "-o", "name").stdout == "trigger.eventing.knative.dev/gold\n"
    assert json.loads(kubectl("get", "trigger", "gold", "-o", "json").stdout)["kind"] == "Trigger"
    assert "expression: ce.type ==" in kubectl("get", "trigger", "gold", "-o", "yaml").stdout
    assert "gold" in kubectl("get", "triggers", "--sort-by", ".metadata.name").stdout
    assert "default" in kubectl("get", "triggers", "-A").stdout.splitlines()[1].split()[0]
    everything = kubectl("get", "all").stdout
    assert "broker.eventing.knative.dev/orders" in everything
    assert "trigger.eventing.knative.dev/gold" in everything
    assert "default" in kubectl("get", "namespaces").stdout
    assert 'triggers.eventing.knative.dev "nope" not found' in kubectl("get", "trigger", "nope", fails=True).stderr
    assert "No resources found" in kubectl("get", "triggers", "-n", "elsewhere").stderr


@pytest.mark.slow  # the conditions are in test_status.py
def test_get_warns_of_what_is_ready_and_goes_wrong(kubectl: Kubectl, applied: str, server: Server) -> None:
    kubectl("wait", "--for=condition=Ready", "trigger/gold", "--timeout=20s")
    (target,) = server.store.snapshot().targets.values()
    told = TargetReport(target.id, 1, "no such key: tier", "shop 17", "", 2, "partition 0, offset 7: status 500")
    server.store.reports.report([told])
    kubectl("wait", "--for=condition=EventsKept=False", "trigger/gold", "--timeout=20s")
    _, row = kubectl("get", "triggers").stdout.splitlines()
    assert row.split()[-2:] == ["True", "EventsDropped,FilterErrors"]


def test_describe_explain_and_discovery(kubectl: Kubectl, applied: str) -> None:
    described = kubectl("describe", "trigger", "gold").stdout
    assert "Expression:  ce.type ==" in described
    assert "Events:" in described
    explained = kubectl("explain", "trigger.spec.delivery.backoffDelay").stdout
    assert "ISO 8601 duration" in explained
    assert "filter" in kubectl("explain", "trigger.spec").stdout
    assert "Version of the language" in kubectl("explain", "trigger.spec.filter.celVersion").stdout
    assert "start with the value" in kubectl("explain", "trigger.spec.filters.prefix").stdout
    resources = kubectl("api-resources", "--api-group", GROUP).stdout
    assert "brokers" in resources
    assert "triggers" in resources
    assert kubectl("auth", "can-i", "create", "triggers").stdout == "yes\n"
    assert kubectl("auth", "can-i", "--list").stdout.splitlines()[1].split() == ["*.*", "[]", "[]", "[*]"]
    assert "Server Version: v1." in kubectl("version").stdout


@pytest.mark.slow  # the patches of the API are in test_patches.py
def test_patch_label_and_replace(kubectl: Kubectl, applied: str, tmp_path: Path) -> None:
    kubectl("patch", "trigger", "gold", "--type", "merge", "-p", '{"spec":{"delivery":{"retry":3}}}')
    assert kubectl("get", "trigger", "gold", "-o", "jsonpath={.spec.delivery.retry}").stdout == "3"
    kubectl("label", "trigger", "gold", "team=a")
    assert "gold" in kubectl("get", "triggers", "-l", "team=a").stdout
    kubectl("annotate", "trigger", "gold", "note=x")
    strategic = kubectl("patch", "trigger", "gold", "-p", '{"spec":{"delivery":{"retry":4}}}', fails=True)
    assert "application/strategic-merge-patch+json" in strategic.stderr
    whole = kubectl("get", "trigger", "gold", "-o", "yaml").stdout
    kubectl("replace", "-f", "-", stdin=whole.replace("retry: 3", "retry: 5"))
    stale = kubectl("replace", "-f", "-", stdin=whole, fails=True)
    assert "the object has been modified" in stale.stderr
    kubectl("patch", "trigger", "gold", "--type", "json", "-p", '[{"op":"remove","path":"/spec/delivery/retry"}]')
    assert kubectl("get", "trigger", "gold", "-o", "jsonpath={.spec.delivery.retry}").stdout == ""


def test_server_side_apply(kubectl: Kubectl, server: Server) -> None:
    def apply(manifest: str, *options: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        return kubectl("apply", "--server-side", *options, "-f", "-", stdin=manifest, fails=fails)

    done = apply(MANIFEST)
    assert done.stdout == (
        "trigger.eventing.knative.dev/gold serverside-applied\nbroker.eventing.knative.dev/orders serverside-applied\n"
    )
    owners = kubectl("get", "trigger", "gold", "--show-managed-fields", "-o", "jsonpath={.metadata.managedFields}")
    (entry,) = json.loads(owners.stdout)
    assert (entry["manager"], entry["operation"]) == ("kubectl", "Apply")
    kubectl("patch", "trigger", "gold", "--type", "merge", "-p", '{"spec":{"filter":{"expression":"true"}}}')
    refused = apply(MANIFEST, fails=True)
    assert 'conflict with "kubectl-patch" using eventing.knative.dev/v1: .spec.filter' in refused.stderr
    apply(MANIFEST, "--force-conflicts")
    assert "gold" in kubectl("get", "trigger", "gold", "-o", "jsonpath={.spec.filter}").stdout
    # Another manager adds to it, and the first one's next apply leaves that alone.
    labelled = MANIFEST.replace("  name: gold", "  name: gold\n  labels: {team: a}").split("---")[0]
    apply(labelled.replace("  broker: orders\n", ""), "--field-manager", "team")
    apply(MANIFEST)
    assert kubectl("get", "trigger", "gold", "-o", "jsonpath={.metadata.labels.team}").stdout == "a"


@pytest.mark.slow  # the owners of fields are in test_server_side_apply.py
def test_client_side_apply_becomes_server_side_apply(kubectl: Kubectl, applied: str, server: Server) -> None:
    kubectl("apply", "--server-side", "-f", "-", stdin=MANIFEST)
    owners = kubectl("get", "trigger", "gold", "--show-managed-fields", "-o", "jsonpath={.metadata.managedFields}")
    assert {(one["manager"], one["operation"]) for one in json.loads(owners.stdout)} == {
        ("kubectl", "Apply"), ("kubectl-last-applied", "Apply"),
    }  # fmt: skip
    # Owned alone, so that a field goes when it is left out.
    unfiltered = "\n".join(line for line in MANIFEST.split("\n") if "filter" not in line and "expression" not in line)
    kubectl("apply", "--server-side", "-f", "-", stdin=unfiltered)
    assert "filter" not in server.request("GET", server.path("triggers", "gold")).json["spec"]


WITH_NAMESPACE = """\
apiVersion: v1
kind: Namespace
metadata:
  name: shop
  labels: {team: a}
---
""" + MANIFEST.replace("  name: gold", "  name: gold\n  namespace: shop").replace(
    "  name: orders", "  name: orders\n  namespace: shop"
)


@pytest.mark.parametrize("way", [(), pytest.param(("--server-side",), marks=pytest.mark.slow)])
def test_a_manifest_may_bring_its_namespace(kubectl: Kubectl, server: Server, way: tuple[str, ...]) -> None:
    done = kubectl("apply", *way, "-f", "-", stdin=WITH_NAMESPACE)
    assert done.stdout.startswith("namespace/shop created\n" if not way else "namespace/shop serverside-applied\n")
    kubectl("wait", "-n", "shop", "--for=condition=Ready", "trigger/gold", "--timeout=20s")
    again = kubectl("apply", *way, "-f", "-", stdin=WITH_NAMESPACE)
    assert again.stdout.count("unchanged") == 3 or way
    assert again.stderr == ""
    heads, row = kubectl("get", "namespaces", "-l", "team=a").stdout.splitlines()
    assert heads.split() == ["NAME", "STATUS", "AGE"]
    assert row.split()[:2] == ["shop", "Active"]
    assert "Active" in kubectl("describe", "namespace", "shop").stdout
    assert "not found" in kubectl("get", "namespace", "elsewhere", fails=True).stderr
    kubectl("label", "namespace", "shop", "tier=1")
    gone = kubectl("delete", "-f", "-", "--ignore-not-found", stdin=WITH_NAMESPACE)
    assert 'namespace "shop" deleted' in gone.stdout
    assert kubectl("get", "namespaces", "-o", "name").stdout == "namespace/default\n"
    assert server.store.snapshot().targets == {}
    # Where something is already, the namespace exists, and a manifest takes it over.
    kubectl("apply", "-n", "shop", "-f", "-", stdin=MANIFEST)
    kubectl("apply", *way, "-f", "-", stdin=WITH_NAMESPACE)
    assert kubectl("get", "namespace", "shop", "-o", "jsonpath={.metadata.labels.team}").stdout == "a"


def test_a_namespace_is_created_and_its_delete_tried(kubectl: Kubectl) -> None:
    assert kubectl("create", "namespace", "shop").stdout == "namespace/shop created\n"
    kubectl("apply", "-n", "shop", "-f", "-", stdin=MANIFEST)
    tried = kubectl("delete", "namespace", "shop", "--dry-run=server")
    assert 'namespace "shop" deleted' in tried.stdout
    assert "gold" in kubectl("get", "triggers", "-n", "shop").stdout
    assert "already exists" in kubectl("create", "namespace", "shop", fails=True).stderr


def test_a_delete_waits_for_finalizers(kubectl: Kubectl, applied: str) -> None:
    kubectl("patch", "trigger", "gold", "--type", "merge", "-p", '{"metadata":{"finalizers":["example.com/keep"]}}')
    waiting = kubectl("delete", "trigger", "gold", "--timeout=1s", fails=True)
    assert "timed out" in waiting.stderr
    assert "gold" in kubectl("get", "triggers").stdout
    kubectl("delete", "trigger", "gold", "--wait=false")
    kubectl("patch", "trigger", "gold", "--type", "json", "-p", '[{"op":"remove","path":"/metadata/finalizers"}]')
    assert "not found" in kubectl("get", "trigger", "gold", fails=True).stderr


def test_what_is_wrong_is_shown(kubectl: Kubectl, applied: str) -> None:
    bad = kubectl("apply", "-f", "-", stdin=MANIFEST.replace('"order" &&', '"order" &&&'), fails=True)
    assert 'The Trigger "gold" is invalid' in bad.stderr
    assert "spec.filter.expression" in bad.stderr
    assert "at character" in bad.stderr
    misspelt = kubectl("apply", "-f", "-", stdin=MANIFEST.replace("filter:", "filtr:"), fails=True)
    assert 'unknown field "spec.filtr"' in misspelt.stderr
    moved = kubectl("apply", "-f", "-", stdin=MANIFEST.replace("broker: orders", "broker: default"), fails=True)
    assert "field is immutable" in moved.stderr


def test_wait_and_watch(kubectl: Kubectl, server: Server, tmp_path: Path) -> None:
    server.request("POST", server.path("triggers"), trigger("t1", broker="later"))
    eventually(lambda: server.ready("triggers", "t1") == "False")
    command = [executable("kubectl"), "--server", server.url, "--cache-dir", str(tmp_path / "cache")]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": "/dev/null"}
    waiting = subprocess.Popen(
        [*command, "wait", "--for=condition=Ready", "trigger/t1", "--timeout=20s"], env=environment, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    watching = subprocess.Popen(
        [*command, "get", "triggers", "-w", "--no-headers"], env=environment, text=True, stdout=subprocess.PIPE
    )
    assert watching.stdout is not None
    try:
        assert "BrokerDoesNotExist" in watching.stdout.readline()
        server.request("POST", server.path("brokers"), broker("later"))
        assert waiting.communicate(timeout=WAIT_S)[0] == "trigger.eventing.knative.dev/t1 condition met\n"
        while "True" not in (line := watching.stdout.readline()):
            assert "False" in line or "Unknown" in line
    finally:
        for process in (waiting, watching):
            process.kill()
            process.communicate()


def test_delete(kubectl: Kubectl, applied: str, server: Server) -> None:
    assert "(server dry run)" in kubectl("delete", "trigger", "gold", "--dry-run=server").stdout
    assert 'trigger.eventing.knative.dev "gold" deleted' in kubectl("delete", "trigger", "gold").stdout
    assert kubectl("delete", "trigger", "gold", "--ignore-not-found").stdout == ""
    kubectl("delete", "brokers", "--all")
    assert server.request("GET", server.path("brokers")).json["items"] == []


@pytest.fixture
def client(server: Server) -> Iterator[object]:
    configuration = library.Configuration()
    configuration.host = server.url
    with library.ApiClient(configuration) as api_client:
        yield library.CustomObjectsApi(api_client)


def test_the_python_client(client, server: Server) -> None:  # type: ignore[no-untyped-def]
    where = (GROUP, VERSION, "default", "triggers")
    made = client.create_namespaced_custom_object(*where, trigger())
    eventually(lambda: server.ready("triggers", "t1") == "True")
    with pytest.raises(library.ApiException) as taken:
        client.create_namespaced_custom_object(*where, trigger())
    assert taken.value.status == 409
    client.patch_namespaced_custom_object(*where, "t1", {"spec": {"delivery": {"retry": 1}}})
    found = client.get_namespaced_custom_object(*where, "t1")
    assert found["spec"]["delivery"] == {"retry": 1}
    assert len(client.list_cluster_custom_object(GROUP, VERSION, "triggers")["items"]) == 1
    stream = watch.Watch().stream(client.list_namespaced_custom_object, *where, timeout_seconds=1)
    assert [event["type"] for event in stream] == ["ADDED"]
    assert client.delete_namespaced_custom_object(*where, "t1")["details"]["uid"] == made["metadata"]["uid"]
    assert library.VersionApi(client.api_client).get_code().major == "1"
    assert [one.metadata.name for one in library.CoreV1Api(client.api_client).list_namespace().items] == ["default"]


SUBSCRIPTION = """\
apiVersion: headgate.dev/v1
kind: Subscription
metadata:
  name: gold
spec:
  broker: default
  type: shared
  filter:
    expression: ce.type == "order"
"""


@pytest.mark.slow  # its API is in test_subscriptions.py
def test_a_subscription_is_an_object_like_the_others(kubectl: Kubectl) -> None:
    done = kubectl("apply", "-f", "-", stdin=SUBSCRIPTION)
    assert done.stdout == "subscription.headgate.dev/gold created\n"
    kubectl("wait", "--for=condition=Ready", "subscription/gold", f"--timeout={WAIT_S:.0f}s")
    table = kubectl("get", "subscriptions").stdout.split("\n")
    assert table[0].split() == ["NAME", "BROKER", "TYPE", "AGE", "READY", "REASON", "WARNINGS"]
    assert table[1].split()[:3] == ["gold", "default", "shared"]
    described = kubectl("describe", "subscription", "gold").stdout
    assert "Observed Generation:" in described
    assert "BacklogKept" in described
    changed = kubectl("apply", "-f", "-", stdin=SUBSCRIPTION.replace("shared", "failover"))
    assert "subscription.headgate.dev/gold configured" in changed.stdout
    refused = kubectl("apply", "-f", "-", stdin=SUBSCRIPTION.replace("shared", "some"), fails=True)
    assert "spec.type" in refused.stderr
    kubectl("delete", "subscription", "gold")
