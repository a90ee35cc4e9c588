"""Backtests of a filter over the events of a real server: by its API, and from its data directory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.testing.server import Server
from tests.commands import headgate, told
from tests.system.publishing import Publisher, broker

pytestmark = pytest.mark.system
NOWHERE = "http://127.0.0.1:9/nowhere"


def backtest(*arguments: str) -> dict[str, Any]:
    return json.loads(told("filter", "backtest", *arguments, "--broker", "backtested", "--json"))


def test_a_filter_is_counted_by_the_server_and_from_its_directory(server: Server) -> None:
    broker(server, "backtested")
    spec = {"broker": "backtested", "subscriber": {"uri": NOWHERE}, "filter": {"expression": "data.amount >= 90"}}
    server.create("triggers", "default", "backtested-large", spec)
    publisher = Publisher(server, "default/backtested")
    for number in range(100):
        data = {"amount": number} if number else {}
        assert publisher.publish(f"b{number}", "sold" if number % 2 else "offered", data) == 202
    filters = ['ce.type == "sold" && data.amount > 80', "--against", "data.amount >= 50"]
    for where in (["--server", server.url], ["--data", str(server.data)]):
        found = backtest(*filters, *where)
        counts = {name: found[name] for name in ("complete", "taken", "against", "both", "errors")}
        # 81, 83 ... 99 are sold.
        assert counts == {"complete": True, "taken": 10, "against": 50, "both": 10, "errors": 0}, where
        assert sum(hour["taken"] for hour in found["hours"]) == 10
        (overlap,) = found["triggers"]
        assert (overlap["name"], overlap["both"]) == ("default/backtested-large", 5)


def test_a_filter_or_broker_that_there_is_not_is_refused(server: Server) -> None:
    for filter_, name in (("data.amount >", "default"), ("true", "nosuch")):
        arguments = ["filter", "backtest", filter_, "--broker", name, "--server", server.url]
        refused = headgate(*arguments)
        assert refused.exit_code != 0
        assert refused.stderr.startswith("error: ")
