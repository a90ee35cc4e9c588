"""The conformance programs: what they print, what they count, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conformance.__main__ import SUITES, app
from conformance.cases import judged
from typer.testing import CliRunner

from headgate_conformance.broker import CaseStatus

MATCH = {"name": "right", "event": {"a": 1}, "pattern": {"a": [1]}, "expect": "match"}
WRONG = {"name": "wrong", "event": {"a": 1}, "pattern": {"a": [2]}, "expect": "match"}
RAW = '{"name": "raw", "event": {"a": 1}, "pattern": {"a": [2.0e422]}, "expect": "invalid"}'


def ran(*arguments: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output.splitlines()


def cases_file(folder: Path, *cases: dict[str, object] | str) -> str:
    path = folder / "cases.jsonl"
    path.write_text("\n".join(case if isinstance(case, str) else json.dumps(case) for case in cases) + "\n\n")
    return str(path)


def test_prints_every_case_by_id_and_a_summary(tmp_path: Path) -> None:
    status, lines = ran("eventbridge", cases_file(tmp_path, MATCH, WRONG, RAW))
    assert status == 1
    assert lines == [
        "passed  right",
        "failed  wrong: no_match instead of match",
        "passed  raw",
        "eventbridge: 3 cases, 2 passed, 1 failed",
    ]


def test_status_is_zero_when_nothing_failed(tmp_path: Path) -> None:
    status, lines = ran("eventbridge", "--quiet", cases_file(tmp_path, MATCH, RAW))
    assert (status, lines) == (0, ["eventbridge: 2 cases, 2 passed"])


def test_json_for_machines(tmp_path: Path) -> None:
    status, lines = ran("eventbridge", "--json", cases_file(tmp_path, MATCH, WRONG))
    assert status == 1
    *results, summary = map(json.loads, lines)
    assert [(result["id"], result["verdict"]) for result in results] == [("right", "passed"), ("wrong", "failed")]
    assert summary["cases"] == 2
    assert (summary["passed"], summary["failed"]) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch", "x"], "unknown suite"),
        (["cel", "/nosuch/file"], "cannot read"),
        (["eventbridge", "--url", "http://h/", "x"], "--url is for http"),
        (["http", "--url", "ftp://h/", "EMPTY"], "is no http:// URL"),
        (["http", "--url", "http://127.0.0.1:1/", "HTTP"], "refused"),
        (["eventbridge", "EMPTY"], "has no cases"),
        (["eventbridge", "BROKEN"], "line 2: "),
        (["eventbridge", "OTHER"], "line 1: "),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, arguments: list[str], said: str) -> None:
    http = {"name": "n", "method": "POST", "headers": [], "body_b64": "", "expect": {"accept": True}}
    files = {
        "EMPTY": lambda: cases_file(tmp_path, ""),
        "BROKEN": lambda: cases_file(tmp_path, MATCH, "{"),
        "OTHER": lambda: cases_file(tmp_path, {"name": "x"}),
        "HTTP": lambda: cases_file(tmp_path, http),
    }
    status, lines = ran(*(files[argument]() if argument in files else argument for argument in arguments))
    assert status == 2
    assert said in "\n".join(lines)


def test_a_listed_case_that_passes_is_a_failure_of_the_list() -> None:
    assert judged("x", "", {"x": "reason"}).verdict is CaseStatus.FAILED
    assert judged("x", "fault", {"x": "reason"}).verdict is CaseStatus.KNOWN
    assert judged("x", "fault", {}).verdict is CaseStatus.FAILED


def test_every_suite_says_which_line_is_no_case(tmp_path: Path) -> None:
    for suite in SUITES:
        status, lines = ran(suite, cases_file(tmp_path, '{"nothing": 1}'))
        assert status == 2
        assert "line 1: " in lines[0], suite
