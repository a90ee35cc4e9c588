"""Consumer groups: who takes part, what each has, and the election of one process among several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Set
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import GroupConsumer, KafkaAdmin, library
from headgate_api.errors import UnavailableError
from headgate_api.limits import ELECTION_LEAVE_S_MAX, ELECTION_POLL_S_MAX, ELECTION_SESSION_S, KAFKA_ADMIN_S_MAX

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import MemberDescription


class GroupMembers:
    """Asks Kafka for the members of a group, named without the prefix; each gave itself its name (`client.id`)."""

    def __init__(self, config: KafkaConfig, group: str = "dispatchers") -> None:
        self._group = config.topic(group)
        self._topic = config.topic("outbox")
        self._admin = KafkaAdmin(config, f"the group {self._group} cannot be read")

    def owners(self) -> dict[int, str]:
        """The member of each partition of the outbox; one that moves has none. Blocking."""
        return {
            place.partition: str(member.client_id)
            for member in self._members()
            for place in (member.assignment.topic_partitions if member.assignment else ())
            if place.topic == self._topic
        }

    def names(self) -> list[str]:
        """The names of all members; one that was killed is a member until its session ends. Blocking."""
        return [str(member.client_id) for member in self._members()]

    def _members(self) -> list[MemberDescription]:
        with self._admin.errors():
            asked = self._admin.raw.describe_consumer_groups([self._group], request_timeout=KAFKA_ADMIN_S_MAX)
            members: list[MemberDescription] = asked[self._group].result().members
        return members


# --- shares ---------------------------------------------------------------------------------------
# Processes share the partitions of a topic, of which they read nothing, as a consumer group. Kafka gives a partition to
# another member ELECTION_SESSION_S after its owner has fallen silent (classic protocol); it stays when others join, as
# far as the shares are equal.
#
# A share alone fences nobody: a process that stood still does not know yet that another one has its partitions. What an
# owner writes must therefore be refused by Kafka once there is a newer one (`transactional.id`).

_POLL_S: Final = 0.1
"""A stop is noticed so late."""
_RETRY_S: Final = 1.0
"""Between two looks while Kafka does not answer."""
_log = structlog.get_logger(__name__)


class Loss(StrEnum):
    """Why a process has a partition no more."""

    GIVEN_AWAY = "it goes to another process"
    SILENT = "Kafka has not heard of this process in time; another one may have it"
    ENDS = "this process ends"


class GroupShare:
    """A member of the group; `run` takes part. Blocking, for a thread of its own, in which it calls back.

    Args:
        topic: By its name in `TopicsConfig`.
        group: The consumer group, without the prefix of topics.
        on_assigned: Called with partitions that are this process's from now on, of which there may be none. It must
            return within ELECTION_POLL_S_MAX, and may not raise.
        on_lost: Called once for each of them when it is gone, or goes in an orderly way: then the next process has it
            once this returns. It must return soon, and may not raise.
        name: By which the group knows this process (`client.id`); empty for the library's own.
    """

    def __init__(
        self,
        config: KafkaConfig,
        *,
        topic: str,
        group: str,
        on_assigned: Callable[[Sequence[int]], object],
        on_lost: Callable[[Sequence[int], Loss], object],
        name: str = "",
    ) -> None:
        self._topic = config.topic(topic)
        self._group = config.topic(group)
        self._on_assigned, self._on_lost = on_assigned, on_lost
        self._partitions: set[int] = set()
        own = {
            "group.protocol": "classic",  # of the newer one the broker decides the session's length
            "max.poll.interval.ms": round(ELECTION_POLL_S_MAX * 1_000),
        }
        doing, heartbeats = f"the group {self._group} does not answer", 12  # by an answer others hear of an election
        self._consumer = GroupConsumer(
            config, doing, self._group, ELECTION_SESSION_S, own, heartbeats=heartbeats, name=name
        )

    def run(self, stop: threading.Event) -> None:
        """Takes part until told to stop; then another process may have the partitions at once. May be called once.

        Kafka that does not answer is asked again. Raises what it refuses for good.
        """
        try:
            self._consumer.raw.subscribe(
                [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._session_lost
            )
            while not stop.is_set():
                try:
                    message = self._consumer.next(_POLL_S)
                    if message is not None:  # what a slow callback has cost is told next, by `_session_lost`
                        self._consumer.came(message)
                except UnavailableError as error:
                    _log.warning("the group is waited for", group=self._group, error=error.message, hint=error.hint)
                    stop.wait(_RETRY_S)
        finally:
            self._leave()
            self._lose(self._partitions, Loss.ENDS)

    def _leave(self) -> None:
        """Leaves the group; Kafka does not let a member go while it waits for one that has died."""
        leaving = threading.Thread(target=self._consumer.close, name="leaving", daemon=True)  # tells `_revoked`
        leaving.start()
        leaving.join(ELECTION_LEAVE_S_MAX)

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        kafka = library()
        mine = [kafka.TopicPartition(place.topic, place.partition, kafka.OFFSET_END) for place in places]
        with self._consumer.calling_back():
            with self._consumer.errors("partitions cannot be taken"):
                consumer.incremental_assign(mine)
                consumer.pause(mine)  # nothing is read
            new = sorted(place.partition for place in places)
            self._partitions.update(new)
            self._on_assigned(new)

    def _revoked(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self._lose({place.partition for place in places}, Loss.GIVEN_AWAY)

    def _session_lost(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self._lose({place.partition for place in places}, Loss.SILENT)

    def _lose(self, partitions: Set[int], loss: Loss) -> None:
        if gone := sorted(self._partitions & partitions):
            self._partitions.difference_update(gone)
            with self._consumer.calling_back():
                self._on_lost(gone, loss)


# --- election -------------------------------------------------------------------------------------


class Election(GroupShare):
    """A candidate: who leads has the one partition of a topic. See `GroupShare`.

    Args:
        topic: A topic with one partition: `runs`, `objects`.
        group: One for each role that one process is to have.
        on_gained: Called when this process has the lead.
        on_lost: Called once for every `on_gained`, when the lead is gone, or goes.
    """

    def __init__(
        self,
        config: KafkaConfig,
        *,
        topic: str,
        group: str,
        on_gained: Callable[[], object],
        on_lost: Callable[[Loss], object],
        name: str = "",
    ) -> None:
        self._on_gained, self._on_ended = on_gained, on_lost
        self._leading = threading.Event()
        self._decided = threading.Event()
        super().__init__(config, topic=topic, group=group, on_assigned=self._gain, on_lost=self._end_lead, name=name)

    @property
    def leads(self) -> bool:
        """Whether this process has the lead, as far as it knows; any thread may ask."""
        return self._leading.is_set()

    @property
    def is_decided(self) -> bool:
        """Whether Kafka has said once who leads, this process or another one; any thread may ask."""
        return self._decided.is_set()

    def _gain(self, partitions: Sequence[int]) -> None:
        if partitions:
            self._leading.set()
            _log.info("leads", group=self._group)
            self._on_gained()
        self._decided.set()  # it is told of no place, too

    def _end_lead(self, _partitions: Sequence[int], loss: Loss) -> None:
        self._leading.clear()
        _log.warning("leads no more", group=self._group, reason=loss.value)
        self._on_ended(loss)
