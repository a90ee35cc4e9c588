"""Following a topic of state into the objects: what the control process that leads writes down of other processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from headgate.control.commit import NotLeaderError
from headgate.errors import HeadgateError, UnavailableError
from headgate.store.config import KafkaConfig
from headgate.store.kafka.state_reader import StateTopicReader

if TYPE_CHECKING:
    from confluent_kafka import Message

_WAIT_S: Final = 0.5
"""A stop is noticed so late."""
_RETRY_S: Final = 1.0
"""Between two tries of a process that does not lead, or that Kafka does not answer."""
_log = structlog.get_logger(__name__)


def follow_state(
    config: KafkaConfig,
    topic: str,
    lost: Callable[[str, str], HeadgateError],
    take: Callable[[Message], object],
    write: Callable[[], bool],
    stop: threading.Event,
) -> None:
    """Reads a topic from its start, and writes what it says, until told to stop; blocking, for a thread of its own.

    Every control process may run it: one that does not lead tries again, and writes the newest when it leads.

    Args:
        config: Of the deployment.
        topic: By its name in `TopicsConfig`.
        lost: Makes the error where the topic ends before what was read: of the topic's name in Kafka and a reason.
        take: Takes each record, once.
        write: Writes what is not written yet; False where that must wait.
        stop: Ends it.

    Raises:
        HeadgateError: What `lost` makes; or the library is missing, or an option is none of its own.
    """
    reader = StateTopicReader(config, topic, lost)
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
