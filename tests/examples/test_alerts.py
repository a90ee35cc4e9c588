"""The alerts for Prometheus: promtool takes them, each fires when it should and not before, and each has a section."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.observe.metrics import DECLARED
from headgate_api.limits import DEADLETTERS_BYTES_MAX, DEADLETTERS_MAX
from tests.promtool import promtool
from tests.support import REPOSITORY

RULES = REPOSITORY / "examples" / "prometheus" / "alerts.yaml"
DAY = 86_400


@dataclass(frozen=True)
class Case:
    """What an alert is about, minute by minute, in promtool's notation.

    Attributes:
        fires: Series, with values from minute 0 on, for which it fires at `minute`.
        quiet: The same, for which it does not.
        labels: Of the alert, beside its severity.
    """

    fires: dict[str, str]
    quiet: dict[str, str]
    minute: int = 20
    labels: dict[str, str] = field(default_factory=dict)


def counted(name: str, by: str = "") -> Case:
    """An alert on a counter that has grown lately; what it counted long ago is forgotten."""
    series = f"headgate_{name}{{{by}}}"
    labels = dict(re.findall(r'(\w+)="([^"]*)"', by))
    return Case({series: "5+0x10 6+1x20"}, {series: "5+0x30"}, 15, labels)


SPARE = {"headgate_ready{job='h',part='front'}": "1+0x60"}
CASES = {
    "HeadgateDown": Case({"up": "0+0x60"}, {"headgate_ready{part='front'}": "1+0x60"}),
    "HeadgatePartNotReady": Case(
        {"headgate_ready{part='matcher'}": "1+0x15 0+0x20"},
        {"headgate_ready{part='matcher'}": "1+0x18 0+0x0 1+0x20"},
        labels={"part": "matcher"},
    ),
    "HeadgatePartRestarts": Case(
        {"headgate_process_restarts_total{part='matcher'}": "_x15 1 2 3 3 3 3"},  # its series begins with the first one
        {"headgate_process_restarts_total{part='matcher'}": "5+0x15 6 7 7 7 7 7"},
        labels={"part": "matcher"},
    ),
    "HeadgateDiskNearlyFull": Case(
        {'headgate_disk_bytes{state="free"}': "9+0x30", 'headgate_disk_bytes{state="total"}': "100+0x30"},
        {'headgate_disk_bytes{state="free"}': "11+0x30", 'headgate_disk_bytes{state="total"}': "100+0x30"},
    ),
    "HeadgateLogUnavailable": counted("requests_refused_total", 'code="log-unavailable"'),
    "HeadgateLogDamaged": counted("log_damages_total"),
    "HeadgateCertificateExpires": Case(
        {"headgate_tls_certificate_expires_timestamp_seconds{part='front'}": f"{13 * DAY}+0x30"},
        {"headgate_tls_certificate_expires_timestamp_seconds{part='front'}": f"{15 * DAY}+0x30"},
        labels={"part": "front"},
    ),
    "HeadgateCertificateRefused": counted("tls_certificates_total", 'result="refused"'),
    "HeadgateNothingMatches": Case(
        SPARE | {'headgate_match_runs{job="h",state="in_force"}': "1+0x10 _x30"},  # a dead matcher says nothing
        SPARE | {'headgate_match_runs{job="h",state="in_force"}': "1+0x40"},
        labels={"job": "h"},
    ),
    "HeadgateFiltersNotInForce": Case(
        {"headgate_generation_desired{job='h'}": "7+0x5 8+0x30", "headgate_generation{job='h'}": "7+0x40"},
        {"headgate_generation_desired{job='h'}": "7+0x5 8+0x30", "headgate_generation{job='h'}": "7+0x6 8+0x40"},
        labels={"job": "h"},
    ),
    "HeadgateFilterErrors": counted("filtered_total", 'result="error"'),
    "HeadgateBacklogOld": Case(
        {"headgate_trigger_oldest_seconds{trigger='default/crm'}": "0+60x30"},
        {"headgate_trigger_oldest_seconds{trigger='default/crm'}": "0+30x30"},
        labels={"trigger": "default/crm"},
    ),
    "HeadgateBacklogNearLimit": Case(
        {"headgate_backlogs_near_limit": "1+0x30"}, {"headgate_backlogs_near_limit": "0+0x30"}
    ),
    "HeadgateDeliveriesFail": Case(
        {
            'headgate_attempts_failed_total{reason="503"}': "0+60x40",
            'headgate_deliveries_total{result="delivered"}': "0+50x40",
        },
        {
            'headgate_attempts_failed_total{reason="503"}': "0+60x40",
            'headgate_deliveries_total{result="delivered"}': "0+70x40",
        },
        30,
    ),
    "HeadgateCircuitOpen": Case({"headgate_circuits_open": "2+0x30"}, {"headgate_circuits_open": "2+0x12 0+0x20"}),
    "HeadgateDeadLetters": counted("deliveries_total", 'result="dead_lettered"'),
    "HeadgateDeadLettersKept": Case(
        {'headgate_dead_letters_held{state="kept"}': "3+0x90"},
        {'headgate_dead_letters_held{state="waiting"}': "3+0x90"},
        70,
        {"state": "kept"},
    ),
    "HeadgateDeadLetterStoreFull": Case(
        {'headgate_dead_letters_held{state="kept"}': "800001+0x30"},
        {'headgate_dead_letters_held{state="kept"}': "700000+0x30", "headgate_dead_letters_bytes": "3000000000+0x30"},
    ),
    "HeadgateEventsDropped": counted("deliveries_total", 'result="expired"'),
    "HeadgateOverloaded": Case(
        {'headgate_requests_refused_total{code="overloaded"}': "0+1x40"},
        {'headgate_requests_refused_total{code="overloaded"}': "0+0x12 1+0x20"},
        labels={"code": "overloaded"},
    ),
    "HeadgateTokensRefused": Case(
        {'headgate_tokens_refused_total{reason="expired"}': "0+70x40"},
        {
            'headgate_tokens_refused_total{reason="expired"}': "0+50x40",
            'headgate_tokens_refused_total{reason="anonymous"}': "0+900x40",
        },
    ),
    "HeadgateEventsForbidden": counted("requests_refused_total", 'code="event-forbidden"'),
    "HeadgateIssuerUnavailable": Case(
        {'headgate_issuer_fetches_total{result="failed"}': "0+1x60"},
        {'headgate_issuer_fetches_total{result="failed"}': "0+0x5 1+0x60"},
        40,
        {"result": "failed"},
    ),
    "HeadgateAuditLost": counted("audit_lines_total", 'result="dropped"'),
}


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_promtool_takes_the_rules() -> None:
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CASES)} rules found" in done.stdout


def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    """Each beside no other rule: promtool works out all rules of a file for every minute of every test."""
    rules = alerts()
    assert rules.keys() == CASES.keys()
    for name, case in CASES.items():
        rule = rules[name]
        alert = {"exp_labels": rule["labels"] | case.labels, "exp_annotations": rule["annotations"]}
        tests = []
        for series, told in ((case.fires, [alert]), (case.quiet, [])):
            asked = {"eval_time": f"{case.minute}m", "alertname": name, "exp_alerts": told}
            given = [{"series": one, "values": values} for one, values in series.items()]
            tests.append({"interval": "1m", "input_series": given, "alert_rule_test": [asked]})
        (tmp_path / f"{name}.rule").write_text(yaml.safe_dump({"groups": [{"name": name, "rules": [rule]}]}))
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"rule_files": [f"{name}.rule"], "tests": tests}))
    done = promtool("test", "rules", *sorted(tmp_path.glob("*.yaml")))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
def test_an_alert_asks_for_declared_metrics_and_their_labels_only(name: str) -> None:
    asked = re.findall(r"(headgate_\w+)(?:\{(\w+)(?:=~|!=|=)\"([^\"]*)\"\})?", alerts()[name]["expr"])
    assert asked
    for metric, label, values in asked:
        assert metric in DECLARED
        if label:
            assert label == DECLARED[metric].label
            assert set(values.split("|")) <= set(DECLARED[metric].values)


def test_each_alert_has_a_section_and_each_section_an_alert() -> None:
    sections = {}
    for name, rule in alerts().items():
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert anchor == name.lower()
        sections[name] = (REPOSITORY / path).read_text()
        assert f"\n### {name}\n" in sections[name]
        assert rule["labels"]["severity"] in {"critical", "warning"}
    (page,) = set(sections.values())
    assert set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == sections.keys()


def test_the_alert_on_the_store_of_dead_letters_knows_its_limits() -> None:
    numbers = re.findall(r"[\d.]{3,}", alerts()["HeadgateDeadLetterStoreFull"]["expr"])
    assert [float(one) for one in numbers] == [0.8 * DEADLETTERS_MAX, 0.8, DEADLETTERS_BYTES_MAX]
