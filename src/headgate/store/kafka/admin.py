"""Making and reading the topics of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headgate.errors import InvalidInputError, UnavailableError
from headgate.limits import KAFKA_ADMIN_S_MAX
from headgate.store.config import KafkaConfig
from headgate.store.kafka.library import Faults, admin_client, library, translated
from headgate.store.kafka.topics import FoundPartition, FoundTopic, Misfit, misfits, wanted_topics

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource

_TRY_S: Final = 1.0
"""One try to reach a broker; a wrong password is known after the first."""
_POLL_S: Final = 0.1
"""A topic that was made is known to every broker soon; nothing tells when."""


class Admin:
    """The cluster as `headgate cluster` sees it. Blocking.

    Args:
        config: Of the deployment.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._faults = Faults()
        own = {"socket.connection.setup.timeout.ms": 5_000}
        self._client: AdminClient = admin_client(config, self._faults, own)

    def broker_count(self) -> int:
        """How many brokers the cluster has now.

        Raises:
            KafkaUnreachableError: None answers.
            KafkaDeniedError: It refuses us.
        """
        return len(self._metadata().brokers)

    def create_missing(self) -> list[str]:
        """Makes the topics that are not there; leaves the others as they are.

        Returns:
            The names of those that were made.

        Raises:
            InvalidInputError: The cluster has fewer brokers than a topic has copies.
            KafkaUnreachableError: No broker answers.
            KafkaDeniedError: We may not.
        """
        from confluent_kafka.admin import NewTopic

        brokers = self.broker_count()
        there = self._names()
        missing = [topic for topic in wanted_topics(self._config) if topic.name not in there]
        for topic in missing:
            if topic.replication > brokers:
                raise InvalidInputError(
                    f"{topic.name} cannot have {topic.replication} copies: the cluster has {brokers} brokers",
                    hint=f"add brokers, or set topics.{topic.role}.replication and min_insync",
                )
        new = [
            NewTopic(topic.name, topic.partitions, topic.replication, config=dict(topic.settings)) for topic in missing
        ]
        made = []
        for name, done in self._client.create_topics(new, operation_timeout=KAFKA_ADMIN_S_MAX).items() if new else ():
            if self._made(name, done):
                made.append(name)
        self._wait_known({topic.name for topic in missing})
        return made

    def _made(self, name: str, done: Future[None]) -> bool:
        """Whether it was us: two `init` at once make each topic once."""
        kafka = library()
        try:
            done.result()
        except kafka.KafkaException as error:
            if error.args[0].code() == kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise translated(error.args[0], f"the topic {name} cannot be made", self._config) from error
        return True

    def _wait_known(self, names: set[str]) -> None:
        deadline = time.monotonic() + KAFKA_ADMIN_S_MAX
        while not names <= self._names():
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(names - self._names()))
                raise UnavailableError(f"made, but not known to every broker yet: {missing}", hint="run it again")
            time.sleep(_POLL_S)

    def _names(self) -> set[str]:
        return set(self._metadata().topics)

    def _metadata(self) -> ClusterMetadata:
        """Brokers and topics, as the first broker that answers knows them."""
        kafka = library()
        deadline = time.monotonic() + KAFKA_ADMIN_S_MAX
        while True:
            try:
                return self._client.list_topics(timeout=_TRY_S)
            except kafka.KafkaException as error:
                self._client.poll(0)  # brings what the connections report
                denied = self._faults.denied
                if denied is None and time.monotonic() < deadline:
                    continue
                cause = denied or self._faults.cause(error.args[0])
                raise translated(cause, "the cluster cannot be asked", self._config) from error

    def check(self) -> list[Misfit]:
        """Compares every topic with the configuration; empty when everything fits.

        Raises:
            KafkaUnreachableError: No broker answers.
            KafkaDeniedError: We may not even look.
        """
        wanted = wanted_topics(self._config)
        there = self._names()
        found = self._found([topic.name for topic in wanted if topic.name in there])
        return [misfit for topic in wanted for misfit in misfits(topic, found.get(topic.name))]

    def _found(self, names: Iterable[str]) -> Mapping[str, FoundTopic]:
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import ConfigResource, ResourceType

        names = list(names)
        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        with self._errors("the topics' settings cannot be read"):
            described = self._client.describe_topics(
                TopicCollection(names), include_authorized_operations=True, request_timeout=KAFKA_ADMIN_S_MAX
            )
            configs = self._client.describe_configs(resources, request_timeout=KAFKA_ADMIN_S_MAX)
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

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        kafka = library()
        try:
            yield
        except kafka.KafkaException as error:
            self._client.poll(0)
            raise translated(self._faults.cause(error.args[0]), doing, self._config) from error


def _settings(done: Future[dict[str, ConfigResource]]) -> dict[str, str]:
    return {name: entry.value or "" for name, entry in done.result().items()}  # type: ignore[attr-defined]
