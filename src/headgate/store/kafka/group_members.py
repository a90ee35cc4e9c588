"""Who has which partition of the outbox now, as Kafka's group of the dispatchers says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.limits import KAFKA_ADMIN_S_MAX
from headgate.store.config import KafkaConfig
from headgate.store.kafka.library import Faults, admin_client, library, translated

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class GroupMembers:
    """Asks Kafka for the members of the dispatchers' group, each by the name that it gave itself.

    Args:
        config: Of the deployment.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._group = config.topic("dispatchers")
        self._topic = config.topic("outbox")
        self._faults = Faults()
        self._admin: AdminClient = admin_client(config, self._faults)

    def owners(self) -> dict[int, str]:
        """The client id of each partition's member; a partition that moves has none. Blocking.

        Raises:
            UnavailableError: Kafka does not answer.
            KafkaDeniedError: We may not.
        """
        kafka = library()
        try:
            asked = self._admin.describe_consumer_groups([self._group], request_timeout=KAFKA_ADMIN_S_MAX)
            members = asked[self._group].result().members
        except kafka.KafkaException as error:
            self._admin.poll(0)
            cause = self._faults.cause(error.args[0])
            raise translated(cause, "the group of the dispatchers cannot be read", self._config) from error
        return {
            place.partition: str(member.client_id)
            for member in members
            for place in (member.assignment.topic_partitions if member.assignment else ())
            if place.topic == self._topic
        }
