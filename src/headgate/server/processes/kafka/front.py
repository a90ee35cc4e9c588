"""The front of a server in a deployment on Kafka: like any other one it writes to all partitions of `events`.

What a broker stores once goes to the front that has the partition.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headgate.backend.kafka.appender import FencedProducers, KafkaAppender
from headgate.backend.kafka.client import KafkaAdmin
from headgate.backend.kafka.election import GroupMembers
from headgate.backend.kafka.objects import open_cache
from headgate.backend.kafka.once import OnceAppender, WindowPartitions
from headgate.backend.kafka.server_pass import KnownPasses, OwnPass
from headgate.backend.kafka.window_writer import READING, AnnouncedOwners, KafkaPartition, WindowWriter
from headgate.ingress.partitions import EventPartitions
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded
from headgate.objects.views.copies import ServedBrokers
from headgate.server import child, parts
from headgate.server.parts import Role
from headgate.server.peers import instance
from headgate.server.peers.chunk_owners import ChunkOwners
from headgate.server.peers.dispatcher_group import DispatcherGroup
from headgate.server.peers.instance import quota_sharers
from headgate.server.peers.local_http import KeptConnections, ProcessProxy
from headgate.server.peers.notify_fronts import tell_fronts
from headgate.server.peers.object_requests import ObjectRequests
from headgate.server.peers.partition_owners import PartitionOwners, SubscriptionCalls
from headgate.server.peers.servers import PeerServers
from headgate.server.processes import front
from headgate.server.processes.front import FrontStore
from headgate_api.errors import UnavailableError
from headgate_api.limits import DEDUPLICATION_EVENTS_MAX, LOG_PROBE_S


def run(context: child.Context) -> None:
    """Accepts events until told to stop."""
    front.run(context, _front_store)


@contextlib.asynccontextmanager
async def _front_store(context: child.Context, stop: asyncio.Event) -> AsyncIterator[FrontStore]:
    settings, config = context.settings, context.on_kafka.kafka
    objects = await asyncio.to_thread(open_cache, settings.data / "control.db", stop.is_set)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(objects.close)
        appender = KafkaAppender(config, f"{instance.name_of(settings.data)}-{context.part.name}")
        stack.push_async_callback(appender.close)
        tell_fronts(objects, settings)
        has_control = Role.CONTROL in parts.roles_of(settings)
        kept = stack.enter_context(contextlib.closing(KeptConnections()))
        control = ProcessProxy(settings.control_socket, kept) if has_control else None
        peers = PeerServers(settings)
        stack.push_async_callback(peers.close)
        brokers = ServedBrokers(objects)
        announced = AnnouncedOwners(config)
        stack.callback(announced.close)
        once, chunks = _once(context, brokers, announced, peers)
        stack.push_async_callback(once.close)
        producers = FencedProducers(config, once.begin)
        stack.push_async_callback(producers.stop)
        partitions = config.topics.outbox.partitions
        owners = PartitionOwners(settings, partitions, GroupMembers(config).owners, peers)
        showing = ProcessProxy(settings.control_socket, kept, peers.shown) if has_control else None
        yield FrontStore(
            objects=objects,
            brokers=brokers,
            partitions=EventPartitions(OnceAppender(appender, once), config.topics.events.partitions),
            producers=producers,
            checks={"kafka": lambda: appender.problem},
            work=[_probing(appender), once.share(config, f"{peers.own_url},{context.part.name}", stop)],
            api=ObjectRequests(settings, peers, objects, control),
            # Whoever answers them asks other servers for the client.
            inquiries=ObjectRequests(settings, peers, objects, showing),
            dispatchers=owners,
            calls=SubscriptionCalls(settings, owners, DispatcherGroup(owners, objects), peers),
            fronts=quota_sharers(context),
            lacking=once.lacking,
            routes=[chunks.route()],
            door=chunks.door,
        )


def _once(
    context: child.Context, brokers: ServedBrokers, announced: AnnouncedOwners, peers: PeerServers
) -> tuple[WindowPartitions, ChunkOwners]:
    """What this front stores once, and the ways to and from the others."""
    config = context.on_kafka.kafka
    count = config.topics.events.partitions
    admin = KafkaAdmin(config, READING)

    def writer(number: int) -> WindowWriter:
        partition = KafkaPartition(config, number, peers.own_url, admin)
        return WindowWriter(partition, brokers.windows, events_max=DEDUPLICATION_EVENTS_MAX // count)

    async def forward(partition: int, chunk: Encoded) -> int | Sifted:
        return await chunks.forward(partition, chunk)

    once = WindowPartitions(count, writer, brokers.windows, forward)
    settings, part = context.settings, context.part
    own = OwnPass(config, f"{instance.name_of(settings.data)}-{part.name}")
    chunks = ChunkOwners(settings, part.index, announced, peers, own, KnownPasses(config), once.store_here)
    return once, chunks


async def _probing(appender: KafkaAppender) -> None:
    """Asks Kafka now and then whether it answers; once it does, what this front left open before is ended."""
    is_recovered = False
    while True:
        await appender.probe()
        if not (is_recovered or appender.problem):
            with contextlib.suppress(UnavailableError):
                await appender.recover()
                is_recovered = True
        await asyncio.sleep(LOG_PROBE_S)
