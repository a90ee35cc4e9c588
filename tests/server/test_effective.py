"""Settings have one precedence: option, environment, file, default; each says where it came from, and so do faults."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from headgate.backend.config_file import FILE_SETTINGS, SettingsError, config_schema
from headgate.server.effective import SettingOrigin, effective
from headgate.settings import Settings
from headgate_api.errors import InvalidInputError
from tests.commands import headgate, serve
from tests.support import REPOSITORY


def written(folder: Path, text: str) -> Path:
    path = folder / "headgate.yaml"
    path.write_text(text)
    return path


def test_an_option_wins_over_the_environment_that_over_the_file_and_the_file_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "segment_mb: 3\nbacklog_mb: 3\nretain_mb: 3\n")
    for name in ("SEGMENT_MB", "BACKLOG_MB"):
        monkeypatch.setenv(f"HEADGATE_{name}", "2")
    found = effective({"config": path, "segment_mb": 1, "backlog_mb": None})
    settings, origins = found.settings, found.origins
    assert (settings.segment_mb, settings.backlog_mb, settings.retain_mb, settings.dispatchers) == (1, 2, 3, 1)
    names = ("segment_mb", "backlog_mb", "retain_mb", "dispatchers")
    assert [origins[name] for name in names] == list(SettingOrigin)
    shown = {one.name: one.where for one in found.shown()}
    assert [shown[name] for name in names] == ["--segment-mb", "HEADGATE_BACKLOG_MB", f"{path}:3", ""]


def test_the_file_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_CONFIG", str(written(tmp_path, "listen: 127.0.0.1:9\n")))
    assert effective({}).settings.port == 9


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_says_nothing(tmp_path: Path, text: str) -> None:
    assert effective({"config": written(tmp_path, text)}).settings == Settings(config=tmp_path / "headgate.yaml")


def test_settings_of_several_values_may_be_lists(tmp_path: Path) -> None:
    text = "egress_ports: [80, 443]\nallowed_host: [a.example.com, b.example.com]\n"
    settings = effective({"config": written(tmp_path, text)}).settings
    assert settings.egress_ports == "80, 443"
    assert settings.allowed_hosts == {"a.example.com", "b.example.com"}


def test_a_single_port_is_a_number(tmp_path: Path) -> None:
    assert effective({"config": written(tmp_path, "egress_ports: 443\n")}).settings.egress_ports == "443"


@pytest.mark.parametrize("text", ["listen: 127.0.0.1:9\n---\n", "---\n---\nlisten: 127.0.0.1:9\n"])
def test_empty_documents_beside_the_settings_say_nothing(tmp_path: Path, text: str) -> None:
    found = effective({"config": written(tmp_path, text)})
    assert found.settings.port == 9
    assert found.where("listen").endswith(f":{text.splitlines().index('listen: 127.0.0.1:9') + 1}: listen")


def test_every_setting_may_stand_in_the_file(tmp_path: Path) -> None:
    """By the value that it would have anyway."""
    defaults = Settings(fronts=1).model_dump(mode="json")
    text = yaml.safe_dump({name: defaults[name] for name in FILE_SETTINGS if defaults[name] not in ("", None)})
    found = effective({"config": written(tmp_path, text)})
    assert found.settings.model_dump(exclude={"config"}) == Settings(fronts=1).model_dump(exclude={"config"})
    assert set(FILE_SETTINGS) | {"config", "kafka", "spark"} == set(Settings.model_fields)


FAULTS = {
    "listen: here\n": ("headgate.yaml:1: listen: 'here' is not HOST:PORT", "settings.md"),
    "data: d\nlistn: x\n": ("headgate.yaml:2: listn: there is no such setting", "did you mean listen?"),
    "tls-cert: x\n": ("headgate.yaml:1: tls-cert: there is no such setting", "did you mean tls_cert?"),
    "config: x\n": ("headgate.yaml:1: config: there is no such setting", ""),
    "kafka:\n  bootstrap: a:1\n  topic:\n    x: 1\n": ("headgate.yaml:3: kafka.topic: there is no such name", "topics"),
    "kafka:\n  bootstrap: nowhere\n": ("headgate.yaml:2: kafka.bootstrap: 'nowhere' is not HOST:PORT", ""),
    "kafka:\n  topics: {}\n": ("headgate.yaml:1: kafka.bootstrap: Field required", ""),
    "quotas: {fronts: 2}\n": ("headgate.yaml:1: kafka: Field required", ""),
    "kafka: {bootstrap: 'a:1'}\npartitions: 3\n": (
        "headgate.yaml:2: partitions is for a server that keeps",
        "kafka.topics",
    ),
    "advertise: http://a\n": ("headgate.yaml:1: advertise is for a deployment on Kafka", "--kafka"),
    "retain_hours: .inf\n": ("headgate.yaml:1: retain_hours: Input should be a finite number", "settings.md"),
    "data: d\nallowed_host: [a, true]\n": ("headgate.yaml:2: allowed_host: Input should be a valid string", ""),
    "---\n---\nlistn: x\n": ("headgate.yaml:3: listn: there is no such setting", "listen"),
    "a: [\n": ("headgate.yaml: the text is no YAML", ""),
    "- a\n": ("headgate.yaml must hold one YAML object", ""),
    "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n": ("'listen' is there twice at line 2", ""),
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_is_named_with_its_line_and_what_to_do(tmp_path: Path, text: str) -> None:
    message, hint = FAULTS[text]
    with pytest.raises(InvalidInputError) as caught:
        effective({"config": written(tmp_path, text)})
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_faults_of_all_places_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_GRPC", "nowhere")
    path = written(tmp_path, "metrics: maybe\nnothing: 1\nkafka: {bootstrap: 'a:1', options: {acks: 0}}\n")
    with pytest.raises(SettingsError) as caught:
        effective({"config": path, "listen": "here"})
    assert [one.where.removeprefix(f"{path}:") for one in caught.value.faults] == [
        "2: nothing",
        "--listen",
        "HEADGATE_GRPC",
        "1: metrics",
        "3: kafka.options",
    ]


def test_a_secret_is_shown_nowhere(tmp_path: Path) -> None:
    path = written(tmp_path, "kafka: {bootstrap: 'a:1', options: {sasl.password: hunter2}}\n")
    with pytest.raises(SettingsError) as caught:
        effective({"config": path})
    assert "hunter2" not in f"{caught.value}{caught.value.hint}"
    path = written(tmp_path, "secrets_key_command: cat hunter2\n")
    status, out, _ = headgate("config", "show", "--config", path)
    assert (status, "hunter2" in out, "(not shown)" in out) == (0, False, True)


def test_the_deployment_is_shown_with_its_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "kafka:\n  bootstrap: a:1\n  topics:\n    events: {partitions: 5}\n")
    shown = {one.name: (one.value, one.where) for one in effective({"config": path, "kafka": "b:2"}).shown()}
    assert shown["kafka"] == ("b:2", "--kafka")
    assert shown["kafka.topics.events.partitions"] == (5, f"{path}:4")
    assert shown["kafka.topics.outbox.partitions"] == (12, "")


# --- the commands -----------------------------------------------------------------------------------


def test_check_says_what_serve_would_say(tmp_path: Path) -> None:
    key = tmp_path / "gone.pem"
    path = written(tmp_path, f"data: {tmp_path}/d\ntls_cert: {key}\n")
    status, out, said = headgate("config", "check", path)
    assert (status, out) == (1, "")
    assert said.startswith(f"error: {path}:2: tls_cert: --tls-cert needs --tls-key\nhint: ")
    status, lines = serve(tmp_path / "d", "--config", str(path))
    assert (status, "--tls-cert needs --tls-key" in lines[0]) == (78, True)
    path = written(tmp_path, "listn: x\nmetrics: maybe\n")
    status, out, said = headgate("config", "check", "--json", HEADGATE_CONFIG=str(path))
    assert (status, said) == (1, "")
    assert [(one["line"], bool(one["hint"])) for one in map(json.loads, out.splitlines())] == [(1, True), (2, True)]
    path = written(tmp_path, "egress_allow: everywhere\n")
    assert f"{path}:1: egress_allow: " in headgate("config", "check", path)[2]
    path = written(tmp_path, "listen: 127.0.0.1:0\n")
    assert headgate("config", "check", path)[:2] == (0, f"{path} is as it must be\n")
    assert not (tmp_path / "d").exists()


def test_show_takes_the_options_of_serve(tmp_path: Path) -> None:
    path = written(tmp_path, "retain_hours: 2\n")
    arguments = (
        "--config",
        path,
        "--listen",
        "127.0.0.1:9",
        "--allowed-host",
        "a.b",
        "--allowed-host",
        "c.d",
        "--json",
    )
    status, out, _ = headgate("config", "show", *arguments, HEADGATE_BACKLOG_HOURS="3")
    shown = {one["name"]: one for one in map(json.loads, out.splitlines())}
    assert status == 0
    assert shown["listen"] == {"name": "listen", "value": "127.0.0.1:9", "origin": "option", "where": "--listen"}
    assert shown["allowed_host"]["value"] == "a.b,c.d"
    assert (shown["retain_hours"]["value"], shown["retain_hours"]["where"]) == (2, f"{path}:1")
    assert shown["backlog_hours"]["origin"] == "environment"
    assert headgate("config", "show", "--nothing")[0] == 2


def test_doctor_reads_the_file_too(tmp_path: Path) -> None:
    path = written(tmp_path, "listen: here\n")
    status, _, said = headgate("doctor", "--config", path)
    assert (status, f"{path}:1: listen" in said) == (1, True)


# --- the schema -------------------------------------------------------------------------------------


def faults(text: str) -> list[str]:
    return [fault.message for fault in Draft202012Validator(config_schema()).iter_errors(yaml.safe_load(text))]


def test_the_schema_takes_what_the_server_takes() -> None:
    Draft202012Validator.check_schema(config_schema())
    assert faults("listen: 127.0.0.1:8080\negress_ports: [80, 443]\nretain_mb: null\n") == []
    assert faults((REPOSITORY / "examples/kubernetes/headgate.yaml").read_text()) == []
    for wrong in ("listn: x", "partitions: many", "partitions: 65", "on_corrupt: go on", "kafka: {}", "kafka: {a: 1}"):
        assert faults(wrong), wrong


def test_the_file_of_the_page_is_taken(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/howto/configure.md").read_text()
    (shown,) = re.findall(r'^```yaml title="headgate.yaml"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)
    assert shown.startswith("# yaml-language-server: $schema=")
    assert faults(shown) == []
    assert effective({"config": written(tmp_path, shown)}).settings.egress_ports == "80, 443"


def test_every_name_of_the_schema_says_what_it_means() -> None:
    schema = config_schema()
    models = [schema, *schema["$defs"].values()]
    assert [name for one in models for name, found in one["properties"].items() if not found["description"]] == []
    assert set(schema["properties"]) == {*FILE_SETTINGS, "kafka", "spark", "quotas", "sources"}
