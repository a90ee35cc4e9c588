"""The page that has Headgate beside other brokers: each row speaks of all, and what is ours names a test of ours."""

from __future__ import annotations

import re

import pytest

from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs/reference/parity.md").read_text(encoding="utf-8")
SYSTEMS = ["Headgate", "EventBridge", "Knative", "RabbitMQ streams", "NATS JetStream", "Pulsar", "Eventarc Advanced"]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


TABLES = [table.splitlines() for table in PAGE.strip().split("\n\n") if table.startswith("| asked for |")]
ROWS = [cells(line) for table in TABLES for line in table[2:]]


def test_each_table_has_every_system() -> None:
    assert [cells(table[0]) for table in TABLES] == [["asked for", *SYSTEMS]] * 6
    asked = [row[0] for row in ROWS]
    assert len(asked) == len(set(asked)) >= 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_says_what_shows_each_of_its_words(row: list[str]) -> None:
    _, ours, *others = row
    assert len(others) == len(SYSTEMS) - 1
    assert re.match(r"(yes|partly|no)\b", ours), ours
    named = re.findall(r"`(tests/[\w/]+\.py)`", ours)
    assert bool(named) != ours.startswith("no"), ours
    assert [path for path in named if not (REPOSITORY / path).is_file()] == []
    for cell in others:
        assert re.match(r"not found$|\[(yes|partly|no)\]\(https://[^)\s]+\)(: .+)?$", cell), cell


def test_the_page_says_when_it_was_read() -> None:
    assert re.search(r"\| what was read on \d{1,2} \w+ 20\d\d \|", PAGE)
