"""How one server of a deployment shows another one that it is a server: it can write where only servers can.

A server makes a word, and commits its hash for a consumer group of its own name, which has no members. Who shows the
word has written the hash. To describe groups, as tools that watch Kafka may do, is not enough for either.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from contextlib import closing
from typing import Final

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import TopicConsumer, library
from headgate_api.limits import SERVER_PASS_S, SERVERS_MAX

_DOING: Final = "this server cannot show the others who it is"
_CHECKING: Final = "it cannot be found out who asks"
_SHOWN: Final = re.compile(rb"([0-9a-z-]{1,64}):([0-9a-f]{64})")
_WORD_BYTES: Final = 32


def _group(name: str) -> str:
    return f"server-{name}"


def _hash(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


class OwnPass:
    """What a process shows; `name` is that of no other one. Blocking, for any thread."""

    def __init__(self, config: KafkaConfig, name: str) -> None:
        self._config = config
        self._name = name
        self._word = secrets.token_hex(_WORD_BYTES)
        self._written_s: float | None = None
        self._lock = threading.Lock()

    def show(self) -> bytes:
        """Writes the hash when that was not done or long ago: Kafka forgets the commits of a group without members."""
        with self._lock:
            if self._written_s is None or time.monotonic() - self._written_s > SERVER_PASS_S:
                place = library().TopicPartition(self._config.topic("events"), 0, 0, _hash(self._word))
                with closing(TopicConsumer.committed(self._config, _DOING, group=_group(self._name))) as consumer:
                    consumer.once_elected(lambda: consumer.raw.commit(offsets=[place], asynchronous=False))
                self._written_s = time.monotonic()
        return f"{self._name}:{self._word}".encode()

    def refused(self) -> None:
        """Somebody does not know it: it is written once more."""
        with self._lock:
            self._written_s = None


class KnownPasses:
    """What others may show. Blocking, for one thread at a time; those that were seen cost nothing."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._known: set[bytes] = set()

    def is_known(self, shown: bytes) -> bool:
        """Whether it was seen before; does not block."""
        return shown in self._known

    def check(self, shown: bytes) -> bool:
        """Whether who shows it is a server; UnavailableError when Kafka does not say."""
        if (parts := _SHOWN.fullmatch(shown)) is None:
            return False
        name, word = parts[1].decode(), parts[2].decode()
        place = library().TopicPartition(self._config.topic("events"), 0)
        with closing(TopicConsumer.committed(self._config, _CHECKING, group=_group(name))) as consumer:
            (found,) = consumer.commits([place])
        is_server = hmac.compare_digest(found.metadata or "", _hash(word))
        if is_server:
            if len(self._known) >= SERVERS_MAX:
                self._known.clear()
            self._known.add(shown)
        return is_server
