"""Who wants what, and the events: brokers with filters of five conditions, and quiet brokers without any filter."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.tenants import path
from headgate.testing.server import Object, object_of

BROKER = "main"
QUIET = 5
"""Brokers that have one trigger without a filter each, in every setup."""
BATCH = 100


@dataclass(frozen=True)
class Setup:
    """Brokers, each in a namespace of its own.

    Attributes:
        name: As an option names it.
        brokers: Those with filters; the quiet ones come on top.
        triggers: Of each of them.
    """

    name: str
    brokers: int
    triggers: int

    @property
    def filters(self) -> int:
        return self.brokers * self.triggers


@dataclass(frozen=True)
class Post:
    """One request.

    Attributes:
        bytes: The whole of it, for HTTP/1.1.
        events: How many are in it.
        wanted: How many of them a subscriber gets, each once.
    """

    bytes: bytes
    events: int
    wanted: int


def setups(brokers: int) -> dict[str, Setup]:
    """By name: three triggers, five for each of the three, and none."""
    return {name: Setup(name, brokers, triggers) for name, triggers in (("3", 3), ("15", 15), ("none", 0))}


def filter_text(place: str, value: str) -> str:
    """Five conditions; the first four hold for every event of this program."""
    return (
        'ce.type in ["order.created", "order.changed"] && ce.source.startsWith("/shop/") && data.total > 100'
        f' && data.active && data.{place} == "{value}"'
    )


def namespace(broker: int) -> str:
    return f"tenant-{broker}"


def quiet_namespace(number: int) -> str:
    return f"quiet-{number}"


def brokers_of(setup: Setup) -> Iterator[Object]:
    for number in range(QUIET):
        yield object_of("brokers", quiet_namespace(number), BROKER, {})
    for broker in range(setup.brokers):
        yield object_of("brokers", namespace(broker), BROKER, {})


def triggers_of(setup: Setup, url: str) -> Iterator[Object]:
    """Each filter compares a field of its own: there are as many shapes of filters as filters."""
    to = {"broker": BROKER, "subscriber": {"uri": url}}
    for number in range(QUIET):
        yield object_of("triggers", quiet_namespace(number), "all", to)
    for broker in range(setup.brokers):
        for number in range(setup.triggers):
            expression = filter_text(path(broker, number), f"wanted-{number}")
            spec = {**to, "filter": {"expression": expression}}
            yield object_of("triggers", namespace(broker), f"t{number}", spec)


def data_of(setup: Setup, broker: int, wanted: int | None) -> bytes:
    """Data of an event that the filter of a number wants, or none: all other conditions hold."""
    data: dict[str, object] = {"total": 150, "active": True}
    for number in range(setup.triggers):
        data[path(broker, number)] = f"wanted-{number}" if number == wanted else "other"
    return json.dumps(data, separators=(",", ":")).encode()


def attributes(number: int) -> dict[str, str]:
    return {"specversion": "1.0", "id": str(number), "source": "/shop/orders/eu-west", "type": "order.created"}


def http(target: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """A whole request."""
    lines = [f"POST {target} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def single(namespace_: str, number: int, data: bytes) -> bytes:
    """One event in binary mode."""
    head = {f"ce-{name}": value for name, value in attributes(number).items()}
    return http(f"/{namespace_}/{BROKER}", {"content-type": "application/json"} | head, data)


def batch(namespace_: str, events: list[tuple[int, bytes]]) -> bytes:
    """Events, each its id and its data, in one request."""
    head = [json.dumps(attributes(number) | {"datacontenttype": "application/json"})[:-1] for number, _ in events]
    body = b",".join(b'%s,"data":%s}' % (text.encode(), data) for text, (_, data) in zip(head, events, strict=True))
    return http(f"/{namespace_}/{BROKER}", {"content-type": "application/cloudevents-batch+json"}, b"[" + body + b"]")


class Events:
    """Events over all brokers alike, of which so many in a hundred are wanted by one trigger each.

    Where no broker has filters, the wanted ones go to the quiet brokers.

    Args:
        setup: Who wants what.
        percent: The share that is wanted, spread evenly.
        first: The id of the first event.
    """

    def __init__(self, setup: Setup, percent: float, first: int = 0) -> None:
        self._setup = setup
        self._percent = percent
        self._random = random.Random(1)
        self._made = 0
        self._first = first

    def single(self) -> Post:
        number, wanted = self._next()
        if wanted and not self._setup.triggers:
            return quiet_post(number)
        broker = self._random.randrange(self._setup.brokers)
        return Post(single(namespace(broker), number, self._data(broker, wanted)), 1, int(wanted))

    def batch(self) -> Post:
        """BATCH events of one broker: a request goes to one."""
        some = [self._next() for _ in range(BATCH)]
        broker = self._random.randrange(self._setup.brokers)
        made = [(number, self._data(broker, wanted)) for number, wanted in some]
        wanted = sum(wanted for _, wanted in some) if self._setup.triggers else 0
        return Post(batch(namespace(broker), made), BATCH, wanted)

    def _next(self) -> tuple[int, bool]:
        """The id, and whether it is wanted."""
        before = self._made
        self._made += 1
        return self._first + before, int(self._made * self._percent / 100) > int(before * self._percent / 100)

    def _data(self, broker: int, wanted: bool) -> bytes:
        some = self._random.randrange(self._setup.triggers) if wanted and self._setup.triggers else None
        return data_of(self._setup, broker, some)


def quiet_post(number: int) -> Post:
    """An event of a quiet broker, which its trigger wants."""
    return Post(single(quiet_namespace(number % QUIET), number, b'{"total":150,"active":true}'), 1, 1)


def noisy_post(setup: Setup, number: int, *, wanted: bool) -> Post:
    """An event of the noisy broker, the first with filters."""
    some = number % setup.triggers if wanted and setup.triggers else None
    return Post(single(namespace(0), number, data_of(setup, 0, some)), 1, int(some is not None))
