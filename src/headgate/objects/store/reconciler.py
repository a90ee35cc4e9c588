"""The reconciler: a loop beside the API that rewrites statuses when the store has changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import structlog

from headgate.objects.kinds.event_policies import applying_policies
from headgate.objects.kinds.status import BrokerState, ServerUrls, broker_state, broker_status, is_served, policy_status
from headgate.objects.store.database import StoreUnavailableError
from headgate.objects.store.quota_usage import LACKING, Usage
from headgate.objects.store.rows import KnownObjects, RowSelection
from headgate.objects.store.store import Store
from headgate.objects.store.targets import Taker
from headgate.objects.store.writes import kube_time
from headgate_api.limits import QUOTA_STATUS_S
from headgate_api.objects.kinds import Broker, Eventing, EventPolicy, Kind, ObjectKey, Routed, WithStatus

REPORT_S: Final = 5.0
"""Between two rewrites of one trigger's status that only say more filter errors."""

_log = structlog.get_logger("headgate.objects")


class SubscribeRights(Protocol):
    """Who may take which events of brokers."""

    def refresh(self) -> None:
        """Learns what rights there are now; may block."""

    def judged(self, taker: Taker) -> Taker:
        """One who was written down, with what he may now."""
        ...


class Reconciler:
    """Writes status; several may run at once. Each looks again, in its next pass, at what has changed since it read.

    Without `server` clients reach it at the URL in the store. `report_s` is between two rewrites of a trigger's status
    for reports alone. `usage` says what namespaces use that no object says, and may block; None: no status says it.
    `rights` judge who takes events from brokers; None: nobody is asked for a right.
    """

    def __init__(
        self,
        store: Store,
        *,
        server: ServerUrls | None = None,
        clock_s: Callable[[], float] = time.time,
        report_s: float = REPORT_S,
        usage: Callable[[], Usage] | None = None,
        rights: SubscribeRights | None = None,
    ) -> None:
        self._store = store
        self._clock_s = clock_s
        self._report_s = report_s
        self._seen: dict[str, int] | None = None
        self._public_url = ""
        self._brokers = BrokerStatuses(store, server)
        self._reported_s: dict[int, float] = {}
        self._due_s: dict[int, float] = {}
        self._read_usage = usage
        self._usage: Usage | None = {} if usage is not None else None
        self._usage_due_s = 0.0
        self._rights = rights
        self._judged_version: int | None = None
        self._judged: tuple[tuple[int, int], int] | None = None
        """The rights by which all takers of a routing version and of earlier ones were judged."""
        self._is_joining = False
        """Whether some targets may have a ceiling that is not joined to their filters yet: a pass may have failed."""

    async def run(self, stop: asyncio.Event) -> None:
        """Reconcile until `stop` is set, which is noticed at the next look; a store that fails is tried again at it."""
        seen: int | None = None
        pause = self._store.change_watch.follow()
        while not stop.is_set():
            try:
                version = self._store.data_version()
                if version != seen or self._is_due():
                    await asyncio.to_thread(self.step)
                    seen = version
            except StoreUnavailableError as error:
                seen = None
                _log.warning("reconcile.failed", error=error.message, hint=error.hint)
            await pause()

    def step(self) -> int:
        """Bring every status up to date with the store as it is now; how many were written."""
        now_s = self._clock_s()
        self._judge_takers()
        counters = self._store.counters.all()
        seen, self._seen = self._seen, None  # a pass that fails is followed by a full one
        public_url = self._store.public_url.get() if seen is None or seen["routing"] != counters["routing"] else ""
        if public_url and public_url != self._public_url:
            self._public_url, seen = public_url, None
        since = seen["version"] if seen is not None else None
        has_news = since != counters["version"]
        written: tuple[int, ...] = ()
        moved: tuple[str, ...] = ()
        moved_usage = self._look_at_usage(now_s)
        lacking = (self._usage or {}).get(LACKING, {}).keys()
        if has_news or lacking != self._brokers.lacking:
            written, moved = self._reconcile_brokers(now_s, lacking, every=seen is None)
        stale: list[WithStatus] = [*self._stale_routed(seen, counters, moved, now_s)]
        if has_news or moved_usage:
            stale += self._store.quotas.stale(since, self._usage, moved_usage)
        if has_news:
            namespaces = {path.partition("/")[0] for path in moved}
            stale += self._store.stale_event_types(now_s, since, namespaces, self._brokers.is_served)
        if stale:
            stale.reverse()
            # Each is freed after its write: ten thousand at once would stop the event loop beside for 20 ms.
            written += self._store.write_statuses(stale.pop() for _ in range(len(stale)))
        # What was written here needs no second pass, when no other write came between.
        ours = written and written == tuple(range(counters["version"] + 1, counters["version"] + 1 + len(written)))
        self._seen = counters | ({"version": written[-1]} if ours else {})
        return len(written)

    def _judge_takers(self) -> None:
        """Ends what is taken without a right, begins it again with one, and holds it below the ceiling of the right."""
        version = self._store.counters.version()
        if self._rights is None or version == self._judged_version:
            return
        rights, routing = self._store.targets.rights(), self._store.counters.all()["routing"]
        since = self._judged[1] if self._judged is not None and self._judged[0] == rights else -1
        if takers := self._store.targets.takers(since):
            self._rights.refresh()
            changed = [(one, new) for one in takers if (new := self._rights.judged(one)) != one]
            if changed:
                self._is_joining |= any(old.ceiling != new.ceiling for old, new in changed)
                self._store.targets.judge(changed)
        after: int | None = 0 if self._is_joining else None
        while after is not None:
            after = self._store.plans.recompile(after)
        self._is_joining = False
        self._judged_version, self._judged = version, (rights, routing)

    def _is_due(self) -> bool:
        now_s = self._clock_s()
        if self._read_usage is not None and self._usage_due_s <= now_s:
            return True
        return bool(self._due_s) and min(self._due_s.values()) <= now_s

    def _look_at_usage(self, now_s: float) -> set[str]:
        """Namespaces that use more or less of what no object says than at the last look, which was a while ago."""
        if self._read_usage is None or self._usage is None or self._usage_due_s > now_s:
            return set()
        self._usage_due_s = now_s + QUOTA_STATUS_S
        before, self._usage = self._usage, self._read_usage()
        return {
            namespace
            for resource in before.keys() | self._usage.keys()
            for namespace, _ in before.get(resource, {}).items() ^ self._usage.get(resource, {}).items()
        }

    def _reconcile_brokers(
        self, now_s: float, lacking: Set[str], *, every: bool
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Write the statuses of brokers and policies; the second answer names those whose triggers are concerned."""
        found = self._brokers.look(self._public_url, kube_time(now_s), lacking, every=every)
        written: tuple[int, ...] = ()
        if found.stale:
            self._store.tell_of_brokers()  # whoever accepts events knows a broker before its status says Ready
            written = self._store.write_statuses(found.stale)
        return written, found.moved

    def _stale_routed(
        self, seen: dict[str, int] | None, counters: dict[str, int], moved: Iterable[str], now_s: float
    ) -> list[Routed]:
        """Those that any change since the last pass concerns and whose status is not true any more."""
        if seen is None:
            self._due_s.clear()
            return self._store.stale_routed(now_s)
        stale: dict[str, Routed] = {}

        def look(which: RowSelection, *parameters: object) -> None:
            for obj in self._store.stale_routed(now_s, which, parameters):
                stale[obj.metadata.uid] = obj

        # What was written itself needs no look: each write of a trigger stores the status that is true then.
        since = seen["version"]
        if since != counters["version"] and self._store.secrets.changed(since)[1] != frozenset():
            look(RowSelection.AUTHENTICATING)
            for path, state in self._brokers.states.items():
                if state.auths:
                    look(RowSelection.OF_BROKER, path)
        if seen["routing"] != counters["routing"]:
            look(RowSelection.REROUTED, seen["routing"])
        if seen["active_generation"] != counters["active_generation"]:
            look(RowSelection.NEEDING, seen["active_generation"], counters["active_generation"])
        for path in moved:
            look(RowSelection.OF_BROKER, path)
            look(RowSelection.SENDING_TO_BROKER, path)
            look(RowSelection.DEAD_TO_BROKER, path)
        for target in self._reported(seen, counters, now_s):
            look(RowSelection.TARGET, target)
        return list(stale.values())

    def _reported(self, seen: dict[str, int], counters: dict[str, int], now_s: float) -> list[int]:
        """Targets whose reports are to be shown now; the others become due later."""
        if seen["report"] != counters["report"]:
            for target in self._store.reports.since(seen["report"]):
                self._due_s.setdefault(target, self._reported_s.get(target, 0.0) + self._report_s)
        due = [target for target, due_s in self._due_s.items() if due_s <= now_s]
        for target in due:
            del self._due_s[target]
            self._reported_s[target] = now_s
        if due:
            since_s = now_s - self._report_s
            self._reported_s = {target: at_s for target, at_s in self._reported_s.items() if at_s > since_s}
        return due


# --- brokers --------------------------------------------------------------------------------------
# Which statuses of brokers and EventPolicies are no longer true, and which triggers that concerns.


@dataclass(frozen=True, slots=True)
class StaleBrokers:
    """Objects whose status is not true, with the one that is; brokers that their triggers see otherwise than before."""

    stale: list[Eventing]
    moved: tuple[str, ...]


class BrokerStatuses:
    """Judges brokers anew only where something that their status says has changed; see `Reconciler` for `server`."""

    def __init__(self, store: Store, server: ServerUrls | None) -> None:
        self._store = store
        self._server = server
        self._brokers: KnownObjects[Broker] = KnownObjects(Kind.BROKER)
        self._policy_objects: KnownObjects[EventPolicy] = KnownObjects(Kind.EVENT_POLICY)
        self._policies: dict[str, list[EventPolicy]] = {}
        self.states: dict[str, BrokerState] = {}
        """Each broker as its triggers see it, with the status that is true; by `namespace/name`."""
        self.lacking: Set[str] = frozenset()
        """Those that may store an event twice that they are to store once."""

    def is_served(self, path: str) -> bool:
        """Whether there is a broker `namespace/name` that this server serves."""
        state = self.states.get(path)
        return state is not None and state.served

    def look(self, public_url: str, now: str, lacking: Set[str], *, every: bool) -> StaleBrokers:
        """Compares with the store as it is now; may block. `now` is RFC 3339.

        `lacking` are brokers that may store an event twice that they are to store once. `every` judges each broker,
        whatever has changed: the public URL has, or a look has failed.
        """
        server = self._server or ServerUrls((public_url,))
        changed = self._store.refresh(self._brokers)
        brokers = self._brokers.by_path

        def is_there(path: str) -> bool:
            return path in brokers and is_served(brokers[path])

        stale, namespaces = self._judge_policies(server, now)
        if every:
            judged = self.states.keys() | brokers.keys()
        else:
            flipped = {path for path in changed if is_there(path) != self.is_served(path)}
            judged = changed | self._concerned(flipped, namespaces) | (self.lacking ^ lacking)
        self.lacking = frozenset(lacking)
        moved: dict[str, BrokerState | None] = {}
        for path in judged:
            state = None
            if (broker := brokers.get(path)) is not None:
                policies = applying_policies(broker, self._policies.get(broker.metadata.namespace, ()))
                status = broker_status(
                    broker, server=server, now=now, is_there=is_there, policies=policies, is_lacking=path in lacking
                )
                current = msgspec.structs.replace(broker, status=status)
                if status != broker.status:
                    stale.append(current)
                state = broker_state(current, public_url)
            if state != self.states.get(path):
                moved[path] = state
        if moved:
            states = self.states | moved
            self.states = {path: state for path, state in states.items() if state is not None}
        return StaleBrokers(stale, tuple(moved))

    def _concerned(self, flipped: Set[str], namespaces: Set[str]) -> set[str]:
        """Brokers whose sink is a broker that has come or gone, and those of namespaces whose policies have changed."""
        if not flipped and not namespaces:
            return set()
        return {
            path
            for path, state in self.states.items()
            if state.sink.broker in flipped or path.partition("/")[0] in namespaces
        }

    def _judge_policies(self, server: ServerUrls, now: str) -> tuple[list[Eventing], set[str]]:
        """Policies whose status is not true, with the one that is, and the namespaces in which policies have changed.

        All are judged: what they say of triggers changes with triggers.
        """

        def is_trigger(path: str) -> bool:
            namespace, _, name = path.partition("/")
            return self._store.targets.id_of(ObjectKey(Kind.TRIGGER, namespace, name)) is not None

        self._store.refresh(self._policy_objects)
        knows_users = server.default_mode is not None
        found: dict[str, list[EventPolicy]] = {}
        stale: list[Eventing] = []
        for policy in self._policy_objects.by_path.values():
            status = policy_status(policy, knows_users=knows_users, is_trigger=is_trigger, now=now)
            current = msgspec.structs.replace(policy, status=status)
            if status != policy.status:
                stale.append(current)
            found.setdefault(policy.metadata.namespace, []).append(current)
        before, self._policies = self._policies, found
        return stale, {name for name in before.keys() | found.keys() if before.get(name) != found.get(name)}
