from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headgate_api import yaml_text
from headgate_cli import showing
from headgate_cli.main import app
from tests.objects.support import Server
from tests.objects.test_manifests import BROKER, NAMESPACE, TRIGGER
from tests.support import eventually


def run(server: str, *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin, env={"HEADGATE_SERVER": server})


def test_apply_and_get(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(f"{TRIGGER}---\n{BROKER}")
    made = run(server.url, "apply", "-f", str(file))
    assert made.exit_code == 0, made.output
    assert made.stdout == "trigger.eventing.knative.dev/gold created\nbroker.eventing.knative.dev/orders created\n"
    assert run(server.url, "apply", "-f", str(tmp_path)).stdout.count("unchanged") == 2
    changed = run(server.url, "apply", "-f", "-", stdin=TRIGGER.replace('"gold"', '"silver"'))
    assert changed.stdout == "trigger.eventing.knative.dev/gold configured\n"
    without = "\n".join(line for line in TRIGGER.splitlines() if "filter:" not in line)
    assert run(server.url, "apply", "-f", "-", stdin=without).stdout.endswith("configured\n")
    assert "filter" not in server.request("GET", server.path("triggers", "gold")).json["spec"]
    eventually(lambda: server.ready("triggers", "gold") == "True")
    heads, row = run(server.url, "get", "triggers").stdout.splitlines()
    assert heads.split()[:3] == ["NAME", "BROKER", "SUBSCRIBER_URI"]
    assert row.split()[:2] == ["gold", "orders"]
    assert run(server.url, "get", "trigger", "gold", "-A").exit_code == 1
    assert run(server.url, "get", "broker", "-A").stdout.splitlines()[0].split()[0] == "NAMESPACE"
    shown = json.loads(run(server.url, "get", "trigger", "gold", "--json").stdout)
    assert shown["metadata"]["name"] == "gold"
    everything = json.loads(run(server.url, "get", "brokers", "--json").stdout)
    assert [item["metadata"]["name"] for item in everything["items"]] == ["default", "orders"]


def test_what_get_prints_can_be_applied(server: Server) -> None:
    run(server.url, "apply", "-f", "-", stdin=f"{TRIGGER}---\n{BROKER}")
    one = run(server.url, "get", "trigger", "gold", "--json").stdout
    every = run(server.url, "get", "triggers", "--json").stdout
    run(server.url, "apply", "-f", "-", stdin=TRIGGER.replace('"gold"', '"silver"'))
    for printed in (one, every):
        assert run(server.url, "delete", "trigger", "gold").exit_code == 0
        made = run(server.url, "apply", "-f", "-", stdin=printed)
        assert made.stdout == "trigger.eventing.knative.dev/gold created\n", made.output
        assert "gold" in server.request("GET", server.path("triggers", "gold")).json["spec"]["filter"]["expression"]
        again = run(server.url, "apply", "-f", "-", stdin=printed)
        assert again.stdout == "trigger.eventing.knative.dev/gold unchanged\n", again.output


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("filters: [{exact: {type: x}}]", "filter: {cel: 'true'}"),
        ("filter: {cel: 'true'}", "filters: [{exact: {type: x}}]"),
    ],
)
def test_one_kind_of_filter_takes_the_place_of_the_other(server: Server, before: str, after: str) -> None:
    line = next(line for line in TRIGGER.splitlines() if "filter:" in line)
    indent = line[: len(line) - len(line.lstrip())]
    for text in (before, after):
        done = run(server.url, "apply", "-f", "-", stdin=TRIGGER.replace(line, indent + text))
        assert done.exit_code == 0, done.output
    spec = server.request("GET", server.path("triggers", "gold")).json["spec"]
    assert [name for name in ("filter", "filters") if name in spec] == [after.partition(":")[0]]


@pytest.mark.parametrize("more", ["", ", finalizers: []"], ids=["together", "alone"])
def test_apply_changes_a_label_that_is_there_and_keeps_those_of_others(server: Server, more: str) -> None:
    def labelled(team: str) -> str:
        return TRIGGER.replace("gold}", f"gold, labels: {{team: {team}}}, annotations: {{note: {team}}}{more}}}")

    path = server.path("triggers", "gold")
    run(server.url, "apply", "-f", "-", stdin=labelled("a"))
    server.merge(path, {"metadata": {"labels": {"mine": "1"}}})
    changed = run(server.url, "apply", "-f", "-", stdin=labelled("b"))
    assert changed.stdout == "trigger.eventing.knative.dev/gold configured\n", changed.output
    metadata = server.request("GET", path).json["metadata"]
    assert metadata["labels"].items() >= {("team", "b"), ("mine", "1")}
    assert metadata["annotations"].items() >= {("note", "b")}


def test_a_namespace_option_is_for_objects_without_one(server: Server) -> None:
    run(server.url, "apply", "-n", "ns2", "-f", "-", stdin=BROKER)
    assert server.request("GET", "/apis/eventing.knative.dev/v1/namespaces/ns2/brokers/orders").status == 200
    assert "no triggers found" in run(server.url, "get", "triggers", "-n", "ns2").stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TRIGGER.replace("tier ==", "tier =="[:-1]), "spec.filter.expression"),
        (TRIGGER.replace("broker: orders", "brokr: orders"), 'unknown field "spec.brokr"'),
        ("kind: Service", "kind is 'Service'"),
        ("a: [", "no YAML"),
        ("", "no objects"),
        (TRIGGER.replace("metadata: {name: gold}", "metadata: [gold]"), "metadata"),
    ],
)
def test_what_is_wrong_is_told_with_its_document(server: Server, text: str, said: str) -> None:
    done = run(server.url, "apply", "-f", "-", stdin=text)
    assert done.exit_code == 1
    assert "error: " in done.stderr
    assert said in done.stderr


def test_one_wrong_object_does_not_hide_the_others(server: Server) -> None:
    done = run(server.url, "apply", "-f", "-", stdin=f"{TRIGGER.replace('broker: orders', 'broker: [x]')}---\n{BROKER}")
    assert done.exit_code == 1
    assert "document 1" in done.stderr
    assert done.stdout == "broker.eventing.knative.dev/orders created\n"


@pytest.mark.parametrize("server_url", ["http://127.0.0.1:9", "127.0.0.1:8080", "file:///etc/passwd"])
def test_no_server(server_url: str) -> None:
    done = run(server_url, "get", "triggers")
    assert done.exit_code == 1
    assert "hint: " in done.stderr


class Refusing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        said = "the server is stopping (hint: try again in a few seconds)"
        body = json.dumps({"kind": "Status", "message": said}).encode()
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("status", [401, 429, 503])
def test_what_any_request_would_hear_is_said_once(status: int) -> None:
    several = "---\n".join(TRIGGER.replace("gold", f"gold{number}") for number in range(300))
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever).start()
        done = run(f"http://127.0.0.1:{server.server_port}/{status}", "apply", "-f", "-", stdin=several)
        server.shutdown()
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "error: the server is stopping\nhint: try again in a few seconds\n"


def test_unknown_things(server: Server) -> None:
    assert "unknown kind 'pods'" in run(server.url, "get", "pods").stderr
    assert 'triggers.eventing.knative.dev "nope" not found' in run(server.url, "get", "trigger", "nope").stderr
    assert "no such file" in run(server.url, "apply", "-f", "/nope").stderr


def test_describe_shows_spec_and_conditions(server: Server) -> None:
    run(server.url, "apply", "-f", "-", stdin=TRIGGER)
    eventually(lambda: server.ready("triggers", "gold") == "False")
    done = run(server.url, "describe", "trigger", "gold")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[:2] == ["Name: gold", "Namespace: default"]
    assert "  eventing.knative.dev/broker: orders" in lines
    spec = lines[lines.index("Spec:") : lines.index("Status:")]
    assert "  broker: orders" in spec
    assert any(line.startswith("    uri: ") for line in spec)
    head, *rows = lines[lines.index("Conditions:") + 1 :]
    assert head.split() == ["TYPE", "STATUS", "REASON", "AGE"]
    broker = next(number for number, row in enumerate(rows) if row.split()[0] == "BrokerReady")
    assert rows[broker].split()[1:3] == ["False", "BrokerDoesNotExist"]
    assert rows[broker + 1].strip() == 'broker "default/orders" does not exist'
    assert "headgate.dev/filter" not in done.stdout
    missing = run(server.url, "describe", "trigger", "nope")
    assert (missing.exit_code, "not found" in missing.stderr) == (1, True)
    assert "unknown kind" in run(server.url, "describe", "pod", "x").stderr
    assert "say what to describe" in run(server.url, "describe", "trigger").stderr


def test_a_manifest_may_bring_its_namespace(server: Server) -> None:
    text = f"{NAMESPACE}---\n{BROKER.replace('orders', 'orders, namespace: shop')}"
    made = run(server.url, "apply", "-f", "-", stdin=text)
    assert made.stdout == "namespace/shop created\nbroker.eventing.knative.dev/orders created\n", made.output
    path = "/api/v1/namespaces/shop"
    server.merge(path, {"metadata": {"labels": {"mine": "1"}}})
    assert run(server.url, "apply", "-f", "-", stdin=text).stdout.count("unchanged") == 2
    changed = run(server.url, "apply", "-f", "-", stdin=NAMESPACE.replace("team: a", "team: b"))
    assert changed.stdout == "namespace/shop configured\n"
    assert server.request("GET", path).json["metadata"]["labels"].items() >= {("team", "b"), ("mine", "1")}
    gone = run(server.url, "delete", "-f", "-", stdin=text)
    assert gone.stdout == "broker.eventing.knative.dev/orders deleted\nnamespace/shop deleted\n", gone.output
    assert server.request("GET", path).status == 404
    for wrong in (NAMESPACE.replace("name: shop, ", ""), NAMESPACE.replace("shop", "No")):
        assert run(server.url, "apply", "-f", "-", stdin=wrong).exit_code == 1


def test_delete_by_name_and_by_file(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(f"{TRIGGER}---\n{BROKER}")
    run(server.url, "apply", "-f", str(file))
    assert run(server.url, "delete", "triggers", "gold").stdout == "trigger.eventing.knative.dev/gold deleted\n"
    assert server.request("GET", server.path("triggers", "gold")).status == 404
    again = run(server.url, "delete", "-f", str(file))
    assert again.exit_code == 1
    assert again.stdout == "broker.eventing.knative.dev/orders deleted\n"
    assert 'triggers.eventing.knative.dev "gold" not found' in again.stderr
    gone = run(server.url, "delete", "-f", str(file), "--ignore-not-found")
    assert (gone.exit_code, gone.stdout) == (0, "")
    for wrong in ((), ("trigger",), ("trigger", "gold", "-f", str(file))):
        assert "say what to delete" in run(server.url, "delete", *wrong).stderr


def test_delete_says_what_finalizers_keep_and_apply_leaves_them(server: Server) -> None:
    run(server.url, "apply", "-f", "-", stdin=BROKER)
    path = server.path("brokers", "orders")
    server.merge(path, {"metadata": {"finalizers": ["example.com/keep"]}})
    run(server.url, "apply", "-f", "-", stdin=BROKER)
    done = run(server.url, "delete", "broker", "orders")
    assert done.stdout == (
        "broker.eventing.knative.dev/orders deleted once its finalizers are gone: example.com/keep\n"
    )
    server.merge(path, {"metadata": {"finalizers": None}})
    assert server.request("GET", path).status == 404


def test_get_shows_objects_in_the_form_that_is_asked_for(server: Server) -> None:
    run(server.url, "apply", "-f", "-", stdin=f"{TRIGGER}---\n{BROKER}")
    eventually(lambda: server.ready("triggers", "gold") == "True")
    heads, row = run(server.url, "get", "triggers").stdout.splitlines()
    assert ("FILTER" in heads, "tier" in row) == (False, False)
    heads, row = run(server.url, "get", "triggers", "-o", "wide").stdout.splitlines()
    assert (heads.split()[-1], "tier" in row) == ("FILTER", True)
    label = "trigger.eventing.knative.dev/gold"
    assert run(server.url, "get", "triggers", "-o", "name").output == f"{label}\n"
    for words in (("trigger", "gold"), ("trigger/gold",), (label,), ("triggers", "default/gold")):
        shown = run(server.url, "get", *words, "-o", "yaml").stdout
        (found,) = yaml_text.documents(shown.encode(), yaml_text.YamlLimits(20, None, merges=False))
        asked = json.loads(run(server.url, "get", *words, "--json").stdout)
        assert found == asked
        assert "managedFields" not in asked["metadata"]
    assert run(server.url, "delete", label, "broker/orders").stdout.count("deleted") == 2
    assert "no triggers found" in run(server.url, "get", "triggers", "-o", "name").stderr
    assert json.loads(run(server.url, "get", "triggers", "--json").stdout)["items"] == []
    assert "is not KIND/NAME" in run(server.url, "get", "trigger/gold", "silver").stderr


def test_get_shows_several_objects_and_says_which_is_missing(server: Server) -> None:
    run(server.url, "apply", "-f", "-", stdin=BROKER)
    done = run(server.url, "get", "broker/orders", "broker/nope", "ns/default")
    assert done.exit_code == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NAME", "orders", "NAME", "default"]
    assert '"nope" not found' in done.stderr
    for kinds in ("brokers,triggers", "all"):
        shown = run(server.url, "get", kinds)
        assert [line.split()[0] for line in shown.stdout.splitlines()] == ["NAME", "default", "orders"]
        assert "no triggers found in namespace default" in shown.stderr
    every = json.loads(run(server.url, "get", "all", "-o", "json").stdout)
    assert [item["metadata"]["name"] for item in every["items"]] == ["default", "orders"]


def test_get_goes_on_with_what_changes(server: Server) -> None:
    run(server.url, "apply", "-f", "-", stdin=f"{TRIGGER}---\n{BROKER}")
    eventually(lambda: server.ready("triggers", "gold") == "True")
    seen: list[str] = []

    def keep(text: str) -> None:
        seen.append(text)
        if "(deleted)" in text:
            raise KeyboardInterrupt  # as Ctrl-C

    def change() -> None:
        try:
            eventually(lambda: len(seen) >= 2)
            server.merge(server.path("triggers", "gold"), {"spec": {"subscriber": {"uri": "http://127.0.0.1:9/new"}}})
            eventually(lambda: any("9/new" in line for line in seen), lambda: str(seen))
        finally:
            server.request("DELETE", server.path("triggers", "gold"))

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:
        patch.setattr(typer, "echo", keep)
        changing = thread.submit(change)
        showing.get("triggers", watch=True, server=server.url)
        changing.result()
    assert all(line.startswith(("NAME ", "gold ")) for line in seen)


def test_a_shell_is_offered_kinds_and_the_names_that_there_are(server: Server) -> None:
    run(server.url, "apply", "-f", "-", stdin=f"{TRIGGER}---\n{BROKER}")
    environment = {"HEADGATE_SERVER": server.url, "_HEADGATE_COMPLETE": "complete_bash"}

    def offered(words: str) -> list[str]:
        given = environment | {"COMP_WORDS": f"headgate {words}", "COMP_CWORD": str(len(words.split(" ")))}
        return CliRunner().invoke(app, [], env=given, prog_name="headgate").stdout.split()

    assert offered("get tr") == ["triggers"]
    assert offered("get trigger ") == ["gold"]
    assert offered("delete triggers default/g") == ["default/gold"]
    assert offered("describe trigger/") == ["trigger/gold"]
    assert offered("tail -b o") == ["orders"]
    assert offered("why 1 -n d") == ["default"]
    assert offered("deadletter list -n nope --trigger ") == []
    environment["HEADGATE_SERVER"] = "http://127.0.0.1:9"
    assert offered("get trigger ") == []
