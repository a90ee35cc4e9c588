"""Reading the topic `objects`."""

from __future__ import annotations

from headgate.errors import FatalError
from headgate.store.config import KafkaConfig
from headgate.store.kafka.state_reader import StateTopicReader


class ObjectsLostError(FatalError):
    """The topic `objects` is not the one that a cache was read from, or has lost its end."""

    code = "objects-lost"


class ObjectTopicReader(StateTopicReader):
    """The reader of a cache; what is lost raises ObjectsLostError."""

    def __init__(self, config: KafkaConfig) -> None:
        super().__init__(config, "objects", lost)


def lost(topic: str, reason: str) -> ObjectsLostError:
    """The error with what to do."""
    return ObjectsLostError(
        f"{topic} is not what this process has read: {reason}",
        hint="was the topic deleted and created again? Move control.db away to begin with what the topic has now",
    )
