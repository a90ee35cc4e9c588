"""The package headgate-broker as people get it: a wheel, made from the sdist, in an empty environment elsewhere."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate
from headgate.testing.server import Server
from tests.packaging.conftest import Wheels
from tests.packaging.test_distributions import shared_files
from tests.packaging.wheels import build, cached, commands, environment, uv
from tests.support import REPOSITORY, eventually
from tests.system.collector import Collector
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]  # an environment is made, perhaps from the network

JAR = "src/headgate/match/jars/headgate-connector.jar"
PROGRAM = "../../../bin/headgate"
"""Installers that put programs on the path take those of the named package alone, so each of the two brings it."""
LIBRARY = """
import asyncio, sys
from headgate_client import AsyncClient, Client, new_event

async def consumed():
    async with AsyncClient(sys.argv[1]) as client, client.subscribe("pulled") as consumer:
        received = await anext(consumer)
        await consumer.ack(received)
        return received.json()["n"]

with Client(sys.argv[1]) as client, client.producer("default", name="shop") as producer:
    producer.send(new_event("library", "/shop", {"n": 7}))
print(asyncio.run(consumed()))
"""
SPARK = """
import importlib.util, sys
assert importlib.util.find_spec("confluent_kafka") is None
for name in ("pyarrow", "pyspark"):
    sys.modules[name] = None
    try:
        import headgate.spark
    except ImportError as error:
        print(error)
    del sys.modules[name]
import headgate.spark as library
assert all(hasattr(library, name) for name in library.__all__)
print(library.connector_jar().is_file())
"""
SECONDS_MAX = 60.0


def test_the_license_comes_along(sdist: Path, bin_folder: Path) -> None:
    terms = (REPOSITORY / "LICENSE").read_bytes()
    assert (sdist / "LICENSE").read_bytes() == terms
    (installed,) = bin_folder.parent.glob("lib/*/site-packages/headgate_broker-*.dist-info/licenses/LICENSE")
    assert installed.read_bytes() == terms


def test_the_console_comes_along_with_the_licences_of_others(sdist: Path, bin_folder: Path) -> None:
    own = REPOSITORY / "src" / "headgate" / "console" / "static"
    (installed,) = bin_folder.parent.glob("lib/*/site-packages/headgate/console/static")
    for path in own.rglob("*"):
        if path.is_file():
            name = path.relative_to(own)
            assert (installed / name).read_bytes() == path.read_bytes()
            assert (sdist / "src" / "headgate" / "console" / "static" / name).is_file()
    terms = {
        path.name for path in bin_folder.parent.glob("lib/*/site-packages/headgate_broker-*.dist-info/licenses/**/*")
    }
    assert {path.name for path in own.glob("vendor/LICENSE.*")} <= terms


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    running = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    yield running
    running.close()


def _delivers(server: Server, subscriber: Subscriber) -> None:
    """A trigger is made, and gets an event that it wants."""
    uri, wanted = subscriber.url("wheel"), {"expression": 'ce.type == "wheel" && data.n > 1'}
    spec = {"broker": "default", "subscriber": {"uri": uri}, "filter": wanted}
    server.create("triggers", "default", "wheel", spec)
    server.wait_trigger_ready("default", "wheel", seconds=SECONDS_MAX)
    publisher = Publisher(server)
    assert [publisher.publish(f"w{n}", "wheel", {"n": n}) for n in (1, 2)] == [202, 202]
    eventually(lambda: subscriber.ids("wheel") == {"w2": 1})


def _asks_by_the_client_alone(server: Server, client_folder: Path, folder: Path) -> None:
    """Commands and library of headgate-client, at a server of the package headgate-broker."""

    manifest = {
        "apiVersion": "headgate.dev/v1",
        "kind": "Subscription",
        "metadata": {"name": "pulled"},
        "spec": {"broker": "default", "filter": {"expression": 'ce.type == "library"'}},
    }
    (folder / "pulled.json").write_text(json.dumps(manifest))
    shown = {
        "apply -f pulled.json": "pulled",
        "get triggers": "wheel",
        "describe subscription pulled": "pulled",
        "send --type wheel --id c1": "",
        "tail --from earliest --limit 1": "wheel",
        "trace w2": "wheel",
        "why w1 --trigger wheel": "filter",
        "status": "ready",
        "deadletter list": "",
        "replay list": "",
        "filter backtest true": "stored",
    }
    asked = [[*words.split(), "--server", server.url] for words in shown]
    for (words, part), found in zip(shown.items(), commands(client_folder, folder, *asked), strict=True):
        assert (found[0], part in found[1]) == (0, True), (words, found)
    server.wait_object_ready("subscriptions", "default", "pulled", seconds=SECONDS_MAX)

    def run(*command: object) -> str:
        return subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, cwd=folder, check=True).stdout

    assert run(client_folder / "python", "-c", LIBRARY, server.grpc) == "7\n"
    delete = (client_folder / "headgate", "delete", "subscription", "pulled", "--server", server.url)
    assert "deleted" in run(*delete)


@pytest.mark.parametrize("kind", ["--sdist", "--wheel"])
def test_no_package_is_built_without_the_connector(sdist: Path, tmp_path: Path, kind: str) -> None:
    (sdist / JAR).rename(tmp_path / "jar")
    try:
        done = build(sdist, tmp_path / "dist", kind)
    finally:
        (tmp_path / "jar").rename(sdist / JAR)
    assert done.returncode != 0
    assert f"error: {JAR} is missing" in done.stderr
    assert "hint: make setup" in done.stderr


def test_an_environment_of_the_wheels_shares_no_files_between_packages(bin_folder: Path) -> None:
    """So the order in which they are installed cannot matter; the program is the same text from both."""
    (packages,) = (bin_folder.parent / "lib").glob("python*/site-packages")
    found = list(importlib.metadata.distributions(path=[str(packages)]))
    assert {"headgate-broker", "headgate-client", "opentelemetry-proto", "pyspark"} <= {
        one.metadata["Name"] for one in found
    }
    shared = shared_files(found)
    assert {path: sorted(names) for path, names in shared.items()} == {PROGRAM: ["headgate-broker", "headgate-client"]}
    texts = {str(path.hash) for one in found for path in one.files or () if str(path) == PROGRAM}
    assert len(texts) == 1


@pytest.mark.slow
def test_an_installed_wheel_has_the_library_of_spark(bin_folder: Path, elsewhere: Path) -> None:
    """Without extras; and what it needs, where somebody has installed the wheel alone, is named."""

    (folder,) = bin_folder.parent.glob("lib/*/site-packages/headgate/spark")
    there = {path.name for path in (REPOSITORY / "src" / "headgate" / "spark").glob("*.py")}
    assert {path.name for path in folder.glob("*.py")} == there
    done = subprocess.run([bin_folder / "python", "-c", SPARK], capture_output=True, text=True, cwd=elsewhere)
    needed = [f"headgate.spark needs the package {one}: pip install headgate-broker" for one in ("pyarrow", "pyspark")]
    assert (done.returncode, done.stdout.splitlines()) == (0, [*needed, "True"]), done.stderr


def test_an_installed_wheel_delivers_an_event_and_exports_its_spans(
    bin_folder: Path,
    client_folder: Path,
    elsewhere: Path,
    collector: Collector,
    subscriber: Subscriber,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # the tests' matcher: there is no Spark in the environment
    with Server(elsewhere / "data", log=elsewhere / "log", program=bin_folder / "headgate") as server:
        _delivers(server, subscriber)
        eventually(lambda: {"receive", "match", "deliver"} <= {span.name for span in collector.spans})
        _asks_by_the_client_alone(server, client_folder, elsewhere)
    assert {(span.name, span.part) for span in collector.spans if span.attributes["cloudevents.event_id"] == "w2"} == {
        ("receive", "front-0"),
        ("match", "dispatcher-0"),
        ("deliver", "dispatcher-0"),
    }


@pytest.mark.slow
def test_uv_runs_the_demo_without_an_installation(sdist: Path, wheels: Wheels, elsewhere: Path) -> None:
    lock = sdist / "requirements" / "runtime.txt"
    where = ("--find-links", wheels.headgate.parent, "--constraints", lock, "--from", wheels.headgate)
    cached("tool", "run", *where, "headgate", "--version", cwd=elsewhere)  # what follows finds everything in the cache
    demo = ("headgate", "demo", "--events", "300", "--rate", "150")
    done = uv("--offline", "tool", "run", *where, *demo, cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accepted 300 events" in done.stdout
    assert "OK: every trigger got exactly its events" in done.stdout
    assert "not provided" not in done.stderr, "the command is of the package that was named"
    assert list(elsewhere.iterdir()) == []


@pytest.mark.slow
def test_the_oldest_versions_that_are_allowed_run_the_demo(sdist: Path, wheels: Wheels, elsewhere: Path) -> None:
    """From the registry, not from a cache, which would take the oldest that it happens to have."""
    oldest = elsewhere / "oldest.txt"
    wanted = ("--resolution", "lowest-direct", "--generate-hashes", "--extra", "cluster", sdist / "pyproject.toml")
    resolved = uv("pip", "compile", "-q", "--python", sys.executable, *wanted, "-o", oldest)
    assert resolved.returncode == 0, resolved.stderr
    programs = environment(elsewhere, oldest, wheels.headgate, wheels.client)
    demo = [programs / "headgate", "demo", "--events", "300", "--rate", "150"]
    done = subprocess.run(demo, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OK: every trigger got exactly its events" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("package", ["headgate-broker", "headgate-client"])
def test_each_package_puts_its_command_on_the_path(
    package: str, sdist: Path, wheels: Wheels, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `uv tool` and pipx do it: of the package alone that is named, not of what it depends on."""
    monkeypatch.setenv("UV_TOOL_DIR", str(elsewhere / "tools"))
    monkeypatch.setenv("UV_TOOL_BIN_DIR", str(elsewhere / "bin"))
    lock = sdist / "requirements" / "runtime.txt"
    cached("tool", "install", "-q", "--find-links", wheels.client.parent, "--constraints", lock, package)
    assert [path.name for path in (elsewhere / "bin").iterdir()] == ["headgate"]
    done = subprocess.run([elsewhere / "bin" / "headgate", "--version"], capture_output=True, text=True)
    assert done.stdout == f"headgate {headgate.__version__}\n"


@pytest.mark.slow
def test_packages_of_opentelemetry_that_do_not_load_cost_the_spans_alone(
    elsewhere: Path, collector: Collector, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = elsewhere / "first" / "opentelemetry"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise TypeError('duplicate symbol opentelemetry.proto.common.v1.AnyValue')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    log = elsewhere / "log"
    with Server(elsewhere / "data", log=log, spark=True) as server:
        _delivers(server, subscriber)
    said = [line for line in log.read_text().splitlines() if "spans cannot be made" in line]
    assert len(said) == 2, "one line of front, one of the dispatcher"
    assert "restarting" not in log.read_text()
    assert collector.spans == []
