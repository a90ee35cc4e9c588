"""The sections of `headgate.yaml` that describe a deployment on Kafka.

It never holds a secret: an option whose name ends in `_file` names the file that does. What a file holds is read when a
client is made, and is neither kept in these models nor shown in an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from headgate_api.errors import InvalidInputError
from headgate_api.limits import (
    CLUSTER_OPTIONS_MAX,
    OUTBOX_SOURCES_MAX,
    QUOTA_FRONTS_MAX,
    SECRET_FILE_BYTES_MAX,
    SOURCE_TOPICS_MAX,
    SOURCES_MAX,
    TOPIC_PARTITIONS_MAX,
    TOPIC_REPLICATION_MAX,
)

_FILE_SUFFIX: Final = "_file"
_SECRET: Final = re.compile(r"(password|secret|credentials?|token|\.pem)$", re.IGNORECASE)
_PUBLIC: Final = frozenset({"ssl.ca.pem", "ssl.certificate.pem"})
"""Names that look like a secret's and are none."""
_HOST_AND_PORT: Final = re.compile(r"(?:[^\s,:\[\]]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}")
_CLIENT: Final = "Headgate sets it itself"
_TOPIC: Final = "a setting of the topic beside `options` decides it"
CLIENT_OPTIONS: Final = frozenset(
    (
        *("bootstrap.servers", "metadata.broker.list", "acks", "request.required.acks", "enable.idempotence"),
        *("transactional.id", "transaction.timeout.ms", "isolation.level", "group.id", "group.instance.id"),
        *("enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "auto.offset.reset"),
        *("enable.partition.eof", "allow.auto.create.topics", "message.timeout.ms", "delivery.timeout.ms"),
    )
)
"""Options of librdkafka on which guarantees rest."""
TOPIC_OPTIONS: Final = frozenset(
    (
        *("cleanup.policy", "min.insync.replicas", "retention.ms", "retention.bytes", "message.timestamp.type"),
        *("unclean.leader.election.enable", "max.message.bytes"),
        *("delete.retention.ms", "min.compaction.lag.ms", "max.compaction.lag.ms"),
    )
)
"""Options of a topic on which guarantees rest."""
SPARK_OPTIONS: Final = frozenset(
    (
        *("spark.master", "spark.jars", "spark.sql.catalog.headgate", "spark.sql.session.timeZone"),
        *("spark.sql.caseSensitive", "spark.sql.ansi.enabled", "spark.sql.adaptive.enabled"),
    )
)
"""Options of Spark by which the match gives the same verdicts everywhere."""

Option = str | bool | int | float
"""A value as Kafka's and Spark's configuration has it."""


def _bootstrap(text: str) -> str:
    addresses = [one.strip() for one in text.split(",")]
    for address in addresses:
        if not _HOST_AND_PORT.fullmatch(address):
            raise ValueError(f"{address!r} is not HOST:PORT; several are separated by commas")
    return ",".join(addresses)


def _no_secrets(options: Mapping[str, Option]) -> Mapping[str, Option]:
    for name in options:
        if _SECRET.search(name) and name not in _PUBLIC:
            raise ValueError(f"{name} must not be in this file: give {name}{_FILE_SUFFIX}, the path of a file with it")
    return options


def _without(names: frozenset[str], reason: str) -> AfterValidator:
    def check(options: Mapping[str, Option]) -> Mapping[str, Option]:
        for name in options:
            if name.removesuffix(_FILE_SUFFIX) in names:
                raise ValueError(f"{name} must not be given: {reason}")
        return options

    return AfterValidator(check)


_Options = Annotated[dict[str, Option], Field(max_length=CLUSTER_OPTIONS_MAX), AfterValidator(_no_secrets)]


class _Model(BaseModel):
    """Refuses unknown names, and shows no value in an error: it may be a secret in the wrong place."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class TopicConfig(_Model):
    """One topic.

    Attributes:
        replication: Copies of each partition, on as many brokers.
        min_insync: Copies that must have a record before it is acknowledged.
        options: Further settings of the topic, by Kafka's names, for when it is made.
    """

    replication: int = Field(default=3, ge=1, le=TOPIC_REPLICATION_MAX)
    min_insync: int = Field(default=2, ge=1, le=TOPIC_REPLICATION_MAX)
    options: Annotated[_Options, _without(TOPIC_OPTIONS, _TOPIC)] = Field(default_factory=dict)

    def model_post_init(self, _context: object) -> None:
        """Refuses a topic that would take nothing."""
        if self.min_insync > self.replication:
            raise ValueError(f"min_insync {self.min_insync} is more than the {self.replication} copies (replication)")


class RecordsConfig(TopicConfig):
    """A topic whose records go when they are old.

    Attributes:
        partitions: Into how many parts it is divided; later it may not change: keys would change their partition.
        retention_hours: How long records stay.
        retention_mb: Size of a partition over which the oldest go earlier; none: size does not matter.
    """

    partitions: int = Field(default=12, ge=1, le=TOPIC_PARTITIONS_MAX)
    retention_hours: float = Field(default=168.0, gt=0)
    retention_mb: int | None = Field(default=None, ge=1)


class TopicsConfig(_Model):
    """Every topic of a deployment.

    Attributes:
        events: Accepted events, in the CloudEvents Kafka binding; at most 256 partitions.
        outbox: Matches that are to be delivered, hashed by target.
        refused: Records of foreign topics that are no valid event, with the reason.
        progress: Up to where every match of a partition is in the outbox; compacted.
        runs: The matcher's runs: generation and start; compacted.
        objects: Brokers, triggers and subscriptions; compacted.
        changelog: What dispatchers keep of targets: cursors, dead letters, replays; compacted, partitions as `outbox`.
        reports: What dispatchers found of targets, for the status of triggers; compacted.
        numbers: What each server counts, for the summary; short-lived.
    """

    events: RecordsConfig = RecordsConfig()
    outbox: RecordsConfig = RecordsConfig()
    refused: RecordsConfig = RecordsConfig(partitions=1)
    progress: TopicConfig = TopicConfig()
    runs: TopicConfig = TopicConfig()
    objects: TopicConfig = TopicConfig()
    changelog: TopicConfig = TopicConfig()
    reports: TopicConfig = TopicConfig()
    numbers: TopicConfig = TopicConfig()

    def model_post_init(self, _context: object) -> None:
        """Refuses more source partitions than a dispatcher's state holds."""
        if self.events.partitions > OUTBOX_SOURCES_MAX:
            raise ValueError(
                f"events.partitions {self.events.partitions} is more than {OUTBOX_SOURCES_MAX},"
                " of which a dispatcher keeps the state"
            )


class KafkaConfig(_Model):
    """How Kafka is reached, and what is in it.

    Attributes:
        bootstrap: HOST:PORT of some brokers, separated by commas.
        topic_prefix: Stands before each topic's name: `headgate.events`. Two deployments may share a Kafka.
        options: Options of librdkafka, for every client: TLS, SASL. A secret is given as `NAME_file`.
        topics: The topics.
    """

    bootstrap: Annotated[str, AfterValidator(_bootstrap)]
    topic_prefix: str = Field(default="headgate.", pattern=r"^[a-zA-Z0-9._-]{0,100}$")
    options: Annotated[_Options, _without(CLIENT_OPTIONS, _CLIENT)] = Field(default_factory=dict)
    topics: TopicsConfig = TopicsConfig()

    def topic(self, role: str) -> str:
        """The name of a topic in Kafka, by its name in `TopicsConfig`."""
        return self.topic_prefix + role


class SparkConfig(_Model):
    """Which Spark runs the match.

    Two runs stand beside each other while filters change, each with a task for every partition of `events`: Spark needs
    twice as many cores as there are partitions, for each matcher process.

    Attributes:
        master: `local[N]`, `spark://HOST:PORT` or `k8s://...`; none: in the matcher's process, with the threads that it
            needs. `k8s://` is passed on as it is, and not tested.
        options: Options of Spark, such as `spark.driver.host` for a cluster. A secret is given as `NAME_file`.
    """

    master: str | None = Field(default=None, min_length=1)
    options: Annotated[_Options, _without(SPARK_OPTIONS, "the match rests on it")] = Field(default_factory=dict)


class QuotasConfig(_Model):
    """How the servers of a deployment share the publish quotas of namespaces.

    Attributes:
        fronts: Fronts and processes of sources of all servers together, each of which has an equal part of a quota.
            Without a value: those of this server, so that each server lets through as much as the quota says.
    """

    fronts: int | None = Field(default=None, ge=1, le=QUOTA_FRONTS_MAX)


_OWN_GROUPS: Final = ("reader", "dispatchers", "control", "matcher")


class SourceConfig(_Model):
    """Topics into which any producer writes CloudEvents: they become a broker's events, each once.

    The server's own rights in Kafka read them, so the file names them and no object of the API can.

    Attributes:
        name: Of the source: its place in metrics and logs, and what Kafka knows it by. It may not change.
        topics: Where producers write, in the deployment's own Kafka.
        broker: The broker that gets the events, `NAMESPACE/NAME`.
        group: The consumer group that remembers how far the topics were read; none: `headgate.source-NAME`.
        initial: Where a topic is begun that the group has never read: at what it holds (`earliest`), or behind it.
    """

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    topics: tuple[Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")], ...] = Field(
        min_length=1, max_length=SOURCE_TOPICS_MAX
    )
    broker: str = Field(pattern=r"^[^/\s]{1,63}/[^/\s]{1,253}$")
    group: str | None = Field(default=None, min_length=1, max_length=249)
    initial: Literal["earliest", "latest"] = "latest"

    def group_in(self, kafka: KafkaConfig) -> str:
        """The consumer group's name in Kafka."""
        return self.group or kafka.topic(f"source-{self.name}")


class ClusterConfig(_Model):
    """A whole deployment.

    Attributes:
        kafka: Where events and state are.
        spark: Where filters are matched.
        quotas: How quotas are shared.
        sources: Topics of other producers; read by servers with the role `source`.
    """

    kafka: KafkaConfig
    spark: SparkConfig = SparkConfig()
    quotas: QuotasConfig = QuotasConfig()
    sources: Annotated[tuple[SourceConfig, ...], Field(max_length=SOURCES_MAX)] = ()

    def model_post_init(self, _context: object) -> None:
        """Refuses sources that take each other's name or group, and those of our own topics: events would circle."""
        topics = {self.kafka.topic(role) for role in type(self.kafka.topics).model_fields}
        names, groups = set[str](), {self.kafka.topic(name) for name in _OWN_GROUPS}
        for source in self.sources:
            group = source.group_in(self.kafka)
            if source.name in names:
                raise ValueError(f"there are two sources {source.name}")
            if group in groups:
                raise ValueError(f"source {source.name}: the consumer group {group} is taken")
            if own := topics.intersection(source.topics):
                raise ValueError(f"source {source.name}: {min(own)} is the deployment's own topic")
            names.add(source.name)
            groups.add(group)


def resolved(options: Mapping[str, Option]) -> dict[str, str]:
    """Options as a client takes them: values as text, `NAME_file` replaced by NAME and what the file holds.

    The result may hold secrets: it goes to a client and nowhere else. InvalidInputError for a file that cannot be used.
    """
    given: dict[str, str] = {}
    for name, value in options.items():
        if name.endswith(_FILE_SUFFIX):
            given[name.removesuffix(_FILE_SUFFIX)] = _secret(name, Path(str(value)))
        else:
            given[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return given


def _secret(name: str, path: Path) -> str:
    try:
        text = read_bounded(path, SECRET_FILE_BYTES_MAX, name).decode()
    except UnicodeDecodeError:
        raise InvalidInputError(f"{name}: {path} is no text in UTF-8") from None  # the cause would show bytes of it
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise InvalidInputError(f"{name}: {path} is empty")
    return text


def read_bounded(path: Path, bytes_max: int, what: str) -> bytes:
    """The content of a small file, else InvalidInputError, which calls it `what`."""
    try:
        with path.open("rb") as file:
            body = file.read(bytes_max + 1)
    except OSError as error:
        raise InvalidInputError(f"{what} cannot be read: {path}: {error.strerror}") from error
    if len(body) > bytes_max:
        raise InvalidInputError(f"{what} must not be larger than {bytes_max} bytes: {path}")
    return body
