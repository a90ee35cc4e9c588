"""`headgate cluster init|check` against a real Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from clusters.kafka import Kafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headgate.backend.config import TopicsConfig
from headgate.testing.server import free_port
from tests.commands import Said, headgate

pytestmark = pytest.mark.kafka
TOPICS = len(TopicsConfig.model_fields)


def config(folder: Path, bootstrap: str, options: str = "{}", **replaced: str) -> Path:
    topics = dict.fromkeys(
        ("events", "outbox", "refused", "progress", "runs", "objects", "changelog", "reports", "numbers"),
        "{replication: 1, min_insync: 1}",
    )
    lines = [f"    {name}: {text}" for name, text in {**topics, **replaced}.items()]
    path = folder / "headgate.yaml"
    prefix = folder.name.replace("[", "-").replace("]", "-")
    text = [
        *("kafka:", f"  bootstrap: {bootstrap}", f"  topic_prefix: {prefix}.", f"  options: {options}", "  topics:"),
        *lines,
    ]
    path.write_text("\n".join(text))
    return path


def cluster(command: str, path: Path, *arguments: str) -> Said:
    return headgate("cluster", command, "--config", path, *arguments)


def test_init_makes_the_topics_once_and_check_names_what_was_changed(kafka: Kafka, tmp_path: Path) -> None:
    path = config(tmp_path, kafka.bootstrap, events="{partitions: 3, replication: 1, min_insync: 1}")
    before = cluster("check", path, "--json")
    assert before.exit_code == 1
    assert [json.loads(line)["setting"] for line in before.stdout.splitlines()] == ["topic"] * TOPICS

    made = cluster("init", path)
    assert (made.exit_code, made.stderr) == (0, ""), made.stdout
    assert made.stdout.count("made ") == TOPICS
    again = cluster("init", path)
    assert (again.exit_code, again.stdout) == (0, "every topic is as it must be\n"), again.stderr
    assert cluster("check", path, "--json").stdout == ""

    topic = f"{tmp_path.name}.events"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    entry = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result()
    config(tmp_path, kafka.bootstrap, events="{partitions: 4, replication: 1, min_insync: 1}")
    changed = cluster("check", path, "--json")
    assert changed.exit_code == 1
    assert {(line["topic"], line["setting"], line["found"], line["wanted"]) for line in lines(changed.stdout)} == {
        (topic, "partitions", "3", "4"),
        (topic, "unclean.leader.election.enable", "true", "false"),
    }
    shown = cluster("check", path)
    assert "kafka-configs --alter" in shown.stdout
    assert cluster("init", path).exit_code == 1, "what exists is not changed"


def lines(text: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_cluster_too_small_is_said_before_anything_is_made(kafka: Kafka, tmp_path: Path) -> None:
    done = cluster("init", config(tmp_path, kafka.bootstrap, objects="{replication: 3}"))
    assert done.exit_code == 2
    assert "objects cannot have 3 copies: the cluster has 1 broker\n" in done.stderr
    assert "hint: add brokers" in done.stderr
    assert len(lines(cluster("check", config(tmp_path, kafka.bootstrap), "--json").stdout)) == TOPICS


def sasl(folder: Path, user: str, password: str) -> str:
    (folder / "secret").write_text(password)
    login = f"sasl.username: {user}, sasl.password_file: {folder / 'secret'}"
    return f"{{security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, {login}}}"


def test_a_user_with_rights_logs_in_with_the_password_of_a_file(kafka: Kafka, tmp_path: Path) -> None:
    path = config(tmp_path, kafka.sasl_bootstrap, sasl(tmp_path, "admin", "admin-secret"))
    assert cluster("init", path).exit_code == 0
    assert cluster("check", path).exit_code == 0


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("admin", "wrong-secret", "Kafka does not accept our credentials"),
        ("guest", "guest-secret", "our user may not do that"),
    ],
)
def test_who_may_not_is_told_so_and_no_password_is_shown(
    kafka: Kafka, tmp_path: Path, user: str, password: str, reason: str
) -> None:
    path = config(tmp_path, kafka.sasl_bootstrap, sasl(tmp_path, user, password))
    line = [Path(sys.executable).with_name("headgate"), "cluster", "init", "--config", path]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)  # the library writes, too
    assert done.returncode == 2
    assert reason in done.stderr
    assert "hint: " in done.stderr
    assert password not in done.stderr + done.stdout


@pytest.mark.slow
def test_an_address_without_kafka_is_named(tmp_path: Path) -> None:
    port = free_port()
    done = cluster("check", config(tmp_path, f"127.0.0.1:{port}"))
    assert done.exit_code == 2
    assert f"no answer from 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_option_of_the_library_is_named(kafka: Kafka, tmp_path: Path) -> None:
    done = cluster("check", config(tmp_path, kafka.bootstrap, "{no.such.option: 1}"))
    assert done.exit_code == 2
    assert "no.such.option" in done.stderr


def test_without_the_library_one_line_says_what_to_install(tmp_path: Path) -> None:
    path = config(tmp_path, "127.0.0.1:9092")
    program = "import sys; sys.modules['confluent_kafka'] = None; from headgate_cli.main import main; main()"
    line = [sys.executable, "-c", program, "cluster", "check", "--config", str(path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: the Kafka library is not installed",
        "hint: pip install 'headgate-broker[cluster]'",
    ]
