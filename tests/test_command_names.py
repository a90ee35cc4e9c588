"""Commands name brokers, objects, namespaces and times in one way, and say what is missing."""

from __future__ import annotations

import io
import json
import re
import shlex
import time
import urllib.request
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from headgate_api.event import rfc3339
from headgate_cli import client
from headgate_cli.main import app

NAMED = [
    "why 1 --broker {}",
    "why 1 --trigger {}",
    "trace 1 --broker {}",
    "tail --broker {}",
    "send --type t --broker {}",
    "filter backtest true --broker {}",
    "replay --target {}",
    "replay --target http://127.0.0.1:9/ --broker {}",
    "consume {}",
    "seek {}",
    "subscription describe {}",
    "subscription analyze {} --filter true",
    "trigger pause {}",
    "get trigger {}",
    "describe broker {}",
    "delete subscription {}",
    "deadletter list --trigger {}",
    "deadletter redrive --trigger {}",
    "deadletter discard --yes --trigger {}",
    "pending list --trigger {}",
    "pending cancel --yes --trigger {}",
]
AGED = [
    "why 1 --from 1h",
    "tail --from 1h",
    "tail --from 1h30m",
    "tail --from earliest --to 1w",
    "tail --from 2026-01-02",
    "filter backtest true --from 1h",
    "filter backtest true --to 1h",
    "replay --target t --from 1h",
    "replay --target t --to PT1H",
    "seek s --to 1h",
    "deadletter list --from 1h",
    "deadletter redrive --to 60m",
    "pending list --from 1h",
    "pending list --to +1h",
    "pending cancel --yes --from +PT1H",
]
TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d(?::|%3A)\d\d")


class Refusing:
    """A server that has nothing, and keeps what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, call: urllib.request.Request, timeout_s: float | None = None) -> None:
        body = call.data.decode() if isinstance(call.data, bytes) else ""
        self.asked.append(f"{call.get_method()} {call.full_url} {re.sub(r'[0-9a-f]{8}-[-0-9a-f]*', 'uuid', body)}")
        said = io.BytesIO(json.dumps({"message": "not found"}).encode())
        raise HTTPError(call.full_url, HTTPStatus.NOT_FOUND, "Not Found", Message(), said)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    refusing = Refusing()
    monkeypatch.setattr(client, "_opened", refusing)
    return refusing


def run(command: str) -> str:
    """What a command that fails says."""
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 1, done.output
    return done.output


@pytest.mark.parametrize("command", NAMED)
def test_a_namespace_is_an_option_or_part_of_the_name(server: Refusing, command: str) -> None:
    run(command.format("shop/orders"))
    by_name = server.asked[0]
    server.asked.clear()
    run(f"{command.format('orders')} -n shop")
    assert server.asked[0] == by_name
    assert "/shop/" in by_name
    assert "orders" in by_name


@pytest.mark.parametrize("command", NAMED)
def test_a_namespace_that_is_not_there_is_what_is_missing(server: Refusing, command: str) -> None:
    said = run(command.format("shop/orders"))
    assert "there is no namespace 'shop'" in said
    assert "-n NAMESPACE" in said
    assert any(one.split(" ")[1].endswith("/api/v1/namespaces/shop") for one in server.asked)


@pytest.mark.parametrize("command", AGED)
def test_a_time_may_be_an_age(server: Refusing, command: str) -> None:
    run(command)
    assert TIME.search(server.asked[0]), server.asked[0]


@pytest.mark.parametrize(
    "text",
    ["", "earliest", "0:123,1:456", "2026-01-02T03:04:05Z", "1y", "-1h", "1h30", "2026-13-02", "²h", "9" * 400 + "d"],
)
def test_what_is_no_age_is_for_the_server_to_judge(text: str) -> None:
    assert client.time_text(text) == text


def test_what_waits_is_selected_by_how_far_it_lies_ahead(server: Refusing) -> None:
    """With a sign; without one it is an age, as everywhere."""
    run("pending list --from 30m --to +1h30m")
    asked = parse_qs(urlsplit(server.asked[0]).query)
    since, until = (rfc3339.micros(asked[name][0]) or 0 for name in ("since", "until"))
    now_us = time.time_ns() // 1_000
    assert (round((since - now_us) / 60e6), round((until - now_us) / 60e6)) == (-30, 90)


@pytest.mark.parametrize("command", ["pending list", "pending cancel --yes", "deadletter list", "deadletter redrive"])
@pytest.mark.parametrize("option", ["--from", "--to"])
def test_what_is_no_time_is_refused_in_the_words_that_were_typed(server: Refusing, command: str, option: str) -> None:
    said = run(f"{command} {option} tomorrow")
    assert f"{option} 'tomorrow' is no time" in said
    assert "1h30m" in said
    assert ("+1h30m" in said) == command.startswith("pending")
    assert not server.asked
    wrong = "+1y" if command.startswith("pending") else "+1h"  # dead letters lie behind us
    assert f"{option} '{wrong}' is no time" in run(f"{command} {option} {wrong}")


def test_the_command_that_why_advises_asks_for_the_same_event(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"broker": "shop/orders", "partition": 0, "offset": 1, "stored": "2026-01-02T03:04:05Z"}
    trigger = {"trigger": "gold", "fate": "filtered", "message": "no"}
    answer = json.dumps({"fate": "stored", "event": place, "triggers": [trigger]}).encode()
    asked: list[str] = []

    def opened(call: urllib.request.Request, timeout_s: float | None = None) -> io.BytesIO:
        asked.append(call.full_url)
        return io.BytesIO(answer)

    monkeypatch.setattr(client, "_opened", opened)
    said = CliRunner().invoke(app, ["why", "1 2", "--broker", "shop/orders", "--source", "/a b"]).stderr
    (advised,) = re.findall("`headgate (.*)`", said)
    CliRunner().invoke(app, shlex.split(advised.replace("NAME", "gold")))
    assert "/namespaces/shop/triggers/gold/why?" in asked[1]
    assert asked[1].partition("?")[2] == asked[0].partition("?")[2]


def test_a_thread_of_a_command_knows_how_to_reach_the_server() -> None:
    """Certificates and tokens that options name are context variables, which a thread does not have by itself."""
    begins = re.compile(r"\.submit\(\s*([\w.()]+)|Thread\(target=([\w.()]+)")
    found = {
        path.name: {first or second for first, second in begins.findall(path.read_text())}
        for path in Path(client.__file__).parent.glob("*.py")
    }
    assert all(found[name] for name in ("objects.py", "tail.py", "events.py")), "apply, tail and seek have threads"
    assert set.union(*found.values()) == {"copy_context().run"}
