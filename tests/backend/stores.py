"""The stores that the contract is tried on, by their address."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from clusters.kafka import Kafka
from confluent_kafka.admin import NewTopic

from headgate.backend.config import KafkaConfig, RecordsConfig, TopicConfig, TopicsConfig
from headgate.backend.kafka.appender import KafkaAppender
from headgate.backend.kafka.scan import EventPage, KafkaLog, read_pages
from headgate.backend.kafka.topics import Admin, wanted_topics
from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.encode import event_commit
from headgate.ingress.partitions import EventAppender, PartitionedAppender
from headgate.log.directory import LogDirectory, OnCorrupt, Partition
from headgate.log.reader import PartitionReader
from headgate.log.writer import PartitionWriter
from headgate.scan.chunks import ChunkLog
from tests.backend.contract import PARTITIONS, EventReader, OpenStore
from tests.support import eventually

SETTLE_S_MAX = 30.0
"""Kafka writes the end of a transaction into its partitions after it has answered for it."""


class EmbeddedReader:
    """The log's own reader, as the contract asks for it."""

    def __init__(self, partition: Partition, start: int = 0) -> None:
        self._reader = PartitionReader(partition, start)

    @property
    def position(self) -> int:
        return self._reader.position

    def read(self) -> EventPage | None:
        chunk = self._reader.read()
        if chunk is None:
            return None
        times = [chunk.append_time_us] * chunk.record_count
        return EventPage(range(chunk.first_offset, chunk.next_offset), times, chunk.batch, chunk.next_offset)

    def seek(self, offset: int) -> None:
        self._reader.seek(offset)

    def first_offset(self) -> int:
        return self._reader.first_offset()

    def end_offset(self) -> int:
        return self._reader.committed_offset()

    def close(self) -> None:
        self._reader.close()


class EmbeddedStore:
    """A log in a directory."""

    def __init__(self, directory: Path) -> None:
        self._log = LogDirectory(directory, "stop")
        self._writers: list[PartitionWriter] = []
        self._readers: list[EventReader] = []
        self._logs: list[ChunkLog] = []

    @property
    def address(self) -> Sequence[str]:
        return "embedded", str(self._log.directory)

    async def appender(self) -> EventAppender:
        self._close_writers()  # a partition has one
        numbers = range(PARTITIONS)
        self._writers = [PartitionWriter(self._log.partition(number), EVENT_SCHEMA) for number in numbers]
        return PartitionedAppender([event_commit(writer) for writer in self._writers])

    def reader(self, partition: int, start: int = 0) -> EventReader:
        self._readers.append(reader := EmbeddedReader(self._log.partition(partition), start))
        return reader

    def log(self) -> ChunkLog:
        self._logs.append(log := ChunkLog(self._log))
        return log

    def settle(self, offsets: Mapping[int, Sequence[int]]) -> None:
        """What was answered can be read."""

    def close(self) -> None:
        self._close_writers()
        for reader in self._readers:
            reader.close()
        for log in self._logs:
            log.close()

    def _close_writers(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()


def kafka_config(
    bootstrap: str, prefix: str, copies: int = 1, *, events: int = PARTITIONS, outbox: int = PARTITIONS
) -> KafkaConfig:
    """A deployment with as many copies of everything, and partitions of the topics `events` and `outbox`."""
    insync = max(1, copies - 1)
    records = {
        role: RecordsConfig(partitions=count, replication=copies, min_insync=insync)
        for role, count in {"events": events, "outbox": outbox, "refused": PARTITIONS}.items()
    }
    state = TopicConfig(replication=copies, min_insync=insync)
    topics = TopicsConfig(
        **records,
        **dict.fromkeys(("progress", "runs", "objects", "changelog", "reports", "numbers"), state),
    )
    return KafkaConfig(bootstrap=bootstrap, topic_prefix=prefix, topics=topics)


def make_topics(config: KafkaConfig, *roles: str) -> None:
    """Makes the topics of these roles alone: a broker works for every partition as long as it runs."""
    wanted = [topic for topic in wanted_topics(config) if topic.role in roles]
    new = [NewTopic(topic.name, topic.partitions, topic.replication, config=dict(topic.settings)) for topic in wanted]
    admin = Admin(config)
    for made in admin._client.raw.create_topics(new).values():
        made.result()
    admin._wait_known(wanted)


def deployed(kafka: Kafka, *roles: str, like: Callable[[str, str], KafkaConfig] = kafka_config) -> KafkaConfig:
    """A deployment of one's own, with the topics that a test needs."""
    config = like(kafka.bootstrap, f"t{uuid.uuid4().hex[:8]}.")
    make_topics(config, *roles)
    return config


class KafkaReader:
    """A partition of the topic `events` as the contract asks for it, by what scans read of it."""

    def __init__(self, config: KafkaConfig, partition: int, start: int = 0, on_corrupt: OnCorrupt = "stop") -> None:
        self._log = KafkaLog(config, on_corrupt)
        self._partition = partition
        self.position = start

    def read(self) -> EventPage | None:
        end = self.end_offset()
        with closing(read_pages(self._log, {self._partition: self.position}, {self._partition: end})) as pages:
            for _, page in pages:
                assert isinstance(page, EventPage)
                self.position = page.next_offset
                return page
        self.position = max(self.position, end)
        return None

    def seek(self, offset: int) -> None:
        self.position = offset

    def first_offset(self) -> int:
        return self._log.first_offsets()[self._partition]

    def end_offset(self) -> int:
        return self._log.end_offsets()[self._partition]

    def close(self) -> None:
        self._log.close()


class KafkaStore:
    """Topics of a prefix, which are there."""

    def __init__(self, config: KafkaConfig) -> None:
        self.config = config
        self._readers: list[EventReader] = []
        self._logs: list[KafkaLog] = []

    @property
    def address(self) -> Sequence[str]:
        return "kafka", self.config.bootstrap, self.config.topic_prefix

    async def appender(self) -> EventAppender:
        return KafkaAppender(self.config, "test")

    def reader(self, partition: int, start: int = 0) -> EventReader:
        self._readers.append(reader := KafkaReader(self.config, partition, start))
        return reader

    def log(self) -> KafkaLog:
        self._logs.append(log := KafkaLog(self.config, "stop"))
        return log

    def settle(self, offsets: Mapping[int, Sequence[int]]) -> None:
        for partition, numbers in offsets.items():
            reader = KafkaReader(self.config, partition)
            last = max(numbers)
            eventually(lambda at=last, by=reader: by.end_offset() > at, f"offset {last} cannot be read")
            reader.close()

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        for log in self._logs:
            log.close()


def opened(kind: str, *address: str) -> OpenStore:
    """The store of an address."""
    return EmbeddedStore(Path(*address)) if kind == "embedded" else KafkaStore(kafka_config(*address))
