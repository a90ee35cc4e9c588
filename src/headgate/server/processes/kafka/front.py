"""The front of a server in a deployment on Kafka: like any other one it writes to all partitions of `events`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headgate.backend.kafka.appender import FencedProducers, KafkaAppender
from headgate.backend.kafka.election import GroupMembers
from headgate.backend.kafka.objects import open_cache
from headgate.ingress.partitions import EventPartitions
from headgate.objects.views.copies import ServedBrokers
from headgate.server import child, parts
from headgate.server.parts import Role
from headgate.server.peers import instance
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
from headgate_api.limits import LOG_PROBE_S


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
        producers = FencedProducers(config)
        stack.push_async_callback(producers.stop)
        tell_fronts(objects, settings)
        has_control = Role.CONTROL in parts.roles_of(settings)
        kept = stack.enter_context(contextlib.closing(KeptConnections()))
        control = ProcessProxy(settings.control_socket, kept) if has_control else None
        peers = PeerServers(settings)
        stack.push_async_callback(peers.close)
        partitions = config.topics.outbox.partitions
        owners = PartitionOwners(settings, partitions, GroupMembers(config).owners, peers)
        showing = ProcessProxy(settings.control_socket, kept, peers.shown) if has_control else None
        yield FrontStore(
            objects=objects,
            brokers=ServedBrokers(objects),
            partitions=EventPartitions(appender, config.topics.events.partitions),
            producers=producers,
            checks={"kafka": lambda: appender.problem},
            work=[_probing(appender)],
            api=ObjectRequests(settings, peers, objects, control),
            # Whoever answers them asks other servers for the client.
            inquiries=ObjectRequests(settings, peers, objects, showing),
            dispatchers=owners,
            calls=SubscriptionCalls(settings, owners, DispatcherGroup(owners, objects), peers),
            fronts=quota_sharers(context),
        )


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
