"""A server under fire: producers, consumers and subscribers that work, fail and hang, while it is killed over and over.

It has two fronts and two dispatchers. First each of its processes is killed alone, then all of them at once, again and
again. `war` does it once; what came out is looked at by the tests. Everything random comes from one seed.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import random
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.delivery.cursors import CursorStore
from headgate.objects.store.store import Store
from headgate.outbox.shards import dispatcher_of
from headgate.storage.files import directories_of
from headgate.subscriptions.store import SubscriptionStore
from headgate.testing.server import START_S_MAX, Server, parts_of
from headgate_api.errors import HeadgateError
from tests import support
from tests.delivery import harness
from tests.support import eventually, times
from tests.system.publishing import DOWN, Pressure, Publisher
from tests.system.subscriber import Subscriber

KILLS = times(2, 6, 100)
SEED = support.SEED or random.randrange(1, 1 << 31)
"""What the crash tests of one run share: how often they kill all, and what everything random comes from."""
FRONTS = DISPATCHERS = 2
ARGUMENTS = ("--fronts", str(FRONTS), "--dispatchers", str(DISPATCHERS))
PARTS = ("control", "front-0", "front-1", "dispatcher-0", "dispatcher-1", "reader", "matcher")
PARTS_A_KILL_MAX = 2
"""Processes that are killed alone shortly before all are."""
PART_S_MAX = 1.0
"""A process is killed within this after another one: before that one works again, or a little later."""
READY_SHARE = 0.3
"""Share of the kills that wait until every part works."""
EARLY_SHARE = 0.1
"""Share of the kills before anything listens. The others fall into the rest of the start, which is Spark's mostly."""
STARTING_S_MAX = 8.0
"""A start is killed within this after it listens, however slow the machine is."""
WORK_S_MAX = 3.0
SETTLE_S_MAX = 300.0
RATE_PER_S = times(50, 100)
KEYS = 8
ACK_TIMEOUT_S = 2
CHANGE_S_MAX = 0.5
"""Between two changes of filters."""
FAULTS = {"error": 0.15, "hang": 0.05, "reset": 0.1}
"""How often an attempt at a faulty subscriber meets what."""

Wanted = Callable[[int], bool]


def key_of(number: int) -> str:
    return f"k{number // 10 % KEYS}"


HEALTHY: dict[str, tuple[dict[str, Any], Wanted]] = {
    "by-type": ({"attributes": {"type": "crash.even"}}, lambda n: n % 2 == 0),
    "by-data": ({"expression": 'ce.source == "/test" && data.n % 3 == 0'}, lambda n: n % 3 == 0),
    "by-list": ({"expression": 'ce.type.startsWith("crash.") && data.tags.exists(t, t == "a")'}, lambda n: n % 5 == 0),
    "by-range": ({"expression": 'ce.type == "crash.odd" && data.n >= 100'}, lambda n: n % 2 == 1 and n >= 100),
}
FAULTY: dict[str, tuple[dict[str, Any], Wanted, dict[str, Any]]] = {
    "unordered": ({"expression": "data.n % 4 == 0"}, lambda n: n % 4 == 0, {"retry": 20}),
    "ordered": ({"expression": "data.n % 10 == 0"}, lambda n: n % 10 == 0, {"retry": 20, "order": "ordered"}),
    "ordered-2": ({"expression": "data.n % 10 == 5"}, lambda n: n % 10 == 5, {"retry": 20, "order": "ordered"}),
    "refusing": ({"expression": "data.n % 20 == 7"}, lambda n: n % 20 == 7, {}),
}
"""Triggers whose subscriber fails now and then (`refusing`: for good); what is not taken goes to a dead-letter sink."""
ORDERED = ("ordered", "ordered-2")
PULLED: dict[str, tuple[dict[str, Any], Wanted, str, int]] = {
    "shared": ({"expression": "data.n % 3 == 1"}, lambda n: n % 3 == 1, "shared", 3),
    "failover": ({"attributes": {"type": "crash.odd"}}, lambda n: n % 2 == 1, "failover", 2),
}


@dataclass
class Outcome:
    """What a war leaves.

    Attributes:
        seed: Of everything random.
        kills: How often all processes were killed at once.
        parts: How often each process was killed alone.
        owners: The dispatcher of each trigger and subscription.
        accepted: Numbers of the events that were answered 202.
        log: Every event that the log holds in the end: (partition, offset, number), in order.
        delivered: Per healthy trigger, ids with how often they came.
        attempts: Per faulty trigger, in order of arrival: (number, whether it was taken).
        buried: Per faulty trigger, numbers of the dead letters that came, with how often.
        consumers: Per subscription.
        cursors: After each kill, the positions on disk by name.
        changes: How many more triggers were in force for a while.
    """

    seed: int
    kills: int
    parts: Counter[str] = field(default_factory=Counter)
    owners: dict[str, int] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=list)
    log: list[tuple[int, int, int]] = field(default_factory=list)
    delivered: dict[str, Counter[str]] = field(default_factory=dict)
    attempts: dict[str, list[tuple[int, bool]]] = field(default_factory=dict)
    buried: dict[str, Counter[int]] = field(default_factory=dict)
    consumers: dict[str, Consumers] = field(default_factory=dict)
    cursors: list[dict[str, int]] = field(default_factory=list)
    changes: int = 0

    def expected(self, wanted: Wanted) -> set[int]:
        """Numbers of the acknowledged events that a filter wants."""
        return {number for number in self.accepted if wanted(number)}


class Load:
    """Publishes numbered events for as long as the server answers; notes what was accepted."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._numbers = itertools.count()
        self.accepted: list[int] = []

    def until_killed(self, seconds: float, wait: Callable[[], object]) -> None:
        """Publishes; kills the server `seconds` after `wait` has returned."""
        with Pressure(self._server, RATE_PER_S, self._publish):
            wait()
            time.sleep(seconds)
            self._server.kill()

    def _publish(self, publisher: Publisher) -> None:
        number = next(self._numbers)
        type_ = "crash.even" if number % 2 == 0 else "crash.odd"
        data = {"n": number, "tags": ["a"] if number % 5 == 0 else ["b"]}
        if publisher.publish(f"n{number}", type_, data, partitionkey=key_of(number)) == 202:
            self.accepted.append(number)


class Consumers:
    """Consumers of one subscription: they pull, acknowledge, forget a tenth, and now and then die with what they have.

    Attributes:
        confirmed: Ids whose acknowledgement was answered, with how often.
        doubtful: Ids in acknowledgements that were never answered.
        again: Ids that were handed out in answer to a pull asked after their acknowledgement had been answered.
        pulled: Ids with how often they were handed out.
    """

    def __init__(self, server: Server, name: str, count: int, seed: int) -> None:
        self._server = server
        self._path = f"{server.objects_url('subscriptions', 'default').removeprefix(server.url)}/{name}"
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._confirmed_at: dict[str, float] = {}
        self.confirmed: Counter[str] = Counter()
        self.doubtful: set[str] = set()
        self.again: list[str] = []
        self.pulled: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._consume, args=(number, random.Random(f"{seed} {name} {number}")))
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Returns when nobody asks any more."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _consume(self, number: int, rng: random.Random) -> None:
        for life in itertools.count():
            if self._stop.is_set():
                return
            connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=20)
            try:
                self._live(connection, f"c{number}-{life}", rng)
            except DOWN:
                time.sleep(0.1)
            finally:
                connection.close()

    def _live(self, connection: http.client.HTTPConnection, consumer: str, rng: random.Random) -> None:
        while not self._stop.is_set():
            asked_at = time.monotonic()
            pull = {"consumer": consumer, "max": 100, "wait": 1}
            if rng.random() < 0.02:
                die(connection, f"{self._path}/pull", pull)
                return
            pulled = self._ask(connection, "pull", pull)
            if pulled is None:
                time.sleep(0.1)
                continue
            events = {one["ackId"]: one["event"]["id"] for one in pulled["events"]}
            with self._lock:
                self.pulled.update(events.values())
                self.again += [id_ for id_ in events.values() if self._confirmed_at.get(id_, asked_at) < asked_at]
            if rng.random() < 0.02:
                return  # with what it has
            asked = [ack_id for ack_id in events if rng.random() < 0.9]
            if not asked:
                continue
            try:
                answer = self._ask(connection, "ack", {"consumer": consumer, "ids": asked})
            except DOWN:
                answer = None
            with self._lock:
                if answer is None:
                    self.doubtful.update(events[ack_id] for ack_id in asked)
                else:
                    done = [events[ack_id] for ack_id in asked if ack_id not in answer["stale"]]
                    self.confirmed.update(done)
                    self._confirmed_at.update(dict.fromkeys(done, time.monotonic()))

    def _ask(self, connection: http.client.HTTPConnection, action: str, body: dict[str, Any]) -> dict[str, Any] | None:
        connection.request(
            "POST", f"{self._path}/{action}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        answer = connection.getresponse()
        text = answer.read()
        return json.loads(text) if answer.status == 200 else None


class Changes:
    """Triggers that come and go all the time: filters change while anything is killed.

    `in_force` counts those that were Ready. Their subscriber takes nothing.
    """

    def __init__(self, server: Server, seed: int) -> None:
        self.in_force = 0
        self._server = server
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for number in itertools.count():
            filter_, _ = self._rng.choice([*HEALTHY.values()])
            spec = {"broker": "default", "filter": filter_, "subscriber": {"uri": "http://127.0.0.1:9/"}}
            with suppress(*DOWN, HeadgateError):
                self._server.create("triggers", "default", f"change-{number}", spec)
                if not self._stop.is_set():
                    self._server.wait_trigger_ready("default", f"change-{number}", seconds=START_S_MAX)
                    self.in_force += 1
                self._server.delete("triggers", "default", f"change-{number}")
            if self._stop.wait(self._rng.uniform(0.0, CHANGE_S_MAX)):
                return


def die(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> None:
    """What the kernel does to the connection of a process that gets SIGKILL, with a request in flight."""
    connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
    if connection.sock is not None:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Faulty:
    """A subscriber in a thread of its own: `/NAME` fails at random, `/sink/NAME` takes dead letters."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"{seed} faults")
        self.attempts: dict[str, list[tuple[int, bool]]] = {name: [] for name in FAULTY}
        self.buried: dict[str, Counter[int]] = {name: Counter() for name in FAULTY}
        self._listening = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._listening.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        async def serve() -> None:
            async with harness.Subscriber(self._behave) as subscriber:
                self.url = subscriber.url
                self._listening.set()
                await self._stop.wait()

        self._loop.run_until_complete(serve())
        self._loop.close()

    async def _behave(self, request: harness.Request) -> tuple[int, bytes]:
        name, number = request.path.rpartition("/")[2], int(request.id[1:])
        if request.path.startswith("/sink/"):
            self.buried[name][number] += 1
            return 202, b""
        chance = self._rng.random()
        fault = "refusal" if name == "refusing" else ""
        for kind, share in FAULTS.items():
            if not fault and chance < share:
                fault = kind
            chance -= share
        self.attempts[name].append((number, not fault))
        if fault == "hang":
            await asyncio.sleep(3_600)
        if fault == "reset":
            raise ConnectionResetError
        return {"": 202, "error": 503, "refusal": 400}[fault], b""


def war(seed: int, kills: int, folder: Path, subscriber: Subscriber) -> Outcome:
    """Kills a server `kills` times under load, then lets it finish."""
    rng = random.Random(seed)
    print(f"seed {seed} (HEADGATE_TEST_SEED={seed} repeats it)")
    outcome = Outcome(seed, kills)
    server = Server(folder / "data", arguments=ARGUMENTS, log=folder / "server.log", spark=True)
    faulty = Faulty(seed)
    changes: Changes | None = None
    try:
        listens_s, ready_s = first_start(server)
        print(f"takes events after {listens_s:.1f} s, ready after {ready_s:.1f} s")
        create(server, subscriber, faulty)
        outcome.owners = owners(server)
        consumers = {name: Consumers(server, name, count, seed) for name, (_, _, _, count) in PULLED.items()}
        outcome.consumers = consumers
        changes = Changes(server, seed)
        load = Load(server)
        outcome.accepted = load.accepted
        for kill in range(kills):
            if kill:
                server.start(wait=False)
            kind = rng.random()
            if not kill:
                load.until_killed(rng.uniform(0.0, WORK_S_MAX), lambda: each_part_killed(server, rng, outcome))
            elif kind < READY_SHARE:
                load.until_killed(rng.uniform(0.0, WORK_S_MAX), lambda: some_parts_killed(server, rng, outcome))
            elif kind < READY_SHARE + EARLY_SHARE:
                load.until_killed(rng.uniform(0.0, listens_s), lambda: None)
            else:
                seconds = rng.uniform(0.0, min(ready_s - listens_s, STARTING_S_MAX))
                load.until_killed(seconds, lambda: wait_listening(server))
            outcome.cursors.append(positions(folder / "data"))
            taken = sum(len(one.confirmed) for one in consumers.values())
            counts = f"{len(load.accepted)} accepted, {len(subscriber.deliveries)} delivered, {taken} pulled"
            print(f"kill {kill + 1}: {counts}")
        server.start()
        settle(outcome, subscriber, faulty)
        outcome.log = stored(server)
    finally:
        if changes is not None:
            changes.close()
            outcome.changes = changes.in_force
        for one in outcome.consumers.values():
            one.close()
        server.stop()
        faulty.close()
    outcome.cursors.append(positions(folder / "data"))
    outcome.delivered = {name: subscriber.ids(name) for name in HEALTHY}
    outcome.attempts, outcome.buried = faulty.attempts, faulty.buried
    return outcome


def first_start(server: Server) -> tuple[float, float]:
    """Seconds until events are accepted, and until all is ready: what this machine makes of a start."""
    started = time.monotonic()
    server.start(wait=False)
    wait_listening(server)
    listens_s = time.monotonic() - started
    server.wait_ready()
    return listens_s, time.monotonic() - started


def wait_listening(server: Server) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", server.port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("the server does not listen")


def each_part_killed(server: Server, rng: random.Random, outcome: Outcome) -> None:
    """Kills every process alone, one after the other; the server gets over it by itself."""
    server.wait_ready()
    killed = parts_of(server.pid)
    kill_parts(server, rng, outcome, rng.sample(PARTS, len(PARTS)))

    def are_others() -> bool:
        parts = parts_of(server.pid)
        return all(parts.get(part, killed[part]) != killed[part] for part in PARTS)

    eventually(are_others, "a process is not started again", seconds=START_S_MAX)
    server.wait_ready()


def some_parts_killed(server: Server, rng: random.Random, outcome: Outcome) -> None:
    """Kills a few processes, or none, and leaves them to the server."""
    server.wait_ready()
    kill_parts(server, rng, outcome, rng.sample(PARTS, rng.randint(0, PARTS_A_KILL_MAX)))


def kill_parts(server: Server, rng: random.Random, outcome: Outcome, parts: list[str]) -> None:
    """Kills these processes, one after the other, whatever state those before are in."""
    for part in parts:
        time.sleep(rng.uniform(0.0, PART_S_MAX))
        os.kill(parts_of(server.pid)[part], signal.SIGKILL)
        outcome.parts[part] += 1
    print(f"killed alone: {', '.join(parts) or 'none'}")


def owners(server: Server) -> dict[str, int]:
    """The dispatcher of each trigger and subscription."""
    store = Store.open(server.data / "control.db")
    found = {key.name: dispatcher_of(target, DISPATCHERS) for target, key in store.targets.keys().items()}
    store.close()
    return found


def create(server: Server, subscriber: Subscriber, faulty: Faulty) -> None:
    for name, (filter_, _) in HEALTHY.items():
        spec = {"broker": "default", "filter": filter_, "subscriber": {"uri": subscriber.url(name)}}
        server.create("triggers", "default", name, spec)
    for name, (filter_, _, rules) in FAULTY.items():
        delivery = {"timeout": "PT1S", "backoffDelay": "PT0.02S", "backoffPolicy": "linear", **rules}
        delivery["deadLetterSink"] = {"uri": f"{faulty.url}sink/{name}"}
        spec = {"broker": "default", "filter": filter_, "subscriber": {"uri": faulty.url + name}, "delivery": delivery}
        server.create("triggers", "default", name, spec)
    for name, (filter_, _, type_, _) in PULLED.items():
        spec = {"broker": "default", "filter": filter_, "type": type_, "ackTimeout": f"PT{ACK_TIMEOUT_S}S"}
        server.create("subscriptions", "default", name, spec)
    for kind, names in (("triggers", [*HEALTHY, *FAULTY]), ("subscriptions", [*PULLED])):
        for name in names:
            server.wait_object_ready(kind, "default", name, seconds=120)


def positions(data: Path) -> dict[str, int]:
    """Where the cursors on disk are, of a server that is dead."""
    found: dict[str, int] = {}
    for number, own in enumerate(directories_of(data, DISPATCHERS)):
        saved = SubscriptionStore.read(own.subscriptions)
        found |= {f"subscription {id_}": cursor.next for id_, cursor in saved.items()}
        cursors = CursorStore.read(own.cursors)
        found |= {f"watermark {number} {partition}": offset for partition, offset in cursors.watermarks.items()}
        found[f"outbox {number}"] = cursors.position
    return found


def settle(outcome: Outcome, subscriber: Subscriber, faulty: Faulty) -> None:
    """Waits until everything acknowledged has come to its end, or for SETTLE_S_MAX."""
    deadline = time.monotonic() + SETTLE_S_MAX
    while any(missing(outcome, subscriber, faulty).values()) and time.monotonic() < deadline:
        time.sleep(0.2)


def missing(outcome: Outcome, subscriber: Subscriber, faulty: Faulty) -> dict[str, int]:
    """How many acknowledged events have not come to their end, by who wants them."""
    found = {}
    for name, (_, wanted) in HEALTHY.items():
        found[name] = len(outcome.expected(wanted) - numbers(subscriber.ids(name)))
    for name, (_, wanted, _) in FAULTY.items():
        taken = {number for number, good in faulty.attempts[name] if good}
        found[name] = len(outcome.expected(wanted) - taken - faulty.buried[name].keys())
    for name, (_, wanted, _, _) in PULLED.items():
        one = outcome.consumers[name]
        found[name] = len(outcome.expected(wanted) - numbers({*one.confirmed, *one.doubtful}))
    return found


def numbers(ids: Collection[str]) -> set[int]:
    return {int(id_[1:]) for id_ in list(ids)}


def stored(server: Server) -> list[tuple[int, int, int]]:
    """Everything in the default broker's log, by offset."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/default/default/events?from=earliest")
    lines = [json.loads(line) for line in connection.getresponse().read().splitlines()]
    connection.close()
    assert lines[-1]["progress"]["atEnd"] is True
    found = []
    for line in lines:
        if "id" in line:
            partition, _, offset = line["hgposition"].partition(":")
            found.append((int(partition), int(offset), int(line["id"][1:])))
    return sorted(found)
