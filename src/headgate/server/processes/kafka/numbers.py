"""The numbers of all servers of a deployment, as each of them tells them: its processes, and what they have counted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable

import msgspec
import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.server_numbers import NumbersWriter
from headgate.objects.store.quota_usage import LACKING, Usage, usage_in
from headgate.observe.history import Snapshot, counted_by
from headgate.observe.logs import Recurring
from headgate.server.peers import instance
from headgate.server.summary import PartView, parts_of
from headgate.settings import Settings
from headgate_api.errors import HeadgateError
from headgate_api.limits import HISTORY_POINT_S, SERVER_FORGOTTEN_S, SERVER_SILENT_S_MAX, SERVERS_MAX

_log = structlog.get_logger(__name__)


class ServerNumbers(msgspec.Struct, frozen=True):
    """What a server tells: its processes, and their counters; which brokers may store an event twice (`LACKING`)."""

    parts: list[PartView]
    counted: Snapshot
    lacking: dict[str, int] = {}


async def tell_numbers(settings: Settings, config: KafkaConfig) -> None:
    """Tells the numbers of this server every HISTORY_POINT_S, until it is cancelled; then, that it stops."""
    url = instance.advertised_url(settings)
    writer = NumbersWriter(config, url)
    turns = Recurring(_log, "the numbers of this server are not told now", HeadgateError, OSError)

    def tell() -> None:
        lacking = dict[str, int](usage_in(settings.usage_directory).get(LACKING, {}))
        numbers = ServerNumbers(parts_of(settings, url), counted_by(settings.metrics_directory), lacking)
        writer.put(msgspec.msgpack.encode(numbers))

    try:
        while True:
            with turns.attempt():
                await asyncio.to_thread(tell)
            await asyncio.sleep(HISTORY_POINT_S)
    finally:
        await asyncio.to_thread(writer.close)


class ServersNumbers:
    """What is known of all servers. For any thread. This server's own numbers are read, and not heard."""

    def __init__(self, settings: Settings, clock_s: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._own = instance.advertised_url(settings)
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._told: dict[str, tuple[float, ServerNumbers]] = {}

    def hear(self, server: str, value: bytes | None, told_s: float) -> None:
        if server == self._own:
            return
        try:
            found = msgspec.msgpack.decode(value, type=ServerNumbers) if value is not None else None
        except (msgspec.DecodeError, RecursionError) as error:
            _log.warning("the numbers of a server are passed over", server=server, why=str(error))
            return
        with self._lock:
            self._told.pop(server, None)
            if found is not None and len(self._told) < SERVERS_MAX:
                self._told[server] = told_s, found

    def counted(self) -> dict[str, Snapshot]:
        own = {self._own: counted_by(self._settings.metrics_directory, self._clock_s)}
        return own | {server: numbers.counted for server, (_, numbers) in self._known().items()}

    def parts(self) -> list[PartView]:
        """The processes of all servers, this one's first. Those of one that is silent are not ready."""
        found = parts_of(self._settings, self._own)
        for server, (told_s, numbers) in sorted(self._known().items()):
            silent_s = self._clock_s() - told_s
            is_silent, note = silent_s > SERVER_SILENT_S_MAX, f"its server is silent for {silent_s:.0f} s"
            found += [PartView(one.name, False, note, server) if is_silent else one for one in numbers.parts]
        return found

    def usage(self) -> Usage:
        """What no object says, of all servers: the quotas that fronts count are none of a deployment's."""
        lacking = Counter[str](usage_in(self._settings.usage_directory).get(LACKING, {}))
        for _, numbers in self._known().values():
            lacking.update(numbers.lacking)
        return {LACKING: lacking}

    def _known(self) -> dict[str, tuple[float, ServerNumbers]]:
        oldest_s = self._clock_s() - SERVER_FORGOTTEN_S
        with self._lock:
            self._told = {server: one for server, one in self._told.items() if one[0] >= oldest_s}
            return dict(self._told)
