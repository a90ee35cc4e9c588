"""The table of figures and goals: before and now, what is reached, and what takes most of the rest."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from benchmarks.goals import HERE, CannotRunError, Figure, Lines, Program, Row, last, only, printed, rows

from benchmarks import goals

BEFORE = Path("/before")
SLOW = Figure(
    "slow, us",
    10,
    only(what="whole")("us"),
    lambda lines: {line["what"]: line["us"] for line in lines if line["what"] != "whole"},
)
RATE = Figure("rate/s", 100, last("per_s", what=""), lambda lines: {}, is_rate=True)
BUDGETED = Figure("ms", 1, last("ms", what=""), lambda lines: lines[0], budget="budget")


def figures(monkeypatch: pytest.MonkeyPatch, outputs: dict[tuple[Path, str], list[Lines]]) -> list[Row]:
    """The rows of a program whose runs print these, one after the other."""

    def printed(line: str, checkout: Path, own: bool) -> Lines:
        if (checkout, line) not in outputs:
            raise CannotRunError("no such module")
        return outputs[checkout, line].pop(0)

    monkeypatch.setattr("benchmarks.goals.printed", printed)
    return list(rows([Program("one --json", (SLOW, RATE, BUDGETED))], BEFORE, False, 3))


def run(us: float, per_s: float) -> Lines:
    parts = [{"what": "read", "us": us / 4}, {"what": "check", "us": us * 3 / 4}]
    return [{"what": "whole", "us": us}, *parts, {"what": "", "us": 0, "per_s": per_s, "ms": 2}]


def test_each_figure_has_its_medians_and_its_largest_part(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = [{"until stored": 5.0, "until sent": 7.0}]
    slow, rate, budgeted = figures(
        monkeypatch,
        {
            (HERE, "one --json"): [run(20, 90), run(80, 110), run(40, 120)],
            (BEFORE, "one --json"): [run(200, 9), run(100, 11), run(300, 10)],
            (HERE, "budget"): [budget] * 3,
        },
    )
    assert (slow.before, slow.now, slow.reached) == (200, 40, False)
    assert slow.largest == "check: 30 of 40 us"
    assert (rate.before, rate.now, rate.reached, rate.largest) == (10, 110, True, "")
    assert budgeted.largest == "until sent: 7 of 12 us"


def test_a_program_that_cannot_run_with_the_other_code_leaves_its_cells_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: dict[tuple[Path, str], list[Lines]] = {
        (HERE, "one --json"): [run(1, 200)] * 3,
        (HERE, "budget"): [[{"a": 1.0}]] * 3,
    }
    slow, rate, _ = figures(monkeypatch, outputs)
    assert (slow.before, slow.now, rate.now) == (None, 1, 200)


def test_a_program_that_cannot_run_with_this_code_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="error: no such module"):
        figures(monkeypatch, {(BEFORE, "one --json"): [run(1, 200)] * 3})


def test_a_figure_that_the_other_program_does_not_print_leaves_its_cell_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = {
        (HERE, "one --json"): [run(1, 200)] * 3,
        (BEFORE, "one --json"): [[{"what": "whole", "other": 1}, {"per_s": 7, "what": "", "ms": 3}]] * 3,
        (HERE, "budget"): [[{"a": 1.0}]] * 3,
    }
    slow, rate, _ = figures(monkeypatch, outputs)
    assert (slow.before, slow.now, rate.before) == (None, 1, 7)


def test_a_program_that_is_too_slow_with_the_other_code_is_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, program = tmp_path / ".venv/bin/python", tmp_path / "benchmarks/slow.py"
    for path in (python, program):
        path.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    program.write_text(
        "import pathlib, time\n"
        "pathlib.Path('begun').touch()\n"
        "try:\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    pathlib.Path('ended').touch()\n"
    )
    monkeypatch.setattr(goals, "OTHER_S_MAX", 3)
    with pytest.raises(CannotRunError, match="slow --json takes longer than 3 s with the code of"):
        printed("slow --json", tmp_path, own=True)
    assert (tmp_path / "begun").exists()
    assert (tmp_path / "ended").exists(), "it could not end what it had started"
