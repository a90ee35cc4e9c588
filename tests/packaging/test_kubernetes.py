"""The example for Kubernetes: kubectl builds it, schemas know every object, and it says what the configuration says."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from headgate.backend.config_file import load
from headgate.backend.kafka.match_run import java_options
from headgate.backend.kafka.topics import wanted_topics
from headgate.server.listening import check_not_open
from headgate.server.parts import ROLES
from headgate.server.peers.instance import advertised_url
from headgate.settings import Settings
from tests.support import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "kubernetes"
SINGLE = REPOSITORY / "examples" / "kubernetes-single"
SCHEMAS = Path(__file__).parent / "schemas"
Manifest = dict[str, Any]


@cache
def built(example: Path = EXAMPLE) -> list[Manifest]:
    """What `kubectl apply -k` would send."""
    command = ["kubectl", "kustomize", str(example)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return list(yaml.safe_load_all(done.stdout))


def of_kind(kind: str) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one for one in built() if one["kind"] == kind}


def faults(manifest: Manifest) -> list[str]:
    """What the schema of its kind refuses."""
    core = json.loads((SCHEMAS / "kubernetes.json").read_text())
    schemas = core["kinds"] | json.loads((SCHEMAS / "crds.json").read_text())["kinds"]
    schema = {**schemas[manifest["kind"]], "$defs": core["$defs"]}
    found = Draft202012Validator(schema).iter_errors(manifest)
    return [f"{'.'.join(map(str, fault.absolute_path))}: {fault.message}" for fault in found]


def container(workload: Manifest) -> Manifest:
    (one,) = workload["spec"]["template"]["spec"]["containers"]
    return one  # type: ignore[no-any-return]


def environment(workload: Manifest) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container(workload)["env"] if "value" in one}


def roles(workload: Manifest) -> set[str]:
    arguments = container(workload)["args"]
    return set(arguments[arguments.index("--role") + 1].split(","))


def test_every_object_is_what_its_schema_says() -> None:
    kinds = {one["kind"] for one in built()}
    assert {"StatefulSet", "Kafka", "KafkaNodePool", "KafkaTopic", "KafkaUser", "SparkCluster"} <= kinds
    for one in built():
        assert faults(one) == [], f"{one['kind']} {one['metadata']['name']}"


def test_the_single_server_is_what_schemas_and_settings_say() -> None:
    manifests = {one["kind"]: one for one in built(SINGLE)}
    assert set(manifests) == {"Namespace", "Service", "StatefulSet"}
    assert [fault for one in manifests.values() for fault in faults(one)] == []
    server = manifests["StatefulSet"]
    assert server["spec"]["replicas"] == 1, "a data directory has one server"
    mounted = {mount["name"]: mount["mountPath"] for mount in container(server)["volumeMounts"]}
    given = {name.removeprefix("HEADGATE_").lower(): text for name, text in environment(server).items()}
    assert set(given) <= set(Settings.model_fields)
    settings = Settings(**given)
    check_not_open(settings)
    assert str(settings.data).startswith(mounted["data"])
    assert container(server)["securityContext"]["readOnlyRootFilesystem"]
    assert set(mounted) == {"data", "scratch"}
    labels = server["spec"]["template"]["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"].items() <= labels.items()


def changed() -> Iterator[tuple[str, Manifest]]:
    """Objects of the example, each with one fault."""
    faulty = deepcopy(of_kind("StatefulSet")["front"])
    container(faulty)["port"] = []
    yield "port", faulty
    faulty = deepcopy(of_kind("StatefulSet")["front"])
    faulty["spec"]["replicas"] = "three"
    yield "replicas", faulty
    faulty = deepcopy(of_kind("KafkaTopic")["headgate.events"])
    faulty["spec"]["replication"] = 3
    yield "replication", faulty
    faulty = deepcopy(of_kind("KafkaUser")["headgate"])
    faulty["spec"]["authorization"]["acls"][0]["operations"] = ["Reading"]
    yield "Reading", faulty
    faulty = deepcopy(of_kind("Kafka")["events"])
    faulty["spec"]["kafka"]["listeners"][0]["type"] = "inside"
    yield "inside", faulty
    faulty = deepcopy(of_kind("SparkCluster")["match"])
    del faulty["spec"]["runtimeVersions"]
    yield "runtimeVersions", faulty


@pytest.mark.parametrize("number", range(6))
def test_a_fault_is_found(number: int) -> None:
    named, faulty = list(changed())[number]
    assert any(named in fault for fault in faults(faulty)), faults(faulty)


def test_the_topics_are_those_of_the_configuration() -> None:
    """Else servers would refuse to start, and say that `headgate cluster init` would make them."""
    found = of_kind("KafkaTopic")
    wanted = {one.name: one for one in wanted_topics(load(EXAMPLE / "headgate.yaml").kafka)}
    assert set(found) == set(wanted)
    for name, one in wanted.items():
        spec = found[name]["spec"]
        assert (spec["partitions"], spec["replicas"]) == (one.partitions, one.replication), name
        assert {key: json.dumps(value).strip('"') for key, value in spec["config"].items()} == dict(one.settings), name


def test_the_servers_have_every_role_and_what_they_mount_is_there() -> None:
    servers = of_kind("StatefulSet")
    assert set().union(*map(roles, servers.values())) == {str(role) for role in ROLES}
    assert all("front" in roles(one) for one in servers.values()), "who has no front answers no probe"
    secrets = {*of_kind("KafkaUser"), *(f"{name}-cluster-ca-cert" for name in of_kind("Kafka"))}
    for one in servers.values():
        volumes = one["spec"]["template"]["spec"]["volumes"]
        assert {volume["configMap"]["name"] for volume in volumes if "configMap" in volume} == set(of_kind("ConfigMap"))
        assert {volume["secret"]["secretName"] for volume in volumes if "secret" in volume} == secrets
        names = {volume["name"] for volume in volumes} | {"data"}
        assert {mount["name"] for mount in container(one)["volumeMounts"]} == names
        assert one["spec"]["serviceName"] in of_kind("Service")


def test_the_servers_settings_are_taken() -> None:
    for one in of_kind("StatefulSet").values():
        given = {name.removeprefix("HEADGATE_").lower(): text for name, text in environment(one).items()}
        named = {key: text.replace("$(POD_NAME)", "front-0").replace("$(POD_NAMESPACE)", "headgate") for key, text in
                 given.items()}  # fmt: skip
        assert set(named) <= set(Settings.model_fields)
        settings = Settings(**named, role=",".join(roles(one)), config=EXAMPLE / "headgate.yaml")
        assert advertised_url(settings) == "http://front-0.servers.headgate.svc.cluster.local:8080"
        check_not_open(settings)


def test_clients_come_to_servers_that_answer_reads_and_writes() -> None:
    selector = of_kind("Service")["headgate"]["spec"]["selector"]
    (chosen,) = [
        one
        for one in of_kind("StatefulSet").values()
        if selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert {"front", "control", "reader"} <= roles(chosen)


def test_the_configuration_fits_the_objects(tmp_path: Path) -> None:
    config = load(EXAMPLE / "headgate.yaml")
    (kafka,) = of_kind("Kafka").values()
    (listener,) = kafka["spec"]["kafka"]["listeners"]
    assert config.kafka.bootstrap == f"{kafka['metadata']['name']}-kafka-bootstrap:{listener['port']}"
    (spark,) = of_kind("SparkCluster").values()
    assert config.spark.master == f"spark://{spark['metadata']['name']}-master-svc:7077"
    options = config.spark.options
    partitions = config.kafka.topics.events.partitions
    assert options["spark.cores.max"] == 2 * partitions, "two runs beside each other"
    (worker,) = spark["spec"]["workerSpec"]["statefulSetSpec"]["template"]["spec"]["containers"]
    cores = {one["name"]: one["value"] for one in worker["env"]}["SPARK_WORKER_CORES"]
    workers = spark["spec"]["clusterTolerations"]["instanceConfig"]["minWorkers"]
    matchers = sum(one["spec"]["replicas"] for one in of_kind("StatefulSet").values() if "matcher" in roles(one))
    assert workers * int(cores) >= matchers * int(str(options["spark.cores.max"])), "the stand-by has slots, too"

    # The same with files that are here: every option is one that the matcher's client takes.
    for name in ("password", "ca.crt"):
        (tmp_path / name).write_text("text\n")
    text = re.sub(r"/run/secrets/[a-z-]+", str(tmp_path), (EXAMPLE / "headgate.yaml").read_text())
    (tmp_path / "headgate.yaml").write_text(text)
    client = java_options(load(tmp_path / "headgate.yaml").kafka)
    assert client["ssl.truststore.certificates"] == "text"
    assert "ScramLoginModule" in client["sasl.jaas.config"]
