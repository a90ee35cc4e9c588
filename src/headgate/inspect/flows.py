"""Types of events that brokers have seen, with their sources, how many and when, and the schema that JSON data has.

Sketches of bounded size, of data that anybody may have made. The flows hold places of events, not the events. Pure.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from headgate_api.limits import (
    CATALOGUE_ATTRIBUTES_MAX,
    CATALOGUE_BROKERS_MAX,
    CATALOGUE_ITEMS_MAX,
    CATALOGUE_RATE_S,
    CATALOGUE_SAMPLES_MAX,
    CATALOGUE_SILENT_S,
    SCHEMA_DEPTH_MAX,
    SCHEMA_ITEMS_MAX,
    SCHEMA_NAME_CHARS_MAX,
    SCHEMA_NODES_MAX,
)
from headgate_api.objects.kinds import JsonObject

_MINUTE_US: Final = 60_000_000
_members: Final = msgspec.json.Decoder(dict[str, Any]).decode


class FlowKey(NamedTuple):
    """What makes events one flow of a broker."""

    type: str
    source: str


class Flow:
    """How many events of a type from a source there are, and when the first and the last one were stored.

    Of `not_json` the media type says JSON and the data is none. `places` are partition and offset of some, one of a
    chunk, the newest last.
    """

    __slots__ = ("_minutes", "count", "first_us", "last_us", "not_json", "places")

    def __init__(self, time_us: int) -> None:
        self.count = self.not_json = 0
        self.first_us = self.last_us = time_us
        self.places: deque[tuple[int, int]] = deque(maxlen=CATALOGUE_SAMPLES_MAX)
        self._minutes: dict[int, int] = {}

    def add(self, count: int, time_us: int, place: tuple[int, int]) -> None:
        """So many events of a chunk; `place` is that of the last one."""
        self.count += count
        if time_us >= self.last_us:
            self.last_us = time_us
            self.places.append(place)
        elif len(self.places) < CATALOGUE_SAMPLES_MAX:
            self.places.appendleft(place)
        self.first_us = min(self.first_us, time_us)
        minute = time_us // _MINUTE_US
        oldest = self.last_us // _MINUTE_US - CATALOGUE_RATE_S // 60
        if minute >= oldest:
            if minute not in self._minutes:
                self._minutes = {one: number for one, number in self._minutes.items() if one >= oldest}
            self._minutes[minute] = self._minutes.get(minute, 0) + count

    def rate(self, since_us: int, now_us: int) -> float:
        """Events a second in the last CATALOGUE_RATE_S, or since a time where that is less."""
        from_us = max(since_us, now_us - CATALOGUE_RATE_S * 1_000_000)
        newest = sum(number for minute, number in self._minutes.items() if (minute + 1) * _MINUTE_US > from_us)
        return newest / max((now_us - from_us) / 1e6, 1.0)


class BrokerFlows:
    """The flows of one broker by type and source, at most CATALOGUE_ITEMS_MAX; `left_out` events had no room.

    `attributes` are names of extensions, with when the last event was stored of those that were looked at.
    """

    __slots__ = ("_full_until_us", "attributes", "flows", "left_out")

    def __init__(self) -> None:
        self.flows: dict[FlowKey, Flow] = {}
        self.left_out = 0
        self.attributes: dict[str, int] = {}
        self._full_until_us = 0

    def flow(self, key: FlowKey, time_us: int) -> Flow | None:
        """A flow, perhaps a new one; None where there is no room: a producer may make up types."""
        found = self.flows.get(key)
        if found is None and (len(self.flows) < CATALOGUE_ITEMS_MAX or self._drop_silent(time_us)):
            found = self.flows[key] = Flow(time_us)
        return found

    def see(self, names: Iterable[str], time_us: int) -> None:
        """Take up names of extensions."""
        for name in names:
            if len(name) <= SCHEMA_NAME_CHARS_MAX:
                self.attributes[name] = max(time_us, self.attributes.get(name, 0))
        while len(self.attributes) > CATALOGUE_ATTRIBUTES_MAX:  # a producer may make up names, too
            del self.attributes[min(self.attributes, key=self.attributes.__getitem__)]

    def _drop_silent(self, now_us: int) -> bool:
        """Make room for a newer flow by the one that has been silent for longest, if that is long."""
        if now_us < self._full_until_us:
            return False
        key, flow = min(self.flows.items(), key=lambda one: one[1].last_us)
        # None falls silent earlier than that; looked for once, not for each type that a producer makes up.
        self._full_until_us = flow.last_us + CATALOGUE_SILENT_S * 1_000_000
        if now_us < self._full_until_us:
            return False
        del self.flows[key]
        return True


class FlowSketch:
    """The flows of all brokers, of the CATALOGUE_BROKERS_MAX that had events last. Not for several threads at once."""

    def __init__(self) -> None:
        self._brokers: OrderedDict[str, BrokerFlows] = OrderedDict()

    def add(
        self,
        kinds: Sequence[tuple[str, str, str]],
        time_us: int,
        partition: int,
        offsets: Sequence[int],
        not_json: Sequence[int] = (),
        extensions: Sequence[str | None] = (),
    ) -> None:
        """Take up events of a chunk, at these offsets; `kinds` is broker, type and source of each.

        `not_json` are places in `kinds`, see `Flow`. `extensions` are those of each event as the log has them, or none
        at all; one event of a flow is looked at.
        """
        rows = {kind: row for row, kind in enumerate(kinds)}
        wrong = Counter(kinds[row] for row in not_json)
        named: dict[str, set[str]] = {}
        for kind, count in Counter(kinds).items():
            broker, type_, source = kind
            known = self._brokers.get(broker)
            if known is None:
                known = self._brokers[broker] = BrokerFlows()
                if len(self._brokers) > CATALOGUE_BROKERS_MAX:
                    self._brokers.popitem(last=False)
            self._brokers.move_to_end(broker)
            text = extensions[rows[kind]] if extensions else None
            if text is not None:
                named.setdefault(broker, set()).update(_members(text))
            flow = known.flow(FlowKey(type_, source), time_us)
            if flow is None:
                known.left_out += count
            else:
                flow.add(count, time_us, (partition, offsets[rows[kind]]))
                flow.not_json += wrong[kind]
        for broker, names in named.items():
            if broker in self._brokers:  # events of many others may have come behind its own
                self._brokers[broker].see(names, time_us)

    def of(self, broker: str) -> BrokerFlows:
        return self._brokers.get(broker) or BrokerFlows()

    def brokers(self) -> Iterator[tuple[str, BrokerFlows]]:
        yield from list(self._brokers.items())


_TYPES: Final[dict[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class _Node:
    """What was seen at one place of the data."""

    __slots__ = ("items", "left_out", "properties", "types")

    def __init__(self) -> None:
        self.types = Counter[str]()
        self.properties: dict[str, _Node] = {}
        self.items: _Node | None = None
        self.left_out = False


class ObservedSchema:
    """Takes one value after the other; knows at most SCHEMA_NODES_MAX places of them."""

    def __init__(self) -> None:
        self.count = 0
        self._root = _Node()
        self._left = SCHEMA_NODES_MAX

    def see(self, value: object) -> None:
        self.count += 1
        self._see(self._root, value, 0)

    def _see(self, node: _Node, value: object, depth: int) -> None:
        node.types[_TYPES[type(value)]] += 1
        if depth == SCHEMA_DEPTH_MAX:
            node.left_out |= isinstance(value, list | dict) and bool(value)
        elif isinstance(value, dict):
            for name, inner in value.items():
                child = node.properties.get(name)
                if child is None:
                    if not self._left or len(name) > SCHEMA_NAME_CHARS_MAX:
                        node.left_out = True
                        continue
                    self._left -= 1
                    child = node.properties[name] = _Node()
                self._see(child, inner, depth + 1)
        elif isinstance(value, list):
            if value and node.items is None and self._left:
                self._left -= 1
                node.items = _Node()
            if node.items is None:
                node.left_out |= bool(value)
                return
            for inner in value[:SCHEMA_ITEMS_MAX]:
                self._see(node.items, inner, depth + 1)

    def shown(self) -> JsonObject:
        """As JSON Schema (2020-12). `x-seen` counts values; `x-leftOut` says that there was more at a place."""
        return _shown(self._root)


def _shown(node: _Node) -> JsonObject:
    types = sorted(node.types)
    if "number" in types and "integer" in types:
        types.remove("integer")  # every integer is a number
    schema: JsonObject = {"type": types[0] if len(types) == 1 else types, "x-seen": node.types.total()}
    if node.properties:
        schema["properties"] = {name: _shown(child) for name, child in sorted(node.properties.items())}
        objects = node.types["object"]
        required = [name for name, child in sorted(node.properties.items()) if child.types.total() == objects]
        if required:
            schema["required"] = required
    if node.items is not None:
        schema["items"] = _shown(node.items)
    if node.left_out:
        schema["x-leftOut"] = True
    return schema
