"""The chart: helm takes it, schemas know its objects, and its defaults are the example for kustomize."""

from __future__ import annotations

import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.settings import Settings
from tests.go_programs import helm
from tests.packaging.test_kubernetes import SINGLE, Manifest, built, container, environment, faults
from tests.support import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]  # Go builds helm, once

CHART = REPOSITORY / "examples" / "helm" / "headgate"


def run(*words: object) -> str:
    command = [str(helm()), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def rendered(tmp_path: Path, **values: Any) -> dict[str, Manifest]:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    text = run("template", "headgate", CHART, "--namespace", "headgate", "--values", file)
    return {one["kind"]: one for one in yaml.safe_load_all(text) if one}


def test_helm_finds_no_fault() -> None:
    assert "0 chart(s) failed" in run("lint", "--strict", CHART)


def test_the_defaults_are_the_example_for_kustomize(tmp_path: Path) -> None:
    """So there is one truth about ports, probes, users and volumes."""
    example = {one["kind"]: one for one in deepcopy(built(SINGLE)) if one["kind"] != "Namespace"}
    made = rendered(tmp_path)
    assert set(made) == set(example)
    assert environment(made["StatefulSet"]) == environment(example["StatefulSet"])
    for one in (made, example):
        container(one["StatefulSet"])["env"] = []
        container(one["StatefulSet"]).pop("imagePullPolicy", None)
        one["Service"]["spec"].pop("type", None)
    assert made == example


def test_every_value_is_of_use(tmp_path: Path) -> None:
    made = rendered(
        tmp_path,
        image={"repository": "r/h", "tag": "2"},
        imagePullSecrets=[{"name": "pull"}],
        settings={"retain_hours": 24, "allow_anonymous": "false"},
        publicUrl="https://events.example.com",
        manifests={"orders.yaml": "kind: Broker\n"},
        env=[{"name": "HEADGATE_TOKEN_AUTH_FILE", "value": "/etc/headgate/tokens/tokens.csv"}],
        volumes=[{"name": "tokens", "secret": {"secretName": "tokens"}}],
        volumeMounts=[{"name": "tokens", "mountPath": "/etc/headgate/tokens"}],
        storage={"size": "1Gi", "className": "fast"},
        service={"type": "LoadBalancer", "port": 8080},
        nodeSelector={"disk": "ssd"},
        tolerations=[{"key": "a", "operator": "Exists"}],
        affinity={"nodeAffinity": {}},
    )
    assert set(made) == {"ConfigMap", "Service", "StatefulSet"}
    assert [fault for one in made.values() for fault in faults(one)] == []
    server = made["StatefulSet"]
    pod, claim = server["spec"]["template"]["spec"], server["spec"]["volumeClaimTemplates"][0]["spec"]
    assert container(server)["image"] == "r/h:2"
    said = environment(server)
    assert {name.removeprefix("HEADGATE_").lower() for name in said} <= set(Settings.model_fields)
    assert said["HEADGATE_RETAIN_HOURS"] == "24"
    assert said["HEADGATE_PUBLIC_URL"] == "https://events.example.com"
    assert made["ConfigMap"]["data"] == {"orders.yaml": "kind: Broker\n"}
    mounted = {mount["name"]: mount["mountPath"] for mount in container(server)["volumeMounts"]}
    assert said["HEADGATE_MANIFESTS"] == mounted["manifests"]
    assert {volume["name"] for volume in pod["volumes"]} == {"scratch", "manifests", "tokens"}
    assert (claim["storageClassName"], claim["resources"]["requests"]["storage"]) == ("fast", "1Gi")
    assert (pod["nodeSelector"], pod["imagePullSecrets"]) == ({"disk": "ssd"}, [{"name": "pull"}])
    assert made["Service"]["spec"]["type"] == "LoadBalancer"
    assert made["Service"]["spec"]["ports"][0]["port"] == 8080
