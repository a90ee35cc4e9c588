"""The programs of peers get filters that mean the same, and a wrong answer of one is told."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.matcher import cel_of
from benchmarks.peers import matchers, workload
from benchmarks.peers.matchers import Matcher
from benchmarks.peers.program import ProgramError, running, tree_s
from benchmarks.peers.workload import Files, Found, pattern_of, truth, variables_of

from headgate.filter.cel.engine import OutcomeKind, compile_expression
from headgate.filter.cel.evaluate import EventView
from headgate.filter.dialects import to_cel
from headgate_api.event.json_format import decode_event

TYPE, REGION = {"path": ["type"], "op": "exact", "value": "a.b"}, ["data", "region"]
FILTERS: list[dict[str, Any]] = [
    {"all": [TYPE, {"path": ["data", "user", "tier"], "op": "exact", "value": "gold"}]},
    {"all": [{"path": ["type"], "op": "prefix", "value": "a."}]},
    {"all": [{"path": ["source"], "op": "suffix", "value": "node-1"}]},
    {"all": [TYPE, {"path": ["data", "total"], "op": "range", "ge": 1.5, "lt": 7}]},
    {"all": [TYPE, {"path": REGION, "op": "in", "values": ["eu", "us"]}]},
    {"all": [TYPE, {"path": ["tenant"], "op": "exists", "value": False}]},
    {"all": [TYPE, {"path": ["tenant"], "op": "exists", "value": True}]},
    {"all": [TYPE, {"path": REGION, "op": "anything_but", "values": ["eu"]}]},
]


def event(**more: Any) -> bytes:
    data = {"user": {"tier": more.pop("tier", "gold")}, "total": more.pop("total", 1.5), "region": more.pop("region")}
    attributes = {"specversion": "1.0", "id": "1", "source": "/x/node-1", "type": "a.b", **more}
    return json.dumps({**attributes, "datacontenttype": "application/json", "data": data}).encode()


EVENTS = [
    event(region="eu"),
    event(region="ap", tenant="t", total=7),
    event(region="us", type="a.c", tier="free"),
    event(region="us", type="z", source="/x/node-12", total=6.99),
]


def met(text: str, line: bytes) -> bool:
    activation = EventView(decode_event(line)).activation
    return compile_expression(text).evaluate(activation).kind is OutcomeKind.TRUE


@pytest.mark.parametrize("neutral", FILTERS)
def test_the_pattern_of_a_filter_means_what_its_cel_means(neutral: dict[str, Any]) -> None:
    pattern = json.loads(pattern_of(neutral))
    ours = {**pattern.get("ce", {}), **({"detail": pattern["data"]} if "data" in pattern else {})}
    text = to_cel({"eventPattern": {"detail-type" if key == "type" else key: one for key, one in ours.items()}})
    assert [met(text, line) for line in EVENTS] == [met(cel_of(neutral), line) for line in EVENTS]


def test_the_truth_is_what_every_filter_says_of_every_event() -> None:
    pairs = [
        (number, rule)
        for number, line in enumerate(EVENTS)
        for rule, one in enumerate(FILTERS)
        if met(cel_of(one), line)
    ]
    assert truth(EVENTS, FILTERS) == Found(len(pairs), sum((number + 1) * (rule + 1) for number, rule in pairs))


def test_an_event_of_variables_has_its_attributes_first() -> None:
    assert list(json.loads(variables_of(EVENTS[1]))) == ["ce", "data"]
    assert json.loads(variables_of(EVENTS[1]))["ce"]["tenant"] == "t"


MATCHER = """
import sys, time
print('for people')
print('{{"build_s": 0.1, "matches": {matches}, "sum": {sum}}}', flush=True)
for line in sys.stdin:
    sum(range(3_000_000))
    print('{{"events": 1000, "matches": 7, "wall_s": 0.5}}', flush=True)
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path, tmp_path, tmp_path, tmp_path, Found(1_000, 5_000), 1.0)


def measured(monkeypatch: pytest.MonkeyPatch, files: Files, *found: Found) -> list[dict[str, Any]]:
    """The rows of ours and of peers, which say that they found this."""
    titles = (matchers.OURS, "Other", "Third")
    made = [
        Matcher(title, [sys.executable, "-c", MATCHER.format(matches=one.matches, sum=one.sum)], cel=False)
        for title, one in zip(titles, found, strict=False)
    ]
    monkeypatch.setattr(matchers, "chosen", lambda options, scratch: made)
    monkeypatch.setattr(matchers, "generate", lambda cache: cache)
    monkeypatch.setattr(workload, "write", lambda folder, count, scratch: files)
    options = argparse.Namespace(cache=Path(), rounds=2, seconds=0.1, warm=0.1)
    rows: list[dict[str, Any]] = matchers.in_turns(8, options, lambda text: None, Path())["rows"]
    return rows


def test_matchers_have_a_row_each_with_what_they_found_too_much(monkeypatch: pytest.MonkeyPatch, files: Files) -> None:
    ours, other = measured(monkeypatch, files, files.truth, Found(1_002, 5_100))
    assert (ours["title"], ours["events_per_s"], ours["wrong"]) == ("Headgate", 2_000, 0)
    assert (other["title"], other["wrong"]) == ("Other", 2)
    assert ours["processor_us"] > 0


@pytest.mark.parametrize(
    "found",
    [
        [Found(1_001, 5_000)],
        [Found(1_000, 5_000), Found(1_000, 5_001)],
        [Found(1_000, 5_000), Found(2_000, 9_000)],
    ],
)
def test_wrong_matches_end_the_program(monkeypatch: pytest.MonkeyPatch, files: Files, found: list[Found]) -> None:
    with pytest.raises(SystemExit, match=r"error: .* found Found"):
        measured(monkeypatch, files, *found)


def test_a_program_that_ends_is_told_by_its_name() -> None:
    with running("Other", [sys.executable, "-c", "print('{}')"]) as program:
        assert program.said(20) == {}
        with pytest.raises(ProgramError, match="Other ended"):
            program.said(20)


def test_a_program_that_says_nothing_ends_with_all_below_it() -> None:
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with (
        running("Other", [sys.executable, "-c", text]) as program,
        pytest.raises(ProgramError, match="gave none within 1 s"),
    ):
        program.said(1)


def test_processor_time_is_that_of_all_below_a_process() -> None:
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', '%s'])"
    child = 'sum(range(20_000_000)); print("{}", flush=True); input()'
    with running("Other", [sys.executable, "-c", text % child]) as program:
        program.said(60)
        assert tree_s([program.pid]) >= 0.1
