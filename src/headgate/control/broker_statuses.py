"""Statuses of brokers and EventPolicies: which are no longer true, and which triggers that concerns."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

import msgspec

from headgate.control.event_policies import applying_policies, policy_status
from headgate.control.known_objects import KnownObjects
from headgate.control.objects import Broker, Eventing, EventPolicy, Kind, ObjectKey
from headgate.control.status import BrokerState, ServerUrls, broker_state, broker_status, is_served
from headgate.control.store import Store


@dataclass(frozen=True, slots=True)
class StaleBrokers:
    """What a look at brokers and EventPolicies has found.

    Attributes:
        stale: Those whose status is not true, with the status that is.
        moved: Paths of brokers that their triggers see otherwise than before.
    """

    stale: list[Eventing]
    moved: tuple[str, ...]


class BrokerStatuses:
    """Judges brokers anew only where something that their status says has changed.

    Args:
        store: The objects.
        server: Where clients reach the server; None for the public URL alone.
    """

    def __init__(self, store: Store, server: ServerUrls | None) -> None:
        self._store = store
        self._server = server
        self._brokers: KnownObjects[Broker] = KnownObjects(Kind.BROKER)
        self._policy_objects: KnownObjects[EventPolicy] = KnownObjects(Kind.EVENT_POLICY)
        self._policies: dict[str, list[EventPolicy]] = {}
        self._states: dict[str, BrokerState] = {}

    @property
    def states(self) -> Mapping[str, BrokerState]:
        """Each broker as its triggers see it, with the status that is true; by `namespace/name`."""
        return self._states

    def is_served(self, path: str) -> bool:
        """Whether there is a broker `namespace/name` that this server serves."""
        state = self._states.get(path)
        return state is not None and state.served

    def look(self, public_url: str, now: str, *, every: bool) -> StaleBrokers:
        """Compares with the store as it is now; may block.

        Args:
            public_url: The server's own.
            now: RFC 3339 time for conditions that change.
            every: Judge each broker, whatever has changed: the public URL has, or a look has failed.
        """
        server = self._server or ServerUrls((public_url,))
        changed = self._store.refresh(self._brokers)
        brokers = self._brokers.by_path

        def is_there(path: str) -> bool:
            return path in brokers and is_served(brokers[path])

        stale, namespaces = self._judge_policies(server, now)
        if every:
            judged = self._states.keys() | brokers.keys()
        else:
            judged = changed | self._concerned(
                {path for path in changed if is_there(path) != self.is_served(path)}, namespaces
            )
        moved: dict[str, BrokerState | None] = {}
        for path in judged:
            state = None
            if (broker := brokers.get(path)) is not None:
                policies = applying_policies(broker, self._policies.get(broker.metadata.namespace, ()))
                status = broker_status(broker, server=server, now=now, is_there=is_there, policies=policies)
                current = msgspec.structs.replace(broker, status=status)
                if status != broker.status:
                    stale.append(current)
                state = broker_state(current, public_url)
            if state != self._states.get(path):
                moved[path] = state
        if moved:
            states = self._states | moved
            self._states = {path: state for path, state in states.items() if state is not None}
        return StaleBrokers(stale, tuple(moved))

    def _concerned(self, flipped: Set[str], namespaces: Set[str]) -> set[str]:
        """Brokers whose sink is a broker that has come or gone, and those of namespaces whose policies have changed."""
        if not flipped and not namespaces:
            return set()
        return {
            path
            for path, state in self._states.items()
            if state.sink.broker in flipped or path.partition("/")[0] in namespaces
        }

    def _judge_policies(self, server: ServerUrls, now: str) -> tuple[list[Eventing], set[str]]:
        """The policies with the statuses that are true now: those of which another one is stored, and namespaces.

        All are judged: what they say of triggers changes with triggers.
        """

        def is_trigger(path: str) -> bool:
            namespace, _, name = path.partition("/")
            return self._store.target_id(ObjectKey(Kind.TRIGGER, namespace, name)) is not None

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
