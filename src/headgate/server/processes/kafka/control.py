"""The control process of a deployment on Kafka: each answers reads and watches from its cache, one of them writes.

Who holds the one place in a consumer group takes the lead of the objects. A newer leader fences an older one, so an
election that errs costs time and no object.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.election import Election, GroupMembers
from headgate.backend.kafka.objects import KafkaObjects, leader_of
from headgate.backend.kafka.runs import follow_generations
from headgate.backend.kafka.scan import InspectedTopic, KafkaLog
from headgate.backend.kafka.server_numbers import hear_numbers
from headgate.backend.kafka.target_reports import follow_reports
from headgate.inspect.catalogue import Catalogues, EventTypeCreator
from headgate.inspect.log_follower import LogFollower
from headgate.objects.api.admission import Admission
from headgate.objects.api.bootstrap import bootstrap, recompile_all, reseal_all
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.signing_keys import tend_signing_keys
from headgate.objects.store.store import Store
from headgate.objects.views.copies import ServedBrokers, follow
from headgate.observe.history import NumbersHistory
from headgate.scan.pages import LogScanner, Scanner
from headgate.scan.source import RetainedLog
from headgate.server import child, parts
from headgate.server.authorization import Rights
from headgate.server.listening import url_policy
from headgate.server.parts import Role
from headgate.server.peers import instance
from headgate.server.peers.notify_fronts import tell_fronts
from headgate.server.peers.partition_owners import PartitionOwners, RemoteRecords
from headgate.server.peers.reader_client import ReaderScanner
from headgate.server.peers.servers import PeerServers
from headgate.server.processes import control
from headgate.server.processes.control import ControlState, ControlStore, application, apply_manifests, urls_of
from headgate.server.processes.kafka.numbers import ServersNumbers, tell_numbers
from headgate.settings import Settings
from headgate.storage.keyring import keyring_of
from headgate.storage.threads import cancel_all
from headgate_api.errors import UnavailableError
from headgate_api.limits import OBJECT_LEAD_PAUSE_S

_GROUP: Final = "control"
"""The consumer group of the election, behind the prefix of topics."""
_log = structlog.get_logger(__name__)

Duty = Callable[[], Awaitable[object]]
"""What only the leader does, from the time that it leads on until it is cancelled."""


def run(context: child.Context) -> None:
    """Serves until told to stop."""
    control.run(context, _cache)


@contextlib.asynccontextmanager
async def _cache(context: child.Context, stop: asyncio.Event) -> AsyncIterator[ControlStore]:
    settings, config = context.settings, context.on_kafka.kafka
    path, changed = settings.data / "control.db", asyncio.Event()
    told = child.setter(changed)
    async with contextlib.AsyncExitStack() as stack:
        url = instance.advertised_url(settings)
        objects = await asyncio.to_thread(KafkaObjects, path, config, url, on_lost=lambda _reason: told())
        stack.callback(objects.close)
        child.on_stop(child.setter(stop))  # not before: a signal ends a process that waits for Kafka
        store = Store.open(path, committer=objects, keys=keyring_of(settings))
        stack.callback(store.close)
        tell_fronts(store, settings)
        leadership = Leadership(objects, config, changed, told)
        brokers = ServedBrokers(store)
        await asyncio.to_thread(brokers.refresh)
        log = stack.enter_context(contextlib.closing(KafkaLog(config, "skip")))
        follower = LogFollower(log)
        stack.callback(follower.close)
        catalogues = Catalogues(follower, store)
        counts = stack.enter_context(ThreadPoolExecutor(1, "counts"))
        numbers = ServersNumbers(settings)
        history = NumbersHistory(numbers.counted)
        owners = PartitionOwners(
            settings, config.topics.outbox.partitions, GroupMembers(config).owners, PeerServers(settings)
        )

        def works(state: ControlState) -> Sequence[Coroutine[Any, Any, None]]:
            duties = leader_duties(settings, config, store, state, follower, numbers)
            return leadership.run(duties), follow(brokers), tell_numbers(settings, config)

        yield ControlStore(
            objects=store,
            history=history,
            catalogues=catalogues,
            answers=lambda api: application(
                store,
                api,
                owners,
                history,
                catalogues,
                records=partial(RemoteRecords, InspectedTopic(log, follower), owners),
                parts=numbers.parts,
                counter=own_counter(settings, log, brokers, counts),
            ),
            works=works,
            loops=(objects.follow, leadership.election.run, partial(hear_numbers, config, numbers.hear)),
            on_kafka=True,
            note=lambda: "leads" if objects.is_leading else f"follows {leader_of(path) or 'nobody yet'}",
        )


def own_counter(settings: Settings, log: KafkaLog, brokers: ServedBrokers, threads: Executor) -> Scanner:
    """Counts events for backtests: this server's reader; where it has none this process."""
    if Role.READER in parts.roles_of(settings):
        return ReaderScanner(settings.reader_socket)
    return LogScanner(RetainedLog(log, brokers.retention_us), threads)


def leader_duties(
    settings: Settings,
    config: KafkaConfig,
    store: Store,
    state: ControlState,
    follower: LogFollower,
    numbers: ServersNumbers,
) -> Sequence[Duty]:
    """What the leader does: each begins when it takes the lead, is cancelled when it loses it, and never ends."""
    policy = url_policy(settings)

    async def prepare() -> None:
        await asyncio.to_thread(store.secrets.check_keys)
        await asyncio.to_thread(store.make_default_broker)
        await asyncio.to_thread(bootstrap, Admission(store, policy))
        await asyncio.to_thread(store.public_url.set, settings.url)
        await asyncio.to_thread(store.server_secret.prepare)
        await apply_manifests(settings, Admission(store, policy, on_kafka=True))
        rights = Rights(settings, store).grants
        reconciler = Reconciler(store, server=urls_of(settings), usage=numbers.usage, rights=rights)
        await reconciler.run(asyncio.Event())

    duties: list[Duty] = [
        prepare,
        lambda: _followed(partial(follow_reports, config, store.reports.put)),
        lambda: child.lasting(recompile_all(store, state.compiling)),
        lambda: _followed(partial(follow_generations, config, store.counters.activate)),
        lambda: child.lasting(reseal_all(store.secrets)),
        lambda: tend_signing_keys(store.signing_keys),
    ]
    if settings.eventtype_auto_create:
        duties.append(lambda: EventTypeCreator(Admission(store), follower).run())
    return duties


async def _followed(follow: Callable[[threading.Event], None]) -> None:
    stop = threading.Event()
    try:
        await asyncio.to_thread(follow, stop)
    finally:
        stop.set()


class Leadership:
    """Takes the lead of the objects while elected; `told` sets `changed`, from any thread, when that may change."""

    def __init__(
        self, objects: KafkaObjects, config: KafkaConfig, changed: asyncio.Event, told: Callable[[], None]
    ) -> None:
        self._objects = objects
        self._changed = changed
        self.election = Election(config, topic="objects", group=_GROUP, on_gained=told, on_lost=lambda _reason: told())

    async def run(self, duties: Sequence[Duty]) -> None:
        """Leads whenever this process is elected, and does the duties meanwhile; raises what a duty failed with."""
        while True:
            self._changed.clear()
            if not self.election.leads:
                await self._changed.wait()
                continue
            try:
                await asyncio.to_thread(self._objects.lead)
                await self._term(duties)
            except UnavailableError as error:
                _log.warning("does not lead the objects now", error=error.message, hint=error.hint)
            # An election that has gone elsewhere while this process stood still is known by then.
            await asyncio.sleep(OBJECT_LEAD_PAUSE_S)

    async def _term(self, duties: Sequence[Duty]) -> None:
        """UnavailableError when Kafka or SQLite does not work."""
        tasks = [asyncio.ensure_future(duty()) for duty in duties]
        try:
            while self._objects.is_leading:
                changed = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait([*tasks, changed], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                self._changed.clear()
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            await cancel_all(tasks)
