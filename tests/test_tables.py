"""Tables hold their numbers whole, however narrow the terminal is."""

from __future__ import annotations

import pytest
from benchmarks.tables import print_whole
from rich.console import Console
from rich.table import Table

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
