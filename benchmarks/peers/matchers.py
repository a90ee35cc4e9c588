"""Matchers, one core each, in turns: the same filters and the same events.

A matcher is a program with three arguments: a file with an event a line (`workload.variables_of`), a file with a filter
a line (its number is the line's, from 0), and a number of events, the sample. It says one JSON line when it is
ready, `{"build_s": 1.2, "matches": 9, "sum": 99}`, as `workload.Found` has them. Then each line that it reads is a
number of seconds for which it matches events, one after the other and over and over, and answers
`{"events": 7, "matches": 9, "wall_s": 1.0}`. It ends when its standard input ends.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import statistics
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.matcher import generate
from benchmarks.peers import builds, workload
from benchmarks.peers.program import Program, running, tree_s
from benchmarks.published.results import Tell
from benchmarks.published.tables import OURS

READY_S_MAX = 600.0
RUN_S_MAX = 120.0
WRONG_SHARE_MAX = 0.01
"""Of a peer's matches: some peers have bugs, of which the table tells; more than this is an error of this program."""


@dataclass(frozen=True)
class Matcher:
    """One of the matchers.

    Attributes:
        title: For people.
        command: The program, without its three arguments.
        cel: Whether it reads CEL, and not patterns.
    """

    title: str
    command: list[str]
    cel: bool


def chosen(options: Namespace, scratch: Path) -> list[Matcher]:
    """Ours, and the peers that the options name, built."""
    ours = [sys.executable, "-m", "benchmarks.peers.headgate_matcher", str(scratch / "headgate")]
    named = [peer for peer in builds.MATCHERS if peer.name in options.only]
    also = [text.partition("=") for text in options.also]
    return [
        Matcher(OURS, ours, cel=True),
        *(Matcher(peer.title, peer.command(options.cache), cel=False) for peer in named),
        *(Matcher(title, shlex.split(command), cel=True) for title, _, command in also),
    ]


def in_turns(count: int, options: Namespace, tell: Tell, scratch: Path) -> dict[str, Any]:
    """All matchers with so many filters; ends the program where ours does not find what cel-cpp finds."""
    matchers = chosen(options, scratch)
    files = workload.write(generate(options.cache), count, scratch)
    tell(f"{count:,} filters, {files.per_event:.2f} matches an event, says cel-cpp")
    runs: dict[str, list[tuple[float, float]]] = {one.title: [] for one in matchers}
    with contextlib.ExitStack() as stack:
        started = {}
        for one in matchers:
            started[one.title] = program, ready = stack.enter_context(_ready(one, files))
            tell(f"{one.title}: {ready['build_s']:g} s to build, {ready['matches']:,} matches in the sample")
            program.ask(f"{options.warm:g}", RUN_S_MAX)
        for number in range(options.rounds):
            for one in (*matchers[number % len(matchers) :], *matchers[: number % len(matchers)]):
                program, _ = started[one.title]
                before = tree_s([program.pid])
                said = program.ask(f"{options.seconds:g}", RUN_S_MAX)
                used_s = tree_s([program.pid]) - before
                runs[one.title].append((said["events"] / said["wall_s"], used_s / said["events"] * 1e6))
                tell(f"{one.title}: {runs[one.title][-1][0]:,.0f} events/s, {runs[one.title][-1][1]:.1f} us each")
    rows = [
        {
            "title": title,
            "build_s": started[title][1]["build_s"],
            "wrong": started[title][1]["matches"] - files.truth.matches,
            "events_per_s": round(statistics.median(rate for rate, _ in found)),
            "events_per_s_from_to": [round(min(found)[0]), round(max(found)[0])],
            "processor_us": round(statistics.median(us for _, us in found), 2),
        }
        for title, found in runs.items()
    ]
    return {"filters": count, "matches_per_event": round(files.per_event, 2), "rounds": options.rounds, "rows": rows}


@contextlib.contextmanager
def _ready(matcher: Matcher, files: workload.Files) -> Iterator[tuple[Program, dict[str, Any]]]:
    """A matcher on the last core that this process may use, when it has read its filters."""
    core = max(os.sched_getaffinity(0))
    ours = matcher.title == OURS
    events, rules = files.events if ours else files.variables, files.cel if matcher.cel else files.patterns
    command = ["taskset", "-c", str(core), *matcher.command, str(events), str(rules), str(workload.SAMPLE)]
    with running(matcher.title, command) as program:
        ready = program.said(READY_S_MAX)
        found = workload.Found(ready["matches"], ready["sum"])
        wrong = abs(found.matches - files.truth.matches)
        if found != files.truth and (ours or wrong == 0 or wrong > WRONG_SHARE_MAX * files.truth.matches):
            sys.exit(f"error: {matcher.title} found {found} in the sample, cel-cpp {files.truth}")
        yield program, ready
