"""The creator of EventTypes: each flow of a broker gets one, where the server is told to make them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from headgate.control.admission import Admission
from headgate.control.event_types import event_type_of
from headgate.control.rows import KnownObjects
from headgate.control.status import identity_of
from headgate.inspect.flows import FlowKey
from headgate.inspect.log_follower import LogFollower, unwaited
from headgate.observe.logs import Recurring
from headgate_api.control.errors import ObjectNotFoundError
from headgate_api.control.objects import Broker, Kind, ObjectKey
from headgate_api.errors import HeadgateError
from headgate_api.limits import EVENT_TYPES_AGAIN_S, EVENT_TYPES_CREATE_S

_log = structlog.get_logger(__name__)
_Place = tuple[str, FlowKey]
_AGAIN_US: Final = int(EVENT_TYPES_AGAIN_S * 1_000_000)


class EventTypeCreator:
    """Makes them. What somebody deletes comes again with its next events, as in Knative."""

    def __init__(
        self,
        admission: Admission,
        follower: LogFollower,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self._admission = admission
        self._follower = follower
        self._clock_us = clock_us
        self._known: KnownObjects[Broker] = KnownObjects(Kind.BROKER)
        self._brokers: dict[str, Broker] = {}
        """By identity."""
        self._seen: dict[_Place, int] = {}
        """When flows were looked at, of those that are known now."""
        self._refusals = Recurring(_log, "an EventType cannot be made", HeadgateError)

    async def run(self) -> None:
        turns = Recurring(_log, "EventTypes cannot be made", HeadgateError, OSError)
        while True:
            with turns.attempt():
                await unwaited(self.step)
            await asyncio.sleep(EVENT_TYPES_CREATE_S)

    def step(self) -> int:
        """Look at all flows with new events, blocking; returns how many EventTypes were made."""
        if self._admission.store.refresh(self._known):
            self._brokers = {identity_of(broker): broker for broker in self._known.by_path.values()}
        now_us, due, known = self._clock_us(), list[_Place](), set[_Place]()
        with self._follower.flows() as sketch:
            for identity, flows in sketch.brokers():
                for key, flow in flows.flows.items():
                    known.add((identity, key))
                    looked_us = self._seen.get((identity, key))
                    if looked_us is None or (flow.last_us > looked_us and looked_us < now_us - _AGAIN_US):
                        due.append((identity, key))
        self._seen = {place: at_us for place, at_us in self._seen.items() if place in known}
        made = 0
        for identity, key in due:
            broker = self._brokers.get(identity)
            if broker is not None:
                with self._refusals.attempt():
                    made += self._make(broker, key)
            self._seen[identity, key] = now_us
        return made

    def _make(self, broker: Broker, key: FlowKey) -> bool:
        document = event_type_of(broker, key.type, key.source)
        if document is None:
            return False
        meta = document["metadata"]
        try:
            self._admission.store.get(ObjectKey(Kind.EVENT_TYPE, meta["namespace"], meta["name"]))
        except ObjectNotFoundError:
            self._admission.create(Kind.EVENT_TYPE, document)
            return True
        return False
