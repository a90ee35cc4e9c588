"""`headgate lint -f`: the filters of files, compared without a server as a server compares them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import headgate, told

TRIGGERS = """\
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: orders, namespace: shop}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: gold, namespace: shop}
spec:
  broker: orders
  filter: {cel: 'ce.type == "order.paid" && data.tier == "gold"'}
  subscriber: {uri: http://127.0.0.1:9/}
  delivery: {onFilterError: deadLetter}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: paid, namespace: shop}
spec:
  broker: orders
  filter: {attributes: {type: order.paid}}
  subscriber: {uri: http://127.0.0.1:9/}
"""
PULLED = {
    "apiVersion": "headgate.dev/v1",
    "kind": "Subscription",
    "metadata": {"name": "all-paid"},
    "spec": {"broker": "orders", "filters": [{"exact": {"type": "order.paid"}}]},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "triggers.yaml").write_text(TRIGGERS)
    (tmp_path / "pulled.json").write_text(json.dumps(PULLED))
    return tmp_path


def test_the_filters_of_files_are_compared(folder: Path) -> None:
    said = told("lint", "-f", folder / "triggers.yaml", "-f", folder / "pulled.json", "-n", "shop")
    assert said.splitlines() == [
        "Subscription/all-paid: the same filter as Trigger/paid",
        "Trigger/gold: all of its events also go to Subscription/all-paid, Trigger/paid",
        "Trigger/paid: the same filter as Subscription/all-paid",
        "3 filters compared, 3 with a remark",
    ]
    found = json.loads(told("lint", "-f", folder, "-n", "shop", "--json"))
    assert (found["broker"], found["filters"], found["leftOut"]) == ("shop/orders", 3, 0)
    assert found["items"][1]["impliedBy"] == ["Subscription/all-paid", "Trigger/paid"]


def test_each_broker_for_itself(folder: Path) -> None:
    assert told("lint", "-f", folder).splitlines() == [
        "default/orders  1 filter compared, none with a remark",
        "shop/orders  Trigger/gold: all of its events also go to Trigger/paid",
        "shop/orders  2 filters compared, 1 with a remark",
    ]
    assert told("lint", "-f", folder, "-b", "orders") == "1 filter compared, none with a remark\n"
    assert [json.loads(line)["filters"] for line in told("lint", "-f", folder, "--json").splitlines()] == [1, 2]


def test_what_a_server_would_refuse_is_named(folder: Path) -> None:
    (folder / "typo.yaml").write_text(
        TRIGGERS.replace("data.tier ==", "data.tier =").replace("  filter: {attr", "  filtr: {attr")
    )
    refused = headgate("lint", "-f", folder)
    assert refused.exit_code == 1
    assert "typo.yaml, document 3 (Trigger gold): spec.filter.cel: Invalid value" in refused.stderr
    assert "typo.yaml, document 4: " in refused.stderr
    assert 'unknown field "spec.filtr"' in refused.stderr
    empty = headgate("lint", "-f", folder / "triggers.yaml", "-b", "shop/none")
    assert (empty.exit_code, "no triggers or subscriptions of shop/none" in empty.stderr) == (1, True)
