"""A server whose filters change all the time under a constant load, and whose processes may be killed meanwhile.

Each `Changer` has triggers of its own: it adds, widens, narrows, replaces and deletes them, one after the other or many
at once, and waits until they are Ready. What came of it, `promises.py` judges.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headgate.testing.server import START_S_MAX, ApiError, Object, Server, java_of, object_of, parts_of
from headgate_api.errors import HeadgateError
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import SHARED_ATOM_FILTERS_MIN
from tests.support import WAIT_S_MAX, eventually
from tests.system.kills import ARGUMENTS, PARTS
from tests.system.promises import Life, Outage, Promises, Version
from tests.system.publishing import DOWN, Pressure, Publisher
from tests.system.subscriber import Delivery, Subscriber

RATE_PER_S = 100
KINDS = 500
"""Different events, ids aside."""
FLOOD_EVENTS = 500
"""Events of one request, behind which a filter changes at once: the matcher has not seen them all."""
CHANGERS = 10
TRIGGERS_EACH = 4
BURST_MAX = 8
"""Changes that are asked for one after the other, before any of them is known to be Ready."""
REST_S_MAX = 0.3
"""Between two changes of one changer."""
TERMS_MAX = 6
TOLD_EVERY_S = 15.0
VICTIMS = (*PARTS, "jvm")
"""What is killed."""
HARMLESS = ("control", "front-0", "front-1", "reader")
"""Those without which the query runs on."""
VICTIMS_AT_ONCE_MAX = 3
CALM_S_MAX = 4.0
MARKERS = 32
"""Events that tell that a partition has been matched so far: some for each."""
MARKER = "marker"

# --- events and filters ---------------------------------------------------------------------------


def events(rng: random.Random) -> list[dict[str, Any]]:
    """The kinds of events, in their JSON form; the last one is the marker."""
    found = []
    for _ in range(KINDS - 1):
        data = {
            "k": f"k{rng.randrange(8)}",
            "n": rng.randrange(100),
            "m": rng.randrange(100),
            "s": "".join(rng.choices("abc", k=rng.randint(1, 6))),
            "flag": rng.random() < 0.5,
            "tags": rng.sample(["a", "b", "c"], k=rng.randrange(3)),
        }
        if rng.random() < 0.5:
            data["opt"] = rng.randrange(100)
        event = {"source": f"/s{rng.randrange(3)}", "type": f"t{rng.randrange(8)}", "data": data}
        for name, count in (("subject", 8), ("tenant", 3), ("dataschema", 2)):
            if rng.random() < 0.7:
                event[name] = f"{name}:{rng.randrange(count)}"
        found.append(event)
    found.append({"source": "/s0", "type": MARKER, "data": {}})
    return [{"specversion": "1.0", "datacontenttype": "application/json"} | one for one in found]


def model_of(event: dict[str, Any]) -> Event:
    known = {name: event.get(name) for name in ("subject", "dataschema", "datacontenttype")}
    extensions = {name: event[name] for name in ("tenant",) if name in event}
    data = json.dumps(event["data"]).encode()
    return Event(
        "1.0", "x", event["source"], event["type"], data_kind=DataKind.JSON, data=data, extensions=extensions, **known
    )


Filter = tuple[frozenset[str], ...]
"""Terms that are all true, or those of another one."""


def text_of(filter_: Filter) -> str:
    return " || ".join("(" + " && ".join(sorted(terms)) + ")" for terms in filter_)


def _key(rng: random.Random) -> str:
    """What the matcher looks up."""
    return rng.choice(
        [
            f'ce.type == "t{rng.randrange(8)}"',
            f'data.k == "k{rng.randrange(8)}"',
            f'data.k in ["k{rng.randrange(4)}", "k{rng.randrange(4, 8)}"]',
            f'ce.subject == "subject:{rng.randrange(8)}"',
            f'ce.tenant == "tenant:{rng.randrange(3)}"',
            "data.flag",
        ]
    )


def _test(rng: random.Random) -> str:
    """What it compares, by a pattern that is in its plan from the start."""
    return rng.choice(
        [
            f"data.n {rng.choice(['<', '<=', '>', '>='])} {rng.randrange(100)}",
            f'data.s.{rng.choice(["contains", "startsWith", "endsWith"])}("{"".join(rng.choices("abc", k=2))}")',
            f'data.k != "k{rng.randrange(8)}"',
            "has(data.opt)",
            "!has(data.opt)",
        ]
    )


CROWD: Final = ('data.k != "k1"', "!has(data.opt)")
"""Two of these, which so many triggers compare that each event is compared once for all of them."""


def _rare(rng: random.Random) -> str:
    """A pattern, or a column of events, that its plan lacks mostly."""
    first, second = rng.sample(range(100), 2)
    texts = [
        f"data.n != {first}",
        f"data.m <= {first}",
        f"!(data.m in [{first}, {second}])",
        f"data.s.size() > {rng.randrange(5)}",
        f'data.s != "{"".join(rng.choices("abc", k=2))}"',
        f'!data.s.contains("{rng.choice("abc")}")',
        f"!(data.n < {first})",
        f"has(data.opt) && data.opt > {first}",
        f'ce.dataschema == "dataschema:{rng.randrange(2)}"',
        f'ce.source.endsWith("{rng.randrange(3)}")',
        f'!ce.source.startsWith("/s{rng.randrange(3)}")',
    ]
    return " && ".join(rng.sample(texts, rng.randint(2, 4)))


def _open(rng: random.Random) -> str:
    """What it leaves to cel-cpp."""
    return rng.choice(["data.n > data.m", f"data.n % 3 == {rng.randrange(3)}", 'data.tags.exists(t, t == "a")'])


def new_filter(rng: random.Random) -> Filter:
    terms = {_key(rng)} | ({_test(rng)} if rng.random() < 0.5 else set())
    return (frozenset(terms),)


def rare_filter(rng: random.Random) -> Filter:
    return (frozenset({_key(rng), _rare(rng)}),)


def open_filter(rng: random.Random) -> Filter:
    return (frozenset({_key(rng), _open(rng)}),)


def widened(rng: random.Random, filter_: Filter) -> Filter:
    """Takes all that the filter takes, and mostly more."""
    return filter_ + new_filter(rng)


def narrowed(rng: random.Random, filter_: Filter) -> Filter:
    """Takes nothing that the filter does not take, and mostly less."""
    if len(filter_) > 1:
        return tuple(rng.sample(filter_, len(filter_) - 1))
    return tuple(terms | {_key(rng)} for terms in filter_)


# --- the server -----------------------------------------------------------------------------------


class Recorder(Subscriber):
    """Tells of what comes, and keeps none of it."""

    def __init__(self, promises: Promises) -> None:
        super().__init__()
        self._promises = promises

    def take(self, delivery: Delivery) -> None:
        self._promises.arrives(delivery.path.removeprefix("/"), int(delivery.id))


@dataclass
class Outcome:
    """What came of it: promises that were kept (pairs of an event and a trigger) and not kept, in words."""

    seed: int
    changes: Counter[str] = field(default_factory=Counter)  # by kind
    kills: Counter[str] = field(default_factory=Counter)  # by process
    accepted: int = 0
    delivered: int = 0
    promised: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    queries: int = 0  # that were started
    restarts: int = 0  # of processes
    ready_s: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        ready = sorted(self.ready_s)
        return (
            f"seed {self.seed}, {self.seconds:.0f} s: {self.changes.total()} changes {dict(self.changes)},"
            f" {self.kills.total()} kills {dict(self.kills)}, {self.restarts} restarts, {self.queries} queries;"
            f" {self.accepted} events, {self.delivered} deliveries, {self.promised} promised, {len(self.lost)} lost,"
            f" {len(self.wrong)} wrong; Ready p50 {ready[len(ready) // 2]:.2f} s, most {ready[-1]:.2f} s"
        )


class Changing:
    """The server, the load, and what is known of both."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.kinds = events(random.Random(f"{seed} events"))
        self.promises = Promises([model_of(one) for one in self.kinds])
        self.recorder = Recorder(self.promises)
        self.log = folder / "server.log"
        self.server = Server(folder / "data", arguments=ARGUMENTS, log=self.log, spark=True)
        self.outcome = Outcome(seed)
        self.refused: list[str] = []
        """Events that it should have taken."""
        self._turns = random.Random(f"{seed} load")

    # --- events ---------------------------------------------------------------------------------------

    def publish(self, publisher: Publisher) -> None:
        self._send(publisher, [self._turns.randrange(KINDS - 1)])

    def flood(self) -> None:
        """Many events at once, as far as the server takes them."""
        publisher = Publisher(self.server)
        try:
            self._send(publisher, [self._turns.randrange(KINDS - 1) for _ in range(FLOOD_EVENTS)])
        except DOWN:
            return
        finally:
            publisher.close()

    def mark(self) -> range:
        """Publishes markers; their numbers."""

        def sent() -> range | None:
            publisher = Publisher(self.server)
            try:
                return self._send(publisher, [KINDS - 1] * MARKERS)
            except DOWN:
                return None
            finally:
                publisher.close()

        return eventually(sent, "the markers are not accepted")

    def _send(self, publisher: Publisher, kinds: list[int]) -> range | None:
        numbers = self.promises.sends(kinds)
        batch = [
            self.kinds[kind] | {"id": str(number), "partitionkey": f"p{number}"}
            for kind, number in zip(kinds, numbers, strict=True)
        ]
        status = publisher.publish_batch(batch)
        if status != 202:
            if status < 500:
                self.refused.append(f"{status} for {batch[0]}")
            return None  # what it needs is being started
        self.promises.acknowledged(numbers)
        return numbers

    # --- triggers -------------------------------------------------------------------------------------

    def call(self, method: str, name: str, body: Object | None = None, *, done: int) -> None:
        """One call about a trigger, until it is answered; a status `done` says that an earlier one did it."""
        root = self.server.objects_url("triggers", "default")
        url = root if method == "POST" else f"{root}/{name}"
        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                self.server.call(method, url, body)
            except DOWN as error:
                problem: Exception = error
            except ApiError as error:
                if error.status == done:
                    return
                if error.status < 500:
                    raise
                problem = error
            else:
                return
            assert time.monotonic() < deadline, f"{method} {name}: {problem}"
            time.sleep(0.1)

    def spec(self, life: Life) -> Object:
        uri = self.recorder.url(life.path)
        # A dispatcher that is killed forgets how often it has tried: no try may be the last one.
        delivery = {"retry": 100, "backoffPolicy": "linear", "backoffDelay": "PT0.1S"}
        filter_ = {"expression": life.versions[-1].cel}
        return {"broker": "default", "filter": filter_, "subscriber": {"uri": uri}, "delivery": delivery}

    def add_crowd(self) -> None:
        """Adds triggers that no event is for."""
        to = {"broker": "default", "subscriber": {"uri": self.recorder.url("crowd")}}
        for number, test in enumerate(CROWD * SHARED_ATOM_FILTERS_MIN):
            filter_ = {"expression": f'ce.type == "nobody-{number}" && {test}'}
            name = f"crowd-{number}"
            self.call("POST", name, object_of("triggers", "default", name, to | {"filter": filter_}), done=409)
        self.server.wait_trigger_ready("default", name, seconds=START_S_MAX)

    def wait_ready(self, name: str, life: Life, version: Version) -> None:
        began = time.monotonic()
        while True:
            try:
                self.server.wait_trigger_ready("default", name, seconds=START_S_MAX)
            except (*DOWN, ApiError):
                assert time.monotonic() - began < START_S_MAX, f"{name} is not Ready"
                time.sleep(0.1)
            else:
                break
        self.promises.is_ready(life, version)
        self.outcome.ready_s.append(time.monotonic() - version.asked_at)


class Changer:
    """Changes triggers of its own, one thread."""

    def __init__(self, world: Changing, number: int, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._names = [f"c{number}-{slot}" for slot in range(TRIGGERS_EACH)]
        self._lives: dict[str, tuple[Life, Filter]] = {}
        self._paths = itertools.count()

    def run(self, goes_on: Callable[[], bool]) -> None:
        rng = self._rng
        while goes_on():
            count = rng.randint(2, BURST_MAX) if rng.random() < 0.1 else 1
            if rng.random() < 0.02:
                self._world.flood()
            names = rng.choices(self._names, k=count)
            waiting: dict[str, tuple[Life, Version]] = {}
            for name in names:
                life = self._change(name)
                waiting.pop(name, None)
                if life is not None:
                    waiting[name] = life, life.versions[-1]
            for name, (life, version) in waiting.items():
                self._world.wait_ready(name, life, version)
            time.sleep(rng.uniform(0.0, REST_S_MAX) * rng.random())

    def _change(self, name: str) -> Life | None:
        """Changes one trigger; None when it is gone now."""
        world, rng = self._world, self._rng
        known = self._lives.get(name)
        if known is None:
            filter_ = new_filter(rng)
            life = world.promises.begins(f"{name}/{next(self._paths)}", text_of(filter_))
            world.call("POST", name, object_of("triggers", "default", name, world.spec(life)), done=409)
            kind = "added"
        else:
            life, filter_ = known
            kind, filter_ = self._next(filter_)
            # What waits is not sent to a trigger that is gone, and cel-cpp judges it by the newest filter.
            endangered = [one for one in life.versions if kind == "deleted" or not one.is_exact]
            if endangered:
                world.promises.closes(life)
                missing = lambda: world.promises.missing(life, endangered)  # noqa: E731
                problem = lambda: world.promises.told_of_missing(life, missing())  # noqa: E731
                eventually(lambda: not missing(), problem, seconds=START_S_MAX)
            if kind == "deleted":
                world.call("DELETE", name, done=404)
                world.promises.is_deleted(life)
                del self._lives[name]
                world.outcome.changes[kind] += 1
                return None
            world.promises.changes(life, text_of(filter_))
            world.call("PUT", name, object_of("triggers", "default", name, world.spec(life)), done=0)
        self._lives[name] = life, filter_
        world.outcome.changes[kind] += 1
        return life

    def _next(self, filter_: Filter) -> tuple[str, Filter]:
        rng = self._rng
        if sum(map(len, filter_)) >= TERMS_MAX:
            return "replaced", new_filter(rng)
        kind = rng.choices(["widened", "narrowed", "replaced", "deleted", "rare", "open"], [30, 30, 20, 12, 3, 5])[0]
        made: dict[str, Callable[[], Filter]] = {
            "widened": lambda: widened(rng, filter_),
            "narrowed": lambda: narrowed(rng, filter_),
            "replaced": lambda: new_filter(rng),
            "deleted": lambda: filter_,
            "rare": lambda: rare_filter(rng),
            "open": lambda: open_filter(rng),
        }
        return kind, made[kind]()


class Killer:
    """Kills processes of the server, each time some at random instants, and waits until everything runs again."""

    def __init__(self, world: Changing, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._numbers = itertools.count(1)
        self._life: Life | None = None

    def run(self, kills: int) -> None:
        rng, left = self._rng, list[str]()
        while sum(self._world.outcome.kills.values()) < kills:
            time.sleep(rng.uniform(0.0, CALM_S_MAX))
            left = left or rng.sample(VICTIMS, len(VICTIMS))
            victims = [left.pop() for _ in range(min(len(left), rng.choice([1, 1, VICTIMS_AT_ONCE_MAX])))]
            outage = Outage(self._world.promises.clock())
            if not set(victims) <= set(HARMLESS):
                self._world.promises.outages.append(outage)
            for victim in victims:
                self._kill(victim)
                time.sleep(rng.uniform(0.0, CALM_S_MAX) * rng.random())
            self._heals()
            outage.ended_at = self._world.promises.clock()

    def _kill(self, victim: str) -> None:
        server = self._world.server

        def killed() -> bool:
            try:
                os.kill(java_of(server) if victim == "jvm" else parts_of(server.pid)[victim], signal.SIGKILL)
            except (KeyError, OSError, HeadgateError):
                return False  # it has been killed just now, and is not there yet
            return True

        eventually(killed, f"{victim} is not started again", seconds=START_S_MAX)
        self._world.outcome.kills[victim] += 1

    def _heals(self) -> None:
        """Everything runs, and has matched all events that waited: a filter comes into force, and then markers come."""
        world, name = self._world, MARKER
        eventually(lambda: set(PARTS) <= set(parts_of(world.server.pid)), "a process is missing", seconds=START_S_MAX)
        cel = f'ce.type == "{MARKER}" || ce.type == "{MARKER}-{next(self._numbers)}"'
        if self._life is None:
            self._life = world.promises.begins(MARKER, cel)
            world.call("POST", name, object_of("triggers", "default", name, world.spec(self._life)), done=409)
        else:
            world.promises.changes(self._life, cel)
            world.call("PUT", name, object_of("triggers", "default", name, world.spec(self._life)), done=0)
        life, version = self._life, self._life.versions[-1]
        world.wait_ready(name, life, version)
        numbers = set(world.mark())
        eventually(lambda: numbers <= world.promises.arrived(MARKER), "the markers do not come", seconds=START_S_MAX)


def changed(seed: int, changes: int, kills: int, folder: Path) -> Outcome:
    """Changes filters at least so often, while processes are killed so often; says what came of it."""
    print(f"seed {seed} (HEADGATE_TEST_SEED={seed} repeats it)", flush=True)
    world = Changing(seed, folder)
    outcome, promises = world.outcome, world.promises
    killer = Killer(world, random.Random(f"{seed} kills"))
    with world.recorder:
        try:
            world.server.start()
            world.add_crowd()
            began = time.monotonic()
            with Pressure(world.server, RATE_PER_S, world.publish), ThreadPoolExecutor(1 + CHANGERS) as threads:
                killing = threads.submit(killer.run, kills)

                def goes_on() -> bool:
                    is_due = outcome.changes.total() < changes or not killing.done()
                    return is_due and not promises.wrong and not any(one.done() and one.exception() for one in works)

                works = [killing]
                for number in range(CHANGERS):
                    changer = Changer(world, number, random.Random(f"{seed} changer {number}"))
                    works.append(threads.submit(changer.run, goes_on))
                while wait(works, TOLD_EVERY_S).not_done:
                    promises.check()
                    done = f"{outcome.changes.total()} changes, {outcome.kills.total()} kills"
                    print(f"{time.monotonic() - began:.0f} s: {done}", flush=True)
            outcome.seconds = time.monotonic() - began
            for work in works:
                work.result()
            eventually_quiet(promises)
        finally:
            world.server.stop()
    log = world.log.read_text()
    outcome.lost, outcome.wrong = promises.lost(), [*promises.wrong, *world.refused]
    outcome.accepted, outcome.delivered, outcome.promised = promises.accepted, promises.delivered, promises.promised
    outcome.queries = log.count("starts a run of the match query")
    outcome.restarts = log.count("process ended, restarting")
    print(outcome, flush=True)
    return outcome


def eventually_quiet(promises: Promises) -> None:
    """Waits until all that was promised has come, or WAIT_S_MAX have passed; and for what should not come."""
    deadline = time.monotonic() + WAIT_S_MAX
    while promises.lost() and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(1.0)
