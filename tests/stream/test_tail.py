"""Does `headgate tail` tell events, progress and an end apart, whatever extensions events have?"""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headgate.cli import tail as tail_module
from headgate.cli.main import app
from headgate.errors import HeadgateError

EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "hgposition": "0:4"}
LINES = [
    EVENT | {"progress": "an extension", "error": "another"},
    {"progress": {"position": "0:5"}},
    {"error": {"code": "log-corrupt", "message": "log/0/0.seg is damaged at byte 64: so"}},
]


@pytest.mark.parametrize("count", [2, 3])
def test_what_the_server_says(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(tail_module, "lines", lambda *_, **__: iter([json.dumps(line) for line in LINES[:count]]))
    result = CliRunner().invoke(app, ["tail", "--no-follow"])
    assert result.stdout == "0:4  t  /s\n"
    assert (result.exit_code == 0) == (count == 2), result.output
    if count == 2:
        assert "--from 0:5" in result.stderr
    else:
        assert isinstance(result.exception, HeadgateError)
        assert "damaged at byte 64" in result.exception.message
        assert "--from 0:5" in result.exception.hint
