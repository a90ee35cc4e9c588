"""Every figure that has a goal, beside its goal, and beside the code before in the same run.

    python -m benchmarks.goals                          what this checkout reaches
    python -m benchmarks.goals --before ../older        each program also with the code of another checkout, in turns
    python -m benchmarks.goals --only ingress dispatch  these programs alone
    python -m benchmarks.goals --before ../older --own  the other checkout runs its own programs, in its environment

By default the programs of this checkout measure both, so that both are measured alike; with an older checkout, whose
modules have other names, they cannot. Each figure comes from one of the other programs here. With `--rounds` each
program runs several times, and the table has the medians. Where a goal is not reached, the table says what takes most:
by `benchmarks.budget`, or by the program itself. A program that cannot run with the other code, or takes longer than
ten minutes with it, leaves its cells empty. The whole takes about an hour; what is stopped with Ctrl-C prints what it
has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.tables import print_whole

Lines = Sequence[Mapping[str, Any]]
"""What a program prints with `--json`: one object a line."""
Parts = Callable[[Lines], Mapping[str, float]]
"""Reads what a figure consists of, by the name of each part."""
HERE: Final = Path(__file__).resolve().parents[1]
OTHER_S_MAX: Final = 600
"""How long a program may run with the code of another checkout."""


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: What is measured, with its unit.
        goal: What it should be.
        value: Reads it from what the program prints.
        parts: Reads what it consists of.
        is_rate: More is better; else less is.
        budget: The line of the program that prints the parts; that of the figure itself when empty.
    """

    name: str
    goal: float
    value: Callable[[Lines], float]
    parts: Parts
    is_rate: bool = False
    budget: str = ""

    def is_reached(self, value: float) -> bool:
        """Whether a value is as good as the goal."""
        return value >= self.goal if self.is_rate else value <= self.goal


@dataclass(frozen=True)
class Program:
    """A run of one of the programs of this folder.

    Attributes:
        line: Its name and arguments, as behind `python -m benchmarks.`.
        figures: What is read from it.
        unit: Of the parts of its figures.
    """

    line: str
    figures: tuple[Figure, ...]
    unit: str = "us"

    @property
    def name(self) -> str:
        """Of the program, without arguments."""
        return self.line.split()[0]


class CannotRunError(Exception):
    """A program ended with an error, or not in time."""


def printed(line: str, checkout: Path, own: bool) -> Lines:
    """What a program prints with the code of a checkout: a program of this folder, or of the checkout's `own`.

    Raises:
        CannotRunError: It ended with an error, or with another checkout's code not in time.
    """
    home, python = (checkout, str(checkout / ".venv/bin/python")) if own else (HERE, sys.executable)
    command = [python, "-m", *f"benchmarks.{line}".split()]
    paths = {"PYTHONPATH": f"{checkout / 'src'}:{home}"}
    with subprocess.Popen(command, cwd=home, env=os.environ | paths, stdout=subprocess.PIPE, text=True) as running:
        try:
            out, _ = running.communicate(timeout=None if checkout == HERE else OTHER_S_MAX)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)  # then it ends the servers that it has started
            raise CannotRunError(f"{line} takes longer than {OTHER_S_MAX} s with the code of {checkout}") from None
    if running.returncode:
        raise CannotRunError(f"{line} ended with {running.returncode} with the code of {checkout}")
    return [json.loads(text) for text in out.splitlines() if text.startswith("{")]


# --- what is read -----------------------------------------------------------------------------------


def only(**wanted: object) -> Callable[[str], Callable[[Lines], float]]:
    """Reads a member of the one line that has these other members."""

    def of(member: str) -> Callable[[Lines], float]:
        def value(lines: Lines) -> float:
            (found,) = (line for line in lines if wanted.items() <= line.items())
            return float(found[member])

        return value

    return of


def last(member: str, **wanted: object) -> Callable[[Lines], float]:
    """Reads a member of the last line that has these other members."""
    return lambda lines: [float(line[member]) for line in lines if wanted.items() <= line.items()][-1]


def waits(rate: float) -> Parts:
    """Where an event waits at a rate, by `benchmarks.budget`."""
    stages = {"until stored": "store", "until matched": "match", "until sent": "schedule", "until answered": "send"}
    return lambda lines: {name: budget_at(rate, lines)[f"{stage}_us"] for name, stage in stages.items()}


def work(rate: float) -> Parts:
    """Which process works for an event at a rate, by `benchmarks.budget`."""
    return lambda lines: budget_at(rate, lines)["processor_us"]


def budget_at(rate: float, lines: Lines) -> Any:
    """One of the budgets that `benchmarks.budget` prints."""
    return next(one for one in lines[0]["budgets"] if one["rate"] == rate)


def beyond_http(name: str, whole: Callable[[Lines], float], bare: Callable[[Lines], float]) -> Parts:
    """What is left when a program that only speaks HTTP has taken its part."""
    return lambda lines: {"HTTP": bare(lines), name: whole(lines) - bare(lines)}


def times_as_fast(lines: Lines) -> float:
    """How much sooner filters are admitted with two processes that compile."""
    return only(what=BY_ONE)("clock_s")(lines) / only(what=BY_TWO)("clock_s")(lines)


def compiled_apart(lines: Lines) -> Mapping[str, float]:
    """Where the time goes with two processes that compile."""
    clock_s, cpu_s = (only(what=BY_TWO)(member)(lines) for member in ("clock_s", "cpu_s"))
    return {"the process that stores works": cpu_s, "it waits": clock_s - cpu_s}


def processes(lines: Lines) -> Mapping[str, float]:
    """Processor time of each process that takes part in an apply."""
    applied = "by one apply: "
    return {
        line["what"].removeprefix(applied): line["cpu_s"] for line in lines if line.get("what", "").startswith(applied)
    }


def sides(what: str) -> Parts:
    """What filters cost until they are in force: in Python, and while Python waits for Spark."""
    python, clock = last("cpu_s", what=what), last("clock_s", what=what)
    return lambda lines: {"Python": python(lines), "Spark": clock(lines) - python(lines)}


def requests(mode: str) -> Parts:
    """Processor time of a request that stores events."""
    us = "cpu_us_per_request"
    return beyond_http("decode, check, store", only(app="ingress", mode=mode)(us), only(app="bare", mode=mode)(us))


def loading(lines: Lines) -> Mapping[str, float]:
    """Processor time of each process until triggers are Ready."""
    return dict(lines[0]["loading_by_process_ms"])


def by_process(lines: Lines) -> Mapping[str, float]:
    """Processor time of each process for one change."""
    return dict(lines[0]["by_process_ms"])


def heap_growth(lines: Lines) -> float:
    """What a JVM keeps after many changes that it did not before."""
    return float(lines[0]["heap_after_mb"] - lines[0]["heap_mb"])


def taken(member: str) -> Callable[[Lines], float]:
    """What all processes of an idle server take together."""
    return lambda lines: float(lines[0]["together"][member])


def each_taken(member: str) -> Parts:
    """The same by process."""
    return lambda lines: {name: one[member] for name, one in lines[0]["processes"].items()}


def deliveries(triggers: int) -> Iterator[Figure]:
    """What deliveries to so many triggers cost."""
    of = only(triggers=triggers)
    parts = beyond_http("rows, events, cursors", of("cpu_us"), lambda lines: float(lines[0]["cpu_us"]))
    yield Figure(f"deliveries/s to {triggers} triggers", 20_000, of("deliveries_per_s"), parts, is_rate=True)
    yield Figure("processor time of one, us", 60, of("cpu_us"), parts)


ANY: Final = only()
SINGLE: Final = only(app="ingress", mode="single")
BATCHES: Final = only(app="ingress", mode="batches of 100")
STEADY: Final = only(rate=50.0)
BY_ONE: Final = "admitted 256 together, 1 process compiles"
BY_TWO: Final = "admitted 256 together, 2 processes compile"
BUDGET: Final = "budget --json"
PROGRAMS: Final = (
    Program(
        "latency --json",
        (
            Figure("POST to subscriber, 10,000 triggers, 500/s: p50 ms", 1.2, ANY("p50_ms"), waits(500), budget=BUDGET),
            Figure("p99 ms", 5, ANY("p99_ms"), waits(500), budget=BUDGET),
        ),
    ),
    Program(
        "latency --changes 20 --json",
        (
            Figure("the same while 20 triggers are added: p99 ms", 7.5, ANY("p99_ms"), waits(500), budget=BUDGET),
            Figure("p99 with changes, of that without", 1.5, ANY("p99_ratio"), waits(500), budget=BUDGET),
        ),
    ),
    Program(
        "churn --json",
        (
            Figure("10,000 triggers by a request each, until all are Ready, s", 15, ANY("loaded_s"), loading),
            Figure("one trigger more among 10,000: ms until Ready", 100, ANY("ready_ms"), by_process),
            Figure("processor time of it, all processes, ms", 20, ANY("processor_ms"), by_process),
        ),
        "ms",
    ),
    Program(
        "churn --triggers 100000 --json",
        (
            Figure("one trigger more among 100,000: ms until Ready", 100, ANY("ready_ms"), by_process),
            Figure("processor time of it, all processes, ms", 20, ANY("processor_ms"), by_process),
        ),
        "ms",
    ),
    Program(
        "churn --changes 600 --rate 300 --json",
        (
            Figure("a change a second beside 300 events/s: % of a core in the JVM", 2, ANY("jvm_percent"), by_process),
            Figure("what its heap keeps more after 600 of them, MB", 2, heap_growth, by_process),
        ),
        "ms",
    ),
    Program(
        "idle --firsts 0 --json",
        (
            Figure("idle: memory, MB", 750, taken("pss_mb"), each_taken("pss_mb")),
            Figure("idle: processor, % of a core", 1.5, taken("processor_percent"), each_taken("processor_percent")),
        ),
        "MB or %",
    ),
    Program(
        "system --connections 16 64 128",
        (
            Figure(
                "POST to subscriber, 100 triggers, 50/s: p50 ms",
                1.8,
                STEADY("deliver_p50_ms"),
                waits(50),
                budget=BUDGET,
            ),
            Figure("p99 ms", 5, STEADY("deliver_p99_ms"), waits(50), budget=BUDGET),
            Figure(
                "whole system, 100 triggers, 64 producers: delivered/s",
                12_000,
                only(connections=64)("delivered_per_s"),
                work(2_000),
                is_rate=True,
                budget=BUDGET,
            ),
        ),
    ),
    Program(
        "ingress --json",
        (
            Figure("single POSTs on disk/s", 22_000, SINGLE("requests_per_s"), requests("single"), is_rate=True),
            Figure("processor time of one, us", 45, SINGLE("cpu_us_per_request"), requests("single")),
            Figure(
                "in batches of 100: events/s",
                350_000,
                BATCHES("events_per_s"),
                requests("batches of 100"),
                is_rate=True,
            ),
        ),
    ),
    Program(
        "dispatch --json",
        (
            *(figure for targets in (1, 8, 100) for figure in deliveries(targets)),
            Figure(
                "row to subscriber at 2,000/s: p99 ms",
                5,
                only(rows_per_s=2_000)("p99_ms"),
                work(2_000),
                budget=BUDGET,
            ),
        ),
    ),
    Program(
        "admission --json",
        (
            Figure(
                "50,000 filters together, with 2 processes that compile: times as fast",
                1.6,
                times_as_fast,
                compiled_apart,
                is_rate=True,
            ),
            Figure("100,000 triggers by one apply, s", 90, only(what="by one apply: command")("clock_s"), processes),
            Figure(
                "100,000 filters in force, from nothing, s",
                4,
                last("clock_s", what="in force, from nothing"),
                sides("in force, from nothing"),
            ),
            Figure(
                "one more among 100,000, s", 0.03, last("clock_s", what="one more in force"), sides("one more in force")
            ),
        ),
        "s",
    ),
)


# --- the table --------------------------------------------------------------------------------------


class Runs:
    """What the programs have printed."""

    def __init__(self, own: bool) -> None:
        """`own`: another checkout runs its own programs."""
        self._lines: dict[tuple[Path, str], list[Lines]] = {}
        self._own = own
        self._progress = Console(stderr=True)

    def run(self, line: str, checkouts: Sequence[Path], rounds: int) -> None:
        """Runs a program with the code of each checkout, in turns."""
        for number in range(rounds):
            for checkout in checkouts if number % 2 == 0 else reversed(checkouts):
                self._progress.print(f"benchmarks.{line}, round {number + 1} of {rounds}, {checkout.name}")
                try:
                    self._lines.setdefault((checkout, line), []).append(
                        printed(line, checkout, self._own and checkout != HERE)
                    )
                except CannotRunError as error:
                    if checkout == HERE:
                        raise SystemExit(f"error: {error}") from None
                    self._progress.print(f"left out: {error}")

    def median(self, checkout: Path, line: str, read: Callable[[Lines], float]) -> float | None:
        """Of a figure's values; None when its program could not run."""
        try:
            found = [read(lines) for lines in self._lines.get((checkout, line), [])]
        except (LookupError, ValueError):  # a program of another checkout may not know the figure
            if checkout == HERE:
                raise
            return None
        return statistics.median(found) if found else None

    def largest(self, program: Program, figure: Figure) -> str:
        """The largest part of a figure in the last run, and how much all parts are together."""
        line = figure.budget or program.line
        if (HERE, line) not in self._lines:
            self.run(line, [HERE], 1)
        parts = figure.parts(self._lines[HERE, line][-1])
        name, value = max(parts.items(), key=lambda part: part[1])
        return f"{name}: {plain(value)} of {plain(sum(parts.values()))} {program.unit}"


def plain(value: float) -> str:
    """A figure with three digits, or as a whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        program: Its line.
        figure: Its name.
        before: With the other code; None when that did not run.
        now: With this code.
        goal: What it should be.
        reached: Whether it is.
        largest: What takes most of it, where it is not reached.
    """

    program: str
    figure: str
    before: float | None
    now: float
    goal: float
    reached: bool
    largest: str


def rows(programs: Sequence[Program], before: Path | None, own: bool, rounds: int) -> Iterator[Row]:
    """Runs the programs; a row for each figure."""
    runs = Runs(own)
    for program in programs:
        runs.run(program.line, [HERE] if before is None else [before, HERE], rounds)
        for figure in program.figures:
            earlier = None if before is None else runs.median(before, program.line, figure.value)
            now = runs.median(HERE, program.line, figure.value)
            assert now is not None
            reached = figure.is_reached(now)
            largest = "" if reached else runs.largest(program, figure)
            yield Row(program.line, figure.name, earlier, now, figure.goal, reached, largest)


def main() -> None:
    """Parses the flags, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, with its connector built")
    parser.add_argument("--own", action="store_true", help="the other checkout runs its own programs")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each program with the code of each checkout")
    names = list(dict.fromkeys(program.name for program in PROGRAMS))
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these programs alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    arguments = parser.parse_args()
    programs = [program for program in PROGRAMS if program.name in arguments.only]
    found = []
    with contextlib.suppress(KeyboardInterrupt):
        for row in rows(programs, arguments.before and arguments.before.resolve(), arguments.own, arguments.rounds):
            found.append(row)
            if arguments.json:
                print(json.dumps(asdict(row)), flush=True)
    if arguments.json:
        return
    table = Table(title="figures and their goals")
    for heading in ("figure", "before", "now", "goal", "reached", "what takes most"):
        table.add_column(heading, justify="left" if heading in ("figure", "what takes most") else "right")
    for row in found:
        earlier = "" if row.before is None else plain(row.before)
        reached = "yes" if row.reached else "no"
        table.add_row(row.figure, earlier, plain(row.now), plain(row.goal), reached, row.largest)
    print_whole(table)


if __name__ == "__main__":
    main()
