"""Backtests of a filter over the events of a real server: by its API, and from its data directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.server import Server
from headgate_api import limits
from tests.commands import headgate, told
from tests.system.publishing import Publisher, broker

pytestmark = pytest.mark.system
NOWHERE = "http://127.0.0.1:9/nowhere"


LARGE = """
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: backtested-large}
spec:
  broker: backtested
  filter: {expression: "data.amount >= 90"}
  subscriber: {uri: "http://127.0.0.1:9/nowhere"}
"""


def backtest(*arguments: str) -> dict[str, Any]:
    return json.loads(told("filter", "backtest", *arguments, "--broker", "backtested", "--json"))


def test_a_filter_is_counted_by_the_server_and_from_its_directory(server: Server, tmp_path: Path) -> None:
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
        assert found["onlyFilter"] == []
        alone = {int(one["id"][1:]) for one in found["onlyAgainst"]}
        assert len(alone) == limits.BACKTEST_EXAMPLES_MAX
        assert alone <= set(range(50, 100)) - set(range(81, 100, 2))

    file = tmp_path / "large.yaml"
    wider = LARGE.replace(">= 90", ">= 80 && data.amount < 98")
    file.write_text(f"{LARGE.replace('backtested-large', 'backtested-new')}---\n{wider}---\n{LARGE}")
    apply = ["apply", "-f", str(file), "--server", server.url]

    previewed = told(*apply, "--preview")
    new, changed, *examples = previewed.splitlines()
    assert new == "trigger.eventing.knative.dev/backtested-new: new, takes 10 events"
    assert changed == (
        "trigger.eventing.knative.dev/backtested-large: takes 10 events now, 18 then: 10 come, 2 go (120 %)"
    )
    come = {line.split()[-1] for line in examples if line.startswith("  +")}
    assert len(come) == limits.BACKTEST_EXAMPLES_MAX
    assert come <= {f"b{number}" for number in range(80, 90)}
    assert {line.split()[-1] for line in examples if line.startswith("  -")} == {"b98", "b99"}
    elsewhere = tmp_path / "elsewhere.yaml"
    new = LARGE.replace("backtested-large", "elsewhere")
    elsewhere.write_text(new.replace("broker: backtested", "broker: not-yet"))
    shown = told("apply", "-f", str(elsewhere), "--server", server.url, "--preview")
    assert "the broker default/not-yet is not there yet, and has no events" in shown
    listed = tmp_path / "listed.yaml"
    filters_field = 'filters: [{prefix: {type: so}}, {cel: "data.amount > 80"}]'
    listed.write_text(new.replace('filter: {expression: "data.amount >= 90"}', filters_field))
    shown = told("apply", "-f", str(listed), "--server", server.url, "--preview")
    assert shown.splitlines()[0] == "trigger.eventing.knative.dev/elsewhere: new, takes 10 events"
    refused = headgate(*apply, "--max-change", "100%")
    assert refused.exit_code == 1
    assert "nothing was applied" in refused.stderr
    assert server.get("triggers", "default", "backtested-large")["spec"]["filter"] == spec["filter"]
    assert headgate(*apply, "--max-change", "many").stderr.startswith("error: --max-change 'many' is no percentage")
    done = told(*apply, "--max-change", "120%")
    assert done.splitlines()[-3:] == [
        "trigger.eventing.knative.dev/backtested-new created",
        "trigger.eventing.knative.dev/backtested-large configured",
        "trigger.eventing.knative.dev/backtested-large configured",
    ]
    assert told(*apply, "--preview").splitlines()[0].startswith("trigger.eventing.knative.dev/backtested-large: takes")


def test_a_filter_or_broker_that_there_is_not_is_refused(server: Server) -> None:
    for filter_, name in (("data.amount >", "default"), ("true", "nosuch")):
        arguments = ["filter", "backtest", filter_, "--broker", name, "--server", server.url]
        refused = headgate(*arguments)
        assert refused.exit_code != 0
        assert refused.stderr.startswith("error: ")
