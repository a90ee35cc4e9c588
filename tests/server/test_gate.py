"""Is nobody but the dispatcher let in while the server stops, and does every part have its share of the time?"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from headgate.auth.context import TOKEN_HEADER
from headgate.server.refusals import Gate
from tests.ingress.support import call, fallback

TOKEN = bytes(range(32))


def ask(gate: Gate, path: str = "/ns/b", *headers: tuple[str, str]) -> Any:
    answer, _ = asyncio.run(call(gate, path=path, headers=headers))
    return answer


def test_an_open_gate_lets_everybody_in() -> None:
    assert ask(Gate(fallback, TOKEN)).status == 299


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((TOKEN_HEADER, ""),),
        ((TOKEN_HEADER, TOKEN.hex()[:-1]),),
        ((TOKEN_HEADER, TOKEN.hex()), (TOKEN_HEADER, TOKEN.hex())),
    ],
)
def test_a_closed_gate_sends_strangers_away_for_a_while(headers: tuple[tuple[str, str], ...]) -> None:
    gate = Gate(fallback, TOKEN)
    gate.close()
    answer = ask(gate, "/ns/b", *headers)
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert int(answer.headers["retry-after"]) > 0
    assert json.loads(answer.body)["code"] == "stopping"


def test_a_closed_gate_lets_replies_in_and_tells_of_health() -> None:
    gate = Gate(fallback, TOKEN)
    gate.close()
    assert ask(gate, "/ns/b", (TOKEN_HEADER, TOKEN.hex())).status == 299
    assert [ask(gate, path).status for path in ("/livez", "/readyz", "/metrics")] == [299] * 3
