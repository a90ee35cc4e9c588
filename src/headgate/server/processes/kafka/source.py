"""The process that admits the events of topics that other producers write, a thread for each source of `headgate.yaml`.

Any number may run, on any server: the processes of a source share its partitions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.objects import open_cache
from headgate.backend.kafka.server_pass import KnownPasses, OwnPass
from headgate.backend.kafka.source import SourceGates, SourceReader
from headgate.backend.kafka.window_writer import AnnouncedOwners
from headgate.ingress.partitions import all_stored
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded
from headgate.objects.store.store import Store
from headgate.objects.views.copies import EventPolicyCopy
from headgate.observe.metrics import SOURCE_RECORDS_ADMITTED, SOURCE_RECORDS_REFUSED
from headgate.server import child, ready
from headgate.server.authorization import default_mode
from headgate.server.peers import instance
from headgate.server.peers.chunk_owners import ChunkOwners
from headgate.server.peers.instance import quota_sharers
from headgate.server.peers.servers import PeerServers
from headgate.settings import Settings
from headgate_api.errors import FatalError, InvalidInputError
from headgate_api.limits import HEARTBEAT_S


def run(context: child.Context) -> None:
    """Admits until told to stop."""
    stop = threading.Event()
    child.on_stop(stop.set)
    with closing(open_cache(context.settings.data / "control.db", stop.is_set)) as objects:
        _admit(context, objects, stop)


def _admit(context: child.Context, objects: Store, stop: threading.Event) -> None:
    report = ready.PartReport(context.settings.run_directory, context.part.name)
    name = instance.name_of(context.settings.data)

    mode = default_mode(context.settings)
    policies = EventPolicyCopy(objects, mode) if mode is not None else None
    gates = SourceGates(objects, policies, quota_sharers(context))
    config = context.on_kafka.kafka
    own = OwnPass(config, f"{name}-{context.part.name}")
    owners = [_Owners(context.settings, config, own) for _ in context.on_kafka.sources]
    readers = [
        SourceReader(config, source, name, objects.served, one.store, partial(_count, source.name), gates)
        for source, one in zip(context.on_kafka.sources, owners, strict=True)
    ]
    failures: list[InvalidInputError] = []

    def work(reader: SourceReader, asked: _Owners) -> None:
        try:
            reader.run(stop)
        except InvalidInputError as error:
            failures.append(error)
        finally:
            asked.close()
            stop.set()  # one that fails ends the process, which begins anew

    threads = [threading.Thread(target=work, args=each, name="source") for each in zip(readers, owners, strict=True)]
    for thread in threads:
        thread.start()
    report.ready(True)
    while not stop.wait(HEARTBEAT_S):
        report.turn("; ".join(one.problem for one in readers if one.problem))
    report.ready(False)
    for thread in threads:
        thread.join()
    if failures:
        raise FatalError(failures[0].message, hint=failures[0].hint)


class _Owners:
    """The owners of partitions, as the thread of one source asks them."""

    def __init__(self, settings: Settings, config: KafkaConfig, own: OwnPass) -> None:
        self._runner = asyncio.Runner()
        self._announced = AnnouncedOwners(config)
        peers, passes = PeerServers(settings), KnownPasses(config)
        self._chunks = ChunkOwners(settings, -1, self._announced, peers, own, passes, lambda *_: None)

    def store(self, chunks: Mapping[int, Encoded]) -> Sequence[int | Sifted]:
        """See `StoreOnce`."""

        async def stored() -> Sequence[int | Sifted]:
            return await all_stored([self._chunks.forward(partition, chunk) for partition, chunk in chunks.items()])

        return self._runner.run(stored())

    def close(self) -> None:
        self._announced.close()
        self._runner.close()


def _count(source: str, admitted: int, refused: int) -> None:
    SOURCE_RECORDS_ADMITTED.labels(source).inc(admitted)
    SOURCE_RECORDS_REFUSED.labels(source).inc(refused)
