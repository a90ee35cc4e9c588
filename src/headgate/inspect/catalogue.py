"""The catalogue of a broker: which types of events flow here, from which sources, what their data is, who wants them.

It is read from the newest part of the log, within bounds of bytes and time. So it holds for the events that readers can
get, costs producers nothing, and survives whatever the log does. The answer says how far back it looked.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import msgspec
import pyarrow.compute as pc

from headgate.control.log_spec import retention_us
from headgate.control.objects import Broker, JsonObject, ObjectKey
from headgate.control.status import identity_of
from headgate.control.store import Store
from headgate.errors import OverloadedError
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, from_batch
from headgate.event.json_format import encode_event
from headgate.event.model import DataKind
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.inspect.observed_schema import ObservedSchema
from headgate.inspect.sentences import time_text
from headgate.limits import (
    CATALOGUE_BYTES_MAX,
    CATALOGUE_ITEMS_MAX,
    CATALOGUE_JUDGE_S_MAX,
    CATALOGUE_SAMPLE_BYTES_MAX,
    CATALOGUE_SAMPLES_MAX,
    CATALOGUE_SECONDS_MAX,
    CATALOGUE_WANTED_MAX,
    CATALOGUES_MAX,
)
from headgate.log.directory import LogDirectory
from headgate.log.reader import Chunk
from headgate.log.search import newest_of_all

_BROKER, _TYPE, _SOURCE = (EVENT_SCHEMA.get_field_index(name) for name in ("broker", "type", "source"))


class CataloguesOverloadError(OverloadedError):
    """CATALOGUES_MAX catalogues are being read."""

    code = "catalogues"


class CatalogueItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Events of one type from one source, in the part of the log that was looked at.

    Attributes:
        first_seen: When the first of them was stored there, RFC 3339.
        last_seen: When the last one was.
        rate: Events a second since `since` of the catalogue.
        example: The newest of them, in the JSON format; absent where it is too large.
        schema: Of the JSON data of some of them, see `ObservedSchema`; absent where there is none.
        sampled: How many those are.
        wanted_by: Triggers and subscriptions whose filter takes the example: `namespace/name`, by name.
        wanted_by_left_out: How many more there are.
        judged: Whether there was time to ask the filters.
    """

    type: str
    source: str
    count: int
    rate: float
    first_seen: str
    last_seen: str
    example: msgspec.Raw | None = None
    schema: JsonObject | None = None
    sampled: int = 0
    wanted_by: list[str] = []
    wanted_by_left_out: int = 0
    judged: bool = True


class CatalogueView(msgspec.Struct, frozen=True, rename="camel"):
    """The answer.

    Attributes:
        since: Append time of the oldest chunk that was looked at, RFC 3339; empty for an empty log.
        complete: Whether that is all that the broker still shows.
        events: Events of the broker that were looked at.
        left_out: Of them, those of further types and sources than CATALOGUE_ITEMS_MAX.
        items: Most events first.
    """

    broker: str
    since: str
    complete: bool
    events: int
    left_out: int
    items: list[CatalogueItem]


class _Flow:
    """What is known of a type and a source."""

    __slots__ = ("count", "example", "first_us", "last_us", "schema")

    def __init__(self, newest: StoredEvent, stored_us: int) -> None:
        self.count = 0
        self.first_us = self.last_us = stored_us
        self.example = newest
        self.schema = ObservedSchema()

    def sample(self, stored: StoredEvent) -> None:
        """Looks into an event's data, where it is JSON of a usual size."""
        data = stored.event.data
        if stored.event.data_kind is DataKind.JSON and data and len(data) <= CATALOGUE_SAMPLE_BYTES_MAX:
            self.schema.see(msgspec.json.decode(data))


class Catalogues:
    """Reads catalogues. Blocking; at most CATALOGUES_MAX calls at the same time.

    Args:
        log: The event log.
        store: The objects.
        clock_us: Microseconds since 1970 UTC.
    """

    def __init__(
        self, log: LogDirectory, store: Store, clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000
    ) -> None:
        self._log = log
        self._store = store
        self._clock_us = clock_us
        self._running = 0

    def read(self, key: ObjectKey) -> CatalogueView:
        """The catalogue of a broker.

        Raises:
            ObjectNotFoundError: There is no such broker.
            CataloguesOverloadError: There is enough to do.
        """
        if self._running >= CATALOGUES_MAX:
            raise CataloguesOverloadError(f"{CATALOGUES_MAX} catalogues are being read", hint="try again later")
        self._running += 1
        try:
            broker = self._store.get(key)
            assert isinstance(broker, Broker)
            return self._read(broker)
        finally:
            self._running -= 1

    def _read(self, broker: Broker) -> CatalogueView:
        identity, kept_us, now_us = identity_of(broker), retention_us(broker.spec.log), self._clock_us()
        not_before_us = 0 if kept_us is None else now_us - kept_us
        flows: dict[tuple[str, str], _Flow] = {}
        left_bytes, ends_s = CATALOGUE_BYTES_MAX, time.monotonic() + CATALOGUE_SECONDS_MAX
        since_us, events, left_out, complete = 0, 0, 0, True
        for _, chunk in newest_of_all(self._log, before={}, not_before_us=not_before_us):
            if left_bytes <= 0 or time.monotonic() > ends_s:
                complete = False
                break
            seen, unknown = _see(flows, chunk, identity)
            events, left_out = events + seen, left_out + unknown
            left_bytes -= chunk.size_bytes
            since_us = chunk.append_time_us
        seconds = max((now_us - since_us) / 1e6, 1.0)
        found = sorted(flows.items(), key=lambda one: (-one[1].count, one[0]))
        items = self._items(identity, found, seconds)
        since = time_text(since_us) if since_us else ""
        return CatalogueView(broker.metadata.path, since, complete, events, left_out, items)

    def _items(self, identity: str, found: list[tuple[tuple[str, str], _Flow]], seconds: float) -> list[CatalogueItem]:
        targets = [one for one in self._store.snapshot().targets if one.broker == identity]
        targets.sort(key=lambda one: one.name)
        ends_s = time.monotonic() + CATALOGUE_JUDGE_S_MAX
        items = []
        for (type_, source), flow in found:
            wanted: list[str] = []
            judged = True
            view = EventView(flow.example.event, flow.last_us)
            for target in targets:
                if time.monotonic() > ends_s:
                    wanted, judged = [], False
                    break
                if program(target.filter.cel).evaluate_view(view).kind is OutcomeKind.TRUE:
                    wanted.append(target.name)
            example = encode_event(flow.example.event)
            items.append(
                CatalogueItem(
                    type=type_,
                    source=source,
                    count=flow.count,
                    rate=round(flow.count / seconds, 3),
                    first_seen=time_text(flow.first_us),
                    last_seen=time_text(flow.last_us),
                    example=msgspec.Raw(example) if len(example) <= CATALOGUE_SAMPLE_BYTES_MAX else None,
                    schema=flow.schema.shown() if flow.schema.count else None,
                    sampled=flow.schema.count,
                    wanted_by=wanted[:CATALOGUE_WANTED_MAX],
                    wanted_by_left_out=max(0, len(wanted) - CATALOGUE_WANTED_MAX),
                    judged=judged,
                )
            )
        return items


def _see(flows: dict[tuple[str, str], _Flow], chunk: Chunk, identity: str) -> tuple[int, int]:
    """Takes up a chunk's events of a broker: how many they are, and of them those for which there is no room."""
    batch = chunk.batch
    own = pc.equal(batch.column(_BROKER), identity)
    batch = batch.filter(own)
    if not batch.num_rows:
        return 0, 0
    kinds = list(zip(batch.column(_TYPE).to_pylist(), batch.column(_SOURCE).to_pylist(), strict=True))
    last = {kind: row for row, kind in enumerate(kinds)}
    left_out = 0
    for kind, count in Counter(kinds).items():
        flow = flows.get(kind)
        if flow is None and len(flows) >= CATALOGUE_ITEMS_MAX:
            left_out += count
            continue
        if flow is None or flow.schema.count < CATALOGUE_SAMPLES_MAX:
            stored = from_batch(batch, last[kind])
            if flow is None:
                flow = flows[kind] = _Flow(stored, chunk.append_time_us)
            flow.sample(stored)
        flow.count += count
        flow.first_us = min(flow.first_us, chunk.append_time_us)
    return len(kinds), left_out
