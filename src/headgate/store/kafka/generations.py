"""The generation in force, from the topic `runs` to the objects: what the control process that leads writes down."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from headgate.store.config import KafkaConfig
from headgate.store.kafka.records import RecordError
from headgate.store.kafka.run_records import GenerationInForce, decode_run_record
from headgate.store.kafka.run_registry import RunsLostError
from headgate.store.kafka.state_follower import follow_state

if TYPE_CHECKING:
    from confluent_kafka import Message

_log = structlog.get_logger(__name__)


def follow_generations(config: KafkaConfig, write: Callable[[int], None], stop: threading.Event) -> None:
    """Writes each generation that comes into force, until told to stop; see `follow_state`.

    Args:
        config: Of the deployment.
        write: `Store.set_active_generation`.
        stop: Ends it.

    Raises:
        RunsLostError: The topic has lost its end while it was read.
        InvalidInputError: The library is missing, or an option is none of its own.
    """
    newest: int | None = None
    written: int | None = None

    def take(record: Message) -> None:
        nonlocal newest
        with suppress(RecordError):  # the matcher tells of it
            told = decode_run_record(record.key(), record.value())
            newest = told.generation if isinstance(told, GenerationInForce) else newest

    def write_newest() -> bool:
        nonlocal written
        if newest is not None and newest != written:
            try:
                write(newest)
            except ValueError as error:
                # The matcher's cache is ahead of this one, which follows the topic `objects` as well.
                _log.debug("the generation in force is not known here yet", reason=str(error))
                return False
            written = newest
        return True

    follow_state(config, "runs", RunsLostError, take, write_newest, stop)
