"""A program that admits records of a topic until it is killed, and prints how many after each transaction.

python -m tests.backend.source_member BOOTSTRAP PREFIX TOPIC INSTANCE
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Literal

import structlog

from headgate.backend.config import SourceConfig
from headgate.backend.kafka import source
from headgate.backend.kafka.source import SourceReader
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from tests.backend.contract import BROKER
from tests.backend.stores import kafka_config


def say(admitted: int, refused: int) -> None:
    sys.stdout.write(f"{admitted} {refused}\n")
    sys.stdout.flush()


def topics(topic: str, initial: Literal["earliest", "latest"] = "earliest") -> SourceConfig:
    return SourceConfig(name="s1", topics=(topic,), broker="default/default", group=f"{topic}.group", initial=initial)


def served(_: str) -> ServedBroker:
    return ServedBroker(BROKER, DEFAULT_RULE)


def no_owner(_: Mapping[int, Encoded]) -> Sequence[int | Sifted]:
    raise AssertionError("the broker has no window")


if __name__ == "__main__":
    bootstrap, prefix, topic, instance = sys.argv[1:]
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    source.SOURCE_RECORDS = 15  # many transactions, so that a kill meets one  # type: ignore[misc]
    SourceReader(kafka_config(bootstrap, prefix), topics(topic), instance, served, no_owner, say).run(threading.Event())
