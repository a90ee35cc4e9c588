"""The process that delivers in a deployment on Kafka: its share of the outbox's partitions, and their deliveries.

Replies go to the fronts of its own server. Fronts of any server ask it for what it keeps of its partitions:
`server/kafka/partition_questions.py`.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
import uvloop

from headgate.control.routing import RoutingTable
from headgate.control.specs import ServedBroker
from headgate.control.store import Store
from headgate.observe import tracing
from headgate.server import child, local_http, parts, ready, rpc
from headgate.server.authentication import UsersOfFronts
from headgate.server.inward import inward_of
from headgate.server.kafka import instance
from headgate.server.kafka.group import kafka_dispatcher
from headgate.server.kafka.partition import KafkaDispatcherOptions
from headgate.server.kafka.partition_pulls import PartitionCalls
from headgate.server.kafka.partition_questions import partitions_api
from headgate.server.parts import Role
from headgate.server.shard_deliveries import SenderIdentity
from headgate.storage.keyring import keyring_of
from headgate.store.kafka.objects import open_cache
from headgate.store.kafka.runs import RunReports
from headgate_api.errors import FatalError
from headgate_api.limits import ATTEMPTS_MAX

_OTHER_FILES: Final = 4_096
"""Sockets to brokers, and files of partitions."""
_REPORTS_S: Final = 5.0
_log = structlog.get_logger(__name__)


class FrontMissingError(FatalError):
    """The server has no front that would store what subscribers answer."""

    code = "front-missing"


def run(context: child.Context) -> None:
    """Delivers until told to stop."""
    uvloop.run(_dispatch(context))


class FollowedRouting:
    """Routing as the cache of the objects has it; see `RoutingStore`. One snapshot serves all partitions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: tuple[int, RoutingTable] | None = None

    def data_version(self) -> int:
        return self._store.data_version()

    def snapshot(self) -> RoutingTable:
        version, known = self._store.data_version(), self._known
        if known is None or known[0] != version:
            known = self._known = version, self._store.snapshot()
        return known[1]

    def served(self, path: str) -> ServedBroker | None:
        return self._store.served(path)


async def _dispatch(context: child.Context) -> None:
    child.raise_file_limit(2 * ATTEMPTS_MAX + _OTHER_FILES)
    settings, config = context.settings, context.on_kafka.kafka
    if Role.FRONT not in parts.roles_of(settings):
        raise FrontMissingError(
            "a server with the role dispatcher has the role front, too: replies of subscribers go there",
            hint="start the server with --role front,dispatcher",
        )
    stop = asyncio.Event()
    child.on_stop(child.setter(stop))
    report = ready.PartReport(settings.run_directory, context.part.name)
    tracer = tracing.configure(context.part.name)
    report.note("waits for the objects")
    store = await asyncio.to_thread(open_cache, settings.data / "control.db", stop.is_set, keyring_of(settings))
    runs = RunReports(config)

    def on_ready() -> None:
        child.spare_collector()
        report.begun()

    options = KafkaDispatcherOptions(
        config=config,
        data=settings.data / context.part.name,
        store=FollowedRouting(store),
        token=context.token,
        identity=SenderIdentity.of(settings, store),
        inward=inward_of(settings, context.part.index),
        runs=runs,
        name=instance.advertised_name(settings),
        objects=store,
        tracing=tracer,
        on_ready=on_ready,
        on_look=report.turn,
    )
    try:
        async with kafka_dispatcher(options, stop) as dispatcher:
            number, partitions = context.part.index, dispatcher.partitions
            async with (
                local_http.answering(UsersOfFronts(partitions_api(partitions)), settings.dispatcher_socket(number)),
                rpc.serving([PartitionCalls(partitions)], f"unix:{settings.dispatcher_rpc(number)}"),
            ):
                await dispatcher.run()
    finally:
        await asyncio.to_thread(runs.close, _REPORTS_S)
        store.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
