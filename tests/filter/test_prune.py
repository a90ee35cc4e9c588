"""CANNOT_MATCH is a promise: cel-cpp finds no event of the chunk on which the filter is true."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headgate.filter.cel.engine import OutcomeKind, compile_expression
from headgate.filter.cel.evaluate import EventView, program, publish_time_us
from headgate.filter.skipping.prune import ChunkMatch, ChunkSummary, Pruning, filter_value_rule, pruning
from headgate.log.bloom import build, hash_value, might_contain
from headgate_api.event import rfc3339
from headgate_api.event.model import Event
from tests.filter.hostile_events import random_event, random_stored_us
from tests.filter.strategies import random_filter, random_hard_filter
from tests.support import times

VALUES = ["ce.type", "ce.tenant", "data.s", 'ce["type"] + "/" + ce.tenant', "ce.subject"]
TIMES = ["2020-01-01T00:00:00Z", "2020-02-29T18:29:59.123456Z", "2026-11-21T10:00:00Z", "1970-01-01T00:00:00Z"]


def filter_value(value: str, view: EventView) -> str | None:
    """The string that `value` is of an event, told without reading cel-cpp's values: by what it equals."""
    attributes, data = view.attributes, view.json[0] if view.json else None
    match value:
        case "ce.type" | "ce.tenant" | "ce.subject":
            found: object = attributes.get(value[3:])
        case "data.s":
            found = data.get("s") if isinstance(data, dict) else None
        case _:
            tenant = attributes.get("tenant")
            found = f"{attributes['type']}/{tenant}" if isinstance(tenant, str) else None
    return found if isinstance(found, str) and found else None


def summary(events: list[Event], values: list[str | None], stored_us: int) -> ChunkSummary:
    bloom = build(values, 16)
    times = [micros for event in events if event.time and (micros := rfc3339.micros(event.time)) is not None]
    return ChunkSummary(
        first_offset=0,
        next_offset=len(events),
        time_range_us=(min(times), max(times)) if times else None,
        publish_time_us=publish_time_us(stored_us),
        unfiltered=bloom.unfiltered,
        may_hold=lambda wanted: might_contain(bloom.bits, bloom.hash_count, [hash_value(value) for value in wanted]),
    )


def random_pinning_filter(rng: random.Random) -> str:
    """A filter that often pins something, among others that do not."""
    pin = rng.choice(
        [
            'ce.type == "order.created"',
            'ce.type in ["a", "b"]',
            '"éa" == ce["type"]',
            '(ce.type == "a" || ce.type == "order")',
            'ce.tenant == "gold"',
            'ce.tenant in ["1", ""]',
            'ce.subject == "a"',
            'data.s == "abc"',
            'data.s in ["a", 1]',
            'ce.type.matches("^order$")',
            '(ce.tenant == "a" ? ce.type == "a" : ce.type == "b")',
            f'ce.time {rng.choice(["<", "<=", ">", ">=", "==", "!="])} timestamp("{rng.choice(TIMES)}")',
            f'timestamp("{rng.choice(TIMES)}") {rng.choice(["<", "<=", ">", ">="])} ce.time',
            "has(ce.time)",
            f'publish_time {rng.choice(["<", "<=", ">", ">=", "==", "!="])} timestamp("{rng.choice(TIMES)}")',
            f'timestamp("{rng.choice(TIMES)}") {rng.choice(["<", "<=", ">", ">="])} publish_time',
        ]
    )
    other = rng.choice([random_filter, random_hard_filter])(rng, rng.randrange(3))
    return rng.choice([pin, f"{pin} && ({other})", f"({other}) && {pin}", f"!({pin})", f"{pin} || ({other})"])


@pytest.mark.parametrize(
    ("cel", "skips"),
    [
        ('publish_time > timestamp("2026-01-31T12:00:00.001Z")', False),
        ('publish_time >= timestamp("2026-01-31T12:00:00.002Z") && ce.type == "a"', True),
        ('publish_time < timestamp("2026-01-31T12:00:00.001Z")', False),
        ('publish_time < timestamp("2026-01-31T12:00:00Z") || ce.type == "a"', False),
        ('ce.type == "a" && publish_time < timestamp("2026-01-31T12:00:00Z")', True),
        ('ce.time < timestamp("2026-01-31T12:00:00Z")', True),
        ('publish_time < timestamp("2026-01-31T12:00:00Z") ? true : false', True),
    ],
)
def test_chunks_are_skipped_by_when_they_were_stored(cel: str, skips: bool) -> None:
    chunk = summary([Event("1.0", "1", "/a", "a")], ["a"], 1_769_860_800_001_999)
    assert (pruning(cel).judge(chunk) is ChunkMatch.CANNOT_MATCH) is skips


def test_no_event_is_lost_whatever_is_skipped() -> None:
    rng = random.Random(41)
    stored = [random_stored_us(rng) for _ in range(10)]
    views = [EventView(random_event(rng), stored[n % 10]) for n in range(300)]
    chunks = []
    for _ in range(200):
        at = rng.randrange(10)
        members = rng.sample(range(at, len(views), 10), rng.choice([1, 1, 2, 3, 8]))
        value = rng.choice(["ce.type", *VALUES])
        values = [filter_value(value, views[member]) for member in members]
        chunks.append((members, value, summary([views[member].event for member in members], values, stored[at])))
    seen: Counter[tuple[ChunkMatch, bool]] = Counter()
    filters = times(200, 500)
    for _ in range(filters):
        text = random_pinning_filter(rng)
        true = {n for n, view in enumerate(views) if program(text).evaluate_view(view).kind is OutcomeKind.TRUE}
        for members, value, chunk in chunks:
            said, holds = pruning(text, value).judge(chunk), not true.isdisjoint(members)
            assert said is ChunkMatch.MIGHT_MATCH or not holds, (text, value, [views[n].event for n in members])
            seen[said, holds] += 1
    assert sum(seen.values()) == 200 * filters
    # One that never skips anything, or never meets a match, would prove nothing.
    assert seen[ChunkMatch.CANNOT_MATCH, False] > 16 * filters
    assert seen[ChunkMatch.MIGHT_MATCH, True] > 40 * filters


@pytest.mark.parametrize(
    ("cel", "value", "values"),
    [
        ('ce.type == "a"', "ce.type", {"a"}),
        ('ce["type"] == "a" && data.x > 1', "ce.type", {"a"}),
        ('ce.type in ["a", "b"] && ce.type in ["b", "c"]', "ce.type", {"b"}),
        ('ce.type == "a" && ce.type == "b"', "ce.type", set()),
        ('ce.type == "a" || ce.type == "b"', "ce.type", {"a", "b"}),
        ('ce.type == "a" || data.x > 1', "ce.type", None),
        ('!(ce.type != "a")', "ce.type", {"a"}),
        ('ce.type != "a"', "ce.type", None),
        ('data.x ? ce.type == "a" : ce.type == "b"', "ce.type", {"a", "b"}),
        ('ce.type == "a" ? data.x : data.y', "ce.type", None),
        ("false", "ce.type", set()),
        ("true", "ce.type", None),
        ('ce.tenant == "a"', "ce.type", None),
        ('ce.tenant == ""', "ce.tenant", {""}),
        ('ce.tenant in ["a", 1]', "ce.tenant", None),
        ('ce.tenant == "a" && ce.type in ["x", "y"]', 'ce.tenant + "/" + ce.type', {"a/x", "a/y"}),
        ('ce.tenant + "/" + ce.type == "a/x"', 'ce.tenant + "/" + ce.type', {"a/x"}),
        ('ce.tenant == "a"', 'ce.tenant + "/" + ce.type', None),
        ('data.tags.exists(t, t == "a")', "data.tags", None),
        (f"ce.type in [{', '.join(repr(str(n)) for n in range(600))}]", "ce.type", {str(n) for n in range(600)}),
    ],
)
def test_pins(cel: str, value: str, values: set[str] | None) -> None:
    compile_expression(cel)
    assert pruning(cel, value).values == (None if values is None else frozenset(values))


@pytest.mark.parametrize(
    ("cel", "low", "high"),
    [
        ('ce.time > timestamp("1970-01-01T00:00:01Z")', 1_000_000, None),
        ('timestamp("1970-01-01T00:00:01Z") >= ce.time', None, 1_000_000),
        (
            'ce.time > timestamp("1970-01-01T00:00:01Z") && ce.time < timestamp("1970-01-01T00:00:02Z")',
            10**6,
            2 * 10**6,
        ),
        ('ce.time == timestamp("1970-01-01T00:00:01Z") || ce.time > timestamp("1970-01-01T00:00:09Z")', 10**6, None),
        ("has(ce.time)", None, None),
    ],
)
def test_times(cel: str, low: int | None, high: int | None) -> None:
    assert pruning(cel).time_range_us == (low, high)


def test_a_filter_that_no_time_decides_takes_events_without_one() -> None:
    assert pruning('ce.time > timestamp("1970-01-01T00:00:01Z") || ce.type == "a"').time_range_us is None


def chunk(*, times: tuple[int, int] | None = None, unfiltered: bool = False, holds: bool = True) -> ChunkSummary:
    return ChunkSummary(10, 20, times, 0, unfiltered, lambda wanted: holds)


@pytest.mark.parametrize("name", ["in", "true", "false", "null", "import", "2nd", "region"])
def test_an_attribute_may_be_named_like_a_word_of_cel(name: str) -> None:
    assert pruning(f'ce["{name}"] == "a"', filter_value_rule(name).cel) == Pruning(frozenset({"a"}))


def test_prospects() -> None:
    might, cannot = ChunkMatch.MIGHT_MATCH, ChunkMatch.CANNOT_MATCH
    assert Pruning().judge(chunk(holds=False)) is might
    assert Pruning(frozenset("a")).judge(chunk(holds=False)) is cannot
    assert Pruning(frozenset("a")).judge(chunk(holds=False, unfiltered=True)) is cannot
    assert Pruning(frozenset({""})).judge(chunk(holds=False, unfiltered=True)) is might
    assert Pruning(frozenset({""})).judge(chunk(holds=True)) is cannot
    assert Pruning(frozenset()).judge(chunk()) is cannot
    assert Pruning(None, (5, None)).judge(chunk(times=(1, 4))) is cannot
    assert Pruning(None, (5, None)).judge(chunk(times=(1, 5))) is might
    assert Pruning(None, (None, None)).judge(chunk(times=None)) is cannot
    assert Pruning().judge(chunk(), range(20, 30)) is cannot
    assert Pruning().judge(chunk(), range(0, 10)) is cannot
    assert Pruning().judge(chunk(), range(19, 30)) is might
