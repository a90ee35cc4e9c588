"""Rows never say more, and never less, than cel-cpp: the invariant that the matcher rests on."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.filter.cel.budget import ROUNDS_MAX
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import Verdict
from headgate_api.event.model import DataKind, Event
from tests.filter.hostile_events import random_view, views
from tests.filter.reference.rows import row_verdicts
from tests.filter.strategies import filters, random_filter, random_hard_filter, random_shaped_filter
from tests.support import examples, times

ALLOWED = {
    (OutcomeKind.TRUE, Verdict.MATCH),
    (OutcomeKind.TRUE, Verdict.CANDIDATE),
    (OutcomeKind.FALSE, None),
    (OutcomeKind.FALSE, Verdict.CANDIDATE),
    (OutcomeKind.ERROR, None),
    (OutcomeKind.ERROR, Verdict.CANDIDATE),
    (OutcomeKind.ERROR, Verdict.ERROR),
}


def said(text: str, view: EventView) -> tuple[OutcomeKind, Verdict | None]:
    return program(text).evaluate_view(view).kind, row_verdicts(compile_cel(text), view)


def is_allowed(text: str, view: EventView, pair: tuple[OutcomeKind, Verdict | None]) -> bool:
    """Where cel-cpp is spared an evaluation that would take too long, the matcher may know the value all the same."""
    return pair in ALLOWED or bool(program(text).refusal(view))


EVENTS_PER_FILTER: Final = times(20, 100)
SEED: Final = 3
"""One by which every generator makes every pair."""


@pytest.mark.parametrize(
    ("generate", "pairs"),
    [
        (random_filter, times(8_000, 40_000, 200_000)),
        (random_shaped_filter, times(8_000, 120_000, 600_000)),
        (random_hard_filter, times(8_000, 40_000, 200_000)),
    ],
)
def test_many_pairs(generate, pairs: int) -> None:
    rng, of_events = random.Random(SEED), random.Random(SEED)
    filter_count = pairs // EVENTS_PER_FILTER
    views = [random_view(of_events) for _ in range(400)]
    seen: Counter[tuple[OutcomeKind, Verdict | None]] = Counter()
    for _ in range(filter_count):
        text = generate(rng, rng.randrange(4))
        for view in of_events.sample(views, EVENTS_PER_FILTER):
            pair = said(text, view)
            assert is_allowed(text, view, pair), (text, view.event, pair)
            seen[pair] += 1
    assert sum(seen.values()) == EVENTS_PER_FILTER * filter_count
    # A generator that makes nothing match would prove nothing.
    for pair in ALLOWED:
        assert seen[pair] > 5, pair


@settings(max_examples=examples(300))
@given(text=st.one_of(filters(), filters(hard=True)), view=views())
def test_any_pair(text: str, view: EventView) -> None:
    assert is_allowed(text, view, said(text, view))


def test_nine_filters_in_ten_need_no_candidate() -> None:
    rng = random.Random(32)
    texts = [random_filter(rng, 3) for _ in range(times(500, 2_000))]
    exact = sum(all(row.signature.exact or row.is_of_doubt for row in compile_cel(text).rows) for text in texts)
    assert exact >= 0.9 * len(texts)


@pytest.mark.parametrize(
    ("text", "data", "expected"),
    [
        ("data.n == 9007199254740993", b'{"n": 9007199254740992}', (OutcomeKind.FALSE, None)),
        ("data.n == 9007199254740993", b'{"n": 9007199254740992.0}', (OutcomeKind.TRUE, Verdict.MATCH)),
        ("data.n > 9007199254740992", b'{"n": 9007199254740993}', (OutcomeKind.TRUE, Verdict.MATCH)),
        ("data.n == 18446744073709551615u", b'{"n": 18446744073709551615}', (OutcomeKind.TRUE, Verdict.MATCH)),
        ("data.n == 0", b'{"n": -0.0}', (OutcomeKind.TRUE, Verdict.MATCH)),
        ("data.n == '1'", b'{"n": 1}', (OutcomeKind.FALSE, None)),
        ("data.n == 1", b'{"n": true}', (OutcomeKind.FALSE, None)),
        ("data.n != 1", b'{"n": null}', (OutcomeKind.TRUE, Verdict.MATCH)),
        ("data.n != 1", b"{}", (OutcomeKind.ERROR, Verdict.ERROR)),
        ("data.n < 1", b'{"n": "0"}', (OutcomeKind.ERROR, Verdict.ERROR)),
        ("data.s.startsWith('order')", b'{"s": "orde"}', (OutcomeKind.FALSE, None)),  # four letters are indexed
        ("data.s.endsWith('order')", b'{"s": "rder"}', (OutcomeKind.FALSE, None)),
        ("data.n == null", b'{"n": null}', (OutcomeKind.TRUE, Verdict.MATCH)),
        ("has(data.n)", b'{"n": null}', (OutcomeKind.TRUE, Verdict.MATCH)),
        ("has(data.n.m)", b'{"n": null}', (OutcomeKind.ERROR, None)),
        ("data.n == 'x' && has(data.n.m)", b'{"n": null}', (OutcomeKind.FALSE, None)),
        ("!has(data.n.m)", b'{"n": {}}', (OutcomeKind.TRUE, Verdict.MATCH)),
        ("data.n > 1 || data.m > 1", b'{"n": 2}', (OutcomeKind.TRUE, Verdict.MATCH)),
        ("data.n > 1 && data.m > 1", b'{"n": 0}', (OutcomeKind.FALSE, None)),
        ("data.b ? data.n > 1 : data.m > 1", b'{"b": true, "n": 2}', (OutcomeKind.TRUE, Verdict.MATCH)),
        ("data.b ? data.n > 1 : data.m > 1", b'{"b": 1, "n": 2, "m": 2}', (OutcomeKind.ERROR, None)),
        ("!(data.n in ['a'])", b'{"n": 1}', (OutcomeKind.TRUE, Verdict.MATCH)),
        ("!(data.n in ['a', 1])", b'{"n": 1.0}', (OutcomeKind.FALSE, None)),
        ("data.l.matches('(?s)^.$')", b'{"l": ["a"]}', (OutcomeKind.ERROR, Verdict.ERROR)),
        ("data.l.match('?')", b'{"l": {"a": 1}}', (OutcomeKind.ERROR, Verdict.ERROR)),
        ("data.l.match('?')", '{"l": "é"}'.encode(), (OutcomeKind.TRUE, Verdict.MATCH)),
    ],
)
def test_hard_cases(text: str, data: bytes, expected: tuple[OutcomeKind, Verdict | None]) -> None:
    of = Event(specversion="1.0", id="1", source="/a", type="t", data_kind=DataKind.JSON, data=data)
    assert said(text, EventView(of)) == expected


STORED_US: Final = 1_769_860_800_001_999


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("publish_time == timestamp('2026-01-31T12:00:00.001Z')", (OutcomeKind.TRUE, Verdict.MATCH)),
        ("publish_time > timestamp('2026-01-31T12:00:00.001Z')", (OutcomeKind.FALSE, None)),
        ("publish_time < timestamp('2026-01-31T12:00:00.001000001Z')", (OutcomeKind.TRUE, Verdict.MATCH)),
        ("publish_time >= timestamp('2026-01-31T12:00:00.001999Z')", (OutcomeKind.FALSE, None)),
        ("timestamp(1769860800) < publish_time && ce.type == 't'", (OutcomeKind.TRUE, Verdict.MATCH)),
        ("!(publish_time < timestamp(1769860800))", (OutcomeKind.TRUE, Verdict.MATCH)),
        ("publish_time.getSeconds() == 0", (OutcomeKind.TRUE, Verdict.CANDIDATE)),
        ("ce.publish_time == 'mine'", (OutcomeKind.ERROR, None)),
        ("has(ce.publish_time) || ce.publishtime == 'mine'", (OutcomeKind.TRUE, Verdict.MATCH)),
    ],
)
def test_publish_time_is_the_millisecond_of_storing(text: str, expected: tuple[OutcomeKind, Verdict | None]) -> None:
    view = EventView(Event("1.0", "1", "/a", "t", extensions={"publishtime": "mine"}), STORED_US)
    assert said(text, view) == expected


def test_publish_time_of_what_is_not_stored_is_an_error() -> None:
    view = EventView(Event("1.0", "1", "/a", "t"))
    assert said("publish_time > timestamp(0)", view) == (OutcomeKind.ERROR, Verdict.ERROR)
    assert said("ce.type == 't' || publish_time > timestamp(0)", view)[0] is OutcomeKind.TRUE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data.l.exists(i, i.a == -1) || ce.type == 't'", (OutcomeKind.TRUE, Verdict.MATCH)),
        ("data.l.exists(i, i == -1) || data.x == 5", (OutcomeKind.TRUE, Verdict.MATCH)),
        ("!(data.l.all(i, i == 0) && ce.type != 't')", (OutcomeKind.TRUE, Verdict.MATCH)),
        ("data.l.all(i, i >= 0) && data.x == 6", (OutcomeKind.FALSE, None)),
        # The checker refuses the canonical form of this one, whose meaning stays as it is written.
        ("data.l.exists(i, i == -1) || data.x == 5 || !(data.b ? 1 : data.b)", (OutcomeKind.TRUE, Verdict.MATCH)),
    ],
)
def test_what_no_macro_decides_is_decided_before_cel_runs_out_of_rounds(
    text: str, expected: tuple[OutcomeKind, Verdict | None]
) -> None:
    data = {"l": list(range(ROUNDS_MAX + 1)), "x": 5, "b": True}
    of = Event("1.0", "1", "/a", "t", data_kind=DataKind.JSON, data=json.dumps(data).encode())
    assert said(compile_cel(text).cel, EventView(of)) == expected
