"""Every figure that has a goal, beside its goal, and beside the code before in the same run.

    python -m benchmarks.goals                          what this checkout reaches
    python -m benchmarks.goals --before ../older        each program also with the code of another checkout, in turns
    python -m benchmarks.goals --only ingress dispatch  these programs alone

Each figure comes from one of the other programs here. With `--rounds` each program runs several times, and the table
has the medians. The whole takes about half an hour. `benchmarks.budget` says which part of an event's life takes most.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.tables import print_whole

Lines = Sequence[Mapping[str, Any]]
"""What a program prints with `--json`: one object a line."""
HERE: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: What is measured, with its unit.
        goal: What it should be.
        value: Reads it from what the program prints.
        is_rate: More is better; else less is.
    """

    name: str
    goal: float
    value: Callable[[Lines], float]
    is_rate: bool = False

    def is_reached(self, value: float) -> bool:
        """Whether a value is as good as the goal."""
        return value >= self.goal if self.is_rate else value <= self.goal


@dataclass(frozen=True)
class Program:
    """A run of one of the programs of this folder.

    Attributes:
        line: Its name and arguments, as behind `python -m benchmarks.`.
        figures: What is read from it.
    """

    line: str
    figures: tuple[Figure, ...]

    @property
    def name(self) -> str:
        """Of the program, without arguments."""
        return self.line.split()[0]

    def run(self, checkout: Path) -> Lines:
        """What this folder's program prints with the code of a checkout."""
        command = [sys.executable, "-m", *f"benchmarks.{self.line}".split()]
        paths = {"PYTHONPATH": f"{checkout / 'src'}:{HERE}"}
        done = subprocess.run(command, cwd=HERE, env=os.environ | paths, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"error: {' '.join(command[1:])} ended with {done.returncode} with the code of {checkout}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def only(**wanted: object) -> Callable[[str], Callable[[Lines], float]]:
    """Reads a member of the one line that has these other members."""

    def of(member: str) -> Callable[[Lines], float]:
        def value(lines: Lines) -> float:
            (found,) = (line for line in lines if wanted.items() <= line.items())
            return float(found[member])

        return value

    return of


def most(member: str) -> Callable[[Lines], float]:
    """Reads the largest value of a member."""
    return lambda lines: max(float(line[member]) for line in lines if member in line)


def last(member: str, **wanted: object) -> Callable[[Lines], float]:
    """Reads a member of the last line that has these other members."""
    return lambda lines: [float(line[member]) for line in lines if wanted.items() <= line.items()][-1]


def deliveries(triggers: int) -> Iterator[Figure]:
    """What deliveries to so many triggers cost."""
    of = only(triggers=triggers)
    yield Figure(f"deliveries/s to {triggers} triggers", 20_000, of("deliveries_per_s"), True)
    yield Figure("processor time of one, us", 60, of("cpu_us"))


SINGLE: Final = only(app="ingress", mode="single")
ANY: Final = only()
PROGRAMS: Final = (
    Program(
        "latency --json",
        (
            Figure("POST to subscriber, 10,000 triggers, 500 events/s: p50 ms", 1.2, ANY("p50_ms")),
            Figure("p99 ms", 5, ANY("p99_ms")),
        ),
    ),
    Program(
        "latency --triggers 100 --rate 50 --json",
        (
            Figure("POST to subscriber, 100 triggers, 50 events/s: p50 ms", 1.5, ANY("p50_ms")),
            Figure("p99 ms", 5, ANY("p99_ms")),
        ),
    ),
    Program(
        "latency --changes 20 --json",
        (
            Figure("the first one while 20 triggers are added: p99 ms", 15, ANY("p99_ms")),
            Figure("most ms", 50, ANY("max_ms")),
        ),
    ),
    Program("system", (Figure("whole system, 100 triggers: delivered/s", 12_000, most("delivered_per_s"), True),)),
    Program(
        "ingress --json",
        (
            Figure("single POSTs on disk/s", 30_000, SINGLE("requests_per_s"), True),
            Figure("processor time of one, us", 30, SINGLE("cpu_us_per_request")),
            Figure(
                "in batches of 100: events/s", 500_000, only(app="ingress", mode="batches of 100")("events_per_s"), True
            ),
        ),
    ),
    Program(
        "dispatch --json",
        (
            *(figure for targets in (1, 8, 100) for figure in deliveries(targets)),
            Figure("row to subscriber at 2,000/s: p99 ms", 5, only(rows_per_s=2_000)("p99_ms")),
        ),
    ),
    Program(
        "admission --json",
        (
            Figure("10,000 filters admitted, s", 5, only(what="admitted 256 together")("clock_s")),
            Figure("100,000 triggers by one apply, s", 40, only(what="by one apply: command")("clock_s")),
            Figure("100,000 filters in force, from nothing, s", 4, only(what="in force, from nothing")("clock_s")),
            Figure("one more among 100,000, s", 0.5, last("clock_s", what="one more in force")),
        ),
    ),
)


def measured(programs: Sequence[Program], checkouts: Sequence[Path], rounds: int) -> dict[tuple[Path, str, int], float]:
    """The median of each figure, by its checkout, its program's line and its place among the program's figures."""
    progress = Console(stderr=True)
    values: dict[tuple[Path, str, int], list[float]] = {}
    for program in programs:
        for number in range(rounds):
            for checkout in checkouts if number % 2 == 0 else reversed(checkouts):
                progress.print(f"benchmarks.{program.line}, round {number + 1} of {rounds}, {checkout.name}")
                lines = program.run(checkout)
                for place, figure in enumerate(program.figures):
                    values.setdefault((checkout, program.line, place), []).append(figure.value(lines))
    return {key: statistics.median(found) for key, found in values.items()}


def main() -> None:
    """Parses the flags, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, with its connector built")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each program with the code of each checkout")
    names = list(dict.fromkeys(program.name for program in PROGRAMS))
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these programs alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    arguments = parser.parse_args()
    checkouts = [HERE] if arguments.before is None else [arguments.before.resolve(), HERE]
    programs = [program for program in PROGRAMS if program.name in arguments.only]
    values = measured(programs, checkouts, arguments.rounds)
    table = Table(title="figures and their goals")
    for heading in ("figure", "before", "now", "goal", "reached"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for program in programs:
        for place, figure in enumerate(program.figures):
            now = values[HERE, program.line, place]
            before = values[checkouts[0], program.line, place] if len(checkouts) > 1 else None
            if arguments.json:
                print(
                    json.dumps(
                        {"program": program.line, "figure": figure.name, "before": before, "now": now}
                        | {"goal": figure.goal}
                    )
                )
                continue
            reached = "yes" if figure.is_reached(now) else "no"
            table.add_row(
                figure.name, "" if before is None else f"{before:,.4g}", f"{now:,.4g}", f"{figure.goal:,g}", reached
            )
    if not arguments.json:
        print_whole(table)


if __name__ == "__main__":
    main()
