"""The generation in force, from the topic `runs` to the objects: what the control process that leads writes down."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from headgate.control.commit import NotLeaderError
from headgate.errors import UnavailableError
from headgate.store.config import KafkaConfig
from headgate.store.kafka.records import RecordError
from headgate.store.kafka.run_records import GenerationInForce, decode_run_record
from headgate.store.kafka.run_registry import runs_lost
from headgate.store.kafka.state_reader import StateTopicReader

_WAIT_S: Final = 0.5
"""A stop is noticed so late."""
_RETRY_S: Final = 1.0
"""Between two tries of a process that does not lead, or that Kafka does not answer."""
_log = structlog.get_logger(__name__)


def follow_generations(config: KafkaConfig, write: Callable[[int], None], stop: threading.Event) -> None:
    """Writes each generation that comes into force, until told to stop; blocking, for a thread of its own.

    Every control process may run it: one that does not lead tries again, and writes the newest when it leads.

    Args:
        config: Of the deployment.
        write: `Store.set_active_generation`.
        stop: Ends it.

    Raises:
        RunsLostError: The topic has lost its end while it was read.
        InvalidInputError: The library is missing, or an option is none of its own.
    """
    reader = StateTopicReader(config, "runs", runs_lost)
    try:
        at, newest, written = 0, None, None
        while not stop.is_set():
            try:
                if reader.comes(at, _WAIT_S if newest == written else 0.0):
                    end = reader.end()
                    for record in reader.records(at, end):
                        with suppress(RecordError):  # the matcher tells of it
                            told = decode_run_record(record.key(), record.value())
                            newest = told.generation if isinstance(told, GenerationInForce) else newest
                    at = max(at, end)
                if newest is not None and newest != written:
                    write(newest)
                    written = newest
            except NotLeaderError:
                stop.wait(_RETRY_S)
            except UnavailableError as error:
                _log.warning("the generation in force is not written now", error=error.message, hint=error.hint)
                stop.wait(_RETRY_S)
            except ValueError as error:
                # The matcher's cache is ahead of this one, which follows the topic `objects` as well.
                _log.debug("the generation in force is not known here yet", reason=str(error))
                stop.wait(_WAIT_S)
    finally:
        reader.close()
