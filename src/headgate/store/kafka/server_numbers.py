"""The topic `numbers`: every server of a deployment tells its own numbers, and every control process hears them.

Nobody reads what is old: who begins to listen hears each server within HISTORY_POINT_S. docs/spec/numbers-topic.md has
the format.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from headgate.errors import HeadgateError
from headgate.limits import HISTORY_POINT_S
from headgate.store.config import KafkaConfig
from headgate.store.kafka.client import ACKNOWLEDGED, Came, Faults, came, committed_reader, library, made_client, polled

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

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
    """Tells the numbers of one server. For one thread at a time; only `close` blocks.

    Args:
        config: Of the deployment.
        server: URL of the server, by which the others know it.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(self, config: KafkaConfig, server: str) -> None:
        self._topic = config.topic(NUMBERS)
        self._key = server.encode()
        own = {
            **ACKNOWLEDGED,  # and in order: nothing comes behind the word that the server stops
            "linger.ms": 0,
            "message.timeout.ms": round(HISTORY_POINT_S * 1_000),
            "queue.buffering.max.messages": _WAITING_MAX,
        }
        self._producer: Producer = made_client(library().Producer, config, Faults(), own)

    def put(self, value: bytes) -> None:
        """Tells the numbers as they are now; what Kafka does not take is left out."""
        self._send(value)

    def close(self) -> None:
        """Tells that the server stops."""
        self._send(None)
        self._producer.flush(_LEAVE_S)
        self._producer.purge()

    def _send(self, value: bytes | None) -> None:
        try:
            self._producer.produce(self._topic, value, self._key, 0)
        except BufferError:
            _log.debug("the numbers of this server are left out: Kafka takes nothing now")
        self._producer.poll(0)


def hear_numbers(
    config: KafkaConfig, take: Callable[[str, bytes | None, float], object], stop: threading.Event
) -> None:
    """Hears what servers tell from now on, until told to stop; blocking, for a thread of its own.

    Args:
        config: Of the deployment.
        take: Takes the URL of a server, its numbers, None when it has stopped, and when they were told, seconds since
            1970.
        stop: Ends it.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """
    faults = Faults()
    consumer: Consumer = committed_reader(config, faults)
    kafka = library()
    place = kafka.TopicPartition(config.topic(NUMBERS), 0, kafka.OFFSET_END)
    try:
        consumer.assign([place])
        while not stop.is_set():
            try:
                for message in polled(consumer, _WAIT_S):
                    match came(message, config, faults, f"{place.topic} cannot be read"):
                        case Came.RECORD:
                            key, told_ms = message.key() or b"", message.timestamp()[1]
                            take(key.decode(errors="replace"), message.value(), told_ms / 1_000)
                        case Came.REMOVED:
                            consumer.assign([place])
            except HeadgateError as error:
                _log.warning("the numbers of other servers are not known now", error=error.message, hint=error.hint)
                stop.wait(_RETRY_S)
    finally:
        consumer.close()
