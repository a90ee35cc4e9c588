"""What commands print and read: tables hold their numbers whole, and JSON means one thing."""

from __future__ import annotations

import pytest
from benchmarks.tables import print_whole
from rich.console import Console
from rich.table import Table

from headgate.deadletters.store import DeadLetterCount
from headgate.server.summary import _kept
from headgate_api.errors import InvalidInputError
from headgate_cli.client import counted, filter_value, print_table

NUMBERS = ("1234567890", "987654321.0", "5551234")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setenv("COLUMNS", "20")
    made = Table(title="a title longer than the terminal is wide")
    for name in ("first", "second", "third"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_row(*NUMBERS)
    return made


def test_no_number_is_cut(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    print_whole(table)
    printed = capsys.readouterr().out
    assert all(number in printed for number in NUMBERS)


def test_the_table_is_too_wide_for_the_terminal(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    Console().print(table)
    printed = capsys.readouterr().out
    assert not any(number in printed for number in NUMBERS), "else the other test proves nothing"


ROWS = [["NAME", "REASON", "FILTER"], ["gold-orders", "", 'ce.type == "order.paid" && data.total > 100'], ["b", "", ""]]


def test_a_table_of_a_command_fits_into_its_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(ROWS)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "FILTER"], "a column that says nothing is left out"
    assert max(map(len, lines)) <= 40
    assert " ".join(line[len("gold-orders") :].strip() for line in lines[:-1]) == ROWS[1][2], "nothing is cut"


def test_a_table_of_a_command_is_whole_for_a_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table(ROWS)
    head, first, last = capsys.readouterr().out.splitlines()
    assert head.split() == ROWS[0]
    assert first.endswith(ROWS[1][2])
    assert last == "b"


def test_one_is_one() -> None:
    assert [counted(count, "broker") for count in (0, 1, 1_203)] == ["0 brokers", "1 broker", "1,203 brokers"]
    assert counted(2, "delivery", "deliveries") == "2 deliveries"
    kept = [_kept(DeadLetterCount("ns", "t", "503", "kept", count, "", "")).message for count in (1, 1_306)]
    assert kept == [
        "1 dead letter is kept; the reason of the last one: 503",
        "1,306 dead letters are kept; the reason of the last one: 503",
    ]


def test_a_filter_of_a_command_is_cel_or_json_that_means_one_thing() -> None:
    assert filter_value("data.n > 1") == "data.n > 1"
    assert filter_value(' {"exact": {"type": "a"}}') == {"exact": {"type": "a"}}
    for text, why in (
        ('{"exact": {"type": "a", "type": "b"}}', "type"),
        ('{"exact": {}, "exact": {}}', "exact"),
        ("{", "truncated"),
        ("{} {}", "trailing"),
    ):
        with pytest.raises(InvalidInputError, match=f"--filter is no valid JSON: .*{why}"):
            filter_value(text)
