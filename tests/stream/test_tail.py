"""Does `headgate tail` tell events, progress and an end apart, whatever extensions events have?"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from headgate_cli import tail
from headgate_cli.main import app
from headgate_cli.tail import InOrder

EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "hgposition": "0:4"}
SHOWN = ["STORED TYPE SOURCE ID SUBJECT DATA", "t /s 1"]
LINES = [
    EVENT | {"progress": "an extension", "error": "another"},
    {"progress": {"position": "0:5"}},
    {"error": {"code": "log-corrupt", "message": "log/0/0.seg is damaged at byte 64: so"}},
]


@pytest.mark.parametrize("count", [2, 3])
def test_what_the_server_says(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(tail, "lines", lambda *_, **__: iter([json.dumps(line).encode() for line in LINES[:count]]))
    result = CliRunner().invoke(app, ["tail", "--no-follow"])
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == SHOWN
    assert (result.exit_code == 0) == (count == 2), result.output
    if count == 2:
        assert "--from 0:5" in result.stderr
    else:
        error, hint = result.stderr.splitlines()
        assert error.startswith("error: ")
        assert "damaged at byte 64" in error
        assert hint.startswith("hint: ")
        assert "--from 0:5" in hint


def said(*lines: dict[str, object]) -> Iterator[bytes]:
    for line in lines:
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ([{"progress": {"position": "0:4,1:7"}}, EVENT], "0:5,1:7"),
        ([EVENT, {"progress": {"position": "0:9,1:7"}}, EVENT | {"hgposition": "1:7"}], "0:9,1:8"),
        ([EVENT], "0:5"),
    ],
)
def test_where_to_go_on_is_behind_the_last_event_shown(
    monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, object]], place: str
) -> None:
    monkeypatch.setattr(tail, "lines", lambda *_, **__: said(*lines))
    assert f"--from {place}\n" in CliRunner().invoke(app, ["tail"]).stderr


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_a_terminal_would_obey_is_escaped(monkeypatch: pytest.MonkeyPatch, form: list[str]) -> None:
    data = "\x1b[2J\x9b31m\x7f é"
    monkeypatch.setattr(tail, "lines", lambda *_, **__: said(EVENT | {"data": data}))
    *heads, line = CliRunner().invoke(app, ["tail", *form]).stdout.splitlines()
    assert len(heads) == (0 if form else 1)
    assert r"\u001b[2J\u009b31m\u007f é" in line
    if form:
        assert json.loads(line)["data"] == data


def test_events_on_which_the_filter_is_an_error_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [{"progress": {"position": "0:4", "filterErrors": count}} for count in (0, 2, 2, 3)]
    monkeypatch.setattr(tail, "lines", lambda *_, **__: said(*counts, EVENT))
    told = CliRunner().invoke(app, ["tail", "--filter", "data.x == 1"]).stderr
    assert [line.split(" of ")[0] for line in told.splitlines() if "error" in line] == [
        "headgate: the filter is an error on 2",
        "headgate: the filter is an error on 3",
    ]


def stored(partition: int, offset: int, at: str) -> dict[str, object]:
    return EVENT | {"id": at, "hgposition": f"{partition}:{offset}", "hgstored": f"2026-01-02T00:00:{at}.000001Z"}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_events_come_in_the_order_of_storing_whatever_their_partition(
    monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    begin = {"progress": {"position": "0:0,1:0"}}
    first = [stored(0, offset, f"{10 * offset:02}") for offset in range(4)]
    second = [stored(1, offset, f"{10 * offset + 5:02}") for offset in range(4)]
    end = {"progress": {"position": "0:4,1:4", "atEnd": True}}
    monkeypatch.setattr(tail, "lines", lambda *_, **__: said(begin, *first, *second, end))
    shown = CliRunner().invoke(app, ["tail", *form]).stdout.splitlines()
    if form:
        found = [json.loads(line).get("id", "progress") for line in shown]
        assert (found.pop(0), found.pop()) == ("progress", "progress")
    else:
        heads, *rows = shown
        assert [row.split()[0][17:23] for row in rows] == [f"{seconds:02}.000" for seconds in range(0, 40, 5)]
        assert {row.index("/s") for row in rows} == {heads.index("SOURCE")}, "columns are aligned"
        found = [row.split()[3] for row in rows]
    assert found == [f"{seconds:02}" for seconds in range(0, 40, 5)]


def test_an_event_waits_for_older_ones_of_other_partitions_but_not_for_ever() -> None:
    order = InOrder(held_max=3, partitions={0, 1})
    assert list(order.add("1", 0, 0, "a")) == []
    assert list(order.add("2", 1, 0, "b")) == ["a"]
    assert [*order.add("3", 1, 1, "c"), *order.add("4", 1, 2, "d")] == []
    assert list(order.add("5", 1, 3, "e")) == ["b"]
    assert order
    assert list(order.rest()) == ["c", "d", "e"]
    assert not order


def test_events_do_not_wait_where_the_server_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def lines(*_: object, **__: object) -> Iterator[bytes]:
        yield json.dumps(stored(0, 0, "01")).encode()
        assert go_on.wait(20)
        raise KeyboardInterrupt

    class Told(io.StringIO):
        def write(self, text: str) -> int:
            if "00:00:01" in text:
                go_on.set()
            return super().write(text)

    monkeypatch.setattr(tail, "lines", lines)
    monkeypatch.setattr("sys.stdout", Told())
    tail.tail()
    assert go_on.is_set()


def test_what_has_an_end_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def lines(server: str, path: str, **_: object) -> Iterator[bytes]:
        asked.append(path)
        yield from ()

    monkeypatch.setattr(tail, "lines", lines)
    CliRunner().invoke(app, ["tail", "--from", "2026-01-02", "--to", "latest"])
    assert "from=2026-01-02T00%3A00%3A00Z&follow=false" in asked[0]
    assert "to=latest" in asked[0]
