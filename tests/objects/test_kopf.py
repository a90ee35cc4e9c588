"""An operator made with kopf: handlers of a creation and a deletion, for which a finalizer keeps the object."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.objects.support import Server, trigger
from tests.support import eventually

HANDLERS = """\
import pathlib
import kopf

LOG = pathlib.Path(__file__).with_name("log")


def note(text):
    with LOG.open("a") as file:
        print(text, file=file, flush=True)


@kopf.on.startup()
def started(settings, **_):
    settings.posting.enabled = False


@kopf.on.create("eventing.knative.dev", "v1", "triggers")
def created(name, patch, **_):
    patch.metadata.labels["team"] = "a"
    note(f"created {name}")


@kopf.on.delete("eventing.knative.dev", "v1", "triggers")
def deleted(name, meta, **_):
    note(f"deleted {name} {'deletionTimestamp' in meta}")
"""
CONFIG = """\
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: here, cluster: {{server: "{url}"}}}}]
contexts: [{{name: here, context: {{cluster: here, user: me, namespace: default}}}}]
users: [{{name: me, user: {{}}}}]
"""


@pytest.mark.slow  # finalizers are in test_finalizers.py and test_kubectl.py
def test_an_on_delete_handler_runs_before_the_object_goes(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "operator"
    folder.mkdir()
    (folder / "config").write_text(CONFIG.format(url=server.url))
    (folder / "handlers.py").write_text(HANDLERS)
    path = server.path("triggers", "t1")

    def said(text: str) -> bool:
        log = folder / "log"
        return log.exists() and text in log.read_text().splitlines()

    with (folder / "output").open("w") as output:
        operator = subprocess.Popen(
            [sys.executable, "-m", "kopf", "run", "--standalone", "-n", "default", str(folder / "handlers.py")],
            env={**os.environ, "KUBECONFIG": str(folder / "config")},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        server.request("POST", server.path("triggers"), trigger())
        eventually(lambda: said("created t1"))
        eventually(lambda: server.request("GET", path).json["metadata"]["labels"].get("team") == "a")
        made = server.request("GET", path).json
        assert made["metadata"]["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"]
        assert server.request("DELETE", path).json["kind"] == "Trigger"
        eventually(lambda: server.request("GET", path).status == 404)
        assert said("deleted t1 True")
        assert operator.poll() is None, (folder / "output").read_text()
    finally:
        operator.terminate()
        operator.wait()
