"""What a server does in a deployment on Kafka, by its settings; what contradicts each other is told with a remedy."""

from __future__ import annotations

import importlib
import socket
from pathlib import Path
from typing import Any

import pytest
from clusters.kafka import Kafka

from headgate.backend.config import ClusterConfig
from headgate.backend.kafka.topics import Admin
from headgate.server import parts
from headgate.server.effective import effective
from headgate.server.peers import instance
from headgate.server.preflight import TopicsMisfitError, check_topics
from headgate.settings import Settings
from headgate_api.errors import InvalidInputError
from tests.backend.stores import kafka_config
from tests.commands import refused, serve

KAFKA = "kafka.example.com:9092"


def settings(**given: Any) -> Settings:
    return Settings(kafka=KAFKA, **given)


def names(given: Settings) -> list[str]:
    return [part.name for part in parts.of_server(given)]


def test_a_server_of_its_own_has_every_role() -> None:
    assert names(Settings(fronts=1)) == ["control", "front-0", "dispatcher-0", "reader", "matcher"]
    assert effective({}).cluster is None


def test_a_server_on_kafka_has_the_roles_that_it_is_given() -> None:
    assert names(settings(role="front, control", fronts=2)) == ["control", "front-0", "front-1"]
    # Somebody must follow the objects.
    assert names(settings(role="front", fronts=1)) == ["objects", "front-0"]


def test_the_file_says_how_many_fronts_share_quotas(tmp_path: Path) -> None:
    file = tmp_path / "headgate.yaml"
    file.write_text(f"{{kafka: {{bootstrap: '{KAFKA}'}}, quotas: {{fronts: 6}}}}")
    found = effective({"config": file}).cluster
    assert found is not None
    assert found.quotas.fronts == 6
    alone = effective({"kafka": KAFKA}).cluster
    assert alone is not None
    assert alone.quotas.fronts is None, "each server its own"


def test_each_role_on_kafka_is_a_module_of_its_own() -> None:
    for role in parts.Role:
        module = parts.module_of(settings(role="front"), parts.ServerPart(role))
        assert module == f"headgate.server.processes.kafka.{role}"
        assert hasattr(importlib.import_module(module), "run")
    assert parts.module_of(Settings(), parts.ServerPart(parts.Role.READER)) == "headgate.server.processes.reader"


@pytest.mark.parametrize(
    ("given", "problem", "hint"),
    [
        ({"role": "front"}, "--role is for a deployment on Kafka", "--kafka HOST:PORT"),
        ({"spark": "local[2]"}, "--spark is for a deployment on Kafka", "--kafka HOST:PORT"),
        ({"advertise": "http://a"}, "--advertise is for a deployment on Kafka", "--kafka HOST:PORT"),
        ({"kafka": KAFKA, "role": "front,king"}, "'king' is no role", "control,front,matcher,dispatcher,reader,source"),
        (
            {"kafka": KAFKA, "role": "front", "partitions": 3},
            "--partitions is for a server that keeps its events",
            "kafka.topics",
        ),
        ({"kafka": "nowhere", "role": "front"}, "'nowhere' is not HOST:PORT", "--kafka kafka-1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, object], problem: str, hint: str) -> None:
    def begin() -> None:
        parts.of_server(effective(given).settings)

    with pytest.raises(InvalidInputError) as caught:
        begin()
    assert problem in caught.value.message
    assert hint in caught.value.hint


def test_options_replace_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "headgate.yaml"
    file.write_text(f"kafka:\n  bootstrap: {KAFKA}\n  topic_prefix: x.\nspark:\n  master: local[8]\n")
    assert effective({"config": file}).cluster == ClusterConfig.model_validate(
        {"kafka": {"bootstrap": KAFKA, "topic_prefix": "x."}, "spark": {"master": "local[8]"}}
    )
    found = effective({"config": file, "kafka": "other:1", "spark": "spark://m:7077"}).cluster
    assert found is not None
    assert (found.kafka.bootstrap, found.kafka.topic_prefix, found.spark.master) == ("other:1", "x.", "spark://m:7077")


def test_a_server_has_a_name_that_outlives_it_and_a_url(tmp_path: Path) -> None:
    instance.make_name(tmp_path)
    name = instance.name_of(tmp_path)
    assert len(name) == 16
    instance.make_name(tmp_path)
    assert instance.name_of(tmp_path) == name
    assert instance.advertised_url(settings(listen="127.0.0.1:8080")) == "http://127.0.0.1:8080"
    assert instance.advertised_url(settings(listen="[::1]:81")) == "http://[::1]:81"
    assert instance.advertised_url(settings(listen="0.0.0.0:80")) == f"http://{socket.gethostname()}:80"
    assert instance.advertised_url(settings(advertise="https://a.example.com/")) == "https://a.example.com"
    assert instance.host_and_port("https://a.example.com") == ("a.example.com", 443, True)
    assert instance.host_and_port("http://[::1]:81") == ("::1", 81, False)


@pytest.mark.parametrize(
    ("given", "url", "grpc"),
    [
        ({"listen": "127.0.0.1:80", "grpc": "127.0.0.1:81"}, "http://127.0.0.1:80", "grpc://127.0.0.1:81"),
        ({"listen": "127.0.0.1:80", "grpc": "off"}, "http://127.0.0.1:80", ""),
        ({"listen": "[::1]:80", "grpc": "[::1]:81"}, "http://[::1]:80", "grpc://[::1]:81"),
        (
            {"advertise": "https://a.example.com", "grpc": "0.0.0.0:81"},
            "https://a.example.com",
            "grpc://a.example.com:81",
        ),
    ],
)
def test_a_dispatcher_is_known_by_both_addresses_of_its_server(given: dict[str, str], url: str, grpc: str) -> None:
    assert instance.urls_of_name(instance.advertised_name(settings(**given))) == (url, grpc)


@pytest.mark.kafka
@pytest.mark.slow  # what `headgate cluster check` says is what a start says
def test_topics_that_do_not_fit_are_told_before_anything_starts(kafka: Kafka, tmp_path: Path) -> None:
    config = kafka_config(kafka.bootstrap, "misfit.")
    with pytest.raises(TopicsMisfitError, match=r"misfit\.events is missing, and \d more"):
        check_topics(ClusterConfig(kafka=config))
    Admin(config).create_missing()
    check_topics(ClusterConfig(kafka=config))
    # The defaults want three copies.
    status, lines = serve(tmp_path / "data", "--kafka", kafka.bootstrap, "--role", "front")
    error, hint = refused(lines)
    assert (status, "the topics in Kafka do not fit" in error) == (1, True)
    assert "headgate cluster check" in hint
    assert not (tmp_path / "data").exists()
