"""The configuration file of a deployment on Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.backend.config import resolved
from headgate.backend.config_file import load
from headgate.backend.kafka.topics import FoundPartition, FoundTopic, WantedTopic, misfits, wanted_topics
from headgate_api.errors import InvalidInputError


def written(folder: Path, text: str) -> Path:
    path = folder / "headgate.yaml"
    path.write_text(text)
    return path


def test_an_address_is_enough(tmp_path: Path) -> None:
    config = load(written(tmp_path, "kafka: {bootstrap: 'one:9092, [::1]:9093'}"))
    assert config.kafka.bootstrap == "one:9092,[::1]:9093"
    assert [topic.name for topic in wanted_topics(config.kafka)] == [
        *("headgate.events", "headgate.outbox", "headgate.refused"),
        *("headgate.progress", "headgate.runs", "headgate.objects", "headgate.changelog"),
        *("headgate.reports", "headgate.numbers"),
    ]


def with_sources(*sources: str) -> str:
    return f"{{kafka: {{bootstrap: 'a:1'}}, sources: [{', '.join(sources)}]}}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "kafka: Field required"),
        ("[]", "must hold one YAML object"),
        ("kafka: {", "no YAML"),
        ("spark: {}", "kafka: Field required"),
        ("kafka: {bootstrap: here}", "kafka.bootstrap: 'here' is not HOST:PORT"),
        ("kafka: {bootstrap: 'a:1', topics: {event: {}}}", "kafka.topics.event: there is no such name"),
        (
            "kafka: {bootstrap: 'a:1', topics: {objects: {partitions: 3}}}",
            "kafka.topics.objects.partitions: there is no such name",
        ),
        ("kafka: {bootstrap: 'a:1', topics: {events: {partitions: 0}}}", "greater than or equal to 1"),
        ("kafka: {bootstrap: 'a:1', topics: {events: {replication: 1}}}", "min_insync 2 is more than the 1 copies"),
        ("kafka: {bootstrap: 'a:1', topics: {events: {options: {cleanup.policy: compact}}}}", "must not be given"),
        ("kafka: {bootstrap: 'a:1', options: {acks: '0'}}", "acks must not be given: Headgate sets it itself"),
        ("kafka: {bootstrap: 'a:1', options: {acks_file: x}}", "acks_file must not be given"),
        ("kafka: {bootstrap: 'a:1', topic_prefix: 'a b'}", "kafka.topic_prefix"),
        ("{kafka: {bootstrap: 'a:1'}, spark: {options: {spark.sql.ansi.enabled: false}}}", "the match rests on it"),
        ("kafka: {bootstrap: 'a:1', bootstrap: 'b:1'}", "'bootstrap' is there twice"),
        (with_sources("{name: a, topics: [headgate.events], broker: n/b}"), "events is the deployment's own topic"),
        (with_sources("{name: a, topics: ['^.*'], broker: n/b}"), "sources.0.topics.0"),
        (with_sources("{name: a, topics: [], broker: n/b}"), "at least 1 item"),
        (with_sources("{name: a, topics: [t], broker: b}"), "sources.0.broker"),
        (with_sources("{name: a, topics: [t], broker: n/b, group: headgate.reader}"), "group headgate.reader is taken"),
        (with_sources(*["{name: a, topics: [t], broker: n/b}"] * 2), "there are two sources a"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load(written(tmp_path, text))
    assert reason in caught.value.message


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"])
def test_a_secret_is_not_taken_from_this_file_nor_shown(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{name}_file") as caught:
        load(written(tmp_path, f"kafka: {{bootstrap: 'a:1', options: {{{name}: hunter2}}}}"))
    assert "hunter2" not in f"{caught.value}{caught.value.hint}{caught.value.__cause__}"


def test_a_secret_comes_from_its_own_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    text = f"kafka: {{bootstrap: 'a:1', options: {{sasl.password_file: {secret}, socket.keepalive.enable: true}}}}"
    config = load(written(tmp_path, text))
    assert "hunter2" not in repr(config)
    assert resolved(config.kafka.options) == {"sasl.password": "hunter2", "socket.keepalive.enable": "true"}


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"", "is empty"), (b"\xff", "no text in UTF-8")]
)
def test_a_file_without_a_secret_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
    with pytest.raises(InvalidInputError, match=reason) as caught:
        resolved({"sasl.password_file": str(secret)})
    assert str(secret) in caught.value.message


WANTED = WantedTopic("t", "events", 2, 3, 2, {"cleanup.policy": "delete"})
GOOD = FoundPartition(has_leader=True, replicas=3, in_sync=3)
RIGHTS = frozenset({"READ", "WRITE", "DESCRIBE"})


def found(*partitions: FoundPartition, policy: str = "delete", rights: frozenset[str] | None = RIGHTS) -> FoundTopic:
    return FoundTopic(partitions, {"cleanup.policy": policy, "else": "1"}, rights)


@pytest.mark.parametrize(
    ("topic", "settings"),
    [
        (None, ["topic"]),
        (found(GOOD, GOOD), []),
        (found(GOOD, GOOD, rights=None), []),
        (found(GOOD), ["partitions"]),
        (found(GOOD, FoundPartition(True, 1, 2)), ["replication"]),
        (found(GOOD, FoundPartition(True, 3, 1)), ["partition 1"]),
        (found(FoundPartition(False, 3, 0), GOOD), ["partition 0"]),
        (found(GOOD, GOOD, policy="compact"), ["cleanup.policy"]),
        (found(GOOD, GOOD, rights=frozenset({"DESCRIBE"})), ["right to READ", "right to WRITE"]),
    ],
)
def test_each_setting_that_does_not_fit_is_named_with_what_to_do(topic: FoundTopic | None, settings: list[str]) -> None:
    reported = list(misfits(WANTED, topic))
    assert [misfit.setting for misfit in reported] == settings
    assert all(misfit.hint and misfit.topic == "t" for misfit in reported)
