"""A control process with objects on Kafka: its cache, its store, and a thread that follows the topic."""

from __future__ import annotations

import threading
from pathlib import Path

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.objects import KafkaObjects
from headgate.objects.store.store import Store


class ControlProcess:
    """One of them, which believes in the time `now_s`; None: the machine's."""

    def __init__(
        self, config: KafkaConfig, path: Path, name: str = "a", *, leads: bool = True, now_s: float | None = None
    ) -> None:
        self.config, self.path, self.name = config, path, name
        self.lost = threading.Event()
        self._stop = threading.Event()
        self._open(leads=leads, now_s=now_s)

    def _open(self, *, leads: bool, now_s: float | None = None) -> None:
        clock = {} if now_s is None else {"clock_s": lambda: now_s}
        self.objects = KafkaObjects(self.path, self.config, self.name, on_lost=lambda _reason: self.lost.set(), **clock)
        self.store = Store.open(self.path, committer=self.objects)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if leads:
            self.objects.lead()
            self.store.make_default_broker()

    def follow(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self.objects.follow, args=(self._stop,), daemon=True)
        self._thread.start()

    def catch_up(self) -> None:
        """Applies what the topic has now, where no thread does."""
        with self.objects._turn():
            self.objects._catch_up()

    def reopen(self) -> None:
        """The process ends and starts again, and takes the lead."""
        self.close()
        self._open(leads=True)

    def close(self) -> None:
        """The process ends."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)
            assert not self._thread.is_alive()
        self.store.close()
        self.objects.close()
