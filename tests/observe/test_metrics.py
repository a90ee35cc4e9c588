"""Are the numbers bounded, added up over processes and restarts, and what the reference and the dashboard say?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.observe import exposition, metrics
from headgate.observe.metrics import DECLARED, OTHER, Counter, Gauge, Histogram
from headgate_api.limits import METRICS_STALE_S, METRICS_TRIGGERS_MAX
from headgate_api.objects.errors import UnknownBrokerError

ROOT = Path(__file__).parents[2]
_SUFFIXES = ("_bucket", "_sum", "_count")


@pytest.fixture(autouse=True)
def _untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test counts from nothing and leaves the process's numbers as they were."""
    for family in DECLARED.values():
        fresh = {label: type(child)() for label, child in family.children.items()}
        for label, child in fresh.items():
            if isinstance(child, Histogram):
                fresh[label] = Histogram(family.buckets)
        monkeypatch.setattr(family, "children", fresh)


def samples(page: bytes) -> dict[tuple[str, str], float]:
    """(sample's name, label's value) -> number; of a bucket the label is its bound."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            values = [value for name, value in sample.labels.items() if name != "le" or len(sample.labels) == 1]
            found[sample.name, "".join(values)] = sample.value
    return found


def test_names_follow_prometheus() -> None:
    for name, family in DECLARED.items():
        assert re.fullmatch(r"headgate_[a-z_]+", name)
        assert name.endswith("_total") == (family.kind == "counter"), name
        assert family.help, name
        assert "type" not in family.label
        assert family.values or not family.label or 0 < family.labels_max <= METRICS_TRIGGERS_MAX


def queries() -> list[str]:
    board = json.loads((ROOT / "dashboards/headgate.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("query", queries())
def test_the_dashboard_asks_for_declared_metrics_and_their_labels_only(query: str) -> None:
    names = re.findall(r"headgate_\w+", query)
    assert names
    for name in names:
        base = name
        for suffix in _SUFFIXES:
            if name not in DECLARED and name.endswith(suffix):
                base = name.removesuffix(suffix)
                assert DECLARED[base].kind == "histogram"
        assert base in DECLARED, f"{name} is not declared"
        for label, value in re.findall(rf'{name}{{(\w+)="([^"]*)"', query):
            assert label == DECLARED[base].label
            assert value in DECLARED[base].values


def test_the_dashboard_names_labels_that_exist() -> None:
    board = json.loads((ROOT / "dashboards/headgate.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            base = re.search(r"headgate_\w+", target["expr"])
            assert base is not None
            family = DECLARED[re.sub(r"_(bucket|sum|count)$", "", base[0])]
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert label == family.label, target


def test_every_metric_is_on_the_dashboard() -> None:
    asked = " ".join(queries())
    assert [name for name in DECLARED if name not in asked] == []


def test_a_label_outside_its_set_counts_as_other() -> None:
    metrics.DECLARED["headgate_requests_refused_total"].labels("order-4711").inc()  # type: ignore[union-attr]
    family = DECLARED["headgate_requests_refused_total"]
    assert "order-4711" not in family.children
    child = family.children[OTHER]
    assert isinstance(child, Counter)
    assert child.value == 1


def test_labels_without_a_set_are_cut_off_at_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    family = DECLARED["headgate_broker_events_accepted_total"]
    monkeypatch.setattr(family, "children", {})
    for number in range(family.labels_max + 50):
        family.labels(f"ns/b{number}").inc()  # type: ignore[union-attr]
    assert len(family.children) <= family.labels_max + 1
    child = family.children[OTHER]
    assert isinstance(child, Counter)
    assert child.value == 50


def test_refusal_codes_are_declared() -> None:
    assert UnknownBrokerError.code in DECLARED["headgate_requests_refused_total"].values


def test_labels_that_come_and_go_stay_below_their_limit() -> None:
    family = DECLARED["headgate_trigger_backlog_deliveries"]
    for turn in range(3):
        family.replace({f"ns/t{turn}-{number}": number for number in range(METRICS_TRIGGERS_MAX + 50)})
        assert len(family.children) == METRICS_TRIGGERS_MAX
        assert all(label.startswith(f"ns/t{turn}-") for label in family.children)


def test_processes_are_added_up_and_a_restart_goes_on_counting(tmp_path: Path) -> None:
    counter = DECLARED["headgate_events_accepted_total"].children[""]
    histogram = DECLARED["headgate_store_seconds"].children[""]
    assert isinstance(counter, Counter)
    assert isinstance(histogram, Histogram)
    counter.inc(3)
    histogram.observe(0.003, 4)
    exposition.Publisher(tmp_path, "front").write()
    exposition.Publisher(tmp_path, "other").write()
    assert samples(exposition.page(tmp_path))["headgate_events_accepted_total", ""] == 6
    # The front dies and starts again: what it counted before counts on.
    counter.value, histogram.counts, histogram.total = 0.0, [0] * len(histogram.counts), 0.0
    again = exposition.Publisher(tmp_path, "front")
    again.start()
    counter.inc(2)
    again.close()
    page = samples(exposition.page(tmp_path))
    assert page["headgate_events_accepted_total", ""] == 3 + 2 + 3
    assert page["headgate_store_seconds_count", ""] == 8
    assert page["headgate_store_seconds_bucket", "0.002"] == 0
    assert page["headgate_store_seconds_bucket", "0.005"] == 8
    assert page["headgate_store_seconds_sum", ""] == pytest.approx(0.024)


def test_gauges_of_a_process_that_went_silent_are_not_shown(tmp_path: Path) -> None:
    gauge = DECLARED["headgate_generation"].children[""]
    assert isinstance(gauge, Gauge)
    gauge.set(7)
    exposition.Publisher(tmp_path, "matcher", clock=lambda: 100.0).write()
    assert samples(exposition.page(tmp_path, clock=lambda: 101.0))["headgate_generation", ""] == 7
    assert ("headgate_generation", "") not in samples(exposition.page(tmp_path, clock=lambda: 101.0 + METRICS_STALE_S))


def test_gauges_of_several_processes_of_a_role_are_added_up(tmp_path: Path) -> None:
    gauge = DECLARED["headgate_connections"].children[""]
    assert isinstance(gauge, Gauge)
    for number, connections in enumerate((3, 4)):
        gauge.set(connections)
        exposition.Publisher(tmp_path, f"front-{number}").write()
    assert samples(exposition.page(tmp_path))["headgate_connections", ""] == 7


def test_a_damaged_file_costs_its_numbers_only(tmp_path: Path) -> None:
    counter = DECLARED["headgate_events_accepted_total"].children[""]
    assert isinstance(counter, Counter)
    counter.inc()
    exposition.Publisher(tmp_path, "front").write()
    (tmp_path / "matcher.json").write_bytes(b'{"written_at":')
    assert samples(exposition.page(tmp_path))["headgate_events_accepted_total", ""] == 1
