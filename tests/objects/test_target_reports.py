"""What was found of targets: reports that add up, and findings that come as a whole."""

from __future__ import annotations

from pathlib import Path

from headgate.objects.api.admission import Admission
from headgate.objects.kinds.routing import TargetFindings, TargetReport, ToldFindings
from headgate_api.limits import REPORT_TEXT_CHARACTERS_MAX
from headgate_api.objects.kinds import Kind
from tests.objects.support import facts, trigger


def needs(admission: Admission) -> int:
    (target,) = admission.store.snapshot().targets.values()
    return target.needs


def test_what_a_report_does_not_say_stays_as_it_was() -> None:
    first = TargetFindings().plus(TargetReport(1, 2, "boom", "s 1", "Refused: 401", 1, "offset 3", "Near: the end"))
    later = first.plus(TargetReport(1, 1, "", ""))
    assert later == TargetFindings(
        filter_errors=3,
        last_error="boom",
        last_error_event="s 1",
        trouble="Refused: 401",
        dropped=1,
        last_dropped="offset 3",
        backlog="Near: the end",
    )
    assert later.plus(TargetReport(1, 0, "", "", trouble="")).trouble == ""


def test_a_text_is_cut() -> None:
    found = TargetFindings().plus(TargetReport(1, 1, "x" * 5_000, "y" * 5_000))
    assert len(found.last_error) == len(found.last_error_event) == REPORT_TEXT_CHARACTERS_MAX


def test_findings_take_the_place_of_older_ones_and_are_written_once(admission: Admission, tmp_path: Path) -> None:
    store = admission.store
    admission.create(Kind.TRIGGER, trigger())
    told = {1: ToldFindings(needs=needs(admission), filter_errors=7, trouble="Refused: 401")}
    assert store.reports.put(told) == 1
    (row,) = facts(tmp_path)
    assert (row.inputs.found.filter_errors, row.inputs.found.trouble) == (7, "Refused: 401")
    mark = store.counters.all()["report"]
    assert store.reports.put(told) == 0, "a leader reads the topic from its start"
    assert store.counters.all()["report"] == mark


def test_findings_of_another_filter_or_of_a_target_that_is_gone_do_not_count(
    admission: Admission, tmp_path: Path
) -> None:
    store = admission.store
    admission.create(Kind.TRIGGER, trigger())
    now = needs(admission)
    told = {1: ToldFindings(needs=now - 1, filter_errors=7), 99: ToldFindings(needs=now, filter_errors=7)}
    assert store.reports.put(told) == 0
    (row,) = facts(tmp_path)
    assert row.inputs.found.filter_errors == 0
