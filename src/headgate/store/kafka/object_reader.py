"""Reading the topic `objects`."""

from __future__ import annotations

from headgate.store.config import KafkaConfig
from headgate.store.kafka.lost_topics import TopicLostError
from headgate.store.kafka.state_reader import StateTopicReader


class ObjectsLostError(TopicLostError):
    """The topic `objects` is not the one that a cache was read from, or has lost its end."""

    code = "objects-lost"
    remedy = "Move control.db away to begin with what the topic has now"


class ObjectTopicReader(StateTopicReader):
    """The reader of a cache; what is lost raises ObjectsLostError."""

    def __init__(self, config: KafkaConfig) -> None:
        super().__init__(config, "objects", ObjectsLostError)
