"""The page is made of its results alone; a small run of the real program gives such results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.published import results
from benchmarks.published.page import render

from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "published.md"


def test_the_page_is_what_its_results_make() -> None:
    made = render(results.read(PAGE.with_suffix(".json")), PAGE.name)
    assert {name: (PAGE.parent / name).read_text() for name in made} == made
    plots = {f"published/{file.name}" for file in (PAGE.parent / "published").iterdir()}
    assert plots == set(made) - {PAGE.name}


def test_results_of_another_run_change_the_page() -> None:
    found = results.read(PAGE.with_suffix(".json"))
    before = render(found, PAGE.name)
    one = next(iter(found["setups"].values()))
    one["loads"][-1]["stored_per_s"] = 987_654
    one["run"]["date"] = "2031-02-03"
    after = render(found, PAGE.name)
    assert "987,654" in after[PAGE.name]
    assert "2031-02-03" in after[PAGE.name]
    assert after["published/stored.svg"] != before["published/stored.svg"]


def test_a_page_without_results_says_what_is_measured() -> None:
    assert list(render({}, "p.md")) == ["p.md"]


def test_peers_and_the_curve_are_tables() -> None:
    run = {"command": "c", "date": "d", "cores": 2, "model": "m", "kernel": "k", "version": "1", "load": 0.5}
    us = dict.fromkeys(("front", "dispatcher", "matcher", "control", "reader", "supervisor"), 10.0)
    form = {"fronts": 1, "dispatchers": 1, "partitions": 2, "us_per_event": us, "idle_ms_per_s": 3.0}
    points = [{"filters": count, "total_us": total, **form} for count, total in ((100, 60.0), (1_000, 90.0))]
    matcher = {"build_s": 0.5, "events_per_s_from_to": [900, 1_100], "processor_us": 4.5}
    ours = {**matcher, "title": "Headgate", "events_per_s": 1_000, "wrong": 0}
    other = {**matcher, "title": "Other 1.0", "events_per_s": 2_500, "wrong": 3}
    system = {
        **{"producers": 64, "delivered_per_s_from_to": [90, 110], "server_us": 50.0, "clients_us": 20.0},
        **dict.fromkeys(("ack_p50_ms", "ack_p99_ms", "deliver_p50_ms", "deliver_p99_ms"), 1.5),
    }
    found = {
        "peers": {
            "matchers-100": {"run": run, "filters": 100, "matches_per_event": 1.02, "rounds": 2, "rows": [ours, other]},
            "systems": {
                **{"run": run, "consumers": 100, "rounds": 2, "rate": 100.0},
                "rows": [
                    {**system, "title": "Headgate", "delivered_per_s": 1_000},
                    {**system, "title": "Other 2.0", "delivered_per_s": 500},
                ],
            },
        },
        "curve": {"filters": {"run": run, "points": points}},
    }
    made = render(found, "p.md")
    assert "| Other 1.0 | 2,500 | 900 to 1,100 | 4.5 | 2.500 | 0.5 | +3 |" in made["p.md"]
    assert "| Other 2.0 | 64 | 500 | 90 to 110 | 0.500 | 1.5 | 1.5 | 50 | 20 | 1.5 | 1.5 |" in made["p.md"]
    assert "costs 1.50 times what it costs with 100 (not within the goal)" in made["p.md"]
    ElementTree.fromstring(made["published/curve.svg"])


def test_a_run_takes_the_place_of_its_predecessor_alone(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    results.put(file, "peers", "a", {"n": 1})
    results.put(file, "setups", "3", {"samples": [[1, 2.5], [3, 4]]})
    results.put(file, "peers", "b", {"n": 2})
    results.put(file, "peers", "a", {"n": 3})
    assert results.read(file) == {
        "setups": {"3": {"samples": [[1, 2.5], [3, 4]]}},
        "peers": {"a": {"n": 3}, "b": {"n": 2}},
    }
    assert "[1, 2.5]" in file.read_text()


@pytest.mark.slow
@pytest.mark.system
def test_a_small_run_of_the_program(tmp_path: Path) -> None:
    page = tmp_path / "published.md"
    command = [sys.executable, "-m", "benchmarks.published", "--brokers", "20", "--setups", "3", "--match", "0", "10"]
    command += ["--seconds", "1", "--steady", "1", "--warm", "1", "--connections", "8", "--json"]
    command += ["--page", str(page)]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    assert [list(json.loads(line)) for line in done.stdout.splitlines()] == [["setups"]]
    found = results.read(page.with_suffix(".json"))
    setup = found["setups"]["3"]
    assert setup["filters"] == 60
    none, tenth = setup["loads"]
    assert none["delivered_per_s"] is None
    assert tenth["delivered_per_s"] > 0
    assert tenth["deliveries"] == 10
    assert setup["neighbour"]["alone"]["deliveries"] == setup["neighbour"]["beside"]["deliveries"] == 100
    assert setup["mixed"]["delivered_per_s"] > 0
    assert min(one["us_per_event"]["front"] for one in setup["loads"]) > 0
    assert min(one["written_bytes_per_event"]["front"] for one in setup["loads"]) > 0
    assert setup["course"]["samples"]
    for name, text in render(found, page.name).items():
        assert (tmp_path / name).read_text() == text
