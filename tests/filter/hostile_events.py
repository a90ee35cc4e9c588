"""Which events does a generated test use? Small values that filters often hit, and hostile ones.

`random_event(rng)` is plain and fast for tests over many pairs; `events()` is the same as a hypothesis strategy. The
filters of the same universe are in `strategies.py`.
"""

from __future__ import annotations

import json
import random

from hypothesis import strategies as st

from headgate.filter.cel.evaluate import EventView
from headgate_api.event.model import DataKind, Event, ExtensionValue
from headgate_api.event.rfc3339 import micros

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1

STRINGS = [
    "",
    "GOLD",
    "Order",
    "5",
    "-1",
    "1.5",
    " 2",
    "+1",
    "007",
    "1e2",
    "ſK",
    "order.",
    "order.\n",
    "a..b",
    "a",
    "b",
    "ab",
    "abc",
    "order",
    "order.created",
    "order.cancelled",
    "gold",
    "1",
    "true",
    "null",
    "é",
    "éa",
    "😀",
    "a😀b",
    "A",
    "a'b",
    'q"q',
    "a\\b",
    "%",
    "a\nb",
]
SMALL_NUMBERS: list[int | float] = [0, 1, 2, -1, 3, 10, 100, 0.0, -0.0, 1.0, 2.0, 0.5, 1.5, -1.5, 99.5, 1e-9]
LARGE_NUMBERS: list[int | float] = [
    2**53 - 1,
    2**53,
    2**53 + 1,
    float(2**53),
    float(2**53 + 2),
    INT64_MAX,
    INT64_MIN,
    INT64_MAX - 1,
    2**63,
    UINT64_MAX,
    float(2**63),
    -float(2**63),
    1e18,
    1e300,
    -1e300,
    2**64,
    10**25,
    5e-324,
]
TYPES = ["a", "b", "order", "order.created", "order.cancelled", "éa"]
SOURCES = ["/a", "/a/b", "urn:x", "order"]
SUBJECTS = [None, None, "a", "ab", "gold", "1", "😀"]
TIMES = [
    None,
    "2026-11-21T10:00:00Z",
    "2020-02-29T23:59:59.123456789+05:30",
    "2020-02-29T18:29:59.123456Z",
    "2020-02-29T18:29:59.123456000Z",
    "1970-01-01T00:00:00Z",
    "1969-12-31T23:59:59.999999999Z",
    "1969-12-31T23:59:60Z",
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59.9999999Z",
]
EXTENSIONS: dict[str, list[ExtensionValue]] = {
    "tenant": ["a", "b", "gold", "1", "", "GOLD", "2.5"],
    "tenantx": ["gold", True, 1],
    "tag": ["a", {"a": "a"}, {"a": {"b": 1}, "b.c": "a"}, {}, {"a": "order.created", "b": True}],
    "priority": [0, 1, 2, -1, 10, "1", 2**31 - 1, -(2**31), "+5", "2147483648", "00", "-3"],
    "flag": [True, False, "true", "FALSE", 0, 1],
    "in": ["a", "b"],
    "size": ["a", 1],
}
MEMBERS = ["tag.a", "tag.a.b"]
ATTRIBUTES = ["type", "source", "id", "specversion", "subject", "datacontenttype", "dataschema", *EXTENSIONS, "nosuch"]
ATTRIBUTES += MEMBERS
DATA_PATHS: list[tuple[str, ...]] = [
    ("s",),
    ("n",),
    ("b",),
    ("v",),
    ("o", "s"),
    ("o", "n"),
    ("o", "v"),
    ("o", "o", "k"),
    ("for",),
    ("a.b",),
    ("é",),
    ("l",),
    ("nosuch",),
    ("s", "x"),
]


def random_number(rng: random.Random) -> int | float:
    return rng.choice(SMALL_NUMBERS) if rng.random() < 0.8 else rng.choice(LARGE_NUMBERS)


def random_scalar(rng: random.Random) -> Json:
    pick = rng.random()
    if pick < 0.4:
        return rng.choice(STRINGS)
    if pick < 0.75:
        return random_number(rng)
    return rng.choice([True, False, None])


def _value(rng: random.Random, depth: int = 0) -> Json:
    pick = rng.random()
    if pick < 0.85 or depth > 1:
        return random_scalar(rng)
    if pick < 0.93:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(["s", "n", "k", "x"]): _value(rng, depth + 1) for _ in range(rng.randrange(3))}


def _list(rng: random.Random) -> Json:
    """Mostly a short list of scalars; now and then a nested, a huge or an empty one, or none at all."""
    pick = rng.random()
    if pick < 0.5:
        return [random_scalar(rng) for _ in range(rng.randrange(1, 5))]
    if pick < 0.65:
        return [rng.choice(STRINGS) for _ in range(rng.randrange(1, 4))]
    if pick < 0.9:
        return [_value(rng, 1) for _ in range(rng.randrange(4))]
    if pick < 0.93:
        return [rng.choice(["a", 1, "b", None]) for _ in range(rng.choice([63, 64, 65, 300]))]
    if pick < 0.96:
        return {rng.choice(["a", "b", "1", "s"]): random_scalar(rng) for _ in range(2)}
    return random_scalar(rng)


def _typical(rng: random.Random, name: str) -> Json:
    """A value for a field: mostly of the type that its name suggests."""
    if rng.random() < 0.12:
        return _value(rng)
    if name in {"s", "for", "a.b", "é"}:
        return rng.choice(STRINGS)
    if name == "n":
        return random_number(rng)
    if name == "b":
        return rng.random() < 0.5
    if name == "k":
        return rng.choice(["a", 1, True])
    return _value(rng)


def _object(rng: random.Random, depth: int = 0) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for name in ("s", "n", "b", "v"):
        if rng.random() < 0.75:
            result[name] = _typical(rng, name)
    if depth == 0:
        for name in ("for", "a.b", "é"):
            if rng.random() < 0.3:
                result[name] = _typical(rng, name)
        if rng.random() < 0.6:
            result["l"] = _list(rng)
    if depth < 2 and rng.random() < 0.7:
        result["o"] = _object(rng, depth + 1) if rng.random() < 0.9 else _value(rng)
    if depth == 2:
        result["k"] = _typical(rng, "k")
    return result


_DEEP = "a value nested nearly as deep as ingress lets in"
_NESTED = '{"s": [' * 495 + '"a"' + "]}" * 495


def random_data(rng: random.Random) -> Json:
    """JSON data: nearly always an object with fields of `DATA_PATHS`."""
    if rng.random() < 0.01:
        return {**_object(rng), "v": _DEEP, "l": [rng.choice(["a", 1]) for _ in range(1_000)]}
    return _object(rng) if rng.random() < 0.95 else _value(rng)


def random_event(rng: random.Random) -> Event:
    """One valid event of the universe. Data is JSON in 19 of 20 events, else text, bytes or none."""
    extensions = {name: rng.choice(values) for name, values in EXTENSIONS.items() if rng.random() < 0.6}
    kind, data, content_type = DataKind.JSON, b"", "application/json"
    pick = rng.random()
    if pick < 0.95:
        text = json.dumps(random_data(rng), ensure_ascii=rng.random() < 0.5)
        data = text.replace(f'"{_DEEP}"', _NESTED).encode()
    elif pick < 0.97:
        kind, data, content_type = DataKind.TEXT, b'{"s": "a"}', "text/plain"
    elif pick < 0.985:
        kind, data, content_type = DataKind.BINARY, b"\x00\xff", "application/octet-stream"
    else:
        kind = DataKind.NONE
    return Event(
        specversion="1.0" if rng.random() < 0.9 else "0.3",
        id=rng.choice(["1", "2", "a"]),
        source=rng.choice(SOURCES),
        type=rng.choice(TYPES),
        subject=rng.choice(SUBJECTS),
        time=rng.choice(TIMES),
        datacontenttype=None if kind is DataKind.NONE or rng.random() < 0.2 else content_type,
        dataschema=rng.choice([None, None, "urn:schema:a"]),
        extensions=extensions,
        data_kind=kind,
        data=None if kind is DataKind.NONE else data,
    )


def random_stored_us(rng: random.Random) -> int:
    """When an event of the universe was stored: near the times that filters ask for, with microseconds or without."""
    text = rng.choice([time for time in TIMES if time is not None and time.startswith(("19", "20"))])
    return max(0, (micros(text) or 0) + rng.choice([0, 0, 1, 999, -1, -1_000, 1_000, 3_600_000_000]))


def random_view(rng: random.Random) -> EventView:
    """`random_event` as filters see it once it is stored."""
    return EventView(random_event(rng), random_stored_us(rng))


def events() -> st.SearchStrategy[Event]:
    """`random_event` as a hypothesis strategy."""
    return st.randoms(use_true_random=False).map(random_event)


def views() -> st.SearchStrategy[EventView]:
    """`random_view` as a hypothesis strategy."""
    return st.randoms(use_true_random=False).map(random_view)
