"""Topics of state, which are compacted: read to their end, and followed into the objects."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import MADE_ANEW, Came, KafkaAdmin, TopicConsumer, offset_of
from headgate.objects.store.database import NotLeaderError
from headgate_api.errors import FatalError, UnavailableError

if TYPE_CHECKING:
    from confluent_kafka import Message


# --- state reader ---------------------------------------------------------------------------------

_POLL_S: Final = 0.5


class TopicLostError(FatalError):
    """A topic of state, by its name in `TopicsConfig`, is not the one that was read, or has lost its end meanwhile."""

    def __init__(self, config: KafkaConfig, topic: str, reason: str) -> None:
        remedy = " Move control.db away to begin with what the topic has now" if topic == "objects" else ""
        what = f"{config.topic(topic)} is not what this process has read: {reason}"
        super().__init__(what, hint=f"{MADE_ANEW}{remedy}")
        self.code = f"{topic}-lost"


class StateTopicReader:
    """Reads the committed records of one partition of a topic, by its name in `TopicsConfig`; blocking, for one thread.

    An end is always the end of a transaction: Kafka shows no reader of committed records the place behind an open one.
    """

    def __init__(self, config: KafkaConfig, topic: str, partition: int = 0) -> None:
        self._config = config
        self._role = topic
        self._partition = partition
        self._topic = config.topic(topic)
        self._doing = f"{topic} cannot be read"
        self._held: deque[Message] = deque()
        self._from = 0  # records below it were handed out or passed over
        self._next = -1  # records below it are held, if there are any; negative before the first question
        self._consumer = TopicConsumer.committed(config, self._doing)

    def topic_id(self) -> str:
        """Kafka's id of the topic; UnavailableError when it has no such topic."""
        return KafkaAdmin(self._config, self._doing).topic_id(self._topic)

    def end(self) -> int:
        """The end of the last transaction that has ended."""
        return self._consumer.bounds(self._topic, self._partition)[1]

    def very_end(self) -> int:
        """The end, also of transactions that Kafka has not ended yet: it answers to a commit before it has."""
        return TopicConsumer.very_end(self._config, self._doing, self._topic, self._partition)

    def comes(self, start: int, timeout_s: float) -> bool:
        """Whether there is a record at `start` or behind it, now or within the time."""
        self._go(start)
        deadline = time.monotonic() + timeout_s
        while not self._held and (left_s := deadline - time.monotonic()) > 0:
            self._take(self._consumer.polled(left_s))
            self._drop(start)
        return bool(self._held)

    def has_record(self, start: int, end: int) -> bool:
        """Whether there is a record from one offset up to an end that `end()` said; raises TopicLostError."""
        self._go(start)
        if not self._held and self._next < end:
            for came in self._consumer.answers(self._topic, _POLL_S):
                self._take(came)
                self._drop(start)
                if self._held or self._next >= end:
                    break
        return bool(self._held) and offset_of(self._held[0]) < end

    def records(self, start: int, end: int) -> Iterator[Message]:
        """Those records, in order; see `has_record`."""
        while self.has_record(start, end):
            message = self._held.popleft()
            self._from = start = offset_of(message) + 1
            yield message

    def _go(self, start: int) -> None:
        """Reading goes on at `start`, by passing over records; only a way back asks Kafka anew."""
        if start < self._from or self._next < 0:
            self._held.clear()
            self._from = self._next = start
            self._consumer.go(self._topic, self._partition, start)
        self._drop(start)

    def _drop(self, start: int) -> None:
        while self._held and offset_of(self._held[0]) < start:
            self._from = offset_of(self._held.popleft()) + 1

    def _take(self, came: list[tuple[Came, Message]]) -> None:
        """Keeps records that have come. Moves `_next` over what the partition's end tells."""
        for what, message in came:
            if what is Came.REMOVED:
                reason = f"it ends before offset {self._next}, up to which it was read"
                raise TopicLostError(self._config, self._role, reason)
            if what is Came.RECORD:
                self._held.append(message)
            self._next = max(self._next, offset_of(message) + (what is Came.RECORD))

    def close(self) -> None:
        """Gives everything back; idempotent."""
        self._consumer.close()


# --- state follower -------------------------------------------------------------------------------

_WAIT_S: Final = 0.5
"""A stop is noticed so late."""
_RETRY_S: Final = 1.0
"""Between two tries of a process that does not lead, or that Kafka does not answer."""
_log = structlog.get_logger(__name__)


def follow_state(
    config: KafkaConfig,
    topic: str,
    take: Callable[[Message], object],
    write: Callable[[], bool],
    stop: threading.Event,
) -> None:
    """Reads a topic from its start, and writes what it says, until told to stop; blocking, for a thread of its own.

    Every control process may run it: one that does not lead tries again, and writes the newest when it leads. `take`
    takes each record, once. `write` writes what is not written yet; False where that must wait. Raises TopicLostError,
    and what no further try helps.
    """
    reader = StateTopicReader(config, topic)
    try:
        at, is_written = 0, True
        while not stop.is_set():
            try:
                if reader.comes(at, _WAIT_S if is_written else 0.0):
                    end = reader.end()
                    for record in reader.records(at, end):
                        take(record)
                        at = (record.offset() or 0) + 1
                    at, is_written = max(at, end), False
                if not is_written:
                    is_written = write()
                    if not is_written:
                        stop.wait(_WAIT_S)
            except NotLeaderError:
                stop.wait(_RETRY_S)
            except UnavailableError as error:
                what = f"what the topic {topic} says is not written now"
                _log.warning(what, error=error.message, hint=error.hint)
                stop.wait(_RETRY_S)
    finally:
        reader.close()
