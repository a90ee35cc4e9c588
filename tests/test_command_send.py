"""`headgate send` makes the event that its options say, and refuses what is none before it asks a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate_cli import events
from tests.commands import headgate, told


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    bodies: list[dict[str, Any]] = []

    def request(server: str, method: str, path: str, *, body: Any, content_type: str) -> None:
        bodies.append({"path": path} | json.loads(bytes(body)))

    monkeypatch.setattr(events, "request", request)
    return bodies


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], {}),
        (["--data", '{"n": 1}'], {"datacontenttype": "application/json", "data": {"n": 1}}),
        (["--data", "hi", "--datacontenttype", "text/plain"], {"datacontenttype": "text/plain", "data": "hi"}),
        (["--data", "<a/>", "--datacontenttype", "application/xml"], {"data_base64": "PGEvPg=="}),
        (["--data", "[1]", "--datacontenttype", "application/vnd.shop+json"], {"data": [1]}),
        (["--time", "2026-01-02T03:04:05Z"], {"time": "2026-01-02T03:04:05Z"}),
        (["--time", "2026-01-02"], {"time": "2026-01-02T00:00:00Z"}),
        (["-e", "tenant=a=b", "--subject", "s"], {"tenant": "a=b", "subject": "s"}),
        (["-b", "shop/orders"], {"path": "/shop/orders"}),
        (["-b", "orders", "-n", "shop"], {"path": "/shop/orders"}),
    ],
)
def test_the_event_is_what_the_options_say(
    sent: list[dict[str, Any]], options: list[str], wanted: dict[str, Any]
) -> None:
    assert told("send", "--type", "t", "--id", "1", *options) == "accepted 1\n"
    assert sent[0].items() >= wanted.items()
    assert (sent[0]["type"], sent[0]["id"], "data" in sent[0]) == ("t", "1", "data" in wanted)


def test_data_may_be_in_a_file(sent: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\xff\x00")
    told("send", "--type", "t", "--data-file", tmp_path / "picture", "--datacontenttype", "image/png")
    assert (sent[0]["data_base64"], sent[0]["datacontenttype"]) == ("/wA=", "image/png")


@pytest.mark.parametrize("text", ["now", "0s", "1h"])
def test_a_time_may_be_an_age(sent: list[dict[str, Any]], text: str) -> None:
    told("send", "--type", "t", "--time", text)
    assert sent[0]["time"].endswith("Z")


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        (["--data", "hello"], "the data is no JSON", "--datacontenttype text/plain"),
        (["--data", "1", "--data-file", "x"], "each give the data", "leave out"),
        (["--data-file", "/nope"], "--data-file /nope cannot be read", "stdin"),
        (["-e", "tenant"], "not NAME=VALUE", "tenant=acme"),
        (["/nope.jsonl"], "give either --type or a FILE", "--help"),
    ],
)
def test_what_is_no_event_is_refused(sent: list[dict[str, Any]], options: list[str], error: str, hint: str) -> None:
    said = headgate("send", "--type", "t", *options)
    assert (said.exit_code, said.stdout, sent) == (1, "", [])
    assert error in said.stderr
    assert hint in said.stderr.partition("hint: ")[2]
