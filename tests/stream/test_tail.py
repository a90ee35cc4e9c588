"""Does `headgate tail` tell events, progress and an end apart, whatever extensions events have?"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from headgate_cli import events
from headgate_cli.main import app

EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "hgposition": "0:4"}
LINES = [
    EVENT | {"progress": "an extension", "error": "another"},
    {"progress": {"position": "0:5"}},
    {"error": {"code": "log-corrupt", "message": "log/0/0.seg is damaged at byte 64: so"}},
]


@pytest.mark.parametrize("count", [2, 3])
def test_what_the_server_says(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(events, "lines", lambda *_, **__: iter([json.dumps(line).encode() for line in LINES[:count]]))
    result = CliRunner().invoke(app, ["tail", "--no-follow"])
    assert result.stdout == "0:4  t  /s\n"
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
    monkeypatch.setattr(events, "lines", lambda *_, **__: said(*lines))
    assert f"--from {place}\n" in CliRunner().invoke(app, ["tail"]).stderr


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_a_terminal_would_obey_is_escaped(monkeypatch: pytest.MonkeyPatch, form: list[str]) -> None:
    data = "\x1b[2J\x9b31m\x7f é"
    monkeypatch.setattr(events, "lines", lambda *_, **__: said(EVENT | {"data": data}))
    (line,) = CliRunner().invoke(app, ["tail", *form]).stdout.splitlines()
    assert r"\u001b[2J\u009b31m\u007f é" in line
    if form:
        assert json.loads(line)["data"] == data


def test_events_on_which_the_filter_is_an_error_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [{"progress": {"position": "0:4", "filterErrors": count}} for count in (0, 2, 2, 3)]
    monkeypatch.setattr(events, "lines", lambda *_, **__: said(*counts, EVENT))
    told = CliRunner().invoke(app, ["tail", "--filter", "data.x == 1"]).stderr
    assert [line.split(" of ")[0] for line in told.splitlines() if "error" in line] == [
        "headgate: the filter is an error on 2",
        "headgate: the filter is an error on 3",
    ]
