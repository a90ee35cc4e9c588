"""Is a trace context taken for what it is, and left alone where the producer has set it?"""

from __future__ import annotations

import pytest

from headgate.event.trace import context, context_of, with_context
from headgate_api.event.model import Event

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EVENT = Event("1.0", "1", "/s", "t")


@pytest.mark.parametrize(
    "bad",
    [
        None,
        1,
        "",
        GOOD[:-1],
        GOOD.upper(),
        "ff" + GOOD[2:],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        GOOD + "\n",
        " " + GOOD,
        GOOD + "-" + "x" * 600,
    ],
)
def test_what_is_no_context_is_none(bad: object) -> None:
    assert context(bad, "a=b") == {}


def test_a_context_and_its_state() -> None:
    assert context(GOOD, None) == {"traceparent": GOOD}
    assert context(GOOD, "a=b") == {"traceparent": GOOD, "tracestate": "a=b"}
    assert context(GOOD, "x" * 513) == {"traceparent": GOOD}, "too long a state is dropped, the trace goes on"
    assert context(GOOD, "a=\tb") == {"traceparent": GOOD}, "no attribute may have a tab"
    assert context("01" + GOOD[2:] + "-what-may-come", "") == {"traceparent": "01" + GOOD[2:] + "-what-may-come"}


def test_a_producers_own_extension_stays() -> None:
    trace = context(GOOD, "a=b")
    added = with_context(EVENT, trace)
    assert added.extensions == trace
    assert context_of(added) == trace
    own = Event("1.0", "1", "/s", "t", extensions={"traceparent": GOOD.replace("b7", "c7")})
    assert with_context(own, trace) is own
    assert with_context(EVENT, {}) is EVENT
    assert EVENT.extensions == {}
