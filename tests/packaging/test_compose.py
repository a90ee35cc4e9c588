"""The example for compose: the specification's schema knows it, its files are there, and its parts fit each other."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples.subscriber import parser
from jsonschema import Draft7Validator

from headgate.objects.api.admission import Admission
from headgate.objects.api.bootstrap import load
from headgate.objects.store.store import Store
from headgate.server.hosts import Hosts
from headgate.server.listening import check_not_open
from headgate.settings import Settings
from tests.packaging.test_container import given, of
from tests.support import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "compose"
SCHEMA = json.loads((Path(__file__).parent / "schemas" / "compose.json").read_text())
Compose = dict[str, Any]


def read(name: str) -> Any:
    return yaml.safe_load((EXAMPLE / name).read_text())


def compose() -> Compose:
    return read("compose.yaml")  # type: ignore[no-any-return]


def faults(file: Compose) -> list[str]:
    return [fault.message for fault in Draft7Validator(SCHEMA).iter_errors(file)]


def mounts(service: str) -> dict[str, str]:
    """What a service sees, by where: a path of the repository, or the name of a volume."""
    pairs = (one.split(":")[:2] for one in compose()["services"][service]["volumes"])
    return {place: source for source, place in pairs}


def environment() -> dict[str, str]:
    """Of the server: the image's and the file's."""
    return given() | compose()["services"]["headgate"]["environment"]


def settings() -> Settings:
    names = {name.removeprefix("HEADGATE_").lower(): text for name, text in environment().items()}
    return Settings(**{name: text for name, text in names.items() if name in Settings.model_fields})  # type: ignore[arg-type]


def test_the_schema_knows_it() -> None:
    assert faults(compose()) == []


@pytest.mark.parametrize(
    ("service", "name", "value"),
    [("headgate", "port", []), ("headgate", "read_only", []), ("grafana", "tmpfs", {"/tmp": 1})],
)
def test_a_fault_is_found(service: str, name: str, value: object) -> None:
    faulty = deepcopy(compose())
    faulty["services"][service][name] = value
    assert faults(faulty) != []


def test_what_it_mounts_is_there() -> None:
    file = compose()
    for service in file["services"]:
        for source in mounts(service).values():
            assert source in file["volumes"] or (EXAMPLE / source).exists(), source
    build = file["services"]["headgate"]["build"]
    assert (EXAMPLE / build["context"] / build["dockerfile"]).samefile(REPOSITORY / "Containerfile")


def test_every_service_is_confined_and_published_on_loopback() -> None:
    for name, service in compose()["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name


def test_the_server_has_all_that_it_writes() -> None:
    assert mounts("headgate")[of("VOLUME")[0]] in compose()["volumes"]
    assert compose()["services"]["headgate"]["tmpfs"] == ["/tmp"]


def test_its_settings_are_taken_and_its_names_known() -> None:
    own = set(compose()["services"]["headgate"]["environment"])
    assert {name.removeprefix("HEADGATE_").lower() for name in own} <= set(Settings.model_fields)
    found = settings()
    check_not_open(found)
    hosts = Hosts.of(found)
    for host in ("localhost:8080", "127.0.0.1:8080", "headgate:8080"):
        hosts.check(host.encode())
    assert mounts("headgate")[str(found.manifests)] == "./manifests"


def test_the_trigger_is_accepted_and_names_the_subscriber(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "control.db")
    assert load(Admission(store), EXAMPLE / "manifests") == {"created": 1}
    store.close()
    subscriber = compose()["services"]["subscriber"]
    program, *arguments = subscriber["entrypoint"][1:]
    assert (EXAMPLE / mounts("subscriber")[program]).samefile(REPOSITORY / "examples" / "subscriber.py")
    listens = parser().parse_args(arguments)
    assert listens.host == "0.0.0.0"
    assert read("manifests/orders.yaml")["spec"]["subscriber"]["uri"].startswith(f"http://subscriber:{listens.port}/")


def test_prometheus_reads_the_server_and_grafana_reads_prometheus() -> None:
    (job,) = read("prometheus.yaml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"headgate:{settings().port}"]}]
    (source,) = read("grafana/datasources/prometheus.yaml")["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()  # type: ignore[union-attr]
    assert f"127.0.0.1:{port}:{port}" in compose()["services"][host]["ports"]


def test_grafana_finds_the_dashboard() -> None:
    assert mounts("grafana")["/etc/grafana/provisioning"] == "./grafana"
    assert {path.name for path in (EXAMPLE / "grafana").iterdir()} == {"dashboards", "datasources"}
    (provider,) = read("grafana/dashboards/headgate.yaml")["providers"]
    assert provider["type"] == "file"
    folder = provider["options"]["path"]
    home = compose()["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/headgate.json"
    board = json.loads((EXAMPLE / mounts("grafana")[folder] / "headgate.json").read_text())
    (variable,) = board["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
