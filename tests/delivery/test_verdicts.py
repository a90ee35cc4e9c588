"""The last check before delivery: a MATCH is cel-cpp's word only on events that cel-cpp evaluates."""

from __future__ import annotations

import json

import pytest

from headgate.delivery.events import SharedEvent
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import SYSTEM
from headgate.delivery.verdicts import FilterErrors, FinalCheck, evaluate
from headgate.filter.cel.evaluate import OutcomeKind
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import UNBOUNDED_BYTES, Verdict
from headgate.objects.kinds.routing import Target
from headgate.objects.store.plans import PlanDecoder, encode_plan
from headgate_api.event.model import DataKind, Event
from tests.delivery.harness import BROKER, spec

FOUR = " || ".join(f'data.{name}.contains("x")' for name in "abcd")


def large(size: int) -> Event:
    data = json.dumps(dict.fromkeys("abcd", "x" * (size // 4))).encode()
    return Event("1.0", "1", "/s", "t", data_kind=DataKind.JSON, data=data)


def looked(cel: str, event: Event) -> str:
    compiled = PlanDecoder().decode(encode_plan(compile_cel(cel)))
    assert all(row.signature.exact for row in compiled.rows)
    target = Target(1, "default/t", BROKER, compiled, "http://127.0.0.1/", spec())
    shared = SharedEvent(BROKER, event, 1)
    checked = FinalCheck(evaluate, FilterErrors(), SYSTEM.now_us)(target, Delivery(0, 0, 0, Verdict.MATCH), shared)
    return "" if checked is shared else str(checked)


@pytest.mark.parametrize("size", [100, 100_000, 450_000, 600_000, 900_000])
def test_a_match_of_an_event_too_large_for_its_filter_is_settled_by_cel_cpp(size: int) -> None:
    event = large(size)
    kind = evaluate(FOUR, SharedEvent(BROKER, event, 1)).kind
    assert looked(FOUR, event) == {OutcomeKind.TRUE: "", OutcomeKind.ERROR: "error"}[kind]


def test_both_words_of_cel_cpp_are_tried() -> None:
    assert looked(FOUR, large(100_000)) == ""
    assert looked(FOUR, large(900_000)) == "error"


def test_a_usual_filter_has_no_bound() -> None:
    assert compile_cel('ce.type == "t" && data.a > 1').sure_bytes == UNBOUNDED_BYTES
    assert looked('data.a.contains("x")', large(900_000)) == ""
