"""The catalogue of a broker: which types of events flow here, from which sources, what their data is, who wants them.

How many there are and when is known by the follower of the log. What they look like is read from the log for the one
flow that is asked for: so a catalogue costs producers nothing, and holds for the events that readers can get.

Who has a ceiling on the broker has a catalogue of the events below it. Each ceiling has a follower of its own, which
reads on when it is asked: what was counted for others says nothing of these events alone.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import structlog

from headgate.event.arrow import StoredEvent, from_batch
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.tools.advice import SeenNames, UnseenName, UnseenNames, unknown_name
from headgate.filter.tools.candidates import EventKeys
from headgate.inspect.find import time_text
from headgate.inspect.flows import Flow, FlowKey, ObservedSchema
from headgate.inspect.log_follower import LogFollower, unwaited
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.event_types import event_type_of
from headgate.objects.kinds.routing import Target
from headgate.objects.kinds.specs import retention_us
from headgate.objects.kinds.status import identity_of
from headgate.objects.store.rows import KnownObjects
from headgate.objects.store.store import Store
from headgate.observe.logs import Recurring
from headgate.scan.scan import rows_taken
from headgate_api.errors import HeadgateError, NotFoundError
from headgate_api.event.json_format import encode_event
from headgate_api.event.model import DataKind
from headgate_api.limits import (
    CATALOGUE_CEILING_S_MAX,
    CATALOGUE_CEILINGS_MAX,
    CATALOGUE_JUDGE_S_MAX,
    CATALOGUE_SAMPLE_BYTES_MAX,
    CATALOGUE_SAMPLE_S_MAX,
    CATALOGUE_WANTED_MAX,
    EVENT_TYPES_AGAIN_S,
    EVENT_TYPES_CREATE_S,
)
from headgate_api.objects.errors import ObjectNotFoundError
from headgate_api.objects.kinds import Broker, JsonObject, Kind, ObjectKey


class FlowNotFoundError(NotFoundError):
    """No such events are known."""

    code = "flow"


class CatalogueItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Events of one type from one source. What stands behind `not_json` is there for the one that is asked for.

    The rate is a second in the last quarter of an hour, or since `since`. Of `not_json` the media type says JSON and
    the data is none: no filter finds anything in it. The example is the newest that can be read; absent where it is too
    large. The schema is that of the data of `sampled` of them, see `ObservedSchema`. `wanted_by` are triggers and
    subscriptions whose filter takes the example; `judged` says whether there was time to ask all filters.
    """

    type: str
    source: str
    count: int
    rate: float
    first_seen: str
    last_seen: str
    not_json: int = 0
    example: msgspec.Raw | None = None
    schema: JsonObject | None = None
    sampled: int = 0
    wanted_by: list[str] = []
    wanted_by_left_out: int = 0
    judged: bool = True


class CatalogueView(msgspec.Struct, frozen=True, rename="camel"):
    """The answer: events since `since`, RFC 3339, empty for an empty log; most events first.

    `complete`: that is all that was in the log. `left_out` events are of more types and sources than
    CATALOGUE_ITEMS_MAX. `attributes` are names of extensions, of one event of a flow in each chunk, sorted.
    """

    broker: str
    since: str
    complete: bool
    events: int
    left_out: int
    items: list[CatalogueItem]
    attributes: list[str] = []


class UnseenView(msgspec.Struct, frozen=True):
    """The answer on a filter: its names that no event of the broker has had, and what was probably meant."""

    broker: str
    items: tuple[UnseenName, ...]


class _Flows(NamedTuple):
    """The flows of a broker as they were when somebody asked, each with places of its events.

    `since_us` and `is_complete` are those of the follower.
    """

    known: list[tuple[CatalogueItem, list[tuple[int, int]]]]
    left_out: int  # events of other flows
    attributes: list[str]
    since_us: int
    is_complete: bool


def _all(_: Target) -> bool:
    return True


class Catalogues:
    """Reads catalogues. Blocking, for any thread. `clock_us` gives microseconds since 1970 UTC."""

    def __init__(
        self, follower: LogFollower, store: Store, clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000
    ) -> None:
        self.follower = follower
        self._store = store
        self._clock_us = clock_us
        self._below: OrderedDict[tuple[str, str], LogFollower] = OrderedDict()
        """By broker and ceiling, the one that was asked for last at the end."""
        self._lock = threading.Lock()

    def read(self, key: ObjectKey, ceiling: str = "") -> CatalogueView:
        """The catalogue of a broker below a ceiling (CEL); ObjectNotFoundError when there is no such broker."""
        broker = self._broker(key)
        found = self._flows(broker, ceiling)
        items = sorted((item for item, _ in found.known), key=lambda one: (-one.count, one.type, one.source))
        return _view(broker, items, found)

    def read_flow(
        self, key: ObjectKey, flow: FlowKey, ceiling: str = "", may_see: Callable[[Target], bool] = _all
    ) -> CatalogueView:
        """One flow of it, with those who want it, as far as they may be seen; as `read`, and FlowNotFoundError."""
        broker = self._broker(key)
        found = self._flows(broker, ceiling)
        for item, places in found.known:
            if (item.type, item.source) == flow:
                return _view(broker, [self._detailed(broker, item, places, may_see)], found._replace(left_out=0))
        raise FlowNotFoundError(f"no events of type {flow.type!r} from source {flow.source!r} are known")

    def names(self, key: ObjectKey, ceiling: str = "") -> SeenNames:
        """What a filter can be compared with; types and sources only where all that came are known. As `read`."""
        found = self._flows(self._broker(key), ceiling)
        flows = [] if found.left_out else [item for item, _ in found.known]
        types, sources = frozenset(one.type for one in flows), frozenset(one.source for one in flows)
        return SeenNames(types, sources, frozenset(found.attributes))

    def unseen(
        self, key: ObjectKey, spec: tuple[Mapping[str, object] | None, Sequence[object]], ceiling: str = ""
    ) -> UnseenView:
        """Names in a `spec.filter` and `spec.filters` that no event has had; FilterError when it is none. As `read`."""
        seen = self.names(key, ceiling)
        try:
            items = UnseenNames(seen).of(compile_filter(*spec))
        except FilterError as error:
            meant = unknown_name(error, seen)
            if meant is None:
                raise
            items = (meant,)
        return UnseenView(key.path, items)

    def _broker(self, key: ObjectKey) -> Broker:
        broker = self._store.get(key)
        assert isinstance(broker, Broker)
        return broker

    def _flows(self, broker: Broker, ceiling: str) -> _Flows:
        """What of a broker its readers still see."""
        kept_us, now_us = retention_us(broker.spec.log), self._clock_us()
        not_before_us = 0 if kept_us is None else now_us - kept_us
        follower = self.follower if not ceiling else self._follower_below(identity_of(broker), ceiling)
        with follower.flows() as sketch:
            since_us = max(follower.since_us, not_before_us)
            known = sketch.of(identity_of(broker))
            flows = [
                (_item(key, flow, flow.rate(since_us, now_us)), list(flow.places))
                for key, flow in known.flows.items()
                if flow.last_us >= not_before_us
            ]
            attributes = sorted(name for name, last_us in known.attributes.items() if last_us >= not_before_us)
            return _Flows(flows, known.left_out, attributes, follower.since_us, follower.is_complete)

    def _follower_below(self, broker: str, ceiling: str) -> LogFollower:
        """The one of a ceiling on a broker (its identity), which has read on for CATALOGUE_CEILING_S_MAX at most."""
        with self._lock:
            follower = self._below.pop((broker, ceiling), None)
            if follower is None:
                follower = LogFollower(self.follower.log, partial(rows_taken, broker=broker, cel=ceiling))
            self._below[broker, ceiling] = follower
            if len(self._below) > CATALOGUE_CEILINGS_MAX:
                self._below.popitem(last=False)
        follower.read_for(CATALOGUE_CEILING_S_MAX)
        return follower

    def _detailed(
        self, broker: Broker, item: CatalogueItem, places: list[tuple[int, int]], may_see: Callable[[Target], bool]
    ) -> CatalogueItem:
        identity, schema = identity_of(broker), ObservedSchema()
        newest: StoredEvent | None = None
        stored_us, ends_s = 0, time.monotonic() + CATALOGUE_SAMPLE_S_MAX
        for partition in sorted({number for number, _ in places}):
            # Together: the way to the first chunk of a segment leads to the others.
            offsets = sorted({offset for number, offset in places if number == partition}, reverse=True)
            for page in self.follower.log.holding(partition, offsets):
                row = page.offsets.index(next(one for one in offsets if one in page.offsets))
                stored = from_batch(page.batch, row)
                if newest is None or page.append_times_us[row] > stored_us:
                    newest, stored_us = stored, page.append_times_us[row]
                _sample(schema, stored)
                if time.monotonic() > ends_s:
                    break
        if newest is None:  # retention has taken all that are known
            return msgspec.structs.replace(item, judged=False)
        example = encode_event(newest.event)
        wanted, judged = self._wanted(identity, EventView(newest.event, stored_us), EventKeys(newest.event), may_see)
        return msgspec.structs.replace(
            item,
            example=msgspec.Raw(example) if len(example) <= CATALOGUE_SAMPLE_BYTES_MAX else None,
            schema=schema.shown() if schema.count else None,
            sampled=schema.count,
            wanted_by=wanted[:CATALOGUE_WANTED_MAX],
            wanted_by_left_out=max(0, len(wanted) - CATALOGUE_WANTED_MAX),
            judged=judged,
        )

    def _wanted(
        self, identity: str, view: EventView, keys: EventKeys, may_see: Callable[[Target], bool]
    ) -> tuple[list[str], bool]:
        """Who wants an event, by name; and whether all were asked."""
        wanted: list[str] = []
        ends_s = time.monotonic() + CATALOGUE_JUDGE_S_MAX
        for target in self._store.snapshot().targets.values():
            if target.broker != identity or not keys.may_pass(target.filter) or not may_see(target):
                continue
            if time.monotonic() > ends_s:
                return sorted(wanted), False
            if program(target.filter.cel).evaluate_view(view).kind is OutcomeKind.TRUE:
                wanted.append(target.name)
        return sorted(wanted), True


def _view(broker: Broker, items: list[CatalogueItem], found: _Flows) -> CatalogueView:
    events = sum(one.count for one in items) + found.left_out
    since = time_text(found.since_us) if found.since_us else ""
    return CatalogueView(
        broker.metadata.path, since, found.is_complete, events, found.left_out, items, found.attributes
    )


def _item(key: FlowKey, flow: Flow, rate: float) -> CatalogueItem:
    first, last = time_text(flow.first_us), time_text(flow.last_us)
    return CatalogueItem(key.type, key.source, flow.count, round(rate, 3), first, last, flow.not_json)


def _sample(schema: ObservedSchema, stored: StoredEvent) -> None:
    data = stored.event.data
    if stored.event.data_kind is DataKind.JSON and data and len(data) <= CATALOGUE_SAMPLE_BYTES_MAX:
        schema.see(msgspec.json.decode(data))


# --- event type creator ---------------------------------------------------------------------------
# The creator of EventTypes: each flow of a broker gets one, where the server is told to make them.

_log = structlog.get_logger(__name__)
_Place = tuple[str, FlowKey]
_AGAIN_US: Final = int(EVENT_TYPES_AGAIN_S * 1_000_000)


class EventTypeCreator:
    """Makes them. What somebody deletes comes again with its next events, as in Knative."""

    def __init__(
        self, admission: Admission, follower: LogFollower, clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000
    ) -> None:
        self._admission = admission
        self.follower = follower
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
        with self.follower.flows() as sketch:
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
