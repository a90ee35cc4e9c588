"""Who takes part in a consumer group now, and who has which partition, as Kafka says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.limits import KAFKA_ADMIN_S_MAX
from headgate.store.config import KafkaConfig
from headgate.store.kafka.library import Faults, admin_client, library, translated

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, MemberDescription


class GroupMembers:
    """Asks Kafka for the members of a group, each by the name that it gave itself (`client.id`).

    Args:
        config: Of the deployment.
        group: The group, without the prefix.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(self, config: KafkaConfig, group: str = "dispatchers") -> None:
        self._config = config
        self._group = config.topic(group)
        self._topic = config.topic("outbox")
        self._faults = Faults()
        self._admin: AdminClient = admin_client(config, self._faults)

    def owners(self) -> dict[int, str]:
        """The member of each partition of the outbox; one that moves has none. Blocking, raises as `names`."""
        return {
            place.partition: str(member.client_id)
            for member in self._members()
            for place in (member.assignment.topic_partitions if member.assignment else ())
            if place.topic == self._topic
        }

    def names(self) -> list[str]:
        """The names of all members; one that was killed is a member until its session ends. Blocking.

        Raises:
            UnavailableError: Kafka does not answer.
            KafkaDeniedError: We may not.
        """
        return [str(member.client_id) for member in self._members()]

    def _members(self) -> list[MemberDescription]:
        kafka = library()
        try:
            asked = self._admin.describe_consumer_groups([self._group], request_timeout=KAFKA_ADMIN_S_MAX)
            members: list[MemberDescription] = asked[self._group].result().members
        except kafka.KafkaException as error:
            self._admin.poll(0)
            cause = self._faults.cause(error.args[0])
            raise translated(cause, f"the group {self._group} cannot be read", self._config) from error
        return members
