"""The topic `numbers`: servers tell their own numbers (docs/spec/numbers-topic.md), control processes hear them.

Nobody reads what is old: who begins to listen hears each server within HISTORY_POINT_S.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import Came, Delivered, TopicConsumer, TopicProducer, library
from headgate.backend.kafka.records import KafkaRecord
from headgate_api.errors import HeadgateError
from headgate_api.limits import HISTORY_POINT_S

NUMBERS: Final = "numbers"
"""The topic, by its name in `TopicsConfig`."""
_WAIT_S: Final = 0.5
"""A stop is noticed so late."""
_RETRY_S: Final = 1.0
_LEAVE_S: Final = 2.0
"""How long a server that stops waits until Kafka knows it."""
_WAITING_MAX: Final = 10
"""Records that wait for Kafka: the next ones say the same, and newer."""
_log = structlog.get_logger(__name__)


class NumbersWriter:
    """Tells the numbers of one server, by its URL, to the others. For one thread at a time; only `close` blocks."""

    def __init__(self, config: KafkaConfig, server: str) -> None:
        self._config = config
        self._key = server.encode()
        self._producer = self._made()

    def put(self, value: bytes | None) -> None:
        """Tells the numbers as they are now, None that the server stops; what Kafka has no time for is left out.

        After a HeadgateError the next numbers have another producer.
        """
        producer = self._producer
        try:
            with producer.errors():
                producer.offer(self._config.topic(NUMBERS), 0, KafkaRecord(self._key, value), Delivered())
        except BufferError:
            _log.debug("the numbers of this server are left out: Kafka takes nothing now")
        except HeadgateError:
            self._producer = self._made()
            raise
        producer.raw.poll(0)

    def close(self) -> None:
        """Tells that the server stops."""
        with contextlib.suppress(HeadgateError):
            self.put(None)
        self._producer.raw.flush(_LEAVE_S)
        self._producer.raw.purge()

    def _made(self) -> TopicProducer:
        own = {"message.timeout.ms": round(HISTORY_POINT_S * 1_000), "queue.buffering.max.messages": _WAITING_MAX}
        return TopicProducer(self._config, "the numbers of this server cannot be told", own)


def hear_numbers(
    config: KafkaConfig, take: Callable[[str, bytes | None, float], object], stop: threading.Event
) -> None:
    """Hears what servers tell from now on, until told to stop; blocking, for a thread of its own.

    `take` gets the URL of a server, its numbers, None when it has stopped, and when they were told, seconds since 1970.
    """
    consumer = TopicConsumer.committed(config, "the numbers of other servers are not known now")
    topic, end = config.topic(NUMBERS), library().OFFSET_END
    try:
        consumer.go(topic, 0, end)
        while not stop.is_set():
            try:
                for what, message in consumer.polled(_WAIT_S):
                    if what is Came.RECORD:
                        key, told_ms = message.key() or b"", message.timestamp()[1]
                        take(key.decode(errors="replace"), message.value(), told_ms / 1_000)
                    elif what is Came.REMOVED:
                        consumer.go(topic, 0, end)
            except HeadgateError as error:
                _log.warning("other servers are not heard", error=error.message, hint=error.hint)
                stop.wait(_RETRY_S)
    finally:
        consumer.close()
