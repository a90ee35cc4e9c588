"""Whole systems on the same cores, in turns: durable, producers that wait for acknowledgements, one match an event.

Each peer is one program with two modes. `server FOLDER` says `{"port": 1}` when it serves, and ends with its standard
input. `load PORT CONSUMERS BODY` makes so many consumers, consumer N for the type `com.shop.tN`, says
`{"ready": true}`, and then reads lines:

    closed PRODUCERS SECONDS    each producer sends one event after the other, each when the one before is acknowledged:
                                {"sent", "acked_s", "delivered_s", "ack_p50_ms", "ack_p99_ms", "wrong"}
    paced RATE SECONDS          one producer at a steady rate, from when an event was due to its arrival:
                                {"sent", "deliver_p50_ms", "deliver_p99_ms", "wrong"}

It answers when every event has been delivered; `wrong` are those that failed or came to a wrong consumer.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import uvloop

from benchmarks import system
from benchmarks.dispatch import subscriber
from benchmarks.ingress import drive
from benchmarks.peers import builds
from benchmarks.peers.program import Program, running, tree_s
from benchmarks.published.results import Tell
from benchmarks.published.tables import OURS
from benchmarks.shards import SETTLED_S
from headgate.testing.server import Server

START_S_MAX = 60.0
ANSWER_S_MAX = 90.0
"""On top of the seconds of a load: a drain takes 60 s at most."""


class System(Protocol):
    """A started system with its consumers."""

    @property
    def server(self) -> Sequence[int]:
        """Its processes; those below them count as well."""

    @property
    def clients(self) -> Sequence[int]:
        """The processes of its producers and consumers."""

    def closed(self, producers: int, seconds: float) -> dict[str, Any]:
        """A closed loop, as `benchmarks.peers.systems` says."""

    def paced(self, rate: float, seconds: float) -> dict[str, Any]:
        """A steady rate."""


@dataclass(frozen=True)
class PeerSystem:
    """A peer's two programs."""

    serving: Program
    loading: Program

    @property
    def server(self) -> Sequence[int]:
        return [self.serving.pid]

    @property
    def clients(self) -> Sequence[int]:
        return [self.loading.pid]

    def closed(self, producers: int, seconds: float) -> dict[str, Any]:
        return self._asked(f"closed {producers} {seconds:g}", seconds)

    def paced(self, rate: float, seconds: float) -> dict[str, Any]:
        return self._asked(f"paced {rate:g} {seconds:g}", seconds)

    def _asked(self, line: str, seconds: float) -> dict[str, Any]:
        said = self.loading.ask(line, seconds + ANSWER_S_MAX)
        if said["wrong"]:
            sys.exit(f"error: {said['wrong']} events failed or came to a wrong consumer")
        return said


@dataclass(frozen=True)
class OwnSystem:
    """A server of ours, a trigger a consumer; one process receives all of them, this one sends."""

    running: Server
    consumers: int
    pipe: Connection

    @property
    def server(self) -> Sequence[int]:
        return [self.running.pid]

    @property
    def clients(self) -> Sequence[int]:
        return [pid for process in multiprocessing.active_children() if (pid := process.pid)]

    def closed(self, producers: int, seconds: float) -> dict[str, Any]:
        events = [system.request(number, self.consumers) for number in range(system.DIFFERENT)]
        system.arrivals(self.pipe)  # clears
        started = time.monotonic()
        times_s, _, sent = uvloop.run(drive(self.running.port, events, producers, seconds))
        acked_s = time.monotonic() - started
        system.arrived(self.pipe, sent)
        last = max(at for _, at in system.arrivals(self.pipe))
        times_s.sort()
        p50, p99 = (times_s[int(len(times_s) * quantile)] * 1e3 for quantile in (0.5, 0.99))
        return {
            "sent": sent,
            "acked_s": acked_s,
            "delivered_s": last - started,
            "ack_p50_ms": p50,
            "ack_p99_ms": p99,
        }

    def paced(self, rate: float, seconds: float) -> dict[str, Any]:
        return system.latency(self.running, self.pipe, self.consumers, rate, seconds)


@contextlib.contextmanager
def own(consumers: int, folder: Path) -> Iterator[System]:
    """A server of ours."""
    with subscriber() as (url, pipe), Server(folder / "data", log=folder / "server.log") as server:
        system.load(server, consumers, url)
        yield OwnSystem(server, consumers, pipe)


@contextlib.contextmanager
def started(title: str, command: Sequence[str], consumers: int, folder: Path) -> Iterator[System]:
    """A peer."""
    with running(title, [*command, "server", str(folder)]) as serving:
        port = serving.said(START_S_MAX)["port"]
        load = [*command, "load", str(port), str(consumers), system.BODY.decode()]
        with running(f"{title}'s clients", load) as loading:
            loading.said(START_S_MAX)
            yield PeerSystem(serving, loading)


def in_turns(options: Namespace, tell: Tell) -> dict[str, Any]:
    """All systems, each started anew in each round."""
    made: dict[str, Callable[[Path], contextlib.AbstractContextManager[System]]] = {
        OURS: lambda folder: own(options.consumers, folder)
    }
    for peer in builds.SYSTEMS:
        if peer.name in options.only:
            command = peer.command(options.cache)
            made[peer.title] = lambda folder, title=peer.title, command=command: started(
                title, command, options.consumers, folder
            )
    titles = list(made)
    loads: dict[tuple[str, int], list[dict[str, float]]] = {}
    paces: dict[str, list[dict[str, float]]] = {title: [] for title in titles}
    for number in range(options.rounds):
        for title in (*titles[number % len(titles) :], *titles[: number % len(titles)]):
            with tempfile.TemporaryDirectory(prefix="headgate-bench-") as scratch, made[title](Path(scratch)) as one:
                one.closed(options.producers[0], options.warm)
                for producers in options.producers:
                    found = _load(one, producers, options.seconds)
                    loads.setdefault((title, producers), []).append(found)
                    tell(f"{title}, {producers} producers: {found}")
                paces[title].append(one.paced(options.rate, options.steady))
                tell(f"{title}, {options.rate:g}/s: {paces[title][-1]}")
    rows = [
        {
            "title": title,
            "producers": producers,
            **{key: round(statistics.median(one[key] for one in found), 2) for key in found[0]},
            "delivered_per_s_from_to": [round(edge(one["delivered_per_s"] for one in found)) for edge in (min, max)],
            **{
                key: round(statistics.median(one[key] for one in paces[title]), 2)
                for key in ("deliver_p50_ms", "deliver_p99_ms")
            },
        }
        for (title, producers), found in loads.items()
    ]
    rows.sort(key=lambda row: (titles.index(row["title"]), row["producers"]))
    return {"consumers": options.consumers, "rounds": options.rounds, "rate": options.rate, "rows": rows}


def _load(one: System, producers: int, seconds: float) -> dict[str, float]:
    """A closed loop, and the processor time of an event from its sending until a second after the last delivery."""
    pids = {"server_us": list(one.server), "clients_us": list(one.clients)}
    before = {name: tree_s(some) for name, some in pids.items()}
    here_s = time.process_time()
    found = one.closed(producers, seconds)
    here_s = time.process_time() - here_s
    time.sleep(SETTLED_S)
    used = {name: tree_s(some) - before[name] for name, some in pids.items()}
    if isinstance(one, OwnSystem):
        used["clients_us"] += here_s  # this process sends
    return {
        "acked_per_s": round(found["sent"] / found["acked_s"]),
        "delivered_per_s": round(found["sent"] / found["delivered_s"]),
        "ack_p50_ms": round(found["ack_p50_ms"], 2),
        "ack_p99_ms": round(found["ack_p99_ms"], 2),
        **{name: round(took_s / found["sent"] * 1e6, 1) for name, took_s in used.items()},
    }
