"""The smaller processes of a server in a deployment on Kafka: front, reader, source, and who keeps a cache of objects.

Any number of servers may have each of them, and of the first three any number may run.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Final

from headgate.control.copies import EventPolicyCopy
from headgate.control.store import Store
from headgate.ingress.partitions import EventPartitions
from headgate.observe.metrics import SOURCE_RECORDS_ADMITTED, SOURCE_RECORDS_REFUSED
from headgate.server import child, parts, ready
from headgate.server.authorization import default_mode
from headgate.server.parts import Role
from headgate.server.peers import instance
from headgate.server.peers.broker_news import tell_fronts
from headgate.server.peers.dispatcher_group import DispatcherGroup
from headgate.server.peers.instance import quota_sharers
from headgate.server.peers.local_http import ProcessProxy
from headgate.server.peers.object_requests import ObjectRequests
from headgate.server.peers.partition_owners import PartitionOwners
from headgate.server.peers.servers import PeerServers
from headgate.server.peers.subscription_calls import SubscriptionCalls
from headgate.server.processes import front, reader
from headgate.server.processes.front import FrontStore
from headgate.server.processes.kafka.numbers import tell_numbers
from headgate.server.processes.reader import ReaderStore
from headgate.store.kafka.appender import KafkaAppender
from headgate.store.kafka.consumer_groups import GroupMembers
from headgate.store.kafka.numbered_producers import FencedProducers
from headgate.store.kafka.objects import KafkaObjects, open_cache
from headgate.store.kafka.scan import KafkaLog
from headgate.store.kafka.source import SourceGates, SourceReader
from headgate_api.errors import FatalError, InvalidInputError, UnavailableError
from headgate_api.limits import HEARTBEAT_S, LOG_PROBE_S, READERS_MAX

_READER_FILES: Final = 2_048
"""The database, gRPC's connections, those of KAFKA_SCAN_CONSUMERS_MAX to every broker, the event loop's own."""


def run(context: child.Context) -> None:
    """Works until told to stop."""
    _RUNS[context.part.role](context)


# --- front ----------------------------------------------------------------------------------------
# The same ingress, and events go to the topic `events`. No front owns a partition: each writes all of them.


def _run_front(context: child.Context) -> None:
    front.run_with(context, _front_store)


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
        control = ProcessProxy(settings.control_socket) if has_control else None
        peers = PeerServers(settings)
        stack.push_async_callback(peers.close)
        partitions = config.topics.outbox.partitions
        owners = PartitionOwners(settings, partitions, GroupMembers(config).owners, peers)
        showing = ProcessProxy(settings.control_socket, peers.shown) if has_control else None
        yield FrontStore(
            objects=objects,
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
    """Asks Kafka now and then, until it is cancelled: also when no event comes, it is known whether it answers.

    Once it does, what this front left open before it was started again is ended.
    """
    is_recovered = False
    while True:
        await appender.probe()
        if not (is_recovered or appender.problem):
            with contextlib.suppress(UnavailableError):
                await appender.recover()
                is_recovered = True
        await asyncio.sleep(LOG_PROBE_S)


# --- reader ---------------------------------------------------------------------------------------
# The same API, answered from the topic `events`. Each reads all partitions, and keeps nothing between two requests.


def _run_reader(context: child.Context) -> None:
    child.raise_file_limit(READERS_MAX + _READER_FILES)
    reader.run_with(context, _reader_store)


@contextlib.asynccontextmanager
async def _reader_store(context: child.Context, stop: asyncio.Event) -> AsyncIterator[ReaderStore]:
    objects = await asyncio.to_thread(open_cache, context.settings.data / "control.db", stop.is_set)
    with closing(objects):
        # Nobody can take a record out of a topic: one that is none of ours must not end every search for ever.
        yield ReaderStore(objects, KafkaLog(context.on_kafka.kafka, "skip"))


# --- objects --------------------------------------------------------------------------------------
# In a server without the role control: it follows the topic of the objects, and tells others this server's numbers.


def _run_objects(context: child.Context) -> None:
    asyncio.run(_follow(context))


async def _follow(context: child.Context) -> None:
    settings, stop = context.settings, asyncio.Event()
    path = settings.data / "control.db"
    objects = await asyncio.to_thread(KafkaObjects.open, path, context.on_kafka.kafka, "")
    child.on_stop(child.setter(stop))  # not before: a signal ends a process that waits for Kafka
    report = ready.PartReport(settings.run_directory, context.part.name)
    report.ready(True)
    works = (report.beating(), tell_numbers(settings, context.on_kafka.kafka))
    with closing(objects):
        await child.until_stopped(stop, works, (objects.follow,), partial(report.ready, False))


# --- source ---------------------------------------------------------------------------------------
# Admits the events of topics that other producers write: a thread for each source of `headgate.yaml`. The processes of
# a source share its partitions.


def _run_source(context: child.Context) -> None:
    stop = threading.Event()
    child.on_stop(stop.set)
    with closing(open_cache(context.settings.data / "control.db", stop.is_set)) as objects:
        _admit(context, objects, stop)


def _admit(context: child.Context, objects: Store, stop: threading.Event) -> None:
    report = ready.PartReport(context.settings.run_directory, context.part.name)
    name = instance.name_of(context.settings.data)

    def identity(broker: str) -> str | None:
        found = objects.served(broker)
        return found.identity if found is not None else None

    mode = default_mode(context.settings)
    policies = EventPolicyCopy(objects, mode) if mode is not None else None
    gates = SourceGates(objects, policies, quota_sharers(context))
    readers = [
        SourceReader(context.on_kafka.kafka, source, name, identity, partial(_count, source.name), gates.of(source))
        for source in context.on_kafka.sources
    ]
    failures: list[InvalidInputError] = []

    def work(one: SourceReader) -> None:
        try:
            one.run(stop)
        except InvalidInputError as error:
            failures.append(error)
        finally:
            stop.set()  # one that fails ends the process, which begins anew

    threads = [threading.Thread(target=work, args=(one,), name="source") for one in readers]
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


def _count(source: str, admitted: int, refused: int) -> None:
    SOURCE_RECORDS_ADMITTED.labels(source).inc(admitted)
    SOURCE_RECORDS_REFUSED.labels(source).inc(refused)


_RUNS: Final[Mapping[Role, Callable[[child.Context], None]]] = {
    Role.FRONT: _run_front,
    Role.READER: _run_reader,
    Role.OBJECTS: _run_objects,
    Role.SOURCE: _run_source,
}
