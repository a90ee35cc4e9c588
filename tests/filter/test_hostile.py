"""Nothing that a client writes takes long: each hostile filter is refused, or evaluated, at once.

The goal is 50 ms of CPU time, which `python -m benchmarks.holds` measures. The bound here is four times that: it finds
what grows with the square of what is written, on a slower machine too, and not what is a tenth dearer than before.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from headgate.filter.cel.budget import EventSize, regex_size, steps
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.cel.parsing import tree_of
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.dialects import to_cel
from headgate.filter.skipping.literals import literals, number_ranges
from headgate.filter.skipping.prune import pruning
from headgate_api.errors import HeadgateError
from headgate_api.limits import FILTER_REGEX_INSTRUCTIONS_MAX
from tests.filter.hostile_filters import EVALUATED, LISTS, OBJECTS, REFUSED, event, events, nested

T = TypeVar("T")

TRIES = 5
SECONDS_MAX = 0.200


@pytest.fixture(scope="module", autouse=True)
def _collect_what_is_new_alone() -> Iterator[None]:
    """As the server does once it has started; else each try walks through whatever the tests before left behind."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def at_once(work: Callable[[], T]) -> T:
    """What `work` gives; fails when no try takes less CPU time than the bound."""
    spent = []
    for _ in range(TRIES):
        begin = time.thread_time()
        given = work()
        spent.append(time.thread_time() - begin)
        if spent[-1] < SECONDS_MAX:
            return given
    pytest.fail(f"it took {min(spent):.3f} s and gave {given}")


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_at_once_with_its_limit(name: str) -> None:
    text, limit = REFUSED[name]

    def refuse() -> FilterError:
        with pytest.raises(FilterError) as refused:
            compile_cel.__wrapped__(text)
        return refused.value

    error = at_once(refuse)
    if limit:
        assert error.limit == limit
    if error.limit:
        assert error.limit in error.message
    assert len(error.message) < 2_000


@pytest.mark.parametrize("name", EVALUATED)
def test_is_evaluated_in_no_time(name: str) -> None:
    compiled = at_once(lambda: compile_cel.__wrapped__(EVALUATED[name]))
    tested = at_once(lambda: program.__wrapped__(compiled.cel))
    for view in events().values():
        at_once(lambda view=view: tested.evaluate_view(view))


def test_an_event_that_is_too_large_for_a_filter_names_the_limit_and_a_small_one_is_evaluated() -> None:
    tested = program("data.l.map(x, x).size() == 3")
    refused = tested.evaluate_view(events()["ten thousand"])
    assert refused.kind is OutcomeKind.ERROR
    assert "FILTER_EVALUATION_STEPS_MAX" in refused.message
    assert tested.evaluate_view(events()["small"]).kind is OutcomeKind.TRUE


@pytest.mark.parametrize(
    "text",
    [
        'ce.type.matches("^order\\\\.(created|cancelled)$")',
        'data.items.filter(i, i.price > 10.0).size() > 3 && data.items.exists(i, i.sku.startsWith("A-"))',
        'ce.subject.split("/").exists(p, p == "x")',
        'data.name.lowerAscii().replace("-", "") == "ab"',
        '"%s/%s".format([ce.source, ce.type]) == "a/b"',
        'data.email.matches("^[a-z0-9._%+-]{1,64}@[a-z0-9.-]{1,64}\\\\.[a-z]{2,10}$")',
    ],
)
def test_what_people_write_is_evaluated_on_events_as_people_send_them(text: str) -> None:
    items = [{"sku": f"A-{n}", "price": n * 1.5, "name": "a" * 50} for n in range(500)]
    view = event({"items": items, "name": "A-b", "email": "x@y.zz"}, tenant="a")
    outcome = program(compile_cel(text).cel).evaluate_view(view)
    assert "FILTER_EVALUATION_STEPS_MAX" not in outcome.message


@pytest.mark.parametrize("value", OBJECTS)
def test_dialects_refuse_hostile_objects_at_once(value: dict[str, object]) -> None:
    def refuse() -> None:
        with pytest.raises(HeadgateError):
            compile_cel(to_cel(value))

    at_once(refuse)


@pytest.mark.parametrize("filters", LISTS)
def test_subscription_filters_refuse_hostile_lists_at_once(filters: list[object]) -> None:
    def refuse() -> None:
        with pytest.raises(FilterError):
            compile_cel(to_cel(None, filters))

    at_once(refuse)


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        ("abc", 3, 3),
        ("a{100}", 100, 110),
        ("(a{10}){10}", 100, 150),
        ("(?:ab|cd){3,}", 16, 60),
        ("a{2,100}", 100, 110),
        (r"\pL", 1_200, 1_400),
        (r"\p{Greek}{100}", 6_204, 25_000),
        (r"\p{Cyrillic}{20}", 660, 4_500),
        (r"\p{^Lu}\PL\p{Common}", 2_300, 2_900),
        (r"[\p{Greek}a]{3}", 190, 700),
        (r"\Qa*b{9}\E", 6, 6),
        ("[]abc]{2}", 6, 20),
        ("a{,5}", 5, 5),
        ("x{1000}{1000}", FILTER_REGEX_INSTRUCTIONS_MAX, 10**9),
        ("((((" * 200, 0, 2_000),
        (")" * 500, 0, 2_000),
        ("[" * 500, 0, 2_000),
        ("\\", 0, 10),
        ("(?P<name>a)(?i)b", 2, 20),
    ],
)
def test_the_size_of_a_pattern(pattern: str, least: int, most: int) -> None:
    assert least <= regex_size(pattern).instructions <= most


def test_the_rounds_of_a_macro_in_a_macro_are_multiplied() -> None:
    size = EventSize(attributes_bytes=0, data_bytes=1_000, items=50, elements=50, text_bytes=1_000)
    assert 50 <= steps(tree_of(nested("true", 1)), size) < 50**2 <= steps(tree_of(nested("true", 2)), size)


def calls(work: Callable[[], object]) -> int:
    """Python functions that `work` calls."""
    count = 0

    def called(_: object, what: str, __: object) -> None:
        nonlocal count
        count += what == "call"

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


NESTS = {
    "? :": lambda n, inner: f'(({inner}) ? ce.a{n} == "one{n}" : ce.b{n} == "two{n}")',
    "? : negated": lambda n, inner: f'!(({inner}) ? ce.a{n} == "one{n}" : ce.b{n} == "two{n}")',
    "==": lambda n, inner: f'(({inner}) == (ce.a{n} == "one{n}"))',
    "map": lambda n, inner: f"[1].map(x{n}, {inner}).size() == 1",
}


@pytest.mark.parametrize("kind", NESTS)
@pytest.mark.parametrize("work", [compile_cel, program, literals, pruning, number_ranges])
def test_a_nest_costs_no_multiple_for_every_level(work: Callable[[str], object], kind: str) -> None:
    def nest(levels: int) -> str:
        text = f'ce.type == "{work.__name__}"'  # of no test before, which would be remembered
        for level in range(levels):
            text = NESTS[kind](level, text)
        return text

    deep, flat = nest(8), nest(4)
    work("true")
    assert calls(lambda: work(deep)) < 8 * calls(lambda: work(flat))


def test_what_nests_deeper_than_a_message_may_is_refused() -> None:
    text = "1"
    for level in range(14):
        text = f"[1].map(x{level}, {text}).size()"
    with pytest.raises(FilterError, match="FILTER_DEPTH_MAX"):
        compile_cel(f"{text} == 1")
