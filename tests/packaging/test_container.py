"""The container file: what it takes is there and locked, and a server needs no more than it gives."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from headgate.settings import Settings
from headgate.testing.server import Server
from headgate_cli.main import COMMANDS
from tests.packaging.confined import USER, Confinement
from tests.packaging.test_kubernetes import SINGLE, built, container, environment
from tests.packaging.test_wheel import _delivers
from tests.support import REPOSITORY, executable, missing
from tests.system.subscriber import Subscriber

Instruction = tuple[str, str]


def instructions(text: str) -> list[Instruction]:
    """The instructions of a container file: their names and the rest, each on one line."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


CONTAINERFILE = instructions((REPOSITORY / "Containerfile").read_text())
LAST = CONTAINERFILE[max(number for number, (name, _) in enumerate(CONTAINERFILE) if name == "FROM") :]
"""The stage that is the image."""


def of(name: str) -> list[str]:
    return [rest for one, rest in LAST if one == name]


def given() -> dict[str, str]:
    """The environment of the image."""
    return dict(pair.split("=", 1) for rest in of("ENV") for pair in shlex.split(rest))


def test_what_it_copies_is_there_and_is_not_ignored() -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    taken = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        source
        for name, rest in CONTAINERFILE
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    assert copied == taken
    assert [source for source in copied if not (REPOSITORY / source).exists()] == []


def test_every_package_of_python_has_a_hash() -> None:
    installs = [
        command
        for name, rest in CONTAINERFILE
        if name == "RUN"
        for command in rest.split("&&")
        if re.search(r"\b(pip (install|sync)|uv build)\b", command)
    ]
    assert len(installs) == 4
    for command in installs:
        assert "--require-hashes" in command or "--offline --no-deps" in command, command
    locks = {lock for command in installs for lock in re.findall(r"requirements/\S+", command)}
    assert locks == {"requirements/cluster.txt", "requirements/dev.txt"}
    for lock in locks:
        text = (REPOSITORY / lock).read_text()
        named = re.findall(r"^[a-z0-9].*==", text, re.MULTILINE)
        assert len(named) == len(re.findall(r"^[a-z0-9].*== *[^ ]+.* \\\n    --hash=sha256:", text, re.MULTILINE)) > 30


def test_the_locks_name_the_same_versions() -> None:
    def pins(lock: str) -> dict[str, str]:
        text = (REPOSITORY / "requirements" / lock).read_text()
        return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", text, re.MULTILINE))

    dev, cluster, runtime = pins("dev.txt"), pins("cluster.txt"), pins("runtime.txt")
    assert cluster.keys() - runtime.keys() == {"confluent-kafka"}
    assert runtime.items() <= cluster.items() <= dev.items()
    assert pins("client.txt").items() <= pins("mcp.txt").items() <= dev.items()


def test_it_says_what_containers_are_asked() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    (labels,) = of("LABEL")
    assert f'org.opencontainers.image.version="{version}"' in labels
    assert of("USER") == [f"{USER}:{USER}"]
    assert of("STOPSIGNAL") == ["SIGTERM"]
    ports = {given()[name].rpartition(":")[2] for name in ("HEADGATE_LISTEN", "HEADGATE_GRPC")}
    assert set(of("EXPOSE")[0].split()) == ports
    (volume,) = of("VOLUME")
    assert given()["HEADGATE_DATA"].startswith(f"{volume}/")
    assert of("ENTRYPOINT") == ['["tini", "--", "headgate"]']
    assert of("CMD") == ['["serve"]']
    assert "health" in COMMANDS
    assert of("HEALTHCHECK")[0].endswith('CMD ["headgate", "health"]')


def test_its_settings_are_settings() -> None:
    names = {name.removeprefix("HEADGATE_").lower() for name in given() if name.startswith("HEADGATE_")}
    assert names - {"spark_kafka_jars"} <= set(Settings.model_fields)


def test_the_page_names_settings() -> None:
    page = (REPOSITORY / "docs" / "howto" / "container.md").read_text()
    named = set(re.findall(r"HEADGATE_[A-Z_]+", page))
    assert "HEADGATE_ALLOW_ANONYMOUS" in named
    assert {name.removeprefix("HEADGATE_").lower() for name in named} <= set(Settings.model_fields)


def test_the_manifest_of_one_server_fits_it() -> None:
    """The same user, volume, ports and settings; nothing of the root is written."""
    (server,) = (one for one in built(SINGLE) if one["kind"] == "StatefulSet")
    pod, one = server["spec"]["template"]["spec"], container(server)
    assert pod["securityContext"]["runAsUser"] == USER
    assert one["args"] == ["serve"]
    assert "command" not in one
    assert {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]} == {
        "data": of("VOLUME")[0],
        "scratch": "/tmp",
    }
    image = given()
    said = environment(server)
    assert {name: said.get(name, text) for name, text in image.items()} == image
    assert {str(port["containerPort"]) for port in one["ports"]} == set(of("EXPOSE")[0].split())
    probes = {name: one[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/livez",
        "liveness": "/livez",
        "readiness": "/readyz",
    }


@pytest.mark.parametrize("example", ["kubernetes", "kubernetes-single"])
def test_pods_pass_the_restricted_pod_security_standard(example: str) -> None:
    """As Kubernetes has it for pods without host access and without other volumes than these."""
    pods = [
        one["spec"]["template"]["spec"]
        for one in built(REPOSITORY / "examples" / example)
        if one["kind"] == "StatefulSet"
    ]
    assert pods
    for pod in pods:
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()
        kinds = {kind for volume in pod.get("volumes", ()) for kind in volume.keys() - {"name"}}
        assert kinds <= {"configMap", "secret", "emptyDir", "projected"}
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in pod["containers"]:
            assert one["securityContext"]["allowPrivilegeEscalation"] is False
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert one["securityContext"]["readOnlyRootFilesystem"]


@pytest.fixture
def confinement(tmp_path: Path) -> Confinement:
    """This machine's root and this environment, read-only, with a volume and a /tmp that can be written."""
    if os.geteuid() != 0:
        missing("only root mounts what a container mounts")
    for program in ("unshare", "nsenter", "setpriv"):
        executable(program)
    mount, volume = tmp_path / "root", tmp_path / "volume"
    mount.mkdir()
    volume.mkdir()
    os.chown(volume, USER, USER)
    environment = {name: text for name, text in given().items() if name.startswith("PYTHON")}
    environment |= {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    return Confinement(
        source=Path("/"),
        mount=mount,
        volume=volume,
        place="/srv",
        environment=environment | {"PYTHONPATH": "/mnt/src", "HEADGATE_DATA": "/srv/data"},
        headgate=("/mnt/.venv/bin/python", "/mnt/.venv/bin/headgate"),
        repository=REPOSITORY,
        interpreter=Path(sys.base_prefix),
    )


@pytest.mark.slow
@pytest.mark.system
def test_a_server_needs_no_more_than_a_container_gives(
    confinement: Confinement, subscriber: Subscriber, tmp_path: Path
) -> None:
    server = Server(
        Path("/srv/data"), log=tmp_path / "log", program=confinement.program(tmp_path / "headgate"), spark=True
    )
    works_confined(confinement, server, subscriber)
    assert {path.name for path in confinement.volume.iterdir()} == {"data"}


def works_confined(confinement: Confinement, server: Server, subscriber: Subscriber) -> None:
    """It starts, delivers, is healthy, has no rights, and stops in order."""
    with server:
        _delivers(server, subscriber)
        status = dict(re.findall(r"(\w+):\t(.*)", Path(f"/proc/{server.pid}/status").read_text()))
        assert set(status["Uid"].split()) == {str(USER)}
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert status["NoNewPrivs"] == "1"
        done = confinement.beside(server.pid, "health")
        assert (done.returncode, done.stderr) == (0, "")
        assert "[+]matcher ok" in done.stdout
        assert confinement.beside(server.pid, "health", "--live").stdout == "ok\n"
        assert server.stop() == 0
