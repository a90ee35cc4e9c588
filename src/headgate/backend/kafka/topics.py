"""The topics of a deployment: as they must be, where those of a cluster differ, and their making."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from headgate.backend.config import KafkaConfig, RecordsConfig, TopicConfig
from headgate.backend.kafka.client import KafkaAdmin, library
from headgate_api.errors import InvalidInputError, UnavailableError
from headgate_api.limits import (
    CHANGELOG_SEGMENT_BYTES,
    KAFKA_ADMIN_S_MAX,
    KAFKA_RECORD_BYTES_MAX,
    NUMBERS_KEPT_S,
    OBJECT_COMPACTION_S_MIN,
    OBJECT_TOMBSTONE_S_MIN,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata, ConfigResource


# --- topics ---------------------------------------------------------------------------------------
# Pure.

_HOUR_MS: Final = 3_600_000
_MIB: Final = 1 << 20
_COMMON: Final[Mapping[str, str]] = MappingProxyType(
    {
        "unclean.leader.election.enable": "false",  # a copy that lacks acknowledged records must not lead
        "max.message.bytes": str(KAFKA_RECORD_BYTES_MAX),
    }
)
_NEEDED_OPERATIONS: Final = ("READ", "WRITE", "DESCRIBE")


@dataclass(frozen=True)
class WantedTopic:
    """A topic as the configuration wants it (`role` there); all `settings`, by Kafka's names, must be as here."""

    name: str
    role: str
    partitions: int
    replication: int
    min_insync: int
    settings: Mapping[str, str]


@dataclass(frozen=True)
class FoundPartition:
    """One partition of a topic in the cluster: whether it has a leader, its copies and those in sync."""

    has_leader: bool
    replicas: int
    in_sync: int


@dataclass(frozen=True)
class FoundTopic:
    """A topic as it is in the cluster. `operations` is what our user may do with it; None where that is not told."""

    partitions: tuple[FoundPartition, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    operations: frozenset[str] | None = None


@dataclass(frozen=True)
class Misfit:
    """One setting that is not as it must be; `found` is empty for what is not there.

    It `passes` where it is so because a broker is away, and not because a setting is wrong.
    """

    topic: str
    setting: str
    found: str
    wanted: str
    hint: str
    passes: bool = False


def wanted_topics(config: KafkaConfig) -> list[WantedTopic]:
    """Every topic of a deployment."""
    return [_wanted(config, role) for role in type(config.topics).model_fields]


def _wanted(config: KafkaConfig, role: str) -> WantedTopic:
    """One topic; a partition of state has one writer, whose order is that of its records."""
    topic: TopicConfig = getattr(config.topics, role)
    partitions = config.topics.outbox.partitions if role == "changelog" else 1
    settings = {**_COMMON, "min.insync.replicas": str(topic.min_insync)}
    if isinstance(topic, RecordsConfig):
        partitions = topic.partitions
        size = -1 if topic.retention_mb is None else topic.retention_mb * _MIB
        settings |= {
            "cleanup.policy": "delete",
            "retention.ms": str(round(topic.retention_hours * _HOUR_MS)),
            "retention.bytes": str(size),
            "message.timestamp.type": "LogAppendTime",  # "stored since" must not depend on producers' clocks
        }
    elif role == "numbers":
        settings |= {
            "cleanup.policy": "delete",
            "retention.ms": str(NUMBERS_KEPT_S * 1_000),
            "segment.ms": str(NUMBERS_KEPT_S * 1_000),  # of a segment that is written to, nothing goes
            "message.timestamp.type": "LogAppendTime",
        }
    else:
        settings["cleanup.policy"] = "compact"
    if role == "objects":
        # A process that reads on must meet every deletion; one that reads from the start, whole changes.
        settings["delete.retention.ms"] = str(OBJECT_TOMBSTONE_S_MIN * 1_000)
        settings["min.compaction.lag.ms"] = str(OBJECT_COMPACTION_S_MIN * 1_000)
    if role == "changelog":
        settings["segment.bytes"] = str(CHANGELOG_SEGMENT_BYTES)
    given = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in topic.options.items()}
    settings |= given
    return WantedTopic(config.topic(role), role, partitions, topic.replication, topic.min_insync, settings)


def misfits(wanted: WantedTopic, found: FoundTopic | None) -> Iterator[Misfit]:
    """Where a topic differs from what the configuration wants; nothing when it fits."""
    if found is None:
        yield Misfit(wanted.name, "topic", "", "exists", "headgate cluster init makes it")
        return
    count = len(found.partitions)
    if count != wanted.partitions:
        yield _partition_misfit(wanted, count)
    fewest = min((partition.replicas for partition in found.partitions), default=0)
    if fewest < wanted.replication:
        hint = f"add copies with kafka-reassign-partitions, or set topics.{wanted.role}.replication: {fewest}"
        yield Misfit(wanted.name, "replication", str(fewest), str(wanted.replication), hint)
    for name, value in wanted.settings.items():
        is_now = found.settings.get(name, "")
        if is_now != value:
            yield Misfit(wanted.name, name, is_now, value, _alter(wanted.name, name, value))
    yield from _lagging(wanted, found)
    if found.operations is not None:
        for operation in _NEEDED_OPERATIONS:
            if operation not in found.operations:
                hint = f"kafka-acls --add --allow-principal User:NAME --operation {operation} --topic {wanted.name}"
                yield Misfit(wanted.name, f"right to {operation}", "denied", "allowed", hint)


def _partition_misfit(wanted: WantedTopic, count: int) -> Misfit:
    """Partitions are never added here: keys would change their partition, and with it lose their order."""
    if wanted.partitions == 1 and (wanted.settings["cleanup.policy"] == "compact" or wanted.role == "numbers"):
        hint = "it must have one: move what it holds, delete the topic, and run headgate cluster init"
    else:
        hint = f"set topics.{wanted.role}.partitions: {count}; another number needs a new topic (topic_prefix)"
    return Misfit(wanted.name, "partitions", str(count), str(wanted.partitions), hint)


def _lagging(wanted: WantedTopic, found: FoundTopic) -> Iterator[Misfit]:
    """Partitions that take nothing now."""
    for number, partition in enumerate(found.partitions):
        setting = f"partition {number}"
        if not partition.has_leader:
            hint = "start the brokers that have its copies"
            yield Misfit(wanted.name, setting, "no leader", "a leader", hint, passes=True)
        elif partition.in_sync < wanted.min_insync:
            is_now, must = f"{partition.in_sync} copies in sync", f"{wanted.min_insync} copies in sync"
            hint = "start the missing brokers, or wait until they caught up"
            yield Misfit(wanted.name, setting, is_now, must, hint, passes=True)


def _alter(topic: str, name: str, value: str) -> str:
    # A value with a comma is a list to kafka-configs, which wants brackets around it.
    shown = f"[{value}]" if "," in value else value
    return f"kafka-configs --alter --topic {topic} --add-config {name}={shown}"


# --- admin ----------------------------------------------------------------------------------------

_TRY_S: Final = 1.0
"""One try to reach a broker; a wrong password is known after the first."""
_POLL_S: Final = 0.1
"""A topic that was made is known to every broker soon; nothing tells when."""


class Admin:
    """The cluster as `headgate cluster` sees it. Blocking; raises KafkaUnreachableError and KafkaDeniedError."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        own = {"socket.connection.setup.timeout.ms": 5_000}
        self._client = KafkaAdmin(config, "the cluster cannot be asked", own)

    def create_missing(self) -> list[str]:
        """Makes the topics that are not there, and returns their names. InvalidInputError: more copies than brokers."""
        from confluent_kafka.admin import NewTopic

        metadata = self._metadata()
        brokers = len(metadata.brokers)
        noun = "broker" if brokers == 1 else "brokers"
        missing = [topic for topic in wanted_topics(self._config) if topic.name not in metadata.topics]
        for topic in missing:
            if topic.replication > brokers:
                raise InvalidInputError(
                    f"{topic.name} cannot have {topic.replication} copies: the cluster has {brokers} {noun}",
                    hint=f"add brokers, or set topics.{topic.role}.replication and min_insync",
                )
        new = [
            NewTopic(topic.name, topic.partitions, topic.replication, config=dict(topic.settings)) for topic in missing
        ]
        asked = self._client.raw.create_topics(new, operation_timeout=KAFKA_ADMIN_S_MAX) if new else {}
        made = [name for name, done in asked.items() if self._made(name, done)]
        self._wait_known(missing)
        return made

    def _made(self, name: str, done: Future[None]) -> bool:
        """Whether it was us: two `init` at once make each topic once."""
        kafka = library()
        try:
            done.result()
        except kafka.KafkaException as error:
            if error.args[0].code() == kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise self._client.error(error.args[0], f"the topic {name} cannot be made") from error
        return True

    def _wait_known(self, made: Sequence[WantedTopic]) -> None:
        names = {topic.name for topic in made}
        deadline = time.monotonic() + KAFKA_ADMIN_S_MAX
        while not names <= self._names():
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(names - self._names()))
                raise UnavailableError(f"made, but not known to every broker yet: {missing}", hint="run it again")
            time.sleep(_POLL_S)
        for topic in made:  # a broker refuses records until it knows that it leads
            self._client.offsets(topic.name, range(topic.partitions), "latest")

    def _names(self) -> set[str]:
        return set(self._metadata().topics)

    def _metadata(self) -> ClusterMetadata:
        """Brokers and topics, as the first broker that answers knows them."""
        return self._client.once_elected(lambda: self._client.raw.list_topics(timeout=_TRY_S), KAFKA_ADMIN_S_MAX)

    def check(self) -> list[Misfit]:
        """Compares every topic with the configuration; empty when everything fits."""
        wanted = wanted_topics(self._config)
        there = self._names()
        found = self._found([topic.name for topic in wanted if topic.name in there])
        return [misfit for topic in wanted for misfit in misfits(topic, found.get(topic.name))]

    def _found(self, names: list[str]) -> Mapping[str, FoundTopic]:
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import ConfigResource, ResourceType

        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        with self._client.errors("the topics' settings cannot be read"):
            described = self._client.raw.describe_topics(
                TopicCollection(names), include_authorized_operations=True, request_timeout=KAFKA_ADMIN_S_MAX
            )
            configs = self._client.raw.describe_configs(resources, request_timeout=KAFKA_ADMIN_S_MAX)
            settings = {resource.name: _settings(done) for resource, done in configs.items()}
            topics = {name: done.result() for name, done in described.items()}
        return {
            name: FoundTopic(
                tuple(
                    FoundPartition(partition.leader is not None, len(partition.replicas), len(partition.isr))
                    for partition in topic.partitions
                ),
                settings[name],
                None
                if topic.authorized_operations is None
                else frozenset(operation.name for operation in topic.authorized_operations),
            )
            for name, topic in topics.items()
        }


def _settings(done: Future[dict[str, ConfigResource]]) -> dict[str, str]:
    return {name: entry.value or "" for name, entry in done.result().items()}  # type: ignore[attr-defined]
